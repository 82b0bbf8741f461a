"""The side of `executors.ray` that runs on a machine of the cluster: one attempt to run a stage.

All that is needed comes with the `Order`. An error is an answer, so that Ray does not repeat it. The machine has to be like the
one of the run: the same octobert, the same packages, the same instructions of the CPU, and the same files.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octobert.core import environment, version
from octobert.core.errors import OctobertError, StorageError, TargetError
from octobert.core.files import atomic_write, files_in, storage_errors
from octobert.engine import contract, keys
from octobert.engine.contract import Request, unchanged
from octobert.engine.executors import local

# Files in the folder of a call, and in that of an attempt.
TOKEN, PROGRESS, FILES = "token", "progress.json", "files"
# Seconds between looks at what another machine writes, and until a shared folder shows it.
PAUSE, _SETTLING = 0.3, 20.0
_SHARE = "put {} into a folder that all machines share under the same path"


@dataclass(frozen=True)
class Order:
    """What a machine of the cluster is asked to do.

    Args:
        request: the stage.
        place: the folder of the call, for all attempts.
        token: content of the file `token` in it.
        directory: that relative paths begin at.
        variables: environment variables; None removes one.
        kind: what must be the same on all machines (see `kind_of`).
    """

    request: str
    place: Path
    token: str
    directory: Path
    variables: dict[str, str | None]
    kind: dict[str, str]


def attempt(order: Order) -> dict[str, Any]:
    """Run a stage on the machine that Ray chose. An error is an answer, too."""
    machine = socket.gethostname()
    try:
        with suppress(OSError):
            os.chdir(order.directory)
        for name, value in order.variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        request = Request.model_validate_json(order.request)
        _check_kind(order, request, machine)
        _check_files(order, request, machine)
        attempt_folder = order.place / secrets.token_hex(4)
        with storage_errors(attempt_folder):
            for folder in (
                attempt_folder,
                attempt_folder / FILES,
                attempt_folder / "temporary",
            ):
                folder.mkdir()
            request = request.replaced(
                scratch=attempt_folder / "scratch", temporary=attempt_folder / "temporary"
            )
            response = local.run(request, attempt_folder / FILES, _Reporter(order.place / PROGRESS))
            return {
                "attempt": attempt_folder.name,
                "sizes": sizes_in(attempt_folder / FILES),
                "response": response.model_dump(mode="json"),
            }
    except OctobertError as error:
        return {"error": error.to_json(), "traceback": error.traceback}


class _Reporter:
    """Writes progress into a file that the driver reads, not more often than it reads it."""

    def __init__(self, path: Path) -> None:
        self._path, self._next = path, 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PAUSE
            with suppress(OSError), atomic_write(self._path) as partial:
                partial.write_text(json.dumps([what, done, total]), encoding="utf-8")


def kind_of(request: Request) -> dict[str, str]:
    """What must be the same on all machines, so that a result is what its key says: part → value."""
    return {
        "octobert": version.__version__,
        "octobert's code": keys.code_digest()[:16],
        **keys.package_versions(request.stage),
        **keys.plugin_digests(keys.key_data(request.parsed)),
        "instructions of the CPU": " ".join(environment.features()),
    }


def _check_kind(order: Order, request: Request, machine: str) -> None:
    """Raise TargetError where a machine has another octobert, other packages or another CPU than the one of the run."""
    here = kind_of(request)
    for part in [*order.kind, *here]:
        if here.get(part) != order.kind.get(part):
            raise TargetError(
                f"{part} is not what it is on the machine of the run, so results would differ",
                where=f"machine {machine} of the cluster",
                got=here.get(part) or "none",
                expected=order.kind.get(part) or "none",
                fix="make all machines alike",
            )


def _check_files(order: Order, request: Request, machine: str) -> None:
    """Raise StorageError where a machine does not see the folder of the run, or files of the user, or sees others."""
    where, fix = f"machine {machine} of the cluster", _SHARE.format("it")
    if not settles(lambda: (order.place / TOKEN).read_text(encoding="ascii") == order.token):
        raise StorageError(
            "the folder of the run is not there",
            where=where,
            got=str(order.place.parent),
            fix=_SHARE.format("--out (and --cache)"),
        )
    for files in contract.files_in(request.parsed):
        for path in files.places:
            if not path.exists():
                raise StorageError(
                    "a file of the run is not there", where=where, got=str(path.absolute()), fix=fix
                )
        if not unchanged(files):
            raise StorageError(
                "a file of the run is not the same there",
                where=where,
                got=", ".join(str(path.absolute()) for path in dict.fromkeys(files.places)),
                fix=fix,
            )


def settles(holds: Callable[[], bool]) -> bool:
    """Whether something holds soon."""
    last = time.monotonic() + _SETTLING
    while True:
        with suppress(OSError):
            if holds():
                return True
        if time.monotonic() > last:
            return False
        time.sleep(PAUSE)


def sizes_in(folder: Path) -> dict[str, int]:
    """Relative path → bytes, of everything in a folder."""
    return {path.relative_to(folder).as_posix(): path.lstat().st_size for path in files_in(folder)}
