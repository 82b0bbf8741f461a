"""`Placement`: which kinds of sites a plan quantizes. Users can also write one in a recipe."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.plan import ATTENTION, HEAD, OUTPUTS, RESIDUAL, Site


class Placement(FrozenModel):
    """The kinds of sites to quantize.

    Args:
        description: one line for people.
        kinds: patterns of `role` or `role@part` (`plan.ROLES`, `family.LAYER_PARTS`), such as `linear.*@ffn_*`.
        because: role that stays float → reason, for the plan and the report.
    """

    description: str
    kinds: tuple[str, ...]
    because: dict[str, str] = Field(default_factory=dict)

    def takes(self, site: Site) -> bool:
        """Whether the placement quantizes a site."""
        return any(
            fnmatchcase(site.kind if "@" in kind else site.role, kind) for kind in self.kinds
        )

    def why_not(self, site: Site, name: str) -> str:
        """Return the reason why a site stays float.

        Args:
            name: of the placement.
        """
        return self.because.get(site.role, f"not in placement {name}")


HEAD_FLOAT = dict.fromkeys(HEAD, "heads and poolers are small, and their output is the answer")
RESIDUAL_FLOAT = dict.fromkeys(
    RESIDUAL, "residual adds carry outliers, and run fused with LayerNorm in float"
)
ATTENTION_FLOAT = dict.fromkeys(
    ATTENTION, "attention products are a small share of the work, and 8 bits save no time on CPUs"
)
OUTPUTS_FLOAT = dict.fromkeys(OUTPUTS, "outputs stay float; their readers quantize them")
