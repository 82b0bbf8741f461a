"""The commands that are printed as next steps. Each can be pasted into a shell as it is."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

# Longest text of an example, in characters. A context has room for an answer.
_TEXT, _CONTEXT = 60, 160


def predict_command(package: Path, head: str, example: Sequence[str]) -> str:
    """The command that predicts an example with a package.

    Args:
        package: `OUT/<target>`.
        head: of the model.
        example: the texts of one row, in the order in which the task reads them.

    Example:
        >>> predict_command(Path("out/ort-cpu"), "sequence-classification", ["It's good.", "It is fine."])
        'octobert predict out/ort-cpu --pair \\'It\\'"\\'"\\'s good.\\' \\'It is fine.\\''
    """
    command = ["octobert", "predict", str(package)]
    if head == "question-answering":
        question, context = example
        return shlex.join(
            [
                *command,
                "--question",
                _shortened(question, _TEXT),
                "--context",
                _shortened(context, _CONTEXT),
            ]
        )
    # The words of a sentence to tag are one text.
    texts = [" ".join(example)] if head == "token-classification" else list(example)
    pair = ["--pair"] if len(texts) > 1 else []
    shown = [_shortened(text, _TEXT) for text in texts]
    # A text may look like an option.
    end = ["--"] if any(text.startswith("-") for text in shown) else []
    return shlex.join([*command, *pair, *end, *shown])


def _shortened(text: str, length: int) -> str:
    """A text on one line, cut after a word."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(line) <= length:
        return line
    start, space, _ = line[: length + 1].rpartition(" ")
    return start if space else line[:length]
