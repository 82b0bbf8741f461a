"""A finished model on this machine: a package, or a model file of any origin beside its tokenizer.

    package          octobert.json says the target and the task; the float model is in it
    .onnx or .xml    the task and, where they are not the usual ones, the target and the tokenizer are given by the user

Everything that works on finished models takes a `FinishedModel`, so that it works on both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octobert import targets
from octobert.config.loading import choice_of
from octobert.core.errors import DataError, ModelError, RecipeError, TargetError, did_you_mean
from octobert.core.families import longest_input
from octobert.core.files import file_stamp
from octobert.core.heads import head_of
from octobert.core.model_config import CONFIG, Config, read_config
from octobert.core.onnx_files import (
    ModelSignature,
    check_inputs,
    input_named,
    integers_of,
    ports_of,
    read_onnx,
)
from octobert.core.results import PACKAGE_FILE, PackageManifest, TaskFacts
from octobert.core.session import (
    Session,
    SessionEntries,
    SessionOptions,
    read_outputs,
    shorter_files,
    weights_at,
)
from octobert.data.tokenization import Tokenizer
from octobert.inference import machines, package_files
from octobert.inference.pooled import PooledSession
from octobert.models.heads import outputs_of
from octobert.models.source import ModelSource, read_metadata, tokenizer_folder
from octobert.targets import runtimes
from octobert.targets.runtimes import openvino
from octobert.tasks import PLUGINS, Task, rebuild

# Suffix → the target that opens a file if none is named.
TARGETS = {".onnx": "ort-cpu", ".xml": "openvino-cpu"}
_FREE = (-1, -1)
# Bytes. Equal constants share their place in the weights of an IR, so that models of one shape differ by some bytes; a head or
# 64 neurons more are more than this.
_WIDTHS = 4096


@dataclass(frozen=True)
class FloatModel:
    """The float model that a model is compared with.

    Args:
        path: its file.
        outputs: name of an output in results → its name in the file; empty for files of octobert.
        content: digest, if it is known.
    """

    path: Path
    outputs: Mapping[str, str] = field(default_factory=dict)
    content: str | None = None


@dataclass(frozen=True)
class FinishedModel:
    """A finished model.

    Args:
        path: the package, or the file itself.
        file: what the target opens.
        target: plugin name.
        folder: holds the tokenizer and the config.
        task: what it does; None for a file without a task, which can be timed, but not asked.
        outputs: name of an output in results → its name in the file; empty for files of octobert.
        shape: the fixed sizes of a file's axes [batch, sequence]; -1 for a free axis.
        floating: the float model to compare it with, if there is one.
        entries: what its recipe sets for sessions.
        tables: of a file, the rows of its tables, see `ModelSignature`; a package's config states them.
        manifest: of a package.
    """

    path: Path
    file: Path
    target: str
    folder: Path
    task: TaskFacts | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    shape: tuple[int, int] = _FREE
    floating: FloatModel | None = None
    entries: SessionEntries = field(default_factory=SessionEntries)
    tables: Mapping[str, int] = field(default_factory=dict)
    manifest: PackageManifest | None = None

    @property
    def name(self) -> str:
        """Its name in results: that of a package's target, or that of the file."""
        return self.target if self.manifest is not None else self.path.name

    @property
    def head(self) -> str:
        """The head of the model; empty where the task is not known."""
        return self.task.head if self.task is not None else ""

    @property
    def reads_texts(self) -> bool:
        """False for a graph of any kind, whose rows are arrays that run alone."""
        return not self.head or head_of(self.head).reads_texts

    @property
    def config(self) -> Config:
        """Its `config.json`, with what its file states itself."""
        return {**read_config(self.folder), **self.tables}

    @property
    def vocabulary(self) -> int | None:
        """Token ids are below it, if it is known."""
        return self.config.get("vocab_size")

    @property
    def longest(self) -> int | None:
        """The largest number of tokens that it takes, if it is known."""
        config, fixed = self.config, self.shape[1]
        limits = ([longest_input(config)] if config else []) + ([fixed] if fixed > 0 else [])
        return min(limits, default=None)

    def fitting(self, tokens: int) -> tuple[Path, tuple[int, int]]:
        """The file that a row of so many tokens takes, and the fixed sizes of its axes; -1 for a free one."""
        lengths = shorter_files(self.file)
        file = next((file for length, file in lengths.items() if length >= tokens), self.file)
        return file, _shape(_ports(file, None)[0])

    @property
    def heads(self) -> int:
        """Attention heads of a layer; 0 where they are not known."""
        if self.manifest is not None:
            return self.manifest.model.sizes.heads
        heads = read_config(self.folder).get("num_attention_heads")
        return heads if isinstance(heads, int) else 0

    @property
    def shape_facts(self) -> list[Any]:
        """The properties that its inference times depend on, as plain data: the same for other weights of the same shape."""
        if self.manifest is None:
            return [
                self.target,
                {str(file): file_stamp(file) for file in package_files.files_of(self.file)},
            ]
        model, plan = self.manifest.model, self.manifest.plan
        ranges = {"low", "high", "ceiling", "shared"}
        quantized = [
            (s.role, s.module, quantizer.model_dump(mode="json", exclude=ranges))
            for s, quantizer in plan.quantized
        ]
        prefix = self.file.relative_to(self.path).with_suffix("").as_posix()
        widths = {
            name: size // _WIDTHS
            for name, size in self.manifest.sizes.items()
            if name.startswith(prefix)
        }
        return [
            self.target,
            model.family,
            model.head,
            model.sizes.model_dump(mode="json"),
            plan.float_parts,
            quantized,
            widths,
        ]

    @property
    def ignores_padding(self) -> bool:
        """True if padding, with a mask, does not change its answers, up to the last digits of float sums.

        Ranges of a batch include all tokens, padding too; those of a token do not. The behaviour of a file of another tool is
        not known.
        """
        return (
            self.reads_texts
            and self.manifest is not None
            and not any(
                quantizer.dynamic and quantizer.group is None
                for _, quantizer in self.manifest.plan.quantized
            )
        )

    def entries_on(self, device: str | None = None) -> SessionEntries:
        """The options of its sessions: the options of its recipe, and the type of its float operators.

        Args:
            device: of the runtime's own, whose types are not known; None for the target's.
        """
        if self.manifest is None or device is not None:
            return self.entries
        plan = self.manifest.plan
        return runtimes.entries_in(
            self.entries,
            targets.load(self.target).capabilities,
            plan.float_parts,
            per_token=plan.group is not None,
        )

    def precision(self, reported: str) -> str:
        """The arithmetic of its operators: that of the float ones, after `int8` where its file has quantized ones.

        Args:
            reported: precision of the float operators, as the runtime reports it.

        Raises:
            ModelError: the file cannot be read.
            TargetError: likewise, of an IR.
        """
        if self.manifest is not None:
            return self.manifest.plan.precision(reported)
        read = openvino.integers_of if self.file.suffix == ".xml" else integers_of
        integers = read(self.file)
        return reported if integers is None else f"{integers} + {reported}"

    def facts(self) -> TaskFacts:
        """The facts of its task.

        Raises:
            RecipeError: it is a file, and no task was given.
        """
        if self.task is None:
            raise RecipeError(
                "a model file does not say what it is for",
                where=str(self.path),
                fix="add --task NAME (octobert tasks lists them)",
            )
        return self.task

    def rebuilt(self) -> Task:
        """The task itself.

        Raises:
            ModelError: there is no such task, or it has other options.
            RecipeError: no task was given.
        """
        return rebuild(
            self.facts(),
            where=str(self.path / PACKAGE_FILE if self.manifest is not None else self.path),
        )

    def tokenizer(self, task: Task) -> Tokenizer:
        """Its tokenizer, with the task's limit or that of a fixed shape.

        Raises:
            ModelError: there is none, or the task's texts are longer than the model takes.
        """
        tokenizer, fixed = task.tokenizer(self.folder, self.config), self.shape[1]
        if not 0 < fixed < tokenizer.max_length:
            return tokenizer
        if task.max_length is not None:
            raise ModelError(
                "the file takes fewer tokens",
                where="max_length",
                got=str(task.max_length),
                expected=f"at most {fixed}, its fixed shape",
                fix=f"set it to {fixed} or less",
            )
        return Tokenizer(self.folder, fixed, self.config)

    def check_runs(self) -> None:
        """Check that its target can run on this machine.

        Raises:
            TargetError: with what is missing.
        """
        probe = targets.load(self.target).probe()
        if not probe.available:
            raise TargetError(
                f"the target {self.target} cannot run here",
                where=str(self.path),
                got=probe.missing,
                fix=probe.install,
            )

    def session(self, options: SessionOptions) -> Session:
        """Open it.

        Raises:
            ModelError: it has other outputs than its task reads.
        """
        session = targets.load(self.target).open_session(
            self.file, options.replaced(outputs=dict(self.outputs), heads=self.heads)
        )
        session = self.with_vectors(session)
        missing = [
            name for name in read_outputs(head_of(self.head).outputs) if name not in session.outputs
        ]
        if missing:
            raise ModelError(
                "the model has other outputs than its task reads",
                where=str(self.file),
                got=", ".join(session.outputs)[:200],
                expected=", ".join(missing),
            )
        return session

    def with_vectors(self, session: Session) -> Session:
        """A session of this model or of its float model that makes vectors of token outputs, where the file does not."""
        head = head_of(self.head)
        pools = self.manifest is None and head.pooled and session.outputs == (head.pools,)
        return PooledSession(session, self.folder, head) if pools else session


def open_model(
    path: Path,
    *,
    task: Any = None,
    target: str | None = None,
    tokenizer: Path | None = None,
    reference: Path | None = None,
) -> FinishedModel:
    """The model at a path.

    Args:
        path: a package, or an `.onnx` or `.xml` file.
        task: of a file: a name, or one name with its options.
        target: that opens a file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: folder of a file's tokenizer and config. Default: its own folder, or the one above.
        reference: the float model that a file is compared with.

    Raises:
        ModelError: the path is not a package and not a model file, or the file is not that of an encoder for the task.
        RecipeError: there is no such task, or something is given that a package has itself.
        TargetError: the target does not exist, is not the package's own, or does not open such files.
    """
    if target is not None and target not in targets.names():
        raise TargetError(
            f'there is no target "{target}"',
            where="--target",
            fix=did_you_mean(target, targets.names()),
        )
    if path.suffix in TARGETS and not path.is_dir():
        return _file(path, task, target or TARGETS[path.suffix], tokenizer, reference)
    for option, value in (("--task", task), ("--tokenizer", tokenizer), ("--reference", reference)):
        if value is not None:
            raise RecipeError(
                f"{option} is for model files",
                where=str(path),
                got="a package, which has its own" if path.is_dir() else None,
                fix="omit it, or name an .onnx or .xml file",
            )
    return _package(path, target)


def _package(path: Path, target: str | None) -> FinishedModel:
    manifest = package_files.read_manifest(path)
    machines.check_machine(path, manifest)
    if target not in (None, manifest.target):
        raise TargetError(
            "the package was made for another target",
            where=str(path),
            got=str(target),
            expected=manifest.target,
            fix=f"omit --target, or name the file in it: {path / 'onnx' / 'model_quantized.onnx'}",
        )
    file = targets.load(manifest.target, where=str(path / PACKAGE_FILE)).model_file(path)
    floating = path / "onnx" / "model.onnx"
    return FinishedModel(
        path=path,
        file=file,
        target=manifest.target,
        folder=path,
        task=manifest.task,
        floating=FloatModel(floating, content=manifest.files["onnx/model.onnx"])
        if "onnx/model.onnx" in manifest.files and floating.is_file()
        else None,
        entries=manifest.session,
        manifest=manifest,
    )


def _file(
    path: Path, task: Any, target: str, tokenizer: Path | None, reference: Path | None
) -> FinishedModel:
    _check_suffix(path, target)
    if tokenizer is not None and not tokenizer.is_dir():
        raise ModelError(
            "there is no such folder", where=str(tokenizer), fix="name the folder of the tokenizer"
        )
    folder = tokenizer or tokenizer_folder(path)
    facts = None if task is None else _facts(path, folder, task)
    ports, outputs = _ports(path, facts)
    floating = None
    if reference is not None:
        _check_suffix(reference, target)
        floating = FloatModel(reference, _ports(reference, facts)[1])
    return FinishedModel(
        *(path, path, target, folder, facts, outputs, _shape(ports), floating), tables=ports.tables
    )


def _shape(ports: ModelSignature) -> tuple[int, int]:
    ids = next(port for port in ports.inputs if input_named(port.name) == "input_ids")
    batch, sequence = ids.shape or _FREE
    return batch, sequence


def _check_suffix(path: Path, target: str) -> None:
    accepted = runtimes.load(targets.load(target).capabilities.runtime).suffixes
    if path.suffix not in accepted:
        raise TargetError(
            f"the target {target} does not open such files",
            where=str(path),
            got=path.suffix,
            expected=" or ".join(accepted),
        )


def _facts(path: Path, folder: Path, task_choice: Any) -> TaskFacts:
    """The task that a user names for a file, with what the files beside it state."""
    choice = choice_of(task_choice, "--task", "tasks")
    config = read_config(folder)
    source = ModelSource(
        path=path,
        kind="onnx",
        config=config,
        tokenizer_folder=folder,
        longest_input=longest_input(config),
        digest="",
        stamp="",
    )
    metadata = read_metadata(source)
    try:
        task = PLUGINS.make(choice).build(metadata)
    except DataError as error:
        error.where = str(folder / CONFIG) if error.where is None else error.where
        raise
    stated_facts = {**metadata.model_dump(), "labels": task.model_labels or metadata.labels}
    return TaskFacts(
        name=choice.name,
        options=choice.options,
        head=task.head,
        primary=task.primary,
        **stated_facts,
    )


def _ports(path: Path, facts: TaskFacts | None) -> tuple[ModelSignature, dict[str, str]]:
    """The inputs and outputs of a file; and the outputs that the task's head reads."""
    if not path.is_file():
        raise ModelError("there is no such file", where=str(path), fix="check the path")
    if path.suffix == ".xml" and not weights_at(path).is_file():
        raise ModelError(
            "the weights of the IR are missing",
            where=str(path),
            fix=f"copy {path.with_suffix('.bin').name} beside it",
        )
    ports = openvino.ports_of(path) if path.suffix == ".xml" else ports_of(read_onnx(path))
    check_inputs(ports.inputs, where=str(path))
    if facts is None:
        return ports, {}
    head = head_of(facts.head)
    # The labels in the config of an encoder are not those of the heads of its pre-training.
    labelled = head.shape in ("classes", "token-classes") and not head.pretrained
    classes = len(facts.labels) if labelled else 0
    outputs = outputs_of(head, ports.outputs, classes=classes, where=str(path))
    return ports, {name: outputs[name] for name in read_outputs(tuple(outputs))}
