"""The program in unusual environments: it works as it does elsewhere, or ends with one sentence.

`benchmarks/soak_environments.py` runs more commands in more environments.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NOWHERE = {"HOME": "/nonexistent/home", "TMPDIR": "/nonexistent/tmp"}
TEXTS = ("the one of a\tit was", "caf\u00e9\tgr\u00f6\u00dfe \u6a21\u578b")


def in_deleted_folder(folder: Path) -> None:
    """Become a process without a working directory."""
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


def limited(which: int, limit: int) -> Callable[[Path], None]:
    """Become a process with a limit."""
    return lambda _: resource.setrlimit(which, (limit, limit))


@pytest.fixture(scope="module")
def answers(finished) -> str:
    """What `predict` prints of `TEXTS` where nothing is unusual."""
    return predicted(finished[1] / "ort-cpu", dict(os.environ)).stdout


def predicted(
    package: Path,
    variables: dict[str, str],
    prepare: Callable[[], None] | None = None,
    texts: str = "\n".join(TEXTS),
) -> subprocess.CompletedProcess[str]:
    """Run `octobert predict PACKAGE --pair --json` as a program."""
    command = [sys.executable, "-m", "octobert", "predict", str(package), "--pair", "--json"]
    options = {"input": texts} if texts else {"stdin": subprocess.DEVNULL}
    return subprocess.run(
        command if texts else [*command, *TEXTS[0].split("\t")],
        env=variables,
        preexec_fn=prepare,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        **options,
    )


@pytest.mark.parametrize(
    ("name", "variables", "prepare"),
    [
        ("out", {**C_LOCALE, **NOWHERE}, limited(resource.RLIMIT_NOFILE, 64)),
        ("gr\u00f6\u00dfe  \u6a21\u578b 'a\" [1] *", {}, limited(resource.RLIMIT_NOFILE, 14)),
    ],
    ids=[
        "a C locale, no home, no temporary folder, 64 descriptors",
        "spaces and unicode in the path, 14 descriptors",
    ],
)
def test_a_package_predicts_in_unusual_environments(
    finished, answers, tmp_path, name, variables, prepare
) -> None:
    package = shutil.copytree(finished[1] / "ort-cpu", tmp_path / name)
    done = predicted(package, {"PATH": os.defpath, **variables}, lambda: prepare(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(answers)


def test_a_package_predicts_without_stdin(finished, answers) -> None:
    done = predicted(finished[1] / "ort-cpu", dict(os.environ), lambda: os.close(0), texts="")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads(answers)[:1]


def test_a_deleted_working_directory_is_a_sentence(finished, tmp_path) -> None:
    done = predicted(
        finished[1] / "ort-cpu", dict(os.environ), lambda: in_deleted_folder(tmp_path), texts=""
    )
    assert done.returncode == 8
    assert (
        done.stderr
        == "octobert: the working directory does not exist any more; change to a directory that exists.\n"
    )


def test_a_path_that_the_locale_cannot_express_is_a_sentence(finished, tmp_path) -> None:
    package = shutil.copytree(finished[1] / "ort-cpu", tmp_path / "gr\u00f6\u00dfe")
    done = predicted(package, {**os.environ, **C_LOCALE})
    # The tokenizer is read, but onnxruntime cannot open such a path.
    assert done.returncode == 6, done.stderr
    assert done.stderr.startswith("octobert: ")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full")
def test_output_that_nobody_can_read(tmp_path) -> None:
    command = [sys.executable, "-m", "octobert", "tasks"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (8, 1)
    assert "the disk is full" in done.stderr
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, preexec_fn=lambda: os.close(1)
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_tables_in_a_c_locale(finished) -> None:
    command = [sys.executable, "-m", "octobert", "inspect", str(finished[1] / "ort-cpu")]
    done = subprocess.run(
        command, env={**os.environ, **C_LOCALE}, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert "\u2500" in done.stdout
