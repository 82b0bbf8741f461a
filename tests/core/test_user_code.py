"""Code of the user: what can be wrong with a file or a function is one sentence with the file and the line."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from octobert.core import user_code
from octobert.core.errors import DataError, RecipeError
from octobert.core.files import file_digest, file_stamp
from octobert.engine.contract import unchanged

GOOD = "def metric(predictions, references):\n    return 1.0\n"


def code_in(
    folder: Path, text: str, function: str = "metric", kind: user_code.Kind = "metric"
) -> user_code.UserCode:
    (folder / "mine.py").write_text(text)
    return user_code.at(f"{folder / 'mine.py'}:{function}", kind, where="metric")


def test_a_function_is_called_with_its_arguments(tmp_path) -> None:
    text = "def metric(predictions, references, weight=2):\n    return weight * len(predictions)\n"
    assert user_code.load(code_in(tmp_path, text))([1, 2], [3, 4]) == 4


def test_the_digest_is_of_the_content_and_the_function(tmp_path) -> None:
    text = GOOD + "other = metric\n"
    own = code_in(tmp_path, text)
    other = user_code.at(f"{own.path}:other", "metric", where="metric")
    assert own.digest != other.digest
    assert unchanged(own)
    (tmp_path / "b").mkdir()
    assert code_in(tmp_path / "b", text).digest == own.digest
    assert own.summary(file_digest) == own.digest
    assert own.summary(file_stamp) == own.stamp
    (tmp_path / "mine.py").write_text(GOOD)
    assert not unchanged(own)


@pytest.mark.parametrize("text", ["nowhere.py:metric", "mine.py", "mine.py:", "mine.py:a.b"])
def test_what_is_not_the_name_of_a_function(golden, text: str) -> None:
    with golden.raises(RecipeError):
        user_code.at(text, "metric", where="metric")


BROKEN = {
    "missing": "def metrik(a, b): ...\n",
    "empty": "",
    "too few": "\n\ndef metric(a): ...\n",
    "too many": "def metric(a, b, c): ...\n",
    "keywords": "def metric(*, predictions, references): ...\n",
    "asynchronous": "async def metric(a, b): ...\n",
    "not callable": "metric = 3\n",
    "import": "\nimport nothing_of_that_name\n",
    "beside": "import helper\n",
    "syntax": "x = 1\ndef metric(:\n",
    "exception": "x = 1\n\nraise ValueError('no\\nfile')\n",
    "exit": "import sys\nsys.exit(3)\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_loaded(golden, tmp_path, text: str) -> None:
    (tmp_path / "helper.py").write_text("")
    with golden.raises(RecipeError):
        user_code.load(code_in(tmp_path, text))


def test_what_a_function_raises_is_a_sentence_with_its_line(golden, tmp_path) -> None:
    text = "def inner(a):\n    return a[9]\n\ndef metric(a, b):\n    return inner(a)\n"
    with golden.raises(RecipeError) as raised:
        user_code.load(code_in(tmp_path, text))([1], [1])
    assert isinstance(raised.value.__cause__, IndexError)
    with pytest.raises(RecipeError, match=r"line 2: the function metric failed \(got SystemExit"):
        user_code.load(code_in(tmp_path, "def metric(a, b):\n    raise SystemExit\n"))([], [])


def test_errors_of_octobert_and_of_the_disk_stay_what_they_are(tmp_path) -> None:
    own = "from octobert.core.errors import DataError\ndef metric(a, b):\n    raise DataError('no rows')\n"
    with pytest.raises(DataError, match="no rows"):
        user_code.load(code_in(tmp_path, own))([], [])
    with pytest.raises(OSError, match="full"):
        user_code.load(
            code_in(tmp_path, f"def metric(a, b):\n    raise OSError({errno.ENOSPC}, 'full')\n")
        )([], [])


def test_files_are_checked_in_a_process_of_their_own(tmp_path) -> None:
    """Nothing that a file does while it is imported reaches this process, and what it prints is no answer."""
    good = code_in(tmp_path, "print('hello')\nimport sys\nsys.setrecursionlimit(50_000)\n" + GOOD)
    user_code.check([good])
    (tmp_path / "b").mkdir()
    bad = code_in(tmp_path / "b", "def metric(a): ...\n")
    with pytest.raises(RecipeError, match=r"line 1: the function takes other arguments") as raised:
        user_code.check([good, bad])
    assert "TypeError" in raised.value.traceback or "RecipeError" in raised.value.traceback
    (tmp_path / "c").mkdir()
    with pytest.raises(RecipeError, match=r"metric: the code ended the process \(got exit code 7"):
        user_code.check([code_in(tmp_path / "c", "import os\nos._exit(7)\n")])
