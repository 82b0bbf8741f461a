"""Every value that a site can hold: what enters products, and what leaves every part, for units that compute in integers only.

Scale, mask and the inside of GELU have no sites; the unit computes them in 16-bit float between its integers.
"""

from octobert.core.placement import Placement
from octobert.core.plan import WHOLE

PLACEMENT = Placement(
    description="inputs, weights and outputs of everything: linear layers, attention, residual adds, norms, heads",
    kinds=WHOLE,
)
