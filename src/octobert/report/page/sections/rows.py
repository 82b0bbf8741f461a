"""The rows that quantized models answer otherwise than float: what they have in common, and the rows themselves."""

from __future__ import annotations

from typing import Any

from octobert.core.evidence import Answer, ChangedRow, ChangedRows, Mark
from octobert.core.heads import input_of
from octobert.core.results import Report
from octobert.report.page.runs import Content, Section, ShownRun

# What the texts of a row are, by the input of the head; other rows have one text or a pair.
_SOURCES = {"question": ("question", "context"), "words": ("sentence",)}
# Height of a row in the list, about, so that nothing below moves when it is drawn.
_ROW_REM = 14


def section(run: ShownRun) -> Section | None:
    """The rows that changed; one line where none did, and nothing where that was not looked at."""
    changed = run.evidence.changed
    if not changed:
        return None
    count = run.report.data.evaluation_rows
    some = [changes for changes in changed if changes.total]
    values = {
        "changed": some,
        "sentences": [_sentences(changes, count) for changes in some],
        "count": count,
    }
    if not some:
        return Section("", values)
    longest = max(len(changes.rows) for changes in some)
    values |= {
        "move_text": move_text,
        "input": input_of(run.report.task.head),
        "height": longest * _ROW_REM,
    }
    return Section("Rows that changed", values, _data(run, some))


def _sentences(changed: ChangedRows, count: int) -> list[str]:
    """Sentences on the number of changed rows, their outcomes, and what stands out."""
    rows = "1 row" if changed.total == 1 else f"{changed.total:,} rows"
    sentences = [
        f"{changed.candidate} answers {rows} of {count:,} otherwise than {changed.reference}."
    ]
    other = changed.total - changed.lost - changed.gained
    if changed.lost or changed.gained:
        sentences[0] = (
            f"{sentences[0][:-1]}: {changed.lost:,} worse, {changed.gained:,} better, {other:,} neither."
        )
    if changed.sentence:
        sentences.append(changed.sentence)
    elif changed.total > 1 and (changed.transitions or changed.lost or changed.gained):
        sentences.append("No direction stands out beyond chance (exact sign test, 5 %).")
    if len(changed.rows) < changed.total:
        sentences.append(f"The list has the {len(changed.rows):,} that changed most.")
    return sentences


def _data(run: ShownRun, changed: list[ChangedRows]) -> Content:
    """The rows for the script. A text that many rows have, such as a neighbour, is there once."""
    texts: dict[str, int] = {}
    candidates = [
        {
            "name": changes.candidate,
            "reference": changes.reference,
            "command": ["octobert", "predict", f"{run.folder}/{changes.candidate}"],
            "rows": [_row(row, texts) for row in changes.rows],
        }
        for changes in changed
    ]
    asked = input_of(run.report.task.head)
    first = next(row for changes in changed for row in changes.rows)
    usual = (
        ("first text", "second text")
        if len(first.texts) > 1
        else ("query" if first.before.neighbours else "text",)
    )
    return {
        "candidates": candidates,
        "texts": list(texts),
        "sources": _SOURCES.get(asked, usual),
        "form": _form(asked, len(first.texts)),
        "prompt": _prompt(run.report) if first.before.neighbours else [],
        "fills": asked == "masked",
        "labelled": asked in ("words", "masked"),
        "shares": all(
            0 <= (side.score or 0) <= 1
            for changes in changed
            for row in changes.rows
            for side in (row.before, row.after)
        ),
    }


def _row(row: ChangedRow, texts: dict[str, int]) -> Content:
    def place(text: str) -> int:
        return texts.setdefault(text, len(texts))

    near = [[text for text, _ in side.neighbours] for side in (row.before, row.after)]
    return {
        "row": row.row,
        "texts": [place(text) for text in row.texts],
        "whole": row.whole,
        "expected": place(row.expected),
        "before": _answer(row.before, row, near[1], ("now", "gone"), place),
        "after": _answer(row.after, row, near[0], ("was", "new"), place),
        "outcome": row.outcome,
        "marks": _marks(row.marks),
        "change": round(row.change, 4),
        "moves": [move_text(*move) for move in row.transitions],
    }


def _answer(
    answer: Answer, row: ChangedRow, others: list[str], words: tuple[str, str], place: Any
) -> Content:
    """An answer; its neighbours with where they are among those of the other model."""
    near = []
    for rank, (text, cosine) in enumerate(answer.neighbours):
        other = others.index(text) if text in others else None
        moved = words[1] if other is None else "" if other == rank else f"{words[0]} {other + 1}"
        near.append([place(text), round(cosine, 4), moved, text == row.expected])
    return {
        "text": answer.text,
        "score": None if answer.score is None else round(answer.score, 4),
        "scores": [[name, round(score, 4)] for name, score in answer.scores.items()],
        "marks": _marks(answer.marks),
        "near": near,
    }


def _marks(marks: tuple[Mark, ...]) -> list[list[Any]]:
    return [[mark.text, mark.start, mark.end, mark.label] for mark in marks]


def move_text(before: str, after: str) -> str:
    """A transition in words.

    Example:
        >>> move_text("PER", "LOC"), move_text("PER", "PER")
        ('PER → LOC', 'PER → another PER')
    """
    return (
        f"{before} → another {before.removeprefix('an ')}"
        if before == after
        else f"{before} → {after}"
    )


def _form(asked: str, texts: int) -> str:
    """The option of `octobert predict` that fits the texts of a row; empty where none does."""
    forms = {"question": "question", "words": "texts", "masked": ""}
    if asked == "named":
        # Each text of a pair has a name of its own.
        return "" if texts > 1 else "texts"
    return forms.get(asked, "pair" if texts > 1 else "texts")


def _prompt(report: Report) -> list[str]:
    """The option of `octobert predict` for the prompt of queries."""
    stated = report.task.options.get("query_prompt")
    asks = "query" in report.task.prompts or input_of(report.task.head) == "named"
    name = stated if stated is not None else "query" if asks else ""
    return ["--prompt", name] if name else []
