"""The Trainer of transformers for a job: order of rows, loss of a teacher, learning rate of ranges, checkpoints by time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from octobert.config.training import Qat, Training
from octobert.core.errors import ModelError
from octobert.core.processes import is_first
from octobert.training.distributed import decision_of_first, rank, wait_for_all
from octobert.training.job import (
    Job,
    last_checkpoint,
    mark_complete,
    non_finite_weight,
    row_order,
)


class RowSampler(torch.utils.data.Sampler[int]):
    """Draws rows in the order of `row_order`."""

    def __init__(self, job: Job) -> None:
        self._lengths = np.array([len(row) for row in job.rows.encoded])
        self._batch, self._seed, self._epoch = job.settings.batch, job.seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch; called by transformers and accelerate."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._lengths)

    def __iter__(self) -> Iterator[int]:
        return iter(row_order(self._lengths, self._batch, self._seed, self._epoch).tolist())


class JobTrainer(transformers.Trainer):
    """Trainer of a job.

    Args:
        job: the training.
        **arguments: arguments of `transformers.Trainer`.
    """

    def __init__(self, job: Job, **arguments: Any) -> None:
        self._job = job
        super().__init__(**arguments)
        if job.teacher is not None:
            # The loss of the teacher is a mean over the batch, so the loss of the labels has to be a mean too.
            self.model_accepts_loss_kwargs, self.loss_is_scaled_for_ga = False, False

    def _get_train_sampler(self, train_dataset: Any = None) -> RowSampler:
        return RowSampler(self._job)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss of a batch: of the labels, of the teacher, or the weighted sum of both."""
        teacher = self._job.teacher
        if teacher is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        share = teacher.settings.share
        outputs = model(**inputs, output_hidden_states=teacher.settings.hidden > 0)
        loss = share * teacher.loss(outputs, inputs)
        if share < 1:
            loss = loss + (1 - share) * outputs.loss
        return (loss, outputs) if return_outputs else loss

    def create_optimizer(self, model: Any = None) -> Any:
        """Return the optimizer; learned ranges have their own learning rate and no weight decay."""
        optimizer = super().create_optimizer(model)
        settings = self._job.settings
        ends = [
            p
            for n, p in self._job.model.named_parameters()
            if n.rpartition(".")[2].startswith("log_")
        ]
        if isinstance(settings, Qat) and settings.ranges == "learned" and ends:
            ids = set(map(id, ends))
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in ids]
            optimizer.add_param_group(
                {"params": ends, "lr": settings.range_rate, "weight_decay": 0.0}
            )
        return optimizer


class JobCallback(transformers.TrainerCallback):
    """Reports progress, saves checkpoints by time, stops at a loss that is not a number, and schedules fake quantization.

    Attributes:
        seconds: duration of each step.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.seconds: list[float] = []
        self._saved = self._started = time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Turn observers and fake quantization on or off."""
        self._started = time.monotonic()
        simulation, settings = self._job.simulation, self._job.settings
        if simulation is not None and isinstance(settings, Qat):
            share = state.global_step / max(1, state.max_steps)
            observes = settings.ranges == "moving-average" or share < settings.observe
            simulation.observing = observes and share < max(settings.freeze, settings.observe)
            simulation.quantizing = share >= settings.observe

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Check the loss.

        Raises:
            ModelError: the loss is not a number.
        """
        loss = (logs or {}).get("loss")
        if loss is None:
            return
        if not math.isfinite(float(loss)):
            last = last_checkpoint(Path(args.output_dir))
            low = self._job.settings.precision != "float32"
            raise ModelError(
                "the training loss is not a number",
                where=f"step {state.global_step} of {state.max_steps}",
                got=f"{loss}; the last good checkpoint is {last}" if last else str(loss),
                fix=f"lower {self._job.key}.learning_rate"
                + (", or train in float32" if low else ""),
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint as complete."""
        # Other processes write files of their own into it.
        wait_for_all()
        # Weights that are not numbers show only in the loss of the next step; a checkpoint with them is of no use.
        if is_first() and non_finite_weight(self._job.model) is None:
            mark_complete(Path(args.output_dir), state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the step, and save a checkpoint if it is time."""
        self.seconds.append(time.monotonic() - self._started)
        if self._job.on_step:
            self._job.on_step(state.global_step, state.max_steps)
        # None at the last step: a training that resumes then runs a step, at which transformers completes the config.
        due = state.global_step < state.max_steps
        # All processes have to save at the same step.
        if due and decision_of_first(
            time.monotonic() - self._saved > self._job.how.checkpoint_minutes * 60
        ):
            control.should_save, self._saved = True, time.monotonic()


def tensorboard_callbacks(how: Training) -> list[Any]:
    """Return the callback that writes TensorBoard event files; none without `training.tensorboard`.

    Raises:
        ModelError: TensorBoard is not installed.
    """
    if how.tensorboard is None or rank() > 0:
        return []
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ModelError(
            "TensorBoard is not installed",
            where="training.tensorboard",
            fix="pip install tensorboard",
        ) from error
    from transformers.integrations.integration_utils import TensorBoardCallback

    return [TensorBoardCallback(SummaryWriter(how.tensorboard))]  # type: ignore[no-untyped-call]
