"""Types of arguments, and checks of what a caller passes, so that a wrong type is a sentence that names the argument.

The command line reads the types too: its options follow from the signatures of the public functions.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeAlias

from octobert.core.errors import DataError, RecipeError
from octobert.core.plain import preview
from octobert.core.progress import ProgressCallback, ProgressEvent, ignore


@dataclass(frozen=True)
class Least:
    """The smallest accepted value of a number."""

    value: float


PathLike: TypeAlias = str | Path
# A file, a folder, or the id of a data set on the Hub.
DataLike: TypeAlias = Annotated[str | Path, "data"]
# One name or several; on the command line they may have commas between them.
Names: TypeAlias = Annotated[str | Sequence[str], "names"]
# A name, or one name with its options.
TaskLike: TypeAlias = str | Mapping[str, Any]
MetricLike: TypeAlias = str | Mapping[str, Any]
# The largest whole number that runtimes and libraries take.
_MOST = 2**31 - 1
Positive: TypeAlias = Annotated[int, Least(1)]
Natural: TypeAlias = Annotated[int, Least(0)]
# Runs of which a spread is computed.
Repeats: TypeAlias = Annotated[int, Least(3)]
# In seconds or in minutes.
Duration: TypeAlias = Annotated[float, Least(0.01)]
NotNegative: TypeAlias = Annotated[float, Least(0)]


def path_of(value: Any, name: str) -> Path:
    """Return a path that is given as `str` or `Path`.

    Args:
        value: what was passed.
        name: of the argument.

    Raises:
        RecipeError: it is neither, or empty.
    """
    if isinstance(value, str | os.PathLike) and os.fspath(value):
        return Path(value)
    raise RecipeError("not a path", where=name, got=preview(value), expected="a str or a Path")


def optional_path(value: Any, name: str) -> Path | None:
    """Return a path, or None where none is given (see `path_of`)."""
    return None if value is None else path_of(value, name)


def paths_of(value: Any, name: str) -> list[Path]:
    """Return one path or several, as a list (see `path_of`)."""
    return [path_of(path, name) for path in ([value] if isinstance(value, str | Path) else value)]


def read_text(path: PathLike) -> str:
    """Return the text of a UTF-8 file.

    Raises:
        DataError: The file is missing, cannot be read, or is not UTF-8.
    """
    from octobert.data.formats import decoded, read

    file = Path(path)
    if not file.is_file():
        raise DataError("the file does not exist", where=str(path), fix="check the path")
    return decoded(file, read(file))


def raw_recipe(model: Any, task: Any, data: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe as plain data, of what every recipe has and other keys."""
    rows = dict(data) if isinstance(data, Mapping) else str(path_of(data, "data"))
    return {"model": str(path_of(model, "model")), "task": task, "data": rows, **keys}


def numbers_of(value: Any, name: str, least: int = 1) -> tuple[int, ...]:
    """Return one whole number or several, as a tuple.

    Args:
        value: what was passed.
        name: of the argument.
        least: smallest number that is accepted.

    Raises:
        RecipeError: one is not a whole number, or too small or large.
    """
    values = _items(value, int | str)
    for item in values:
        if isinstance(item, bool) or not isinstance(item, int) or item < least:
            raise RecipeError(
                "not a whole number", where=name, got=preview(item), expected=f"{least} or more"
            )
        if item > _MOST:
            raise RecipeError(
                "the number is too large",
                where=name,
                got=preview(item),
                expected=f"at most {_MOST:,}",
            )
    return values


def names_of(value: Any, name: str) -> tuple[str, ...]:
    """Return one name or several, as a tuple.

    Raises:
        RecipeError: one is not a text.
    """
    values = _items(value, str)
    for item in values:
        if not isinstance(item, str):
            raise RecipeError("not a name", where=name, got=preview(item), expected="a str")
    return values


def column_options(name: str, texts: Sequence[str], label: str | None) -> dict[str, Any]:
    """Return the options of a task that name the columns of texts and of expected answers.

    Args:
        name: of the task.
        texts: columns; none for those that the task takes.
        label: a column; None for the one that the task takes.

    Raises:
        RecipeError: there is no such task, or its columns have no options, or it reads another number of them.
    """
    from octobert import tasks

    text_options, expected = tasks.load(name).column_options()
    for option, column, task_options in (("text", texts, text_options), ("label", label, expected)):
        if column and not task_options:
            raise RecipeError(
                f"the task {name} takes no name of its {option} column",
                where=f"--{option}-column",
                fix="rename the column in the file, or use a general task, such as text-classification",
            )
    if len(texts) > 2 or (texts and len(texts) < len(text_options)):
        raise RecipeError(
            "another number of text columns",
            where="--text-column",
            got=", ".join(texts),
            expected=" and ".join(text_options)
            if len(text_options) > 1
            else "one, or both of a pair",
            fix="name each once, in this order",
        )
    # A pair is two columns of one option; question and context are options of their own.
    columns = (
        dict(
            zip(
                text_options,
                texts if len(text_options) == len(texts) else [list(texts)],
                strict=False,
            )
        )
        if texts
        else {}
    )
    return columns if label is None else {**columns, expected[0]: label}


@contextmanager
def shown(progress: ProgressCallback | None) -> Iterator[ProgressCallback]:
    """Return the callback of a call: the given one, or a progress bar in a notebook, or one that shows nothing."""
    if progress is not None and not callable(progress):
        raise RecipeError(
            "the callback is not a function",
            where="progress",
            got=preview(progress),
            fix="pass a function, or octobert.ProgressBar()",
        )
    if progress is not None:
        yield progress
    elif _in_notebook():
        from octobert.report.progress import ProgressBar

        with ProgressBar() as bar:
            yield bar
    else:
        yield ignore


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def progress_step(
    progress: ProgressCallback | None, name: str
) -> Iterator[Callable[[str, int, int], None]]:
    """Report a call as one step.

    Yields:
        A function to call with what is done now, the units done, and all units.
    """
    started = time.perf_counter()
    with shown(progress) as tell:
        tell(ProgressEvent(name, "started"))
        yield lambda what, done, total: tell(ProgressEvent(name, "running", what, done, total))
        tell(ProgressEvent(name, "finished", seconds=time.perf_counter() - started))


def _items(value: Any, one: type | UnionType) -> tuple[Any, ...]:
    """Return one value or several as a tuple. An array without dimensions says that it is iterable, and is not."""
    try:
        return (value,) if isinstance(value, one) else tuple(value)
    except TypeError:
        return (value,)
