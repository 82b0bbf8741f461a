"""A row of the user's data that shows how a finished model is used."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from octobert.core.results import Report
from octobert.data.tokenization import Tokenizer
from octobert.pipeline.publishing import HIDDEN
from octobert.pipeline.store import Store, store_folder

# Rows that are looked at, and the number of characters up to which one is short.
_ROWS, _SHORT = 100, 120


def example(out: Path, report: Report) -> tuple[str, ...] | None:
    """The texts of one short evaluation row of a run, in the order in which the task reads them; None if it is not stored."""
    step = report.stages.get("data")
    if step is None:
        return None
    path = Store(store_folder(out / HIDDEN)).path("data", step.key) / "evaluation.json"
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["inputs"][:_ROWS]
    except (OSError, ValueError):
        return None
    lengths = [sum(map(len, texts)) for texts in rows]
    first = next(
        (texts for texts, length in zip(rows, lengths, strict=True) if length <= _SHORT), None
    )
    chosen = first or min(rows, key=lambda texts: sum(map(len, texts)), default=None)
    if chosen and report.task.head == "masked-lm":
        mask, _ = Tokenizer(
            next(path for path in (out / name for name in report.plans) if path.is_dir())
        ).mask
        return (_masked(chosen[0], mask),)
    prompts = report.task.prompts.values()
    return tuple(_without_prompt(text, prompts) for text in chosen) if chosen else None


def _masked(text: str, mask: str) -> str:
    """A text with the mask in place of one word near its start, so that it is still there where the text is cut."""
    words = text.split()
    place = min(len(words) // 2, 4)
    return text if mask in text else " ".join([*words[:place], mask, *words[place + 1 :]])


def _without_prompt(text: str, prompts: Collection[str]) -> str:
    """A text as the user wrote it: predictions put the prompt before it again."""
    return text.removeprefix(next((prompt for prompt in prompts if text.startswith(prompt)), ""))
