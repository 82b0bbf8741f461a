"""Keys of a recipe that change weights: fine-tuning in float, and quantization-aware training (QAT)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from octobert.core.frozen import Count, FrozenModel


class Distill(FrozenModel):
    """Distillation: the loss also compares the model with a teacher.

    Args:
        teacher: Checkpoint of the teacher, trained for the same task. Default with `qat`, and with `finetune.layers`: the model
            that training starts from, with all of its layers.
        share: Weight of the teacher's loss, from 0 to 1. With 1, training needs no labels.
        temperature: Temperature of the logits.
        hidden: Weight of the mean squared difference of hidden states, over all layers. The teacher must have the same sizes.
            With `finetune.layers`, each layer is compared with the teacher's layer that it was, the last one with the last.
    """

    teacher: str | None = None
    share: float = Field(default=0.5, ge=0, le=1)
    temperature: float = Field(default=2.0, gt=0)
    hidden: float = Field(default=0.0, ge=0)


class TrainingSettings(FrozenModel):
    """Settings of every training with the Trainer of transformers.

    Args:
        epochs: Passes over the training rows.
        learning_rate: Peak learning rate.
        batch: Batch size over all processes.
        accumulate: Gradient accumulation steps.
        warmup: Fraction of the training steps with a rising learning rate.
        schedule: Learning rate schedule after the warm-up.
        weight_decay: Weight decay of AdamW.
        precision: Precision of the computation. Weights stay float32. `float16` scales the loss and needs a GPU.
        dropout: Use the model's dropout rates. Otherwise no dropout.
        distill: Distillation from a teacher.
        code: `file.py:function` that trains instead of the Trainer. Needs `--allow-code`.
    """

    epochs: float = Field(default=2.0, ge=0)
    learning_rate: float = Field(default=5e-5, gt=0)
    batch: Count = 16
    accumulate: Count = 1
    warmup: float = Field(default=0.1, ge=0, lt=1)
    schedule: Literal["linear", "cosine", "constant_with_warmup"] = "linear"
    weight_decay: float = Field(default=0.01, ge=0)
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    dropout: bool = True
    distill: Distill | None = None
    code: str | None = None


class Finetune(TrainingSettings):
    """Fine-tuning in float, before everything else.

    Args:
        epochs: Passes over the training rows. 0 creates a new head and does not train it.
        layers: Encoder layers of the model that are kept: a number of them, evenly chosen, with the first and the last; or
            their indices from 0, ascending. Default: all.
    """

    layers: Count | tuple[NonNegativeInt, ...] | None = None

    @field_validator("layers", mode="before")
    @classmethod
    def _number_or_indices(cls, value: Any) -> Any:
        numbers = value if isinstance(value, list | tuple) else (value,)
        if value is None or (numbers is not value and type(value) is int and value > 0):
            return value
        indices = numbers is value and all(
            type(number) is int and number >= 0 for number in numbers
        )
        if not indices or not numbers or list(numbers) != sorted(set(numbers)):
            raise ValueError(
                "a number from 1, or the indices of the layers that are kept, each once and ascending: [0, 2, 5]"
            )
        return value


class Qat(TrainingSettings):
    """Quantization-aware training: the forward pass rounds values as the plan does. Ranges start at the calibrated ones.

    Args:
        epochs: Passes over the training rows.
        ranges: How activation ranges change. `moving-average`: they follow the values of each batch. `learned`: activation and
            weight ranges are trained by gradients (LSQ). `fixed`: they stay as calibrated. Unless `learned`, weight ranges
            follow the weights.
        keep: Percentage of a batch's values inside an observed range. 100: minimum and maximum.
        average: Update rate of the moving average.
        observe: Fraction of the training steps at the start that observe ranges and do not round.
        freeze: Fraction of the training steps after which observed ranges are frozen.
        range_rate: Learning rate of learned ranges, in the logarithm of their bounds.
        trained: Folder of a finished training, written by `finish()` of `octobert.attach`; nothing is trained.
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
    # At this rate a few hundred steps can halve a range. A tenth of it hardly changes ranges in a short training.
    range_rate: float = Field(default=1e-2, gt=0)
    trained: str | None = None

    @model_validator(mode="after")
    def _order(self) -> Qat:
        if self.ranges == "moving-average" and self.freeze < self.observe:
            raise ValueError("freeze must not be smaller than observe")
        if self.trained is not None and (self.code is not None or self.distill is not None):
            raise ValueError(
                "trained names a finished training, so there is nothing for code or distill to train"
            )
        return self


class Training(FrozenModel):
    """How training runs. Results depend on these settings only through the order of floating-point sums.

    Args:
        processes: Processes on each machine.
        machines: Number of machines. Start the same command on each.
        rendezvous: `host:port` of one of the machines, where all processes connect. Not in a recipe file: it can run code.
        checkpoint_minutes: Minutes between checkpoints of the training state.
        tensorboard: Folder for TensorBoard event files. Not in a recipe file.
    """

    processes: int = Field(default=1, gt=0, le=1024)
    machines: int = Field(default=1, gt=0, le=1024)
    rendezvous: str | None = None
    checkpoint_minutes: float = Field(default=5.0, gt=0)
    tensorboard: str | None = None

    @model_validator(mode="after")
    def _meeting(self) -> Training:
        if self.machines > 1 and self.rendezvous is None:
            raise ValueError("several machines need a rendezvous, such as host:29500")
        return self
