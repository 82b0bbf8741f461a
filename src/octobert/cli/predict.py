"""`octobert predict DIR TEXT…`: answers from a finished model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from octobert.cli import _show

NAME = "predict"


def command(
    directory: Annotated[Path, typer.Argument(help="A packaged directory, OUT/<target>.")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; without any, lines of stdin.")] = None,
    pair: Annotated[bool, typer.Option("--pair", help="Texts come in twos; lines of stdin hold two, split by a tab.")] = False,
    as_json: bool = _show.JSON_OPTION,
) -> None:
    """Predict with a finished model; needs neither torch nor transformers."""
    from octobert.errors import DataError
    from octobert.runtime.predictor import load

    given = texts or _lines()
    inputs: list[str | tuple[str, ...]] = list(given)
    if pair and texts:
        if len(given) % 2:
            raise DataError("pairs need an even number of texts", got=str(len(given)), fix="give two texts for each pair")
        inputs = [(given[i], given[i + 1]) for i in range(0, len(given), 2)]
    elif pair:
        inputs = [tuple(line.split("\t")) for line in given]
        for number, one in enumerate(inputs, start=1):
            if len(one) != 2:
                raise DataError("the line does not hold two texts split by a tab", where=f"stdin, line {number}", got=repr(one))
    answers = load(directory)(inputs)
    if any("truncated" in answer for answer in answers):
        _show.note("octobert: some texts were longer than the model takes, and were cut.")
    if as_json:
        _show.document([{"input": i, **a} for i, a in zip(inputs, answers, strict=True)])
        return
    for one, answer in zip(inputs, answers, strict=True):
        text = " ⇄ ".join(one) if isinstance(one, tuple) else one
        if "label" in answer:
            typer.echo(f"{answer['label']}\t{answer['score']:.4f}\t{text}")
        else:
            shown = ", ".join(f"{x:.4f}" for x in answer["embedding"][:6])
            typer.echo(f"[{shown}, …] ({len(answer['embedding'])})\t{text}")


def _lines() -> list[str]:
    """Lines of stdin that hold something."""
    from octobert.errors import DataError

    try:
        return [line.rstrip("\r\n") for line in sys.stdin.buffer.read().decode("utf-8").split("\n") if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError("the text is not UTF-8", where="stdin", got=str(error), fix="convert it") from error
