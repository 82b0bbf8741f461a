"""Every site: inputs of products and outputs of all parts, for units that compute in integers only.

Scale, mask and the inside of GELU have no sites: such a unit computes them in 16-bit float.
"""

from octobert.core.plan import WHOLE, Placement

PLACEMENT = Placement(
    description="inputs, weights and outputs of everything: linear layers, attention, residual adds, norms, heads",
    kinds=WHOLE,
)
