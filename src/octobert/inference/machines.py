"""Packages that were chosen by their figures: on which machine they are opened, and folders with one for each kind of machine.

machines.json                     which package is for which kind of machine
avx512-bf16-openvino-cpu/         a package
avx2-ort-cpu/                     another one, of the same model

A kind is the instruction sets of the CPU that matter for 8-bit and bfloat16 arithmetic. The name of the CPU and the number of
its cores are not part of it: they change all times, and rarely which model is the fastest.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, field_validator

from octobert import targets
from octobert.core import environment
from octobert.core.environment import Environment
from octobert.core.errors import (
    ModelError,
    OtherMachineWarning,
    RecipeError,
    StorageError,
    TargetError,
    shortened,
)
from octobert.core.files import (
    atomic_folder,
    file_digest,
    is_file,
    is_folder,
    stays_inside,
    storage_errors,
    sync_all,
)
from octobert.core.frozen import FrozenModel, Row, Tabular
from octobert.core.origin import copy_files
from octobert.core.plain import printable
from octobert.core.results import PACKAGE_FILE, PackageManifest, TaskFacts
from octobert.core.selection import BEST
from octobert.inference import package_files
from octobert.targets import runtimes

INDEX = "machines.json"
# Kinds of machines that one folder has packages for; there are fewer than twenty.
_MOST = 100
# What a search publishes beside the package.
REPORT = "report.json"
# An index has a line of text for each kind of machine.
_LARGEST_INDEX = 1 << 20


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
        if len({package.folder for package in value}) < len(value):
            raise ValueError("a folder is listed twice")
        return value

    def to_rows(self) -> list[Row]:
        """One row per package."""
        return [
            {
                "folder": package.folder,
                "target": package.target,
                "cpu": package.cpu,
                "features": " ".join(package.features),
                "sentence": package.sentence,
            }
            for package in self.packages
        ]


def kind_of(machine: Environment | ForMachine) -> tuple[str, ...]:
    """The kind of a machine: the features of its CPU, or its name where the system does not list them.

    Example:
        >>> kind_of(ForMachine(folder="a", manifest="", target="", cpu="x", features=("avx2",), versions={}, sentence=""))
        ('avx2',)
    """
    return machine.features or (machine.cpu,)


def differences(origin: Environment, here: Environment, packages: Iterable[str]) -> list[str]:
    """Return how a machine differs in its kind or in versions of a runtime, as clauses; empty if it does not.

    Args:
        origin: where a model was chosen.
        here: where it is opened.
        packages: of its runtime. Only the first two numbers of their versions count.
    """
    return [*_of_kind(origin, here), *_of_versions(origin, here, packages, numbers=2)]


def changes(origin: Environment, here: Environment, packages: Iterable[str]) -> list[str]:
    """Return the properties that measured times depend on and that have changed, as clauses.

    Args:
        origin: where times were measured.
        packages: of all runtimes.
    """
    clauses = _of_kind(origin, here)
    if not clauses and origin.cpu != here.cpu:
        clauses.append(f"the CPU is {here.cpu}, not {origin.cpu}")
    if origin.cores != here.cores:
        clauses.append(f"{here.cores} cores, not {origin.cores}")
    names = tuple(packages)
    clauses += [
        f"{name} is installed here"
        for name in names
        if name in here.versions and name not in origin.versions
    ]
    clauses += [
        f"{name} is not installed here"
        for name in names
        if name in origin.versions and name not in here.versions
    ]
    return [*clauses, *_of_versions(origin, here, names)]


def distance(features: Iterable[str], here: Iterable[str]) -> tuple[int, int]:
    """Return the distance between two kinds of machines; the least is the nearest.

    Args:
        features: of the CPU that a package was chosen on.
        here: of the CPU that it would run on.

    Returns:
        How many features this CPU lacks, and how many it shares, negative.

    Example:
        >>> distance(("avx2", "amx_int8"), ("avx2",)), distance(("avx2",), ("avx2", "avx512f"))
        ((1, -1), (0, -1))
    """
    origin_features, present = set(features), set(here)
    return len(origin_features - present), -len(origin_features & present)


def _of_kind(origin: Environment, here: Environment) -> list[str]:
    if kind_of(origin) == kind_of(here):
        return []
    lacks = [feature for feature in origin.features if feature not in here.features]
    adds = [feature for feature in here.features if feature not in origin.features]
    clauses = [f"this CPU lacks {', '.join(lacks)}"] if lacks else []
    clauses += [f"this CPU also has {', '.join(adds)}"] if adds else []
    return clauses or [f"the CPU is {here.cpu}, not {origin.cpu}"]


def _of_versions(
    origin: Environment, here: Environment, packages: Iterable[str], numbers: int | None = None
) -> list[str]:
    """Runtimes that are installed in both, in other versions."""

    def shown(version: str) -> str:
        return ".".join(version.split(".")[:numbers])

    both = origin.versions.keys() & here.versions.keys()
    pairs = {
        name: (origin.versions[name], here.versions[name]) for name in packages if name in both
    }
    return [
        f"{name} is {shown(now)}, not {shown(then)}"
        for name, (then, now) in pairs.items()
        if shown(then) != shown(now)
    ]


def check_machine(package: Path, manifest: PackageManifest) -> None:
    """Warn, once in a process, where a package was chosen on another kind of machine.

    Warns:
        OtherMachineWarning: the message says what differs, and how to choose again.
    """
    if manifest.chosen is None:
        return
    differing = differences(manifest.environment, environment.current(), _packages(manifest.target))
    if differing:
        made_here = package.name == BEST and (package.parent / REPORT).is_file()
        again = (
            f"octobert auto {package.parent} --again"
            if made_here
            else "octobert auto, on this machine"
        )
        differs = (
            f"{package} was chosen on another kind of machine: {shortened('; '.join(differing))}"
        )
        _warn(printable(f"{differs}. Another model may be faster here; choose it with {again}"))


@functools.cache
def _warn(sentence: str) -> None:
    warnings.warn(sentence, OtherMachineWarning, stacklevel=7)


def _packages(target: str) -> tuple[str, ...]:
    """Python packages of the runtime that opens a target's models."""
    return runtimes.load(targets.load(target).CAPABILITIES.runtime).PACKAGES


def for_this_machine(folder: Path) -> Path:
    """The package of a folder: the folder itself, or of a merged folder the package for machines of this kind.

    A folder without a package of this kind gives the nearest one whose runtime is installed: with the fewest features that this
    CPU lacks, then with the most that both have.

    Raises:
        ModelError: the index of a merged folder cannot be read, or names what is not there.
        TargetError: no package of a merged folder can run here.
    """
    if (folder / PACKAGE_FILE).is_file() or not (folder / INDEX).is_file():
        return folder
    return _checked(folder, _chosen(folder, read_index(folder).packages))


def read_index(folder: Path) -> Machines:
    """Read `machines.json` of a merged folder.

    Raises:
        ModelError: it is no such file.
    """
    fix = "copy the folder again, or merge the packages again"
    return Machines.of_file(folder / INDEX, ModelError, fix, _LARGEST_INDEX)


def _chosen(folder: Path, packages: Sequence[ForMachine]) -> ForMachine:
    """The package for machines of this kind, or the nearest one that can run here."""
    here = environment.current()
    for package in packages:
        if kind_of(package) == kind_of(here):
            return package
    target_names = targets.names()
    probes = {
        package.target: targets.load(package.target).probe()
        for package in packages
        if package.target in target_names
    }
    ready = [
        package
        for package in packages
        if package.target in probes and probes[package.target].available
    ]
    if not ready:
        raise TargetError(
            "no package of this folder can run here",
            where=str(folder / INDEX),
            got=", ".join(dict.fromkeys(package.target for package in packages)),
            fix=next(
                (probe.install for probe in probes.values() if probe.install),
                "choose a model on this machine",
            ),
        )
    return min(ready, key=lambda package: distance(package.features, here.features))


def _checked(folder: Path, chosen: ForMachine) -> Path:
    """The folder of a package in a merged folder, which has the manifest that the index names."""
    package = folder / chosen.folder
    if not is_folder(package) or not is_file(package / PACKAGE_FILE):
        raise package_files.other_files(folder, [f"{chosen.folder}/{PACKAGE_FILE} is missing"])
    if file_digest(package / PACKAGE_FILE) != chosen.manifest:
        raise package_files.other_files(
            folder, [f"{chosen.folder}/{PACKAGE_FILE} has another content"]
        )
    return package


def merge(places: Sequence[Path], out: Path) -> Machines:
    """Write one folder with packages of one model that were chosen on different machines.

    Args:
        places: output directories of searches, packages of theirs, or merged folders. Of two packages for the same kind of
            machine the last one is taken.
        out: the folder to write.

    Raises:
        ModelError: one of them is not such a package, was changed, or was made from another model or for another task.
        RecipeError: all packages are for one kind of machine.
        StorageError: the folder exists, or cannot be written.
    """
    by_kind: dict[tuple[str, ...], tuple[Path, PackageManifest]] = {}
    for package in (package for place in places for package in _inside(place)):
        package_files.verify(package)
        manifest = package_files.read_manifest(package)
        _check_same(next(iter(by_kind.values()), None), package, manifest)
        by_kind.pop(kind := kind_of(manifest.environment), None)
        by_kind[kind] = package, manifest
    if len(by_kind) < 2:
        raise RecipeError(
            "merging needs packages for two kinds of machines",
            where="--merge",
            got=" ".join(next(iter(by_kind), ("nothing",))),
            fix="run octobert auto on another kind of machine, too",
        )
    manifests = [manifest for _, manifest in by_kind.values()]
    named = dict(zip(_names(manifests), by_kind.values(), strict=True))
    index = Machines(
        octobert=environment.versions(("octobert",)).get("octobert"),
        model_digest=manifests[0].model_digest,
        task=manifests[0].task,
        packages=tuple(
            _for_machine(name, package, manifest) for name, (package, manifest) in named.items()
        ),
    )
    with storage_errors(out):
        _write(named, index, out)
    return index


def _for_machine(folder: str, package: Path, manifest: PackageManifest) -> ForMachine:
    origin = manifest.environment
    return ForMachine(
        folder=folder,
        manifest=file_digest(package / PACKAGE_FILE),
        target=manifest.target,
        cpu=origin.cpu,
        features=origin.features,
        versions={
            name: origin.versions[name]
            for name in _packages(manifest.target)
            if name in origin.versions
        },
        sentence=str(manifest.chosen),
    )


def _inside(place: Path) -> list[Path]:
    """The chosen packages that a folder stands for."""
    if (place / PACKAGE_FILE).is_file():
        return [place]
    if (place / INDEX).is_file():
        return [_checked(place, package) for package in read_index(place).packages]
    if is_folder(place / BEST) and is_file(place / BEST / PACKAGE_FILE):
        return [place / BEST]
    raise ModelError(
        "no model was chosen in this folder",
        where=str(place),
        expected=f"{BEST}/{PACKAGE_FILE}",
        fix="name output directories of octobert auto",
    )


def _check_same(
    first: tuple[Path, PackageManifest] | None, package: Path, manifest: PackageManifest
) -> None:
    """Refuse a package that was not chosen, or was not made like the first one."""
    if manifest.chosen is None:
        fix = "name output directories of octobert auto"
        raise ModelError("the package was not chosen on a machine", where=str(package), fix=fix)
    targets.load(manifest.target, where=str(package / PACKAGE_FILE))
    if first is None:
        return
    where, fix = str(package), "merge packages that were chosen for one model and one task"
    if manifest.model_digest != first[1].model_digest:
        got, expected = (
            manifest.model_digest[:16],
            f"{first[1].model_digest[:16]}, as of {first[0]}",
        )
        raise ModelError(
            "the package was made from another model",
            where=where,
            got=got,
            expected=expected,
            fix=fix,
        )
    # Whether rows had labels says nothing about what the model does.
    mine, others = (
        package_manifest.task.replaced(primary=None) for package_manifest in (manifest, first[1])
    )
    if mine != others:
        expected = f"{others.name} with the same options and labels, as of {first[0]}"
        raise ModelError(
            "the package is for another task",
            where=where,
            got=mine.name,
            expected=expected,
            fix=fix,
        )


def _names(manifests: Sequence[PackageManifest]) -> list[str]:
    """Names of folders: the last feature of the CPU and the target, with a number where that is not enough."""
    names: list[str] = []
    for manifest in manifests:
        features = [
            flag for flag in environment.FLAGS if flag in manifest.environment.features
        ] or ["cpu"]
        name = f"{features[-1].replace('_', '-')}-{manifest.target}"
        count = sum(
            folder_name == name or folder_name.startswith(f"{name}-") for folder_name in names
        )
        names.append(f"{name}-{count + 1}" if count else name)
    return names


def _write(named: Mapping[str, tuple[Path, PackageManifest]], index: Machines, out: Path) -> None:
    """Write the folder: complete, or not at all."""
    if out.exists():
        raise StorageError(
            "the folder exists already", where=str(out), fix="choose another --out, or remove it"
        )
    with atomic_folder(out) as partial:
        for name, (package, manifest) in named.items():
            # Settings that were tuned are kept by machine.
            names = (*manifest.files, PACKAGE_FILE, package_files.TUNED_FILE)
            copy_files(package, names, partial / name)
        (partial / INDEX).write_text(index.model_dump_json(indent=1), encoding="utf-8")
        sync_all(partial)
