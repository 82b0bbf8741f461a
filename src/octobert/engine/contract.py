"""What a stage is given, and what it answers.

A stage is a module in `pipeline/stages` with a function `run`, whose signature says what its result depends on, and whose
decorator says what kind of artifact it writes:

    @stage(Statistics)
    def run(context: Context, capture: CapturedModel, data: Rows, *, kinds: tuple[str, ...], spec: TaskSpec) -> Summary

What stands before the star is made by earlier steps; what stands behind it are options. The planner gives all of them, as if
it called the function, and mypy checks that. The runner adds the folders, the executor carries everything to the stage as JSON,
and pydantic checks it again there.

Options may hold files of the user. Their digest is taken when a run is planned, and stages read them later. What a stage made
is only kept if they are still the same then.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_type_hints,
    runtime_checkable,
)

from pydantic import create_model

from octobert.config.training import Training
from octobert.core.files import file_digest, file_stamp
from octobert.core.frozen import FrozenModel, lazy

STAGES = "octobert.pipeline.stages"
# Annotate parameters of stages. An option that changes nothing about the result does not count for the step's key. Of results
# whose manifests are read too, with how long the step took, the manifest counts, not only the files.
NOT_IN_KEY, WITH_MANIFESTS = "not in the key", "with manifests"

M = TypeVar("M", bound=FrozenModel)

# Called with (what is done, how much of it is done, of how much).
Progress = Callable[[str, int, int], None]
# A few figures for people and for the report; plain JSON.
Summary = dict[str, Any]


@runtime_checkable
class UserFiles(Protocol):
    """Files with a digest, as a stage's options hold them."""

    @property
    def digest(self) -> str:
        """Of their content."""
        ...

    @property
    def stamp(self) -> str:
        """What the file system said of them before the digest was taken."""
        ...

    @property
    def places(self) -> tuple[Path, ...]:
        """The files and folders that are read; none of a data set on the hub."""
        ...

    def summary(self, of: Callable[[Path], str]) -> str:
        """The digest or the stamp of the files as they are now.

        Args:
            of: `file_digest` or `file_stamp`.
        """
        ...


def unchanged(files: UserFiles) -> bool:
    """Whether files still have their digest. They are read again only if the file system says that they were written."""
    try:
        return (
            files.summary(file_stamp) == files.stamp or files.summary(file_digest) == files.digest
        )
    except OSError:
        return False


class StepResult(FrozenModel):
    """What a step makes. The planner knows the step's name, the runner adds the folder.

    Args:
        step: the name of the step, `quantize/ort-cpu`.
        folder: the artifact in the store; None while nothing has run.
    """

    step: str
    folder: Path | None = None

    def path(self, name: str) -> Path:
        """A file or folder of the artifact."""
        if self.folder is None:
            raise RuntimeError(f"{self.step} is planned, not made")
        return self.folder / name

    def read(self, name: str, kind: type[M]) -> M:
        """A JSON file of the artifact, as the data type that was written."""
        return kind.model_validate_json(self.path(name).read_text(encoding="utf-8"))

    def read_if_there(self, name: str, kind: type[M]) -> M | None:
        """As `read`; None where the step did not write that."""
        return self.read(name, kind) if self.path(name).is_file() else None

    def read_json(self, name: str) -> Any:
        """A JSON file of the artifact, as plain data."""
        return json.loads(self.path(name).read_text(encoding="utf-8"))


P = ParamSpec("P")
A = TypeVar("A", bound=StepResult, covariant=True)


@dataclass(frozen=True)
class Context:
    """Where a stage works.

    Args:
        work: the folder to write into.
        scratch: a folder, to be created by the stage. It survives an interruption, so the next run of the same step finds it;
            it is removed once the step is done.
        progress: to be called while the stage works.
    """

    work: Path
    scratch: Path
    progress: Progress

    def write(self, name: str, data: FrozenModel) -> None:
        """Write a data type as JSON."""
        (self.work / name).write_text(data.model_dump_json(indent=1), encoding="utf-8")

    def write_json(self, name: str, data: Any) -> None:
        """Write plain data as JSON."""
        (self.work / name).write_text(
            json.dumps(data, indent=1, ensure_ascii=False), encoding="utf-8"
        )


@dataclass(frozen=True)
class Stage(Generic[P, A]):
    """A function that an executor calls, in a process of its own.

    Args:
        function: its parameters are what its result depends on.
        makes: the kind of artifact that it writes.
        anywhere: a cluster may run it, because it computes the same on every machine of one kind. Other stages stay on this
            machine: they measure time, describe the machine, keep what they have found in `scratch`, or only copy files.
    """

    function: Callable[Concatenate[Context, P], Summary]
    makes: type[A]
    anywhere: bool = False

    def __call__(self, context: Context, *args: P.args, **kwargs: P.kwargs) -> Summary:
        """Write the artifact."""
        return self.function(context, *args, **kwargs)

    def step(self, name: str, /, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Return a step with all inputs and options.

        Args:
            name: unique in the run: that of the stage, or with a target or a candidate behind a slash.

        Raises:
            TypeError: an argument is missing, or unknown.
            ValueError: one is of another type.
        """
        given = inspect.signature(self.function).bind(cast(Context, None), *args, **kwargs)
        given.apply_defaults()
        inputs, options = (
            kind(**{field: given.arguments[field] for field in kind.model_fields})
            for kind in (self.inputs, self.options)
        )
        return Step(name, self.function.__module__.rpartition(".")[2], inputs, options)

    @lazy
    def inputs(self) -> type[FrozenModel]:
        """Results of earlier steps: `StepResult`s, or mappings to them."""
        return self._parameters("Inputs", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @lazy
    def options(self) -> type[FrozenModel]:
        """Everything else that the artifact depends on."""
        return self._parameters("Options", inspect.Parameter.KEYWORD_ONLY)

    def _parameters(self, name: str, kind: Any) -> type[FrozenModel]:
        hints = get_type_hints(self.function, include_extras=True)
        _, *parameters = inspect.signature(self.function).parameters.values()
        fields = {
            p.name: (hints[p.name], ... if p.default is p.empty else p.default)
            for p in parameters
            if p.kind is kind
        }
        return create_model(name, __base__=FrozenModel, **fields)  # type: ignore[call-overload, no-any-return]


def stage(
    makes: type[A], *, anywhere: bool = False
) -> Callable[[Callable[Concatenate[Context, P], Summary]], Stage[P, A]]:
    """Make a stage of a function.

    Args:
        makes, anywhere: as of `Stage`.
    """
    return lambda function: Stage(function, makes, anywhere)


def stage_named(name: str) -> Stage[..., StepResult]:
    """The stage in a module of `pipeline/stages`."""
    run: Stage[..., StepResult] = importlib.import_module(f"{STAGES}.{name}").run
    return run


@dataclass(frozen=True)
class Step:
    """One stage with its inputs and options.

    Args:
        name: unique in the run, `export/ort-cpu`.
        stage: the module in `pipeline/stages`, `export`.
        inputs, options: see `Stage`.
        launch: how many processes run it, on how many machines; not part of the key.
    """

    name: str
    stage: str
    inputs: FrozenModel
    options: FrozenModel
    launch: Training | None = None

    @property
    def result(self) -> StepResult:
        """What later steps take as an input."""
        return StepResult(step=self.name)

    @property
    def options_as_json(self) -> dict[str, Any]:
        """Return its options as plain JSON, in which each class of data writes what is not finite in its own way."""
        options: dict[str, Any] = json.loads(self.options.model_dump_json(by_alias=True))
        return options

    @property
    def reads(self) -> list[UserFiles]:
        """Files of the user that it reads, or may read."""
        return list(files_in(self.options))

    @property
    def needs(self) -> dict[str, str]:
        """The steps whose results it reads: name of the input → name of the step."""
        return {name: result.step for name, result in results_in(self.inputs)}


def files_in(value: Any) -> Iterator[UserFiles]:
    """The files of the user in options, however deep."""
    if isinstance(value, UserFiles):
        yield value
    elif isinstance(value, FrozenModel):
        yield from (files for _, inner in value for files in files_in(inner))
    elif isinstance(value, Mapping | tuple):
        inner = value.values() if isinstance(value, Mapping) else value
        yield from (files for part in inner for files in files_in(part))


def results_in(inputs: FrozenModel) -> Iterator[tuple[str, StepResult]]:
    """The results among a stage's inputs, with their names; those in mappings as `field/key`."""
    for name, value in inputs:
        if isinstance(value, StepResult):
            yield name, value
        elif isinstance(value, Mapping):
            yield from ((f"{name}/{key}", result) for key, result in value.items())


def resolved(inputs: M, folders: Mapping[str, Path]) -> M:
    """Inputs with the folder of each result."""
    filled: dict[str, Any] = {}
    for name, value in inputs:
        if isinstance(value, StepResult):
            filled[name] = value.replaced(folder=folders[value.step])
        elif isinstance(value, Mapping):
            filled[name] = {k: r.replaced(folder=folders[r.step]) for k, r in value.items()}
    return inputs.replaced(**filled)


class Request(FrozenModel):
    """A step as an executor carries it to its stage.

    Args:
        stage: the module in `pipeline/stages`.
        inputs, options: of the step, as plain JSON.
        scratch: see `Context`.
        temporary: a folder for temporary files of the processes that run it, which would survive when they are killed.
    """

    stage: str
    inputs: dict[str, Any]
    options: dict[str, Any]
    scratch: Path
    temporary: Path

    @property
    def parsed(self) -> FrozenModel:
        """Return the options as the stage takes them."""
        return stage_named(self.stage).options.model_validate(self.options)


class Response(FrozenModel):
    """What came of a stage.

    Args:
        seconds: wall-clock time.
        peak_memory_bytes: of the process that ran it.
    """

    summary: Summary
    seconds: float
    peak_memory_bytes: int
