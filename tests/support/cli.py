"""Run the command line: in the test's process, where commands take milliseconds, or as a program of its own."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from octobert.cli import _show, main
from octobert.engine import executors
from octobert.engine.executors import inline
from octobert.pipeline import runner

Done = subprocess.CompletedProcess[str]
# As the script that pip installs, which does not have the working directory on its path.
PROGRAM = (
    sys.executable,
    "-c",
    "import sys; del sys.path[0]; from octobert.cli.main import main; main()",
)


def program(*arguments: object, **options: object) -> Done:
    """Run `octobert ARGUMENTS…` as a program; stages run in child processes. It takes seconds."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output=True, text=True, **options
    )


def octobert(*arguments: object, input: str | bytes = "", cwd: Path | None = None) -> Done:
    """Run `octobert ARGUMENTS…` in this process, stages included.

    Args:
        input: what stands on stdin.
        cwd: the working directory of the command.
    """
    given = input.encode() if isinstance(input, str) else input
    out, err = _Stream(), _Stream()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", ["octobert", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setattr(_show, "verbosity", _show._Verbosity())
        patch.setattr(executors, "opened", lambda name: contextlib.nullcontext(inline.run))
        for name in ("dry_run", "finetune", "sweep"):
            patch.setattr(
                runner, name, functools.partial(getattr(runner, name), executor=inline.run)
            )
        with _inside(cwd):
            code = _exit_code()
    return subprocess.CompletedProcess(list(arguments), code, out.text(), err.text())


class _Stream(io.TextIOWrapper):
    """A stream with a buffer of bytes, as stdout and stderr have."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _exit_code() -> int:
    try:
        main.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@contextlib.contextmanager
def _inside(folder: Path | None) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder or before)
    try:
        yield
    finally:
        os.chdir(before)
