"""`octobert predict MODEL TEXT…`: predict with a package or a model file."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octobert.api import models
from octobert.api._arguments import read_text
from octobert.cli import _options, _show
from octobert.core.errors import DataError, TokenError

if TYPE_CHECKING:
    from octobert.core.results import TaskFacts

PANEL = _show.USE
EXAMPLES = (
    'octobert predict out/ort-cpu "what a pleasant surprise"',
    'octobert predict out/ort-cpu --pair "He left." "He went away."',
    'octobert predict out/ort-cpu --question "Who wrote it?" --context-file article.txt',
    'octobert predict out/ort-cpu --top 10 "Paris is the [MASK] of France."',
    "octobert predict out/ort-cpu --data test.tsv --row 3",
    'octobert predict model.onnx --task sst2 "what a pleasant surprise"',
)


_OPENING = (
    "package",
    "goal",
    "cache",
    "runtime_log",
    "allow_fallback",
    "device",
    "task",
    "target",
    "tokenizer",
)


@_options.filled(
    options=_options.from_function(models.load, only=_OPENING, metavar="directory"),
    places=_options.from_function(
        models.predict_rows, only=("split", "columns", "config", "revision")
    ),
)
def command(
    options: _options.Arguments,
    places: _options.Arguments,
    texts: list[str] | None = None,
    *,
    pair: bool = False,
    question: list[str] | None = None,
    context: str | None = None,
    context_file: Path | None = None,
    prompt: str | None = None,
    data: str | None = None,
    row: list[int] | None = None,
    top: int | None = None,
) -> Iterator[Any]:
    """Predict with a package or a model file. It needs neither torch nor transformers.

    Args:
        texts: Texts. Default: the lines of stdin.
        pair: Inputs are pairs of texts. Lines of stdin hold two texts with a tab between them.
        question: A question about the context. Give it several times.
        context: Context of the questions, of any length.
        context_file: Text file with the context.
        prompt: Name of the model's prompt that is put before texts, such as query. Default: the model's.
        data: File, folder, or Hub id with the rows that --row names.
        row: Number of a row of --data, from 1, without the header. Give it several times.
        top: Fillers for each mask of a text. Default: 5.
    """
    # A process that answers a few texts would wait longer for the measurement than for them.
    options["measure"] = options.get("goal") == "throughput"
    asks = question is not None or context is not None or context_file is not None
    if data is not None or row:
        others = (texts, pair, prompt is not None, top is not None)
        _check_rows(data, row, others=asks or any(others))
        with models.load(**options) as model:
            answered = models.predict_rows(model, str(data), row or (), **places)
        yield answered
        _show_rows(model, answered)
        return
    inputs: Iterator[Any] = (
        iter(_questions(question, context, context_file, texts))
        if asks
        else _texts(texts, pair=pair)
    )
    # Inputs as they are given are printed beside their answers.
    items, inputs = itertools.tee(inputs)
    answers, cut, refused = [], False, 0
    with models.load(**options) as model:
        if asks:
            # Another model would read question and context as a pair of texts.
            fix = "give texts, without --question and --context"
            _check_head(model.opened.facts(), "question", "--question", "answer questions", fix)
        if options.get("device"):
            _show.note(
                f"octobert: the model runs on {model.device}, its float operators in {model.precision}."
            )
        if prompt is not None:
            inputs = ({"text": item, "prompt": prompt} for item in inputs)
        if top is not None:
            _check_head(model.opened.facts(), "masked", "--top", "fill masks", "leave out --top")
            inputs = ({"text": item, "top": top} for item in inputs)
        # An answer is waited for before its input is taken, so that no further one is read.
        for answer, item in zip(model.stream(inputs), items, strict=False):
            cut, refused = cut or "truncated" in answer, refused + ("error" in answer)
            # Lines may come without end, and only the document needs them all.
            if _show.verbosity.json:
                answers.append({"input": item, **answer})
            else:
                _show.line(_line(model, item, answer))
    if cut:
        _show.note("octobert: some texts were longer than the model allows, and were truncated.")
    yield answers
    if refused:
        raise TokenError(
            f"{refused} of the texts have a token that the model has no embedding for",
            fix="leave them out; each has its sentence in place of an answer",
        )


def _check_rows(data: str | None, rows: list[int] | None, *, others: bool) -> None:
    """Refuse rows without a data set, a data set without rows, and rows beside other inputs."""
    if data is None or not rows or others:
        got = "--row without --data" if data is None else "--data without --row"
        if others:
            got = "other inputs too"
        raise DataError(
            "a row of a data set is named by both of its options",
            where="--row",
            got=got,
            fix="give --data FILE --row NUMBER alone; octobert evaluate --predictions FILE answers all rows",
        )


def _show_rows(model: Any, rows: list[dict[str, Any]]) -> None:
    """Print the answers to rows, with what the data set expects."""
    for row in rows:
        inputs, answers = row["input"], row.get("answers")
        if answers is None:
            inputs, answers = [inputs[0] if len(inputs) == 1 else tuple(inputs)], [row]
        gold = "" if row["gold"] is None else f"\tgold: {row['gold']}"
        for item, answer in zip(inputs, answers, strict=False):
            _show.line(f"row {row['row']}{gold}\t{_line(model, item, answer)}")


def _check_head(task: TaskFacts, asked: str, option: str, what: str, fix: str) -> None:
    """Refuse an option for a model whose head takes other inputs."""
    from octobert.core.heads import head_of

    if head_of(task.head).input != asked:
        raise DataError(
            f"the model does not {what}", where=option, got=f"a model for {task.name}", fix=fix
        )


def _line(model: Any, item: str | tuple[str, ...], answer: dict[str, Any]) -> str:
    """An answer as a line, and its input; of a question without the context."""
    from octobert.core.heads import head_of

    texts = (item,) if isinstance(item, str) else item
    if "error" in answer:
        return str(answer["error"])
    shown = texts[:1] if head_of(model.task.head).input == "question" else texts
    return f"{model.task.line(answer)}\t{' ⇄ '.join(shown)}"


def _questions(
    questions: list[str] | None, context: str | None, file: Path | None, texts: list[str] | None
) -> list[tuple[str, ...]]:
    """Each question with the context."""
    if not questions or (context is None) == (file is None) or texts:
        got = "two contexts" if context else "no context"
        if not questions:
            got = "no question"
        if texts:
            got = "texts as arguments"
        raise DataError(
            "a question needs one context",
            got=got,
            fix="give --question and either --context or --context-file",
        )
    whole = context if file is None else read_text(file)
    return [(question, str(whole)) for question in questions]


def _texts(texts: list[str] | None, *, pair: bool) -> Iterator[str | tuple[str, ...]]:
    """Texts or pairs of texts, from the command line or from stdin."""
    if not pair:
        return iter(texts) if texts else _lines()
    if not texts:
        return map(_pair, itertools.count(1), _lines())
    if len(texts) % 2:
        raise DataError(
            "pairs need an even number of texts",
            got=str(len(texts)),
            fix="give two texts for each pair",
        )
    return iter([(texts[i], texts[i + 1]) for i in range(0, len(texts), 2)])


def _pair(number: int, line: str) -> tuple[str, ...]:

    texts = tuple(line.split("\t"))
    if len(texts) != 2:
        raise DataError(
            "the line does not hold two texts with a tab between them",
            where=f"stdin, line {number}",
            got=repr(texts),
        )
    return texts


def _lines() -> Iterator[str]:
    """Lines of stdin that are not blank."""
    if sys.stdin.isatty():
        _show.note("Waiting for texts from this terminal, one per line. Ctrl-D ends.")

    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError(
                "the text is not UTF-8",
                where=f"stdin, line {number}",
                got=str(error),
                fix="convert it to UTF-8",
            ) from error
        if text.strip():
            yield text
