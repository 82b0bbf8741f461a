"""Train the model of a job, in float or with fake quantization, with the Trainer of transformers or code of the user.

An interrupted training resumes from its last checkpoint in `scratch`. A loss that is not a number stops it. In distributed
training, every process runs the same function.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from octobert.core import environment, user_code
from octobert.core.errors import DataError, ModelError
from octobert.core.evidence import Curve
from octobert.core.processes import is_first
from octobert.models.checkpoint import inputs_of
from octobert.training.distributed import world_size
from octobert.training.job import (
    Job,
    check_same_training,
    collate,
    last_checkpoint,
    non_finite_weight,
)

if TYPE_CHECKING:
    import transformers


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Args:
        facts: number of steps, mean loss of the last tenth of them, and median seconds of a step in this process; empty for
            code of the user.
        curve: loss and learning rate of every step, those before an interruption too; None where no step is known.
    """

    facts: dict[str, float]
    curve: Curve | None = None


def train(job: Job) -> Trained:
    """Train the model of a job in place.

    Raises:
        DataError: there are fewer rows than processes.
        ModelError: accelerate is missing, the loss is not a number, or `scratch` holds checkpoints of another training.
        RecipeError: the training function of the user does not exist, or failed.
    """
    rows = len(job.rows.encoded)
    if rows < world_size():
        raise DataError(
            "there are fewer training rows than processes",
            where="training.processes",
            got=f"{rows} rows",
        )
    if job.settings.epochs == 0:
        return Trained({"steps": 0, "loss": 0.0, "step_seconds": 0.0})
    check_same_training(job)
    # By default, transformers saves in the first process of all. Machines share no disk, so the first of each machine saves.
    job.model.should_save_on_this_rank = _saves_here
    if job.settings.code is None:
        return _train_with_trainer(job)
    _train_with_code(job)
    return Trained({})


def _saves_here(is_main_process: bool) -> bool:
    return is_main_process and is_first()


def _train_with_trainer(job: Job) -> Trained:
    import transformers

    from octobert.training.hf_trainer import JobCallback, JobTrainer, tensorboard_callbacks

    logging.getLogger("transformers").setLevel(logging.ERROR)
    output, accepted = job.scratch / "trainer", inputs_of(job.model)
    pairs = zip(job.rows.encoded, job.rows.targets, strict=True)
    examples = [{"input_ids": row.ids, "row": row, "targets": targets} for row, targets in pairs]
    try:
        # The Trainer works through it. It is named here because keys hold the versions of what octobert's files import.
        import accelerate  # noqa: F401

        arguments = _arguments(job, output)
    except ImportError as error:
        raise ModelError("training needs accelerate", fix=environment.install("train")) from error
    callback = JobCallback(job)
    trainer = JobTrainer(
        job,
        model=job.model,
        args=arguments,
        train_dataset=examples,
        data_collator=lambda batch: collate(batch, job.rows.pad_id, accepted),
        callbacks=[callback, *tensorboard_callbacks(job.how)],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=last_checkpoint(output))
    # The history is part of the checkpoints, so it has the steps before an interruption too.
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    losses = tuple(float(entry["loss"]) for entry in logged)
    values = {
        "loss": losses,
        "learning rate": tuple(float(entry["learning_rate"]) for entry in logged),
    }
    steps = tuple(int(entry["step"]) for entry in logged)
    last_losses = losses[-max(1, len(losses) // 10) :]
    seconds = float(np.median(callback.seconds)) if callback.seconds else 0.0
    facts = {
        "steps": trainer.state.global_step,
        "loss": float(np.mean(last_losses)),
        "step_seconds": seconds,
    }
    return Trained(facts, Curve(name=job.key, steps=steps, values=values))


def _arguments(job: Job, output: Path) -> transformers.TrainingArguments:
    import torch
    import transformers

    settings = job.settings
    return transformers.TrainingArguments(
        output_dir=str(output),
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        per_device_train_batch_size=settings.batch // world_size(),
        gradient_accumulation_steps=settings.accumulate,
        warmup_steps=settings.warmup,
        lr_scheduler_type=settings.schedule,
        weight_decay=settings.weight_decay,
        bf16=settings.precision == "bfloat16",
        fp16=settings.precision == "float16",
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
        save_strategy="no",
        save_total_limit=2,
        save_on_each_node=True,
        logging_steps=1,
        # With the filter, a loss that is not a number is logged as 0.
        logging_nan_inf_filter=False,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
        seed=job.seed,
    )


def _train_with_code(job: Job) -> None:
    """Train with a function of the user, which the recipe has allowed."""
    import torch

    train_model = user_code.load(user_code.at(str(job.settings.code), "train", where="code"))
    torch.manual_seed(job.seed)
    job.model.train()
    train_model(job)
    weight = non_finite_weight(job.model)
    if weight is not None:
        raise ModelError(
            "after training by code, weights are not numbers",
            where=weight,
            fix="lower the learning rate of the code",
        )
