"""Fine-tuning of a base encoder for a task, on transformers' Trainer: rows and what each should give, to a checkpoint.

Interrupted training goes on from its last checkpoint in `scratch`. A loss that is not a number ends it at once.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octobert.errors import ModelError
from octobert.graph import checkpoint
from octobert.recipe import Finetune
from octobert.texts import Encoded, feeds_of

Targets = Sequence[dict[str, Any]]
# What torch's cross entropy leaves out of the loss.
_IGNORED = -100
# Written into a checkpoint last.
_WHOLE = "whole"


def finetune(
    base: Path,
    head: str,
    labels: Sequence[str],
    rows: Sequence[Encoded],
    targets: Targets,
    settings: Finetune,
    folder: Path,
    *,
    pad_id: int,
    seed: int,
    scratch: Path,
    allow_pickle: bool = False,
    on_step: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Train, and write the model into `folder`.

    Args:
        labels: class names, where the head has classes.
        targets: for each row, arguments of the model's forward beside the row itself.
        scratch: folder for checkpoints of an interrupted training.
        on_step: called with (step, of).

    Returns:
        steps, and the mean loss of the last tenth of them.

    Raises:
        ModelError: the base cannot be loaded, accelerate is missing, or the loss became NaN.
    """
    torch_model = checkpoint.load_base(base, head, labels, allow_pickle=allow_pickle, seed=seed)
    import torch
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    accepted, output = checkpoint.inputs_of(torch_model), scratch / "trainer"
    examples = [{"input_ids": row.ids, "row": row, "targets": own} for row, own in zip(rows, targets, strict=True)]
    try:
        arguments = transformers.TrainingArguments(
            output_dir=str(output),
            num_train_epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            per_device_train_batch_size=settings.batch,
            gradient_accumulation_steps=settings.accumulate,
            warmup_steps=settings.warmup,
            lr_scheduler_type=settings.schedule,
            weight_decay=settings.weight_decay,
            bf16=settings.precision == "bfloat16",
            use_cpu=not torch.cuda.is_available(),
            # Rows of similar length together: padding is work for nothing.
            train_sampling_strategy="group_by_length",
            remove_unused_columns=False,
            save_strategy="no",
            save_total_limit=2,
            logging_steps=1,
            # Otherwise a loss that is not a number is logged as 0.
            logging_nan_inf_filter=False,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=seed,
        )
    except ImportError as error:
        raise ModelError("fine-tuning needs accelerate", fix="pip install 'octobert[train]'") from error
    watch = _watch(settings, on_step)
    trainer = transformers.Trainer(
        model=torch_model,
        args=arguments,
        train_dataset=examples,  # type: ignore[arg-type]
        data_collator=lambda batch: collate(batch, pad_id, accepted),
        callbacks=[watch],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=_last_checkpoint(output))
    torch_model.save_pretrained(folder)
    tail = watch.losses[-max(1, len(watch.losses) // 10) :]
    return {"steps": trainer.state.global_step, "loss": float(np.mean(tail))}


def _last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written whole; whatever was cut short is removed."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    for path in found:
        if not (path / _WHOLE).is_file():
            shutil.rmtree(path)
    whole = [path for path in found if path.is_dir()]
    return str(whole[-1]) if whole else None


def collate(batch: Sequence[dict[str, Any]], pad_id: int, accepted: Sequence[str]) -> dict[str, Any]:
    """Rows and their targets as tensors: [B, S] padded on the right, targets [B], or [B, S] padded with -100."""
    import torch

    feeds = feeds_of([one["row"] for one in batch], pad_id)
    width = feeds["input_ids"].shape[1]
    found = {name: array for name, array in feeds.items() if name in accepted}
    for name in batch[0]["targets"]:
        values = [one["targets"][name] for one in batch]
        if isinstance(values[0], np.ndarray):
            values = [np.pad(v, (0, width - len(v)), constant_values=_IGNORED) for v in values]
        found[name] = np.array(values, dtype=np.int64)
    return {name: torch.from_numpy(array) for name, array in found.items()}


def _watch(settings: Finetune, on_step: Callable[[int, int], None] | None) -> Any:
    """A callback that reports progress, saves by the clock, and stops at a loss that is not a number."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.saved = time.monotonic()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            loss = (logs or {}).get("loss")
            if loss is None:
                return
            if not math.isfinite(float(loss)):
                raise ModelError(
                    "the training loss is not a number",
                    where=f"step {state.global_step} of {state.max_steps}",
                    got=str(loss),
                    fix="lower finetune.learning_rate, or train in float32",
                )
            self.losses.append(float(loss))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _WHOLE).touch()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if on_step:
                on_step(state.global_step, state.max_steps)
            if time.monotonic() - self.saved > settings.checkpoint_minutes * 60:
                control.should_save, self.saved = True, time.monotonic()

    return Watch()
