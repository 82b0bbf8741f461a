"""Settings of training, in float and with 8 bits in mind: parts of the recipe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from octobert.core.frozen import FrozenModel


class Distill(FrozenModel):
    """A teacher that a model in training follows, beside what the rows say.

    Args:
        teacher: checkpoint for the same task; with `qat`, when absent, the float model that it begins from.
        share: of the loss that is the teacher's; 1 needs no labels.
        temperature: that logits are divided by before they are compared.
        hidden: weight of the hidden states' difference, of all layers; needs a teacher of the same sizes.
    """

    teacher: str | None = None
    share: float = Field(default=0.5, ge=0, le=1)
    temperature: float = Field(default=2.0, gt=0)
    hidden: float = Field(default=0.0, ge=0)


class Finetune(FrozenModel):
    """How a model is trained for the task before anything else happens, by transformers' Trainer.

    Args:
        epochs: passes over the training rows; 0 for a head that is new and untrained.
        learning_rate: at its highest.
        batch: rows of a step, of all processes together.
        accumulate: steps whose gradients are added up.
        warmup: share of all steps in which the rate rises.
        schedule: how it falls.
        weight_decay: AdamW's.
        precision: of the arithmetic; weights stay float32.
        dropout: with the model's own dropout; otherwise with none anywhere.
        distill: a teacher.
        code: `file.py:function` that trains instead of the Trainer; needs `allow_code`.
    """

    epochs: float = Field(default=2.0, ge=0)
    learning_rate: float = Field(default=5e-5, gt=0)
    batch: PositiveInt = 16
    accumulate: PositiveInt = 1
    warmup: float = Field(default=0.1, ge=0, lt=1)
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    weight_decay: float = Field(default=0.01, ge=0)
    precision: Literal["float32", "bfloat16"] = "float32"
    dropout: bool = True
    distill: Distill | None = None
    code: str | None = None


class Qat(Finetune):
    """How a float model is trained on with its values rounded as the plan says; the ranges begin as calibrated.

    Args:
        ranges: `moving-average` follows what batches have in them; `learned` has gradients for the ends of activations' and
            weights' ranges (LSQ); `fixed` keeps activations' as they are calibrated. Weights' ranges follow the weights, unless
            they are learned.
        keep: percentage of a batch's values that an observed range holds; 100 is minimum and maximum.
        average: share of the way to a batch's range that a moving average goes.
        observe: share of all steps before anything is rounded, in which ranges are only observed.
        freeze: share of all steps after which observed ranges stay as they are.
        range_rate: learning rate of learned ranges, of the logarithm of their ends.
    """

    epochs: float = Field(default=1.0, gt=0)
    learning_rate: float = Field(default=2e-5, gt=0)
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "cosine"
    dropout: bool = False
    ranges: Literal["moving-average", "learned", "fixed"] = "moving-average"
    keep: float = Field(default=100.0, gt=50, le=100)
    average: float = Field(default=0.01, gt=0, le=1)
    observe: float = Field(default=0.0, ge=0, lt=1)
    freeze: float = Field(default=0.5, ge=0, le=1)
    # A few hundred steps shrink a range by half, where that helps; a tenth of this hardly moves it in a short training.
    range_rate: float = Field(default=1e-2, gt=0)

    @model_validator(mode="after")
    def _order(self) -> Qat:
        if self.ranges == "moving-average" and self.freeze < self.observe:
            raise ValueError("freeze must not come before observe ends")
        return self


class Training(FrozenModel):
    """How training is carried out: nothing here changes what is trained, beyond the order in which numbers are added up.

    Args:
        processes: on this machine.
        machines: on each of which the same command is started.
        rendezvous: `host:port` of one of them, where they meet.
        checkpoint_minutes: how much work an interruption may cost.
        tensorboard: folder for TensorBoard's event files.
    """

    processes: PositiveInt = 1
    machines: PositiveInt = 1
    rendezvous: str | None = None
    checkpoint_minutes: float = Field(default=5.0, gt=0)
    tensorboard: str | None = None

    @model_validator(mode="after")
    def _meeting(self) -> Training:
        if self.machines > 1 and self.rendezvous is None:
            raise ValueError("several machines need a rendezvous, such as host:29500")
        return self
