"""The packages of a folder, each with its float model: opened when they are asked, and again when they change on disk."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, TypeVar

import numpy as np

from octobert.api.packages import manifest, packages
from octobert.core.errors import ModelError, OctobertError, TargetError, did_you_mean
from octobert.core.files import file_stamp
from octobert.core.results import PACKAGE_FILE, TaskFacts
from octobert.data.tokenization import Tokenizer
from octobert.evaluation.candidates import floating_of
from octobert.inference.opened import FinishedModel, open_model
from octobert.inference.package_files import files_of
from octobert.inference.predictor import Predictor
from octobert.report.page.runs import title_of
from octobert.tasks import Task

T = TypeVar("T")
# What the page gets, and the work that makes it.
Event = dict[str, Any]
Work = Generator[Event, None, None]
FLOAT, INT8 = "float", "int8"
# Before each turn of a model: the threads of the one before it still wait for work, and would slow it down.
_PAUSE_S = 0.01
# Packages that are open at the same time, with both of their models.
_OPEN = 3


@dataclass(frozen=True)
class Side:
    """One of the two models that are compared.

    Args:
        name: `float` or `int8`.
        title: as in reports: `ort-f32` or `ort-cpu`.
        predictor: the opened model.
    """

    name: str
    title: str
    predictor: Predictor

    def facts(self) -> Event:
        """Facts on a side for the page."""
        predictor = self.predictor
        setting = predictor.setting
        return {
            "name": self.name,
            "title": self.title,
            "device": predictor.device,
            "precision": predictor.opened.precision(predictor.precision),
            "tuned": bool(setting.runtime_options or setting.threads or setting.streams > 1),
            "bytes": _size(predictor.opened),
        }


@dataclass(frozen=True)
class Pair:
    """A package that is open: its float model, if it has one, and its quantized model.

    Args:
        name: of the package.
        stamp: of its manifest, which tells whether it has changed.
        sides: the float model first.
        task: of both.
        facts: of the task.
        tokenizer: of both.
        lists: vectors of lists of texts that were searched: digest → name of the side → [texts, size].
    """

    name: str
    stamp: str
    sides: tuple[Side, ...]
    task: Task
    facts: TaskFacts
    tokenizer: Tokenizer
    lists: OrderedDict[str, dict[str, np.ndarray]] = field(default_factory=OrderedDict)

    def summary(self) -> Event:
        """Facts on both sides for the page, and the stamp, which changes where the package does."""
        return {"sides": [side.facts() for side in self.sides], "opened": self.stamp}

    def timed(self, number: int, call: Callable[[Predictor], T]) -> dict[str, tuple[T, float]]:
        """Call both models, in the order of a round: the one that came first comes last in the next.

        Returns:
            name of the side → (result, milliseconds).
        """
        results = {}
        for side in self.sides[:: -1 if number % 2 else 1]:
            sleep(_PAUSE_S)
            start = perf_counter()
            result = call(side.predictor)
            results[side.name] = (result, (perf_counter() - start) * 1e3)
        return results

    def rounds(
        self, count: int, call: Callable[[Predictor], T]
    ) -> tuple[dict[str, T], dict[str, list[float]]]:
        """Call both models several times. The first round is not counted: runtimes compile or allocate then.

        Returns:
            name of the side → its result; and the milliseconds of each round.
        """
        first, *others = (self.timed(number, call) for number in range(-1, count))
        results = {name: result for name, (result, _) in first.items()}
        return results, {
            side.name: [times[side.name][1] for times in others] for side in self.sides
        }


class Models:
    """The packages that a folder holds.

    Args:
        folder: an output directory, or a package.
        targets: to show; none for all.

    Raises:
        ModelError: there is no package.
        TargetError: there is no package for a target, or none that can run here.
    """

    def __init__(self, folder: Path, targets: Sequence[str] = ()) -> None:
        self._folder, self._targets = folder, tuple(targets)
        self._open: OrderedDict[str, Pair] = OrderedDict()
        self._started: dict[str, Path] = {}
        listed = self.listed()
        if not any(entry["problem"] is None for entry in listed):
            # An error of a package itself says more.
            for path in self._packages().values():
                manifest(path)
            raise TargetError(
                "no package of the folder can be opened",
                where=str(folder),
                got=listed[0]["problem"],
            )

    def listed(self) -> list[Event]:
        """The packages that the folder holds now, each with the problem that keeps it from running here.

        Raises:
            ModelError: there is no package.
            TargetError: there is no package for a target.
        """
        entries = [_entry(name, path) for name, path in self._packages().items()]
        package_targets = [entry["target"] for entry in entries]
        for target in self._targets:
            if target not in package_targets:
                raise TargetError(
                    f'the folder has no package for the target "{target}"',
                    where=str(self._folder),
                    fix=did_you_mean(target, package_targets),
                )
        return [entry for entry in entries if not self._targets or entry["target"] in self._targets]

    def pair(self, name: str) -> Pair:
        """A package by its name, opened; again where it has changed.

        Raises:
            ModelError: it is not there, or not any more, or cannot be opened.
            TargetError: its target cannot run here.
        """
        path = self._packages().get(name)
        if path is None or not (path / PACKAGE_FILE).is_file():
            self._open.pop(name, None)
            gone = self._started.get(name)
            what = f'there is no package "{name}"'
            if gone is not None:
                what = "the package is not there any more"
            raise ModelError(
                what, where=str(gone or self._folder), fix="make it again, or choose another one"
            )
        stamp = file_stamp(path / PACKAGE_FILE)
        pair = self._open.pop(name, None)
        if pair is None or pair.stamp != stamp:
            pair = paired(name, open_model(path), stamp)
        self._open[name] = pair
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return pair

    def _packages(self) -> dict[str, Path]:
        """Packages by name. A folder that is one package has it under its own name, also when it was deleted."""
        folder = self._folder
        paths = packages(folder)
        by_name = {path.resolve().name if path == folder else path.name: path for path in paths}
        self._started = {**self._started, **by_name}
        return by_name


def _entry(name: str, path: Path) -> Event:
    """The entry of a package in the list of the page."""
    try:
        package = manifest(path)
    except ModelError as error:
        return {"name": name, "target": "", "problem": str(error)}
    task, problem = package.task, None
    try:
        open_model(path).check_runs()
    except OctobertError as error:
        problem = str(error)
    return {
        "name": name,
        "model": title_of(str(package.recipe["model"])),
        "target": package.target,
        "task": task.name,
        "head": task.head,
        "texts": task.texts,
        "prompts": list(task.prompts),
        "problem": problem,
    }


def paired(name: str, model: FinishedModel, stamp: str) -> Pair:
    """Open a model and its float model.

    Raises:
        OctobertError: it cannot be opened.
    """
    quantized = Side(INT8, model.name, Predictor(model, measure=False))
    floating = floating_of(model)
    sides: tuple[Side, ...] = (quantized,)
    if floating is not None:
        float_model, baseline = floating
        sides = (
            Side(
                FLOAT,
                baseline.name,
                Predictor(float_model, precision=baseline.precision, measure=False),
            ),
            quantized,
        )
    task = quantized.predictor.task
    return Pair(name, stamp, sides, task, model.facts(), model.tokenizer(task))


def _size(model: FinishedModel) -> int:
    """Bytes of the files that a side opens."""
    return sum(file.stat().st_size for file in files_of(model.file))
