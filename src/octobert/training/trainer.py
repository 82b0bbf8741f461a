"""Training on transformers' Trainer: rows and what each should give, in float or with values rounded as a plan says.

Interrupted training goes on from its last checkpoint in `scratch`. A loss that is not a number ends it at once. In distributed
training, the same function runs in every process.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octobert.config.training import Finetune, Qat, Training
from octobert.core.errors import DataError, ModelError, RecipeError
from octobert.core.files import atomic_write
from octobert.data.tokenization import Encoded, feeds_of
from octobert.models import checkpoint

if TYPE_CHECKING:
    from octobert.training.distillation import Teacher
    from octobert.training.simulation import Simulation

# What torch's cross entropy leaves out of the loss.
_IGNORED = -100
# Written into a checkpoint last.
_WHOLE = "whole"
# So many batches of rows are sorted by length together.
_SORTED_BATCHES = 50
_IDENTITY = "identity.json"


@dataclass(frozen=True)
class Rows:
    """What is learned from.

    Args:
        encoded: rows of tokens.
        targets: for each row, arguments of the model's forward beside the row itself; none where only a teacher is followed.
        pad_id: of the tokenizer.
    """

    encoded: Sequence[Encoded]
    targets: Sequence[dict[str, Any]]
    pad_id: int


@dataclass(frozen=True)
class Job:
    """One training: what a training function of the user's is given.

    Args:
        model: PyTorch, of transformers, to be trained in place; with `simulation`, it computes in simulated 8 bits.
        rows: what it learns from; `batches` makes tensors of them.
        settings: of the recipe.
        how: it is carried out.
        seed: for every random choice.
        scratch: folder for checkpoints.
        simulation: of quantization, None in float.
        teacher: None without one.
        identity: what the training depends on; an interrupted one goes on only if it was the same.
        on_step: to be called with (step, of).
    """

    model: Any
    rows: Rows
    settings: Finetune
    how: Training
    seed: int
    scratch: Path
    simulation: Simulation | None = None
    teacher: Teacher | None = None
    identity: str = ""
    on_step: Callable[[int, int], None] | None = None

    def batches(self, epoch: int = 0) -> list[dict[str, Any]]:
        """All rows once, in an order of the epoch's own, as arguments of the model's forward; the rows are shared out evenly
        among the processes of a distributed training."""
        accepted, size = checkpoint.inputs_of(self.model), self.settings.batch // _world()
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.rows.encoded))
        even = order[: len(order) - len(order) % _world()] if _world() > 1 else order
        mine = even[_rank() :: _world()]
        parts = [mine[start : start + size] for start in range(0, len(mine), size)]
        examples = [[{"row": self.rows.encoded[i], "targets": self.rows.targets[i]} for i in part] for part in parts]
        return [collate(part, self.rows.pad_id, accepted) for part in examples]


def train(job: Job) -> dict[str, float]:
    """Train the model of a job in place.

    Returns:
        steps, the mean loss of the last tenth of them, and seconds of a step (median of those of this process).

    Raises:
        ModelError: accelerate is missing, the loss became NaN, or what was interrupted in `scratch` was another training.
        DataError: there are fewer rows than processes.
        RecipeError: the user's training function cannot be found.
    """
    if len(job.rows.encoded) < _world():
        raise DataError(
            "there are fewer training rows than processes", where="training.processes", got=f"{len(job.rows.encoded)} rows"
        )
    if job.settings.epochs == 0:
        return {"steps": 0, "loss": 0.0, "step_seconds": 0.0}
    _same_training(job)
    # transformers writes on the first process of all; machines share no disk, so the first of each has to.
    job.model.should_save_on_this_rank = _writes
    if job.settings.code is not None:
        return _by_code(job)
    import torch
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    settings, output = job.settings, job.scratch / "trainer"
    accepted = checkpoint.inputs_of(job.model)
    paired = zip(job.rows.encoded, job.rows.targets, strict=True)
    examples = [{"input_ids": row.ids, "row": row, "targets": own} for row, own in paired]
    try:
        arguments = transformers.TrainingArguments(
            output_dir=str(output),
            num_train_epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            per_device_train_batch_size=settings.batch // _world(),
            gradient_accumulation_steps=settings.accumulate,
            warmup_steps=settings.warmup,
            lr_scheduler_type=settings.schedule,
            weight_decay=settings.weight_decay,
            bf16=settings.precision == "bfloat16",
            use_cpu=not torch.cuda.is_available(),
            remove_unused_columns=False,
            save_strategy="no",
            save_total_limit=2,
            save_on_each_node=True,
            logging_steps=1,
            # Otherwise a loss that is not a number is logged as 0.
            logging_nan_inf_filter=False,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=job.seed,
        )
    except ImportError as error:
        raise ModelError("training needs accelerate", fix="pip install 'octobert[train]'") from error
    watch = _watch(job)
    trainer = _trainer_class()(
        job,
        model=job.model,
        args=arguments,
        train_dataset=examples,
        data_collator=lambda batch: collate(batch, job.rows.pad_id, accepted),
        callbacks=[watch, *_tensorboard(job.how)],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train(resume_from_checkpoint=_last_checkpoint(output))
    tail = watch.losses[-max(1, len(watch.losses) // 10) :]
    seconds = float(np.median(watch.seconds)) if watch.seconds else 0.0
    return {"steps": trainer.state.global_step, "loss": float(np.mean(tail)), "step_seconds": seconds}


def is_first() -> bool:
    """Whether this process is the one of its machine that writes."""
    return int(os.environ.get("LOCAL_RANK", 0)) == 0


def _writes(wanted: bool) -> bool:
    return wanted and is_first()


def _rank() -> int:
    return int(os.environ.get("RANK", 0))


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", 1))


def _distributed() -> bool:
    import torch

    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _same_training(job: Job) -> None:
    """Refuse to go on from checkpoints of another plan, other data or another seed."""
    path = job.scratch / _IDENTITY
    own = {"seed": job.seed, "of": job.identity, "settings": job.settings.model_dump(mode="json")}
    if path.is_file():
        known = json.loads(path.read_text())
        differing = [name for name in own if known.get(name) != own[name]]
        if differing:
            names = {"seed": "seed", "of": "plan, model or data", "settings": "settings"}
            raise ModelError(
                "the interrupted training was another one",
                where=str(job.scratch),
                got=f"another {' and '.join(names[name] for name in differing)}",
                fix="remove that folder to begin anew, or train with what it began with",
            )
    elif is_first():
        job.scratch.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as partial:
            partial.write_text(json.dumps(own))


def _by_code(job: Job) -> dict[str, float]:
    """Training by the user's own function, which was allowed."""
    import torch

    file, _, name = str(job.settings.code).rpartition(":")
    spec = importlib.util.spec_from_file_location("octobert_training", file) if Path(file).is_file() else None
    if spec is None or spec.loader is None:
        raise RecipeError("there is no such Python file", where="code", got=str(job.settings.code), expected="file.py:function")
    module = importlib.util.module_from_spec(spec)
    # Classes of the file can be pickled only if it is found under its name.
    sys.modules["octobert_training"] = module
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise RecipeError(f'there is no function "{name}" in the file', where="code", got=file, expected="def train(job): …")
    torch.manual_seed(job.seed)
    job.model.train()
    function(job)
    bad = _bad_weight(job.model)
    if bad is not None:
        raise ModelError("training by code left weights that are not numbers", where=bad, fix="lower its learning rate")
    return {}


def _bad_weight(model: Any) -> str | None:
    """A weight that is not a number, if there is one."""
    import torch

    return next((name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())), None)


def order_of(lengths: np.ndarray, batch: int, seed: int, epoch: int) -> np.ndarray:
    """The order of rows in an epoch: rows of similar length in a batch, because padding is work for nothing, batches shuffled.

    It depends on nothing but its arguments, so a training that goes on in the middle of an epoch, and one in several
    processes, has the same batches as one that does not.
    """
    generator = np.random.default_rng((seed, epoch))
    shuffled = generator.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(shuffled), _SORTED_BATCHES * batch):
        part = shuffled[start : start + _SORTED_BATCHES * batch]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch] for i in range(0, len(part), batch)]
    # A batch that is not full comes last.
    full, rest = [b for b in batches if len(b) == batch], [b for b in batches if len(b) < batch]
    return np.concatenate([full[i] for i in generator.permutation(len(full))] + rest)


def _trainer_class() -> type:
    """transformers' Trainer with an order of rows that can be gone on with, a teacher in the loss, and a learning rate of their
    own for learned ranges."""
    import torch
    import transformers

    class Order(torch.utils.data.Sampler):
        def __init__(self, job: Job) -> None:
            self._lengths = np.array([len(row) for row in job.rows.encoded])
            self._batch, self._seed, self._epoch = job.settings.batch, job.seed, 0

        def set_epoch(self, epoch: int) -> None:
            self._epoch = epoch

        def __len__(self) -> int:
            return len(self._lengths)

        def __iter__(self) -> Any:
            return iter(order_of(self._lengths, self._batch, self._seed, self._epoch).tolist())

    class Trainer(transformers.Trainer):
        def __init__(self, job: Job, **given: Any) -> None:
            self._job = job
            super().__init__(**given)
            if job.teacher is not None:
                # The teacher's part of the loss is a mean over the batch, so the other part has to be one as well.
                self.model_accepts_loss_kwargs, self.loss_is_scaled_for_ga = False, False

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return Order(self._job)

        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None) -> Any:
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
            optimizer = super().create_optimizer(model)
            settings = self._job.settings
            ends = [p for n, p in self._job.model.named_parameters() if n.rpartition(".")[2].startswith("log_")]
            if isinstance(settings, Qat) and settings.ranges == "learned" and ends:
                own = set(map(id, ends))
                for group in optimizer.param_groups:
                    group["params"] = [p for p in group["params"] if id(p) not in own]
                optimizer.add_param_group({"params": ends, "lr": settings.range_rate, "weight_decay": 0.0})
            return optimizer

    return Trainer


def _tensorboard(how: Training) -> list[Any]:
    """A callback that writes TensorBoard's event files, if they are wanted."""
    if how.tensorboard is None or _rank() > 0:
        return []
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ModelError("TensorBoard is not installed", where="training.tensorboard", fix="pip install tensorboard") from error
    from transformers.integrations import TensorBoardCallback

    return [TensorBoardCallback(SummaryWriter(how.tensorboard))]


def _last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that was written whole; whatever was cut short is removed."""
    found = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    for path in found:
        if not (path / _WHOLE).is_file() and is_first():
            shutil.rmtree(path, ignore_errors=True)
    whole_ones = [path for path in found if (path / _WHOLE).is_file()]
    return str(whole_ones[-1]) if whole_ones else None


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


def _watch(job: Job) -> Any:
    """A callback that reports progress, saves by the clock, stops at a loss that is not a number, and turns the simulation's
    observers and rounding on and off at their steps."""
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def __init__(self) -> None:
            self.losses: list[float] = []
            self.seconds: list[float] = []
            self.saved = self.began = time.monotonic()

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.monotonic()
            if job.simulation is not None and isinstance(job.settings, Qat):
                share = state.global_step / max(1, state.max_steps)
                follows = job.settings.ranges == "moving-average" or share < job.settings.observe
                job.simulation.observing = follows and share < max(job.settings.freeze, job.settings.observe)
                job.simulation.quantizing = share >= job.settings.observe

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            loss = (logs or {}).get("loss")
            if loss is None:
                return
            if not math.isfinite(float(loss)):
                kept = _last_checkpoint(Path(args.output_dir))
                raise ModelError(
                    "the training loss is not a number",
                    where=f"step {state.global_step} of {state.max_steps}",
                    got=f"{loss}; the last good checkpoint is {kept}" if kept else str(loss),
                    fix=f"lower {'qat' if job.simulation else 'finetune'}.learning_rate, or train in float32",
                )
            self.losses.append(float(loss))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if _distributed():
                # Other processes have files of their own in it.
                import torch

                torch.distributed.barrier()
            # Weights that are no numbers show in the loss of the next step only; a checkpoint of them is not a good one.
            if is_first() and _bad_weight(job.model) is None:
                (Path(args.output_dir) / f"checkpoint-{state.global_step}" / _WHOLE).touch()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seconds.append(time.monotonic() - self.began)
            if job.on_step:
                job.on_step(state.global_step, state.max_steps)
            if _agreed(time.monotonic() - self.saved > job.how.checkpoint_minutes * 60):
                control.should_save, self.saved = True, time.monotonic()

    return Watch()


def _agreed(wish: bool) -> bool:
    """What the first process wishes: clocks differ, and all have to save at the same step."""
    if not _distributed():
        return wish
    import torch

    flag = torch.tensor([int(wish)])
    torch.distributed.broadcast(flag, src=0)
    return bool(flag.item())
