"""Commands that reports show: how a finished model is used, and how another one is made. Each can be pasted into a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from octobert.config import loading
from octobert.config.recipe import SPLITS, PlainRecipe, Recipe
from octobert.core import plugins
from octobert.core.errors import OctobertError
from octobert.core.heads import input_of
from octobert.core.plan import SHORT
from octobert.core.results import Report, TaskFacts
from octobert.core.selection import BEST, Variant

# An example of an input of a head, where it is not one text or a pair.
_EXAMPLES = {
    "question": ("a question", "a text with the answer"),
    "masked": ("a text with [MASK]",),
    "named": ("a text", "document"),
}
# Longest text of an example, in characters. A context has room for an answer.
_TEXT, _CONTEXT = 60, 160
# Keys of a recipe that a float model has no use for.
_OF_EIGHT_BITS = (
    "transforms",
    "corrections",
    "accuracy",
    "qat",
    "speed",
    "format",
    "calibrate",
    "sensitivity",
)


def predict(package: str, task: TaskFacts) -> str:
    """The command that predicts with a package.

    Args:
        package: folder of the package, `OUT/<target>`.
        task: of the package.
    """
    texts = ("first text", "second text") if task.texts == 2 else ("a text",)
    return predict_command(package, task.head, _EXAMPLES.get(input_of(task.head), texts))


def predict_command(package: str | Path, head: str, example: Sequence[str]) -> str:
    """The command that predicts an example with a package.

    Args:
        package: `OUT/<target>`.
        head: of the model.
        example: the texts of one row, in the order in which the task reads them.

    Example:
        >>> predict_command(Path("out/ort-cpu"), "sequence-classification", ["It's good.", "It is fine."])
        'octobert predict out/ort-cpu --pair \\'It\\'"\\'"\\'s good.\\' \\'It is fine.\\''
    """
    command, asked = ["octobert", "predict", str(package)], input_of(head)
    if asked == "question":
        question, context = example
        texts = [
            "--question",
            _shortened(question, _TEXT),
            "--context",
            _shortened(context, _CONTEXT),
        ]
        return shlex.join([*command, *texts])
    if asked == "named":
        text, name = example
        return shlex.join([*command, "--prompt", name, "--", _shortened(text, _TEXT)])
    # The words of a sentence to tag are one text.
    texts = [" ".join(example)] if asked == "words" else list(example)
    texts = [_shortened(text, _TEXT) for text in texts]
    if len(texts) > 1:
        command.append("--pair")
    if any(text.startswith("-") for text in texts):
        # It would be read as an option.
        command.append("--")
    return shlex.join([*command, *texts])


def _shortened(text: str, length: int) -> str:
    """A text on one line, cut after a word."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) <= length:
        return line
    start, space, _ = line[: length + 1].rpartition(" ")
    return start if space else line[:length]


def of_candidate(report: Report, folder: str, name: str) -> str:
    """The command for a model of a run: to use a package that it has written, or to make a float model as a package.

    Args:
        folder: output directory of the run.
        name: of a target or of a float baseline.
    """
    if name in report.plans:
        package = BEST if report.choice is not None else name
        return predict(str(PurePath(folder) / package), report.task)
    runtime, _, short = name.rpartition("-")
    targets = plugins.names("targets")
    target = next(
        (candidate for candidate in (runtime, f"{runtime}-cpu") if candidate in targets), None
    )
    kind = next((kind for kind, text in SHORT.items() if text == short), None)
    if target is None or kind is None:
        return ""
    raw = _without(report.recipe, *_OF_EIGHT_BITS)
    return _make(
        raw, target, {"quantize": {"float": {"float_parts": kind}}}, f"{PurePath(folder)}-{name}"
    )


def of_variant(report: Report, folder: str, variant: Variant) -> str:
    """The command for a variant of a search: to use the package of the chosen one, or to make another one.

    Args:
        folder: output directory of the run.
    """
    choice = report.choice
    if choice is None or choice.winner == variant.name:
        return predict(str(PurePath(folder) / BEST), report.task)
    raw = _without(
        choice.recipe or report.recipe,
        *(() if variant.precision.startswith("int") else _OF_EIGHT_BITS),
    )
    raw |= {key: True for key in ("allow_code", "allow_pickle") if report.recipe.get(key)}
    return _make(
        raw, variant.target, variant.changes, f"{PurePath(folder)}-{variant.name.replace(' ', '-')}"
    )


def _without(raw: Mapping[str, Any], *keys: str) -> PlainRecipe:
    """A recipe as plain data without some keys, and without a search."""
    return {
        key: value
        for key, value in raw.items()
        if key not in ("choose", "search", "executor", *keys)
    }


def _make(raw: PlainRecipe, target: str, changes: Mapping[str, Any], out: str) -> str:
    """The command that makes a model; empty where the recipe is not one that this octobert takes.

    Args:
        raw: the recipe as plain data.
        changes: recipe key → value.
        out: output directory.
    """
    session = {
        name: entries for name, entries in (raw.get("session") or {}).items() if name == target
    }
    try:
        plain = loading.as_plain(
            Recipe.model_validate({**raw, "targets": (target,), "session": session})
        )
        plain = loading.changed(
            plain, [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        )
    except (OctobertError, ValidationError):
        return ""
    task, data = plain.pop("task"), plain.pop("data")
    command = ["octobert", "quantize", plain.pop("model")]
    command += ["--task", task if isinstance(task, str) else json.dumps(task, ensure_ascii=False)]
    command += ["--data", data.pop("source")] if data.get("source") else []
    command += [
        part
        for split in SPLITS
        if data.get(split)
        for part in ("--data", f"{split}={data.pop(split)}")
    ]
    plain.pop("targets", None)
    more = {**{f"data.{key}": value for key, value in data.items()}, **plain}
    command += ["--target", target]
    command += [
        part
        for key, value in more.items()
        for part in ("--set", f"{key}={json.dumps(value, ensure_ascii=False)}")
    ]
    return shlex.join([*command, "--out", out])
