"""The one place that starts processes.

A child of octobert runs `main()` of a module, and can import nothing from the working directory.

Python puts the folder of a script, or for `-m` and `-c` the working directory, in front of `sys.path`. Stages run in the folder
where a user keeps a downloaded model, and a file `numpy.py` beside it would run. Therefore every child begins in
`_child_start.py`, which takes that folder away before anything is imported. This also holds for the processes that a child
starts, such as those of torch's launcher.

A child's stdin is a pipe from this process. It closes when this process ends, for whatever reason.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from octobert.core import environment

# Variables of the thread pools of libraries.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_START = Path(__file__).with_name("_child_start.py")


def script(module: str) -> tuple[str, str]:
    """The script and its argument that run `main()` of a module, for a launcher that starts Python itself."""
    return str(_START), module


def start(
    module: str, *arguments: str, stderr: IO[bytes] | None = None, temporary: Path | None = None
) -> subprocess.Popen[bytes]:
    """Run `main()` of a module in a new process. Its stdin and stdout are pipes.

    Args:
        module: its `main` reads `sys.argv`, and its value is the exit code.
        arguments: of the module.
        stderr: a file; None for that of this process.
        temporary: the folder for its temporary files and those of its own children; None for that of this process.
    """
    command = [sys.executable, *script(module), *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=_environment(temporary),
    )


def output_of(command: Sequence[str], *, seconds: float) -> str | None:
    """Run another program, and return what it writes on stdout and stderr; None where it was killed because it did not end.

    Args:
        command: the program and its arguments.
        seconds: that it has.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    except OSError as error:
        return str(error)
    return done.stdout.decode(errors="replace")


def _environment(temporary: Path | None) -> dict[str, str]:
    """The variables of a child: an empty or relative entry of PYTHONPATH would be the working directory."""
    entries = [
        entry
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if os.path.isabs(entry)
    ]
    # PYTHONSAFEPATH (Python 3.11) is for Pythons that libraries start in the child.
    variables = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(entries)}
    # Libraries walk through sets of texts, such as transformers' ModernBERT when it is exported: in one order in every process.
    variables["PYTHONHASHSEED"] = "0"
    # After a product, threads of OpenBLAS turn for 2**26 cycles until they sleep: half of what small products take.
    variables.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    # NumPy, SciPy and PyTorch start a thread for every core that they see, whatever a container may use of them.
    if limit := environment.thread_limit():
        variables = {**dict.fromkeys(_THREADS, str(limit)), **variables}
    if not entries:
        del variables["PYTHONPATH"]
    if temporary is not None:
        variables |= dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary.absolute()))
    return variables


def end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Close the pipes to a child, and kill it if it has not ended after some seconds."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            # What was not sent yet is for a child that has died.
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def is_first() -> bool:
    """Return whether this is the first process of its machine, the one that writes files."""
    return int(os.environ.get("LOCAL_RANK", 0)) == 0
