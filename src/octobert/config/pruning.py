"""Structured pruning after training: keys of a recipe."""

from __future__ import annotations

from typing import Any

from pydantic import Field, PositiveInt, model_validator

from octobert.config.choosing import Limit
from octobert.core.frozen import FrozenModel


class Recover(FrozenModel):
    """Training of the pruned model towards the outputs of the whole model. It needs no labels.

    Args:
        epochs: Passes over the training rows.
        learning_rate: Peak learning rate.
        batch: Batch size.
        temperature: Temperature of the logits.
        hidden: Weight of the mean squared difference of the last hidden states.
        samples: Number of training rows. Default: all.
    """

    epochs: float = Field(default=1.0, gt=0)
    # Fitting leaves little to gain: at 5e-5, the rate of fine-tuning, the loss of a MiniLM rose (docs/evidence/training.md).
    learning_rate: float = Field(default=1e-5, gt=0)
    batch: PositiveInt = 16
    temperature: float = Field(default=2.0, gt=0)
    hidden: float = Field(default=1.0, ge=0)
    samples: PositiveInt | None = None


class Prune(FrozenModel):
    """Structured pruning: attention heads and neurons of feed-forward layers are removed, the rest is fitted to the outputs of
    the whole model. No training, a few minutes. `prune: 1.3` stands for `prune: {speedup: 1.3}`.

    Args:
        speedup: How many times faster than the whole model in 8 bits the pruned one is to be, at the lengths of the rows.
        max_drop: Largest accepted drop of the metric on the tuning rows; 0.01 is one point. Of the models that keep it the
            fastest is taken, or the whole model where none does. Default without `speedup`: 0.01.
        relative: `max_drop` is a fraction of the whole model's metric.
        target: Target whose 8-bit kernels are timed. Default: the first of the recipe's targets that runs here.
        tokens: Tokens of calibration and training rows that the weights are fitted to.
        damping: Added to the energy of each channel, as a share of the mean energy; limits the effect of chance correlations.
        recover: Training after pruning.
    """

    speedup: float | None = Field(default=None, gt=1, le=10)
    max_drop: float | None = Field(default=None, ge=0)
    relative: bool = False
    target: str | None = None
    tokens: int = Field(default=50_000, ge=1_000)
    damping: float = Field(default=0.01, gt=0, le=10)
    recover: Recover | None = None

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What the pruned model must keep."""
        return (
            ()
            if self.max_drop is None
            else (Limit(max_drop=self.max_drop, relative=self.relative),)
        )

    @model_validator(mode="before")
    @classmethod
    def _some_goal(cls, raw: Any) -> Any:
        if isinstance(raw, int | float) and not isinstance(raw, bool):
            return {"speedup": raw}
        given = isinstance(raw, dict) and any(
            raw.get(key) is not None for key in ("speedup", "max_drop")
        )
        return {**raw, "max_drop": 0.01} if isinstance(raw, dict) and not given else raw
