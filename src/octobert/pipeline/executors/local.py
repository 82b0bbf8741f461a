"""Run one stage in a child process of this machine: its memory, its threads and its imports end with it.

The child reads `request.json` from the work folder, writes its files there, reports progress as JSON lines on stdout, and
ends with `response.json`. Its stdin is a pipe from this process: when this process dies, however it dies, the pipe closes
and the child ends too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octobert.config.training import Training
from octobert.core.errors import OctobertError

REQUEST, RESPONSE, LOG = "request.json", "response.json", "stage.log"
Progress = Callable[[str, int, int], None]


def run(request: dict[str, Any], work: Path, on_progress: Progress, launch: Training | None = None) -> dict[str, Any]:
    """Run a stage; its response.

    Args:
        request: {stage, inputs, options, locations, scratch}.
        work: an empty folder that the stage fills.
        on_progress: called with (what, done, total).
        launch: for a training; with several processes, each of them runs the stage.

    Raises:
        OctobertError: what the stage raised, or that it was killed.
    """
    (work / REQUEST).write_text(json.dumps(request))
    command = [sys.executable, *_launcher(launch, work), "-m", "octobert.pipeline.stages", str(work)]
    with (
        (work / LOG).open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as child,
    ):
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith('{"progress"'):
                    what, done, total = json.loads(line)["progress"]
                    on_progress(what, done, total)
            code = child.wait()
        except BaseException:
            child.kill()
            raise
    return _response(request["stage"], work, code)


def _launcher(launch: Training | None, work: Path) -> list[str]:
    """torch's launcher, where a stage runs in several processes."""
    if launch is None or launch.processes * launch.machines == 1:
        return []
    found = ["-m", "torch.distributed.run", f"--nproc-per-node={launch.processes}", f"--nnodes={launch.machines}"]
    if launch.rendezvous is None:
        return [*found, "--standalone"]
    # Machines that do the same work meet under its key; the last part of the folder's name is the process.
    key = work.name.rpartition("-")[0]
    return [*found, "--rdzv-backend=c10d", f"--rdzv-endpoint={launch.rendezvous}", f"--rdzv-id={key}"]


def _response(stage: str, work: Path, code: int) -> dict[str, Any]:
    path = work / RESPONSE
    try:
        response = json.loads(path.read_text())
    except (OSError, ValueError):
        response = None
    if response is not None:
        if "error" in response:
            error = OctobertError.from_json(response["error"])
            error.traceback = response.get("traceback", "")  # type: ignore[attr-defined]
            raise error
        for name in (REQUEST, RESPONSE, LOG):
            (work / name).unlink(missing_ok=True)
        return response
    log = (work / LOG).read_text(errors="replace").strip().splitlines()
    if code < 0:
        raise OctobertError(
            f"the stage was killed by signal {-code}",
            where=stage,
            got=log[-1][:200] if log else "no message",
            fix="if memory ran out, use fewer samples or shorter sequences; then run the same command again",
        )
    raise OctobertError("the stage ended without a result", where=stage, got=f"exit code {code}: " + " ".join(log[-3:])[:400])
