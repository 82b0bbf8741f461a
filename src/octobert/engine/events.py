"""`events.jsonl` of an output directory: what its runs did, one JSON object a line, appended."""

from __future__ import annotations

import os
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from octobert.core.errors import OctobertError, StorageError
from octobert.core.files import content_of, remove_unless_file, storage_errors
from octobert.core.plain import as_json, parsed_json

# In the hidden folder of the output directory.
FILE = "events.jsonl"


class Events:
    """Writes events, of several threads too.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def write(self, event: str, **details: Any) -> None:
        """Append an event.

        Raises:
            StorageError: the file cannot be written.
        """
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **details}
        with self._lock, storage_errors(self._path):
            remove_unless_file(self._path)
            with self._path.open("ab+") as stream:
                stream.seek(-min(stream.tell(), 1), os.SEEK_END)
                # A run that was killed, or a full disk, may have left half a line.
                cut = stream.read(1) not in (b"", b"\n")
                stream.write(b"\n" * cut + as_json(line).encode("utf-8", "replace") + b"\n")

    def failed(self, error: Exception, **details: Any) -> None:
        """Write why a run or a part of it ended; an error while writing, of a full disk for example, does not hide it."""
        parts = (
            error.to_json()
            if isinstance(error, OctobertError)
            else {"type": type(error).__name__, "what": str(error)}
        )
        with suppress(StorageError):
            self.write(
                "failure",
                **details,
                error=parts,
                traceback=getattr(error, "traceback", "") or traceback.format_exc(),
            )


def read(path: Path) -> list[dict[str, Any]]:
    """The events in a file, the oldest first; none where there is no file. A line that is cut short or no event is left out.

    Raises:
        StorageError: the file cannot be read.
    """
    with storage_errors(path):
        lines = content_of(path).splitlines() if path.is_file() else []
    events = []
    for line in lines:
        with suppress(ValueError):
            event = parsed_json(line)
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                events.append(event)
    return events
