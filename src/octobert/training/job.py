"""One training as data: the model, the rows, the settings and its checkpoints. A training function of the user gets a `Job`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from octobert.config.training import Training, TrainingSettings
from octobert.core.errors import ModelError
from octobert.core.files import digest_or_none, digests_of, read_sealed, write_sealed
from octobert.core.processes import is_first
from octobert.data.encoded import Encoded, feeds_of
from octobert.models.checkpoint import inputs_of
from octobert.training.distributed import rank, world_size

if TYPE_CHECKING:
    from octobert.training.distillation import Teacher
    from octobert.training.simulation import Simulation

# Torch's cross entropy ignores targets of this value.
IGNORED_TARGET = -100
# Rows of this many batches are sorted by length together.
_SORTED_BATCHES = 50
# The last file that is written into a checkpoint.
_COMPLETE = "complete"
_IDENTITY = "identity.json"
_IDENTITY_PARTS = {"seed": "seed", "of": "plan, model or data", "settings": "settings"}


@dataclass(frozen=True)
class TrainingRows:
    """Rows of tokens with their targets.

    Args:
        encoded: tokenized rows.
        targets: for each row, further arguments of the model's forward, such as labels; empty where only a teacher is followed.
        pad_id: token id of padding.
    """

    encoded: Sequence[Encoded]
    targets: Sequence[dict[str, Any]]
    pad_id: int


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        model: PyTorch model of transformers, trained in place. With `simulation`, its forward pass is fake-quantized.
        rows: training rows; `batches` makes tensors of them.
        settings: training settings of the recipe; `Qat` with `simulation`.
        how: settings of the execution.
        seed: for every random choice.
        scratch: folder for checkpoints.
        simulation: fake quantization; None in float.
        teacher: model to distill from; None without one.
        key: recipe key of the training.
        identity: digest of everything that the training depends on. Checkpoints in `scratch` of another identity are refused.
        on_step: called with (step, number of steps) after each step.
    """

    model: Any
    rows: TrainingRows
    settings: TrainingSettings
    how: Training
    seed: int
    scratch: Path
    simulation: Simulation | None = None
    teacher: Teacher | None = None
    identity: str = ""
    key: str = "finetune"
    on_step: Callable[[int, int], None] | None = None

    def batches(self, epoch: int = 0) -> list[dict[str, Any]]:
        """Return all rows of one epoch in random order, as batches of arguments of the model's forward.

        In distributed training, each process gets its own rows, as many as every other process.

        Args:
            epoch: changes the order.
        """
        accepted, size = inputs_of(self.model), self.settings.batch // world_size()
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.rows.encoded))
        even = order[: len(order) - len(order) % world_size()] if world_size() > 1 else order
        indices = even[rank() :: world_size()]
        parts = [indices[start : start + size] for start in range(0, len(indices), size)]
        examples = [
            [{"row": self.rows.encoded[i], "targets": self.rows.targets[i]} for i in part]
            for part in parts
        ]
        return [collate(part, self.rows.pad_id, accepted) for part in examples]


def collate(
    batch: Sequence[dict[str, Any]], pad_id: int, accepted: Sequence[str]
) -> dict[str, Any]:
    """Make tensors of rows and their targets.

    Args:
        batch: dicts of a "row" and its "targets".
        pad_id: token id of padding.
        accepted: inputs of the model; others are left out.

    Returns:
        Inputs [B, S], padded on the right. Targets [B], [B, labels], or [B, S] padded with `IGNORED_TARGET`.
    """
    import torch

    feeds = feeds_of([example["row"] for example in batch], pad_id)
    width = feeds["input_ids"].shape[1]
    arrays: dict[str, np.ndarray] = {
        name: array for name, array in feeds.items() if name in accepted
    }
    for name in batch[0]["targets"]:
        values = [example["targets"][name] for example in batch]
        if isinstance(values[0], np.ndarray):
            values = [
                np.pad(v, (0, width - len(v)), constant_values=IGNORED_TARGET) for v in values
            ]
        array = np.array(values)
        arrays[name] = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def row_order(lengths: np.ndarray, batch: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of rows in an epoch: rows of similar length in a batch, to save padding; batches shuffled.

    The order depends only on the arguments. So a resumed training and a distributed one get the same batches.

    Args:
        lengths: [N] tokens of each row.
        batch: rows of a batch.
        seed: of the training.
        epoch: number of the epoch.

    Returns:
        [N] indices of rows. A batch that is not full comes last.

    Example:
        >>> row_order(np.array([9, 2, 8, 3]), batch=2, seed=0, epoch=0).tolist()
        [2, 0, 1, 3]
    """
    generator = np.random.default_rng((seed, epoch))
    shuffled = generator.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(shuffled), _SORTED_BATCHES * batch):
        part = shuffled[start : start + _SORTED_BATCHES * batch]
        part = part[np.argsort(lengths[part], kind="stable")]
        batches += [part[i : i + batch] for i in range(0, len(part), batch)]
    full, rest = [b for b in batches if len(b) == batch], [b for b in batches if len(b) < batch]
    return np.concatenate([full[i] for i in generator.permutation(len(full))] + rest)


def check_same_training(job: Job) -> None:
    """Refuse checkpoints of another training; in an empty scratch folder, write down which training this is.

    Raises:
        ModelError: the checkpoints belong to another plan, model, data set, seed or settings.
    """
    path = job.scratch / _IDENTITY
    identity = {
        "seed": job.seed,
        "of": job.identity,
        "settings": job.settings.model_dump(mode="json"),
    }
    if (content := read_sealed(path)) is not None:
        other = json.loads(content)
        different = [part for part in identity if other.get(part) != identity[part]]
        if different:
            raise ModelError(
                "the folder holds the checkpoints of another training",
                where=str(job.scratch),
                got=f"another {' and '.join(_IDENTITY_PARTS[part] for part in different)}",
                fix="remove the folder to start again, or repeat the command that was interrupted",
            )
    elif is_first():
        job.scratch.mkdir(parents=True, exist_ok=True)
        write_sealed(path, json.dumps(identity).encode())


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint, and remove those after it. None without a complete one."""
    for path in sorted(
        folder.glob("checkpoint-*"),
        key=lambda path: int(path.name.rpartition("-")[2]),
        reverse=True,
    ):
        # Complete is a checkpoint that is as it was written.
        digests = read_sealed(path / _COMPLETE)
        if digests is not None and all(
            digest_or_none(path / name) == digest for name, digest in json.loads(digests).items()
        ):
            return str(path)
        if is_first():
            shutil.rmtree(path, ignore_errors=True)
    return None


def mark_complete(folder: Path, step: int) -> None:
    """Mark the checkpoint of a step as complete: the digests of its files."""
    checkpoint = folder / f"checkpoint-{step}"
    write_sealed(checkpoint / _COMPLETE, json.dumps(digests_of(checkpoint)).encode())


def non_finite_weight(model: Any) -> str | None:
    """Return the name of a weight with a NaN or an infinity; None if all weights are finite."""
    import torch

    return next(
        (name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())), None
    )
