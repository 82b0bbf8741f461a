"""A base checkpoint and training rows → a checkpoint that does the task.

Writes `checkpoint/`: weights, config and tokenizer, as transformers loads them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from octobert import train
from octobert.graph import checkpoint
from octobert.recipe import Finetune
from octobert.stages import CHECKPOINT, Context, ask, task_of
from octobert.texts import TextEncoder, save_tokenizer

VERSION = 1


def run(context: Context) -> dict[str, Any]:
    """Fine-tune."""
    options, task = context.options, task_of(context.options)
    base, folder = Path(context.locations["model"]), context.work / CHECKPOINT
    folder.mkdir()
    save_tokenizer(checkpoint.side_folder(base), folder)
    shutil.copyfile(base / "config.json", folder / "config.json")
    encoder = TextEncoder(folder, task.max_length)
    stored = context.read_json("data", "training.json")
    asked = ask(context, encoder, stored["inputs"])
    context.scratch.mkdir(parents=True, exist_ok=True)
    found = train.finetune(
        base,
        task.head,
        task.labels,
        asked.flat,
        task.targets(asked, stored["gold"]),
        Finetune.model_validate(options["finetune"]),
        folder,
        pad_id=encoder.pad_id,
        seed=int(options["seed"]),
        scratch=context.scratch,
        allow_pickle=bool(options["allow_pickle"]),
        on_step=lambda step, of: context.progress("training", step, of),
    )
    return {**found, "texts": len(asked.texts), "rows": len(asked.flat)}
