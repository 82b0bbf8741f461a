"""The Placement noun: which kinds of sites a plan quantizes, as data that can be printed, and written by users too."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.plan import ATTENTION, HEAD, OUTPUTS, RESIDUAL, Site


class Placement(FrozenModel):
    """A choice of kinds of sites.

    Args:
        description: one line for people.
        kinds: patterns of `role` or `role@part` (`plan.ROLES`, `encoder.LAYER_PARTS`), such as `linear.*@ffn_*`.
        because: role that stays float → why, for the plan and the report.
    """

    description: str
    kinds: tuple[str, ...]
    because: dict[str, str] = Field(default_factory=dict)

    def takes(self, site: Site) -> bool:
        """Whether a site is quantized."""
        return any(fnmatchcase(site.kind if "@" in kind else site.role, kind) for kind in self.kinds)

    def why_not(self, site: Site, name: str) -> str:
        """Why a site that is not taken stays float."""
        return self.because.get(site.role, f"not in placement {name}")


HEAD_FLOAT = dict.fromkeys(HEAD, "heads and poolers are small, and the answer is read from them")
RESIDUAL_FLOAT = dict.fromkeys(
    RESIDUAL, "residual adds carry the outliers of the stream, and run fused with LayerNorm in float"
)
ATTENTION_FLOAT = dict.fromkeys(
    ATTENTION, "attention products are a small share of the work, and 8 bits gain no time on CPUs here"
)
OUTPUTS_FLOAT = dict.fromkeys(OUTPUTS, "outputs stay float; their readers quantize what they need")
