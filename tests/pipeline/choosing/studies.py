"""A search without models: what is found follows from the combination."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octobert.config.loading import parse
from octobert.core.environment import Environment
from octobert.core.estimate import Estimate
from octobert.core.selection import Variant, VariantResult
from octobert.pipeline.choosing import study
from octobert.pipeline.choosing.claims import Values

FORK = multiprocessing.get_context("fork")
SPACE = {
    "calibrate": ["minmax", "mse", "entropy"],
    "transforms": [[], ["smoothquant"]],
    "quantize.static.per_channel": [True, False],
}
MACHINE = Environment(
    cpu="a",
    cores=2,
    memory_bytes=1,
    features=("avx2",),
    system="s",
    python="3",
    versions={"onnxruntime": "1"},
)
_TIMES = {"minmax": 9.0, "mse": 7.0, "entropy": 5.0, None: 8.0}


def recipe_of(**search: Any) -> Any:
    """A recipe with a search."""
    return parse(
        {"model": "m", "task": "mrpc", "data": "glue", "search": {"space": SPACE, **search}}
    )


def variant_of(changes: Mapping[str, Any]) -> Variant:
    rest = {key: value for key, value in changes.items() if key != "targets"}
    # No transforms is what a recipe has here without the key.
    rest = {key: value for key, value in rest.items() if value != []}
    name = " ".join(f"{key}={value}" for key, value in sorted(rest.items()))
    return Variant(
        name=name or "as it is",
        target=str(changes.get("targets", "ort-cpu")),
        changes=rest,
        precision="int8",
    )


def found_of(variant: Variant) -> VariantResult:
    """Entropy is the fastest and the least accurate one; without channels it cannot be made."""
    changes = variant.changes
    if (
        changes.get("calibrate") == "entropy"
        and changes.get("quantize.static.per_channel") is False
    ):
        return VariantResult(variant=variant, state="excluded", reason="cannot be made")
    ms = _TIMES[changes.get("calibrate")] + 0.5 * bool(changes.get("transforms"))
    drop = 0.02 * (ms < 6) - 0.001 * bool(changes.get("transforms"))
    figure = Estimate(value=ms, low=ms, high=ms)
    return VariantResult(
        variant=variant,
        state="admissible",
        reason="",
        time_ms=figure,
        values={"accuracy": 0.9 - drop},
    )


class Trials:
    """Trials without models (`study.Trials`): what is found of a variant is what `find` returns."""

    seconds = 0.0

    def __init__(
        self,
        find: Callable[[Variant], VariantResult] = found_of,
        *,
        inputs: Mapping[str, str] | None = None,
        machine: Environment = MACHINE,
        prepare: Callable[[Sequence[Variant]], None] = lambda _: None,
        at_once: int = 1,
    ) -> None:
        self.find, self.prepare = find, prepare
        self.inputs, self.machine, self.at_once = inputs or {"model": "m"}, machine, at_once

    def variant_of(self, changes: Mapping[str, Any]) -> Variant:
        return variant_of(changes)

    def tell(self, result: VariantResult, number: int, total: int) -> None:
        pass

    def values(self, result: VariantResult) -> Values:
        if result.time_ms is None:
            return Values(None, 0.0)
        return Values((result.time_ms.value,), max(0.0, 0.89 - result.values["accuracy"]))

    def best(self, results: Sequence[VariantResult]) -> VariantResult:
        return min(results, key=lambda each: (self.values(each).misses, self.values(each).goals))


def searched(
    place: Path,
    find: Callable[[Variant], VariantResult] = found_of,
    *,
    inputs: Mapping[str, str] | None = None,
    prepare: Callable[[Sequence[Variant]], None] = lambda _: None,
    at_once: int = 1,
    **search: Any,
) -> study.Searched:
    """Search with the settings in `search`."""
    return study.search(
        recipe_of(**search), Trials(find, inputs=inputs, prepare=prepare, at_once=at_once), place
    )


def names(result: study.Searched) -> list[str]:
    return [each.variant.name for each in result.found]


def work(storage: str, log: str, seconds: float, settings: Mapping[str, Any]) -> None:
    """One of several processes that search in one study; what it tries is added to a file."""

    def find(variant: Variant) -> VariantResult:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{variant.name}\n")
        time.sleep(seconds)
        return found_of(variant)

    result = searched(Path(log), find, storage=storage, **settings)
    Path(f"{log}.{time.monotonic_ns()}").write_text("\n".join(names(result)), encoding="utf-8")


def together(
    folder: Path, where: str, settings: Mapping[str, Any], processes: int = 2
) -> tuple[list[str], list[list[str]]]:
    """Search with several processes; return what they tried, and what each of them returned."""
    log = folder / "tried"
    workers = [
        FORK.Process(target=work, args=(where, str(log), 0.01, settings)) for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * processes
    results = [
        path.read_text(encoding="utf-8").splitlines() for path in folder.glob("tried.*[0-9]")
    ]
    assert len(results) == processes
    return log.read_text(encoding="utf-8").splitlines(), results
