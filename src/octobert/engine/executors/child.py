"""The child's side of `executors.local`: run the stage that the request in a work folder names.

Any exception becomes a sentence here, with its traceback kept for `events.jsonl`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from octobert.core import budget
from octobert.core.processes import is_first
from octobert.engine.contract import Request
from octobert.engine.executors.inline import as_sentence, perform
from octobert.engine.executors.local import REQUEST

# Stages that run graphs of unknown origin.
_FOREIGN = ("capture",)
# New objects until the garbage collector looks at them; Python's default is 700.
_GARBAGE = 50_000


def main() -> int:
    """Run the stage; 0 when it succeeded."""
    work = Path(sys.argv[1])
    # Imports and PyTorch's exporter make millions of objects that stay; looking at them again was a fifth of a capture.
    gc.set_threshold(_GARBAGE)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    request = Request.model_validate_json((work / REQUEST).read_text(encoding="utf-8"))
    if request.stage in _FOREIGN:
        budget.limit_process()
    answer: dict[str, Any]
    try:
        answer = perform(request, work, _report).model_dump(mode="json")
    except Exception as error:  # noqa: BLE001  # this is the stage boundary
        answer = {
            "error": as_sentence(error, request.stage, work).to_json(),
            "traceback": traceback.format_exc(),
        }
    # Of the processes of a distributed training one answers, but any may fail.
    if is_first() or "error" in answer:
        _tell({"answer": answer})
    return 1 if "error" in answer else 0


def _report(what: str, done: int, total: int) -> None:
    if is_first():
        _tell({"progress": [what, done, total]})


def _tell(message: dict[str, Any]) -> None:
    """Write a line of its own, whatever else has been printed."""
    sys.stdout.write(f"\n{json.dumps(message)}\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """Exit when the parent's end of stdin closes."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)
