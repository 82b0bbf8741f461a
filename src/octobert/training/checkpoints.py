"""Training checkpoints in the scratch folder: which of them are complete, and whether they belong to this training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from octobert.core.errors import ModelError
from octobert.core.files import digest_or_none, digests_of, read_sealed, write_sealed
from octobert.training.distributed import is_first
from octobert.training.job import Job

# The last file that is written into a checkpoint.
_COMPLETE = "complete"
_IDENTITY = "identity.json"
_IDENTITY_PARTS = {"seed": "seed", "of": "plan, model or data", "settings": "settings"}


def check_same_training(job: Job) -> None:
    """Refuse checkpoints of another training; in an empty scratch folder, write down which training this is.

    Raises:
        ModelError: the checkpoints belong to another plan, model, data set, seed or settings.
    """
    path = job.scratch / _IDENTITY
    own = {"seed": job.seed, "of": job.identity, "settings": job.settings.model_dump(mode="json")}
    if (content := read_sealed(path)) is not None:
        other = json.loads(content)
        different = [part for part in own if other.get(part) != own[part]]
        if different:
            raise ModelError(
                "the folder holds the checkpoints of another training",
                where=str(job.scratch),
                got=f"another {' and '.join(_IDENTITY_PARTS[part] for part in different)}",
                fix="remove the folder to start again, or repeat the command that was interrupted",
            )
    elif is_first():
        job.scratch.mkdir(parents=True, exist_ok=True)
        write_sealed(path, json.dumps(own).encode())


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest complete checkpoint, and remove those after it. None without a complete one."""
    for path in sorted(
        folder.glob("checkpoint-*"),
        key=lambda path: int(path.name.rpartition("-")[2]),
        reverse=True,
    ):
        if _is_complete(path):
            return str(path)
        if is_first():
            shutil.rmtree(path, ignore_errors=True)
    return None


def _is_complete(checkpoint: Path) -> bool:
    """Whether a checkpoint is as it was written."""
    listed = read_sealed(checkpoint / _COMPLETE)
    return listed is not None and all(
        digest_or_none(checkpoint / name) == d for name, d in json.loads(listed).items()
    )


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
