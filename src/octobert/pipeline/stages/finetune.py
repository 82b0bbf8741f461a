"""A base checkpoint and training rows → a checkpoint that does the task.

Writes `checkpoint/`: weights, config and tokenizer, as transformers loads them, and `trained.json`, how training went; and
`curve.json`, the loss and the learning rate of each step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from octobert.config.training import Finetune, Training, TrainingSettings
from octobert.core.files import canonical_digest
from octobert.core.frozen import FrozenModel
from octobert.core.results import TRAINED
from octobert.core.user_code import UserCode
from octobert.data.tokenization import Tokenizer, save_tokenizer
from octobert.models import checkpoint, dropping
from octobert.models.modules import copy_modules
from octobert.models.source import ModelSource
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.keys import key_data
from octobert.pipeline.stages import _artifacts, _rows
from octobert.training import trainer
from octobert.training.distributed import is_first
from octobert.training.job import Job, Teacher, TrainingRows

if TYPE_CHECKING:
    from octobert.training.simulation import Simulation

CURVE = "curve.json"


class Inputs(FrozenModel):
    """The training rows."""

    data: StepResult


class TrainingOptions(FrozenModel):
    """What every training depends on.

    Args:
        teacher: to be distilled from, where it is not the base model itself.
        code: the user's training function.
        training: how it is carried out, which changes nothing that is learned.
    """

    NOT_IN_KEY: ClassVar = frozenset({"training"})

    model: ModelSource
    teacher: ModelSource | None
    code: UserCode | None
    allow_pickle: bool
    training: Training
    task: TaskSpec
    seed: int


class Options(TrainingOptions):
    """Training in float."""

    settings: Finetune


def run(context: Context[Inputs, Options]) -> Summary:
    """Fine-tune."""
    options = context.options
    model = load(options, options.model, options.settings)
    kept = _kept(options.model, options.settings)
    if kept is not None:
        model = dropping.without_layers(model, options.model.family, kept)
    facts = train_(context, context.inputs.data, options.model, options.settings, model)
    save(context.work, options, options.model, options.settings, model, facts)
    return facts


def load(options: TrainingOptions, base: ModelSource, settings: TrainingSettings) -> Any:
    """The PyTorch model that is trained."""
    task = options.task.build()
    return checkpoint.load_base(
        base.path,
        task.head,
        task.labels,
        allow_pickle=options.allow_pickle,
        seed=options.seed,
        dropout=settings.dropout,
    )


def train_(
    context: Context[FrozenModel, TrainingOptions],
    data: StepResult,
    base: ModelSource,
    settings: TrainingSettings,
    model: Any,
    simulation: Simulation | None = None,
) -> Summary:
    """Train a model in place on the stored rows; how it went, and how many texts and rows there were."""
    options, task = context.options, context.options.task.build()
    tokenizer = Tokenizer(base.tokenizer_folder, task.max_length)
    stored = data.read_json("training.json")
    encoded = _rows.encoded(stored["inputs"], task, tokenizer)
    teacher_only = settings.distill is not None and settings.distill.share == 1
    targets = [{} for _ in encoded.flat] if teacher_only else task.targets(encoded, stored["gold"])
    job = Job(
        model=model,
        rows=TrainingRows(encoded.flat, targets, tokenizer.pad_id),
        settings=settings,
        how=options.training,
        seed=options.seed,
        scratch=context.scratch,
        simulation=simulation,
        teacher=_teacher(options, base, settings),
        identity=canonical_digest([key_data(options), stored]),
        key="finetune" if simulation is None else "qat",
        on_step=lambda step, of: context.progress("training", step, of),
    )
    trained = trainer.train(job)
    if trained.curve is not None and is_first():
        context.write(CURVE, trained.curve)
    return {**trained.facts, "texts": len(encoded.texts), "rows": len(encoded.flat)}


def _kept(base: ModelSource, settings: TrainingSettings) -> tuple[int, ...] | None:
    """The layers that are kept; None for all."""
    layers = settings.layers if isinstance(settings, Finetune) else None
    return None if layers is None else dropping.kept_layers(base, layers)


def _teacher(options: TrainingOptions, base: ModelSource, settings: TrainingSettings) -> Teacher | None:
    """The teacher: another checkpoint, or the model that training begins from.

    Raises:
        ModelError: it cannot teach this model.
    """
    if settings.distill is None:
        return None
    from octobert.training import distillation

    task, teacher = options.task.build(), options.teacher or base
    distillation.check_teacher(teacher, base, task.labels, settings.distill)
    return distillation.CheckpointTeacher(
        teacher.path, task.head, settings.distill, kept=_kept(base, settings), allow_pickle=options.allow_pickle
    )


def save(
    work: Path, options: TrainingOptions, base: ModelSource, settings: TrainingSettings, model: Any, facts: Summary
) -> None:
    """Write the checkpoint, with the base's tokenizer and how training went. One process of each machine writes."""
    if not is_first():
        return
    folder, side = work / _artifacts.CHECKPOINT, base.tokenizer_folder
    folder.mkdir()
    save_tokenizer(side, folder)
    copy_modules(side, folder)
    model.save_pretrained(folder)
    # Dropout that was switched off for this training only belongs to the model again.
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for key in checkpoint.dropouts(config):
        del config[key]
    config |= {key: base.config[key] for key in checkpoint.dropouts(base.config)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # How long it took is left out: machines that train together have to come to the same key.
    recorded = {name: fact for name, fact in facts.items() if name != "step_seconds"}
    record = {"seed": options.seed, **recorded, "settings": settings.model_dump(mode="json")}
    (folder / TRAINED).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
