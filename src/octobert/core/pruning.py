"""Records of structured pruning: the structures of a graph, the levels that were tried, and what was removed."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from octobert.core.estimate import Estimate
from octobert.core.frozen import FrozenModel

SublayerKind = Literal["attention", "ffn"]


class Sublayer(FrozenModel):
    """An attention or a feed-forward of an encoder layer, whose heads or neurons can be removed.

    Args:
        layer: index of the encoder layer.
        kind: what it is.
        module: module path of its output projection: the linear layer that writes to the residual path.
        units: heads, or neurons.
        width: input channels of the output projection per unit: the size of a head, 1 for a neuron.
    """

    layer: int
    kind: SublayerKind
    module: str
    units: int
    width: int


class LeftWhole(FrozenModel):
    """A part of a graph that cannot be pruned.

    Args:
        module: its module path.
        reason: why, in words.
    """

    module: str
    reason: str


class PrunedSublayer(FrozenModel):
    """The units that a sublayer kept.

    Args:
        sublayer: as it was.
        kept: units that are left; 0 where only its bias is left.
        error: mean squared error of its output after the removal, as a share of its mean square.
        refitted: the same after refitting, with the inputs that the pruned layers before it give.
        loss: estimated loss of the model by this removal alone: KL divergence of the outputs, in nats per row.
    """

    sublayer: Sublayer
    kept: int
    error: float
    refitted: float | None
    loss: float


class Recovery(FrozenModel):
    """Training of a pruned model towards the outputs of the whole one.

    Args:
        rows: that it was trained on.
        before: loss on rows that were held out, before the training.
        after: the same after it.
        kept: whether the model has the trained weights: only where the loss has fallen.
    """

    rows: int
    before: float
    after: float
    kept: bool


class PrunedModel(FrozenModel):
    """One pruned model that was tried.

    Args:
        speedup: measured in 8 bits, in turn with the whole model.
        predicted: speedup by the times of the levels; a correction of the budget makes it differ from what was asked for.
        loss: KL divergence of its outputs on rows that weights were fitted to, in nats per row.
        rows: tuning rows that it was judged on; fewer than all where these showed that it drops too much.
        metric: on these rows, in float.
        drop: of the metric, from the whole model.
        sublayers: what each kept.
        recovery: how its training went; None where it was not trained.
    """

    speedup: Estimate
    predicted: float
    loss: float
    rows: int
    metric: float
    drop: Estimate
    sublayers: tuple[PrunedSublayer, ...]
    recovery: Recovery | None = None


class LevelTimes(FrozenModel):
    """Times of a model in 8 bits in which every layer has one sublayer at a level.

    Args:
        kind: of the sublayers.
        units: left, ascending; 0 stands for a sublayer that is gone.
        ms: milliseconds of one sublayer at each of these.
        last: those of a sublayer of the last layer, as a share: less than 1 where its output is read of the first token only.
    """

    kind: SublayerKind
    units: tuple[int, ...]
    ms: tuple[float, ...]
    last: float = 1.0


class PruningFacts(FrozenModel):
    """`pruning.json`: how a model was pruned.

    Args:
        target: whose 8-bit kernels were timed.
        lengths: tokens of the rows that were timed.
        threads: of one inference; 0 for the runtime's default.
        tokens: that the weights were fitted to.
        whole_ms: milliseconds of the whole model in 8 bits, mean over the lengths.
        times: of the levels.
        metric: name of the metric on the tuning rows.
        whole: its value for the whole model.
        tried: models, by speedup.
        chosen: index in `tried`; None where the model was left whole.
        reason: why this one, in words.
        left: parts that cannot be pruned.
        seconds: by step: `moments`, `times`, `losses`, `measuring` (speedups of models), `fitting`, `judging`,
            `recovering`.
    """

    target: str
    lengths: tuple[int, ...]
    threads: int = 0
    tokens: int
    whole_ms: float
    times: tuple[LevelTimes, ...]
    metric: str
    whole: float
    tried: tuple[PrunedModel, ...]
    chosen: int | None
    reason: str
    left: tuple[LeftWhole, ...] = ()
    seconds: dict[str, float] = Field(default_factory=dict)

    @property
    def taken(self) -> PrunedModel | None:
        """The chosen model."""
        return None if self.chosen is None else self.tried[self.chosen]
