"""`octobert predict DIR TEXT…`: answers from a finished model."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from octobert.cli import _show

NAME = "predict"


def command(
    directory: Annotated[Path, typer.Argument(help="A packaged directory, OUT/<target>.")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of stdin.")] = None,
    pair: Annotated[bool, typer.Option("--pair", help="Texts come in twos; lines of stdin hold two, split by a tab.")] = False,
    question: Annotated[list[str] | None, typer.Option(help="A question about the context; give it several times.")] = None,
    context: Annotated[str | None, typer.Option(help="The context of the questions, of any length.")] = None,
    context_file: Annotated[Path | None, typer.Option(help="A text file that holds the context.")] = None,
    goal: Annotated[str, typer.Option(help="latency, or throughput: for many texts, every core works on its own.")] = "latency",
    cache: Annotated[Path | None, typer.Option(help=_show.CACHE_HELP)] = None,
    runtime_log: Annotated[bool, typer.Option("--runtime-log", help=_show.RUNTIME_LOG_HELP)] = False,
    allow_fallback: Annotated[bool, typer.Option("--allow-fallback", help=_show.FALLBACK_HELP)] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Predict with a finished model; needs neither torch nor transformers."""
    from octobert.inference.predictor import load

    asked = question is not None or context is not None or context_file is not None
    inputs = iter(_questions(question, context, context_file, texts)) if asked else _texts(texts, pair=pair)
    given: deque[Any] = deque()
    found, cut = [], False
    with load(
        directory, goal=_show.goal_named(goal), cache=cache, runtime_log=runtime_log, allow_fallback=allow_fallback
    ) as model:
        for answer in model.stream(_noted(inputs, given)):
            cut = cut or "truncated" in answer
            if as_json:
                found.append({"input": given.popleft(), **answer})
            else:
                typer.echo(_line(given.popleft(), answer))
    if cut:
        _show.note("octobert: some texts were longer than the model takes, and were cut.")
    if as_json:
        _show.document(found)


def _noted(inputs: Iterator[Any], given: deque[Any]) -> Iterator[Any]:
    """Inputs as they are read, kept until they are answered."""
    for one in inputs:
        given.append(one)
        yield one


def _line(one: str | tuple[str, ...], answer: dict[str, Any]) -> str:
    """An answer as a line: what the model says first, what it was asked last."""
    text = " ⇄ ".join(one) if isinstance(one, tuple) else one
    if "answer" in answer:
        place = "" if answer["start"] is None else f"{answer['start']}–{answer['end']}"
        return f"{answer['answer'] or '(no answer)'}\t{answer['score']:.4f}\t{place}\t{one[0]}"
    if "entities" in answer:
        found = ", ".join(f"{e['text']} ({e['type']}, {e['start']}–{e['end']}, {e['score']:.4f})" for e in answer["entities"])
        return f"{found or '(nothing)'}\t{text}"
    if "label" in answer:
        return f"{answer['label']}\t{answer['score']:.4f}\t{text}"
    shown = ", ".join(f"{x:.4f}" for x in answer["embedding"][:6])
    return f"[{shown}, …] ({len(answer['embedding'])})\t{text}"


def _questions(
    questions: list[str] | None, context: str | None, file: Path | None, texts: list[str] | None
) -> list[tuple[str, ...]]:
    """Every question with the context."""
    from octobert.core.errors import DataError
    from octobert.data.formats import decoded

    if not questions or (context is None) == (file is None) or texts:
        got = "texts as arguments" if texts else "no question" if not questions else "two contexts" if context else "no context"
        raise DataError("a question needs one context", got=got, fix="give --question and either --context or --context-file")
    if file is not None and not file.is_file():
        raise DataError("there is no such file", where=str(file), fix="check the path")
    whole = context if context is not None else decoded(file)  # type: ignore[arg-type]
    return [(question, whole) for question in questions]


def _texts(texts: list[str] | None, *, pair: bool) -> Iterator[str | tuple[str, ...]]:
    """Texts or pairs, from the command line or from stdin, as they come."""
    from octobert.core.errors import DataError

    if not pair:
        return iter(texts) if texts else _lines()
    if not texts:
        return map(_pair, itertools.count(1), _lines())
    if len(texts) % 2:
        raise DataError("pairs need an even number of texts", got=str(len(texts)), fix="give two texts for each pair")
    return iter([(texts[i], texts[i + 1]) for i in range(0, len(texts), 2)])


def _pair(number: int, line: str) -> tuple[str, ...]:
    from octobert.core.errors import DataError

    found = tuple(line.split("\t"))
    if len(found) != 2:
        raise DataError("the line does not hold two texts split by a tab", where=f"stdin, line {number}", got=repr(found))
    return found


def _lines() -> Iterator[str]:
    """Lines of stdin that hold something."""
    from octobert.core.errors import DataError

    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError("the text is not UTF-8", where=f"stdin, line {number}", got=str(error), fix="convert it") from error
        if text.strip():
            yield text
