"""Kinds of machines. A model that was chosen by its figures is the best one on machines of one kind.

A kind is the instruction sets of the CPU that matter for 8-bit and bfloat16 arithmetic. The name of the CPU and the number of
its cores are not part of it: they change all times, and rarely which model is the fastest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from octobert.core.environment import Environment
from octobert.core.files import stays_inside
from octobert.core.frozen import FrozenModel
from octobert.core.results import TaskFacts
from octobert.core.tabular import Row, Tabular

INDEX = "machines.json"
# Kinds of machines that one folder has packages for; there are fewer than twenty.
_MOST = 100


def _is_name(name: str) -> str:
    if not stays_inside(name) or set(name) & {"/", "\\", ":"} or name == ".":
        raise ValueError("not the name of a folder beside the file")
    return name


class ForMachine(FrozenModel):
    """A package that was chosen on one kind of machine.

    Args:
        folder: of the package, beside the index.
        manifest: sha256 of its `octobert.json`, which has those of its other files.
        target: that opens it.
        cpu: model name of the CPU.
        features: instruction sets of the CPU.
        versions: package of the target's runtime → version.
        sentence: why it was chosen.
    """

    folder: Annotated[str, AfterValidator(_is_name)]
    manifest: str
    target: str
    cpu: str
    features: tuple[str, ...]
    versions: dict[str, str]
    sentence: str


class Machines(Tabular):
    """`machines.json`: packages of one model, each for one kind of machine.

    Args:
        octobert: version of octobert that wrote it.
        model_digest: sha256 of the model that all of them were made from.
        task: of all of them.
        packages: one for each kind of machine.
    """

    octobert: str | None
    model_digest: str
    task: TaskFacts
    packages: tuple[ForMachine, ...] = Field(min_length=1, max_length=_MOST)

    @field_validator("packages")
    @classmethod
    def _each_once(cls, value: tuple[ForMachine, ...]) -> tuple[ForMachine, ...]:
        if len({each.folder for each in value}) < len(value):
            raise ValueError("a folder is listed twice")
        return value

    def to_rows(self) -> list[Row]:
        """One row per package."""
        return [
            {
                "folder": each.folder,
                "target": each.target,
                "cpu": each.cpu,
                "features": " ".join(each.features),
                "sentence": each.sentence,
            }
            for each in self.packages
        ]


def kind_of(machine: Environment | ForMachine) -> tuple[str, ...]:
    """The kind of a machine: the features of its CPU, or its name where the system does not list them.

    Example:
        >>> kind_of(ForMachine(folder="a", manifest="", target="", cpu="x", features=("avx2",), versions={}, sentence=""))
        ('avx2',)
    """
    return machine.features or (machine.cpu,)


def differences(made: Environment, here: Environment, packages: Iterable[str]) -> list[str]:
    """In which ways a machine is of another kind, or has another version of a runtime, as clauses; empty if in none.

    Args:
        made: where a model was chosen.
        here: where it is opened.
        packages: of its runtime. Only the first two numbers of their versions count.
    """
    return [*_of_kind(made, here), *_of_versions(made, here, packages, numbers=2)]


def changes(made: Environment, here: Environment, packages: Iterable[str]) -> list[str]:
    """What measured times depend on and is not as it was, as clauses.

    Args:
        made: where times were measured.
        packages: of all runtimes.
    """
    clauses = _of_kind(made, here)
    if not clauses and made.cpu != here.cpu:
        clauses.append(f"the CPU is {here.cpu}, not {made.cpu}")
    if made.cores != here.cores:
        clauses.append(f"{here.cores} cores, not {made.cores}")
    names = tuple(packages)
    clauses += [f"{name} is installed here" for name in names if name in here.versions and name not in made.versions]
    clauses += [f"{name} is not installed here" for name in names if name in made.versions and name not in here.versions]
    return [*clauses, *_of_versions(made, here, names)]


def distance(features: Iterable[str], here: Iterable[str]) -> tuple[int, int]:
    """How far a kind is from another one; the least is the nearest.

    Args:
        features: of the CPU that a package was chosen on.
        here: of the CPU that it would run on.

    Returns:
        How many features this CPU lacks, and how many it shares, negative.

    Example:
        >>> distance(("avx2", "amx_int8"), ("avx2",)), distance(("avx2",), ("avx2", "avx512f"))
        ((1, -1), (0, -1))
    """
    own, present = set(features), set(here)
    return len(own - present), -len(own & present)


def _of_kind(made: Environment, here: Environment) -> list[str]:
    if kind_of(made) == kind_of(here):
        return []
    lacks = [feature for feature in made.features if feature not in here.features]
    adds = [feature for feature in here.features if feature not in made.features]
    clauses = [f"this CPU lacks {', '.join(lacks)}"] if lacks else []
    clauses += [f"this CPU also has {', '.join(adds)}"] if adds else []
    return clauses or [f"the CPU is {here.cpu}, not {made.cpu}"]


def _of_versions(made: Environment, here: Environment, packages: Iterable[str], numbers: int | None = None) -> list[str]:
    """Runtimes that are installed in both, in other versions."""

    def shown(version: str) -> str:
        return ".".join(version.split(".")[:numbers])

    both = made.versions.keys() & here.versions.keys()
    pairs = {name: (made.versions[name], here.versions[name]) for name in packages if name in both}
    return [f"{name} is {shown(now)}, not {shown(then)}" for name, (then, now) in pairs.items() if shown(then) != shown(now)]
