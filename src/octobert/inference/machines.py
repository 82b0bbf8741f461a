"""Packages that were chosen by their figures are opened with a warning on another kind of machine.

A kind is the instruction sets of the CPU that matter for 8-bit and bfloat16 arithmetic. The name of the CPU and the number of
its cores are not part of it: they change all times, and rarely which model is the fastest.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable
from pathlib import Path

from octobert import targets
from octobert.core import environment
from octobert.core.environment import Environment
from octobert.core.errors import OtherMachineWarning, shortened
from octobert.core.plain import printable
from octobert.core.results import PackageManifest
from octobert.targets import runtimes


def check_machine(package: Path, manifest: PackageManifest) -> None:
    """Warn, once in a process, where a package was chosen on another kind of machine.

    Warns:
        OtherMachineWarning: the message says what differs, and how to choose again.
    """
    if manifest.chosen is None:
        return
    names = runtimes.load(targets.load(manifest.target).capabilities.runtime).packages
    if differing := differences(manifest.environment, environment.current(names), names):
        differs = (
            f"{package} was chosen on another kind of machine: {shortened('; '.join(differing))}"
        )
        _warn(
            printable(
                f"{differs}. Another model may be faster here; choose it with octobert auto, on this machine"
            )
        )


@functools.cache
def _warn(sentence: str) -> None:
    warnings.warn(sentence, OtherMachineWarning, stacklevel=7)


def differences(origin: Environment, here: Environment, packages: Iterable[str]) -> list[str]:
    """Return how a machine differs in its kind or in versions of a runtime, as clauses; empty if it does not.

    Args:
        origin: where a model was chosen.
        here: where it is opened.
        packages: of its runtime. Only the first two numbers of their versions count.
    """
    lacks = [feature for feature in origin.features if feature not in here.features]
    adds = [feature for feature in here.features if feature not in origin.features]
    clauses = [f"this CPU lacks {', '.join(lacks)}"] if lacks else []
    clauses += [f"this CPU also has {', '.join(adds)}"] if adds else []
    # Some systems do not list the features of their CPU.
    if not (origin.features or here.features or origin.cpu == here.cpu):
        clauses.append(f"the CPU is {here.cpu}, not {origin.cpu}")
    for name in packages:
        then, now = (_version(machine, name) for machine in (origin, here))
        if then and now and then != now:
            clauses.append(f"{name} is {now}, not {then}")
    return clauses


def _version(machine: Environment, package: str) -> str:
    """Return the first two numbers of the version of a package; empty where it is not installed."""
    return ".".join(machine.versions.get(package, "").split(".")[:2])
