"""The child's side of `executors.local`: run one stage on the request in a work folder.

This is the stage boundary: the only place where any exception is caught, so that a foreign error reaches the user as a
sentence, with its traceback kept for `events.jsonl`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from octobert.core.environment import peak_memory_bytes
from octobert.core.errors import OctobertError
from octobert.core.files import disk_error, is_disk_error
from octobert.pipeline.executors.local import REQUEST, RESPONSE
from octobert.pipeline.stages import Context
from octobert.training import trainer


def main(work: Path) -> int:
    """Run the stage; 0 when it succeeded."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    request = json.loads((work / REQUEST).read_text())
    started = time.perf_counter()
    inputs = {name: Path(folder) for name, folder in request["inputs"].items()}
    context = Context(work, Path(request["scratch"]), inputs, request["options"], request["locations"], _report)
    try:
        stage = importlib.import_module(f"octobert.pipeline.stages.{request['stage']}")
        summary = stage.run(context)
        response = {
            "summary": summary,
            "seconds": time.perf_counter() - started,
            "peak_memory_bytes": peak_memory_bytes(),
        }
    except OctobertError as error:
        response = {"error": error.to_json(), "traceback": traceback.format_exc()}
    except Exception as error:  # noqa: BLE001  # this is the stage boundary
        response = {"error": _wrapped(error, request["stage"], work).to_json(), "traceback": traceback.format_exc()}
    # Of the processes of a distributed training one answers, but any may fail.
    return _answer(response, work) if trainer.is_first() or "error" in response else 0


def _answer(response: dict, work: Path) -> int:
    text = json.dumps(response)
    try:
        (work / RESPONSE).write_text(text)
    except OSError:
        # A full disk cannot hold even this; what was written is worthless now, so make room and try once more.
        (work / RESPONSE).unlink(missing_ok=True)
        for path in sorted(work.rglob("*"), reverse=True):
            if path.is_file() and path.name != REQUEST:
                path.unlink()
        (work / RESPONSE).write_text(text)
    return 1 if "error" in response else 0


def _wrapped(error: Exception, stage: str, work: Path) -> OctobertError:
    cause: BaseException | None = error
    while cause is not None:
        if is_disk_error(cause):
            return disk_error(cause, work)  # type: ignore[arg-type]
        cause = cause.__cause__ or cause.__context__
    message = " ".join(str(error).split())[:400]
    return OctobertError(
        "the stage failed unexpectedly", where=stage, got=f"{type(error).__name__}: {message}", fix="see events.jsonl"
    )


def _report(what: str, done: int, total: int) -> None:
    if not trainer.is_first():
        return
    sys.stdout.write(json.dumps({"progress": [what, done, total]}) + "\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """The parent's end of stdin closes when it dies."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
