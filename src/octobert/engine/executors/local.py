"""Run a stage in a child process of this machine: its memory, its threads and its imports end with it.

The child (`executors/child.py`) reads `request.json` from the work folder and writes its files there. Progress and, last, its
answer are JSON lines on stdout, which a full disk does not stop. Its stdin is a pipe from this process. When this process dies
for any reason, the pipe closes and the child exits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octobert.config.training import Training
from octobert.core import processes
from octobert.core.errors import KilledError, OctobertError
from octobert.engine.contract import Progress, Request, Response

REQUEST, LOG = "request.json", "stage.log"
# Files of the executor in a work folder; no part of the artifact.
PRIVATE = (REQUEST, LOG)
_CHILD = "octobert.engine.executors.child"


def run(
    request: Request, work: Path, progress: Progress, launch: Training | None = None
) -> Response:
    """Run a stage.

    Args:
        request: the stage with its inputs and options.
        work: an empty folder that the stage fills.
        progress: called with (what, done, total).
        launch: with several processes, each of them runs the stage.

    Raises:
        OctobertError: what the stage raised, or that it was killed.
    """
    (work / REQUEST).write_text(request.model_dump_json(), encoding="utf-8")
    launcher = _launcher(launch, work)
    command = (*launcher, *processes.script(_CHILD), str(work)) if launcher else (_CHILD, str(work))
    with (
        (work / LOG).open("wb") as log,
        processes.start(*command, stderr=log, temporary=request.temporary) as child,
    ):
        answers: list[dict[str, Any]] = []
        try:
            for line in child.stdout or ():
                if line.startswith(b'{"progress"'):
                    what, done, total = json.loads(line)["progress"]
                    progress(what, done, total)
                elif line.startswith(b'{"answer"'):
                    answers.append(json.loads(line)["answer"])
            code = child.wait()
        except BaseException:
            child.kill()
            raise
    response = _response(request.stage, work, answers, code)
    for name in PRIVATE:
        (work / name).unlink(missing_ok=True)
    return response


def _launcher(launch: Training | None, work: Path) -> list[str]:
    """torch's launcher, where a stage runs in several processes."""
    if launch is None or launch.processes * launch.machines == 1:
        return []
    arguments = [
        "torch.distributed.run",
        f"--nproc-per-node={launch.processes}",
        f"--nnodes={launch.machines}",
    ]
    if launch.rendezvous is None:
        return [*arguments, "--standalone"]
    # Machines that do the same work meet under its key; the last part of the folder's name is the process id.
    key = work.name.rpartition("-")[0]
    return [
        *arguments,
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={launch.rendezvous}",
        f"--rdzv-id={key}",
    ]


def _response(stage: str, work: Path, answers: Sequence[dict[str, Any]], code: int) -> Response:
    """What the child answered. Of several processes any may have failed.

    Raises:
        OctobertError: what it raised, or that it ended without an answer.
    """
    failed = next((answer for answer in answers if "error" in answer), None)
    if failed is not None:
        raise OctobertError.from_json(failed["error"], failed.get("traceback", ""))
    if not answers:
        raise _died(stage, work, code)
    return Response.model_validate(answers[0])


def _died(stage: str, work: Path, code: int) -> OctobertError:
    """The error for a child that ended without an answer."""
    log = (work / LOG).read_text(errors="replace").strip().splitlines()
    if code < 0:
        return KilledError(
            f"the stage was killed by signal {-code}",
            where=stage,
            got=log[-1][:200] if log else "no message",
            fix="if memory ran out, use fewer samples or shorter sequences; then run the same command again",
        )
    return OctobertError(
        "the stage ended without a result",
        where=stage,
        got=f"exit code {code}: " + " ".join(log[-3:])[:400],
    )
