"""Choose the fastest model of a machine that still does the task."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from octobert.api._arguments import (
    DataLike,
    Duration,
    NotNegative,
    PathLike,
    TaskLike,
    raw_recipe,
)
from octobert.core.errors import RecipeError
from octobert.core.plain import preview
from octobert.core.progress import ProgressCallback

if TYPE_CHECKING:
    from octobert.config.recipe import RecipeKeys
    from octobert.core.results import Report

# Of the main metric, where the user names no limit.
MAX_DROP, MINUTES = 0.01, 20.0
_PERCENTILE = r"p\d{1,2}(?:\.\d)?"
_LATENCY = re.compile(
    rf"(?P<ms>\d+(?:\.\d+)?)ms(?:@(?P<at>{_PERCENTILE}))?|(?P<goal>{_PERCENTILE})"
)


def auto(
    model: PathLike,
    task: TaskLike,
    data: DataLike | Mapping[str, Any],
    *,
    out: PathLike,
    max_drop: NotNegative | None = None,
    relative: bool = False,
    at_least: float | None = None,
    latency: str | None = None,
    throughput: bool = False,
    size: bool = False,
    memory: bool = False,
    min_speedup: NotNegative | None = None,
    minutes: Duration | None = None,
    progress: ProgressCallback | None = None,
    **keys: Unpack[RecipeKeys],
) -> Report:
    """Find the model that is the best on this machine and still does the task: runtime, precision, method, options.

    Args:
        model: Hub id, folder, package:NAME/PATH, an .onnx file next to its tokenizer, or a .zip file or URL of one of these.
        task: Name of the task, or one name with its options: `{"squad": {"max_length": 384}}`.
        data: File, folder or Hub id; or the recipe's `data` as a mapping.
        out: Output directory: the package `best`, its recipe `best.yaml`, the report. The same call resumes an interrupted one.
        max_drop: Largest accepted drop of the main metric: 0.01 is one point. Default: 0.01, unless `at_least` is given.
        relative: `max_drop` is a fraction of the float model's metric.
        at_least: Smallest accepted value of the main metric: 0.9 is 90 %.
        latency: A percentile to optimize, `p90`, or a limit, `20ms` or `20ms@p90`. Default goal: the latency of each
            text, compared with its own.
        throughput: Optimize the throughput.
        size: Optimize the size of the files.
        memory: Optimize the memory of a process.
        min_speedup: Smallest accepted speedup over the float model.
        minutes: Time limit of the search and of the final measurement. Default: 20.
        progress: Called at each step.
        keys: Other keys of the recipe, such as `metric="f1"` or `calibrate="mse"`. Keys that are set are not varied. `targets`
            are the only ones that are tried. Default: all on the CPU that can run here.

    Returns:
        The report of the chosen model; `choice` has everything that was tried.

    Raises:
        OctobertError: A key is not valid, or a step failed.
    """
    from octobert.api.runs import run

    choose = settings(
        latency=latency,
        throughput=throughput,
        size=size,
        memory=memory,
        max_drop=max_drop,
        relative=relative,
        at_least=at_least,
        min_speedup=min_speedup,
        minutes=minutes,
    )
    return run(raw_recipe(model, task, data, {"choose": choose, **keys}), out, progress=progress)


def settings(
    *,
    latency: str | None = None,
    throughput: bool = False,
    size: bool = False,
    memory: bool = False,
    max_drop: float | None = None,
    relative: bool = False,
    at_least: float | None = None,
    min_speedup: float | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Return the recipe's key `choose` for the arguments of `auto`.

    Raises:
        RecipeError: The latency has another form, there are two goals, or a limit means nothing.

    Example:
        >>> settings(latency="20ms@p90", minutes=5)["goal"]
        'latency@p90'
    """
    flags = {"throughput": throughput, "size": size, "memory": memory}
    goals = [name for name, is_goal in flags.items() if is_goal]
    figure, most = _latency(latency)
    if latency is not None and most is None:
        goals.append(f"latency {latency}")
    if len(goals) > 1:
        raise RecipeError(
            "only one goal can be optimized",
            got=" and ".join(goals),
            fix="choose one; a latency in ms is a limit beside it" if latency else "choose one",
        )
    if max_drop is None and at_least is None:
        max_drop = MAX_DROP
    if relative and max_drop is None:
        raise RecipeError(
            "relative is about the largest drop, and none is given",
            where="relative",
            fix="give max_drop, or leave relative out",
        )
    bounds = {"max_drop": max_drop, "at_least": at_least, "relative": relative or None}
    limits: list[dict[str, Any]] = [
        {"of": "metric", **{key: value for key, value in bounds.items() if value is not None}}
    ]
    if min_speedup is not None:
        limits.append({"of": "speedup", "at_least": min_speedup})
    if most is not None:
        limits.append({"of": figure, "at_most": most})
    goal = goals[0] if goals and goals[0] in flags else figure
    return {"goal": goal, "limits": limits, "minutes": MINUTES if minutes is None else minutes}


def _latency(text: str | None) -> tuple[str, float | None]:
    """Return the figure that a latency names, and the largest accepted one in ms."""
    if text is None:
        return "latency", None
    match = _LATENCY.fullmatch(text) if isinstance(text, str) else None
    if match is None or (match["ms"] and not float(match["ms"])):
        raise RecipeError(
            "not a latency",
            where="latency",
            got=preview(text),
            expected="such as 20ms, 20ms@p90 or p90",
        )
    percentile = match["at"] or match["goal"]
    most = float(match["ms"]) if match["ms"] else None
    return f"latency@{percentile}" if percentile else "latency", most
