"""A base checkpoint and training rows → a checkpoint that does the task.

Writes `checkpoint/`: weights, config and tokenizer, as transformers loads them, and `trained.json`, how training went; and
`curve.json`, the loss and the learning rate of each step.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from octobert.config.training import Finetune, Qat, Training
from octobert.core.files import canonical_digest
from octobert.core.frozen import FrozenModel
from octobert.core.heads import head_of
from octobert.core.processes import is_first
from octobert.core.results import CHECKPOINT, TRAINED
from octobert.core.user_code import UserCode
from octobert.data.tokenization import Tokenizer, save_tokenizer
from octobert.engine.contract import NOT_IN_KEY, Context, Summary, stage
from octobert.engine.keys import key_data
from octobert.models import checkpoint
from octobert.models.sentence_transformers import copy_modules, modules_of
from octobert.models.source import ModelSource
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import Checkpoint, Rows
from octobert.pipeline.task import TaskSpec
from octobert.training import trainer
from octobert.training.job import Job, TrainingRows

if TYPE_CHECKING:
    from octobert.training.distillation import Teacher
    from octobert.training.simulation import Simulation


class Lesson(FrozenModel):
    """What every training depends on.

    Args:
        base: the model that training begins from.
        teacher: to be distilled from, where it is not the base model itself.
        code: the user's training function.
        training: how it is carried out, which changes nothing that is learned.
    """

    base: ModelSource
    teacher: ModelSource | None
    code: UserCode | None
    allow_pickle: bool
    training: Annotated[Training, NOT_IN_KEY]
    spec: TaskSpec
    seed: int
    settings: Finetune | Qat

    @property
    def kept(self) -> tuple[int, ...] | None:
        """The layers of the base model that are kept; None for all."""
        layers = self.settings.layers if isinstance(self.settings, Finetune) else None
        return None if layers is None else checkpoint.kept_layers(self.base, layers)


@stage(Checkpoint)
def run(context: Context, data: Rows, *, lesson: Lesson) -> Summary:
    """Fine-tune in float."""
    pupil, layers = load(lesson), lesson.kept
    if layers is not None:
        pupil = checkpoint.without_layers(pupil, lesson.base.family, layers)
    facts = train_(context, data, lesson, pupil)
    save(context.work, lesson, pupil, facts)
    return facts


def load(lesson: Lesson) -> Any:
    """The PyTorch model that is trained."""
    task = lesson.spec.build()
    return checkpoint.load_base(
        lesson.base.path,
        task.head,
        task.labels,
        allow_pickle=lesson.allow_pickle,
        seed=lesson.seed,
        dropout=lesson.settings.dropout,
    )


def train_(
    context: Context,
    data: Rows,
    lesson: Lesson,
    model: Any,
    simulation: Simulation | None = None,
) -> Summary:
    """Train a model in place on the stored rows; how it went, and how many texts and rows there were."""
    task, settings = lesson.spec.build(), lesson.settings
    tokenizer = Tokenizer(lesson.base.tokenizer_folder, task.max_length)
    stored = data.read_json("training.json")
    encoded = artifacts.encoded(stored["inputs"], task, tokenizer)
    teacher_only = settings.distill is not None and settings.distill.share == 1
    targets = [{} for _ in encoded.flat] if teacher_only else task.targets(encoded, stored["gold"])
    job = Job(
        model=model,
        rows=TrainingRows(encoded.flat, targets, tokenizer.pad_id),
        settings=settings,
        how=lesson.training,
        seed=lesson.seed,
        scratch=context.scratch,
        simulation=simulation,
        teacher=_teacher(lesson),
        identity=canonical_digest([key_data(lesson), stored]),
        key="finetune" if simulation is None else "qat",
        on_step=lambda step, of: context.progress("training", step, of),
    )
    trained = trainer.train(job)
    if trained.curve is not None and is_first():
        context.write(artifacts.CURVE, trained.curve)
    return {**trained.facts, "texts": len(encoded.texts), "rows": len(encoded.flat)}


def _teacher(lesson: Lesson) -> Teacher | None:
    """The teacher: another checkpoint, or the model that training begins from.

    Raises:
        ModelError: it cannot teach this model.
    """
    distill = lesson.settings.distill
    if distill is None:
        return None
    from octobert.training import distillation

    task, teacher = lesson.spec.build(), lesson.teacher or lesson.base
    distillation.check_teacher(teacher, lesson.base, task.labels, distill)
    return distillation.checkpoint_teacher(
        teacher.path, task.head, distill, kept=lesson.kept, allow_pickle=lesson.allow_pickle
    )


def save(work: Path, lesson: Lesson, model: Any, facts: Summary) -> None:
    """Write the checkpoint, with the base's tokenizer and how training went. One process of each machine writes."""
    if not is_first():
        return
    folder, side = work / CHECKPOINT, lesson.base.tokenizer_folder
    folder.mkdir()
    save_tokenizer(side, folder)
    # What follows the encoder of an embedding model does not follow the new head.
    if head_of(lesson.spec.build().head).pooled or len(modules_of(side)) <= 1:
        copy_modules(side, folder)
    model.save_pretrained(folder)
    # Dropout that was switched off for this training only belongs to the model again.
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for key in checkpoint.dropouts(config):
        del config[key]
    config |= {key: lesson.base.config[key] for key in checkpoint.dropouts(lesson.base.config)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    # How long it took is left out: machines that train together have to come to the same key.
    recorded = {name: fact for name, fact in facts.items() if name != "step_seconds"}
    record = {"seed": lesson.seed, **recorded, "settings": lesson.settings.model_dump(mode="json")}
    (folder / TRAINED).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
