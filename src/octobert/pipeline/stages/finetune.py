"""A base checkpoint and training rows → a checkpoint that does the task.

Writes `checkpoint/`: weights, config and tokenizer, as transformers loads them, and `trained.json`, how that went.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octobert.config.training import Finetune, Training
from octobert.core.files import canonical_digest
from octobert.core.results import TRAINED
from octobert.data.tokenization import TextEncoder, save_tokenizer
from octobert.models import checkpoint
from octobert.pipeline.stages import CHECKPOINT, Context, ask, task_of
from octobert.training import trainer

if TYPE_CHECKING:
    from octobert.training.distillation import Teacher

VERSION = 2


def run(context: Context) -> dict[str, Any]:
    """Fine-tune."""
    base = Path(context.locations["model"])
    settings = Finetune.model_validate(context.options["finetune"])
    model = load(context, base, settings)
    found, asked = train_(context, base, model, settings, teacher=teacher_of(context, base, settings))
    save(context, base, model, {**found, **asked, "settings": settings.model_dump(mode="json")})
    return {**found, **asked}


def load(context: Context, base: Path, settings: Finetune) -> Any:
    """The model that is trained."""
    task = task_of(context.options)
    return checkpoint.load_base(
        base,
        task.head,
        task.labels,
        allow_pickle=bool(context.options["allow_pickle"]),
        seed=int(context.options["seed"]),
        dropout=settings.dropout,
    )


def teacher_of(context: Context, base: Path, settings: Finetune) -> Teacher | None:
    """The teacher that is wanted: a checkpoint, or what training begins from.

    Raises:
        ModelError: it cannot teach this model.
    """
    if settings.distill is None:
        return None
    from octobert.training import distillation

    task, folder = task_of(context.options), Path(context.locations.get("teacher", base))
    distillation.check(folder, base, task.labels, settings.distill)
    return distillation.Teacher(folder, task.head, settings.distill, allow_pickle=bool(context.options["allow_pickle"]))


def train_(
    context: Context, base: Path, model: Any, settings: Finetune, *, simulation: Any = None, teacher: Teacher | None = None
) -> tuple[dict[str, float], dict[str, int]]:
    """Train a model on the stored rows: (what came of it, how many texts and rows there were)."""
    task, side = task_of(context.options), checkpoint.side_folder(base)
    encoder = TextEncoder(side, task.max_length)
    stored = context.read_json("data", "training.json")
    asked = ask(context, encoder, stored["inputs"])
    follows = settings.distill is not None and settings.distill.share == 1
    targets = [{} for _ in asked.flat] if follows else task.targets(asked, stored["gold"])
    job = trainer.Job(
        model=model,
        rows=trainer.Rows(asked.flat, targets, encoder.pad_id),
        settings=settings,
        how=Training.model_validate_json(context.locations["training"]),
        seed=int(context.options["seed"]),
        scratch=context.scratch,
        simulation=simulation,
        teacher=teacher,
        identity=canonical_digest([context.options, stored]),
        on_step=lambda step, of: context.progress("training", step, of),
    )
    return trainer.train(job), {"texts": len(asked.texts), "rows": len(asked.flat)}


def save(context: Context, base: Path, model: Any, facts: dict[str, Any]) -> None:
    """Write the checkpoint, with the tokenizer of the base and what is to be said of it; one process of a machine does."""
    if not trainer.is_first():
        return
    folder = context.work / CHECKPOINT
    folder.mkdir()
    side = checkpoint.side_folder(base)
    save_tokenizer(side, folder)
    if (side / "1_Pooling").is_dir():
        shutil.copytree(side / "1_Pooling", folder / "1_Pooling")
        shutil.copyfile(side / "modules.json", folder / "modules.json")
    model.save_pretrained(folder)
    # Dropout that was only switched off for this training is the model's again.
    config, original = json.loads((folder / "config.json").read_text()), checkpoint.read_config(side)
    for key in checkpoint.dropouts(config):
        del config[key]
    config |= {key: original[key] for key in checkpoint.dropouts(original)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # How long it took is no part of what was made: machines that train together have to come to the same key.
    facts = {"seed": context.options["seed"], **{name: fact for name, fact in facts.items() if name != "step_seconds"}}
    (folder / TRAINED).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
