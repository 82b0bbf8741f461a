"""Where the trials of a search are kept: a journal in a file, or a database.

Several processes, on several machines, may use one storage. Everything here needs Optuna, which is an extra.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from octobert.core import environment
from octobert.core.errors import OctobertError, RecipeError, StorageError, TargetError, reason
from octobert.core.files import storage_errors
from octobert.core.plain import without_passwords

KEY = "search.storage"
# Processes that open an empty database at the same time disturb each other while they make its tables.
_TIMES, _PAUSE_S = 6, 0.3
_BUSY_S = 60


def optuna() -> Any:
    """The package optuna, which says only errors from here on.

    Raises:
        TargetError: it is not installed.
    """
    try:
        import optuna as package
    except ImportError as error:
        raise TargetError("a search needs the package optuna", fix=environment.install("tune")) from error
    package.logging.set_verbosity(package.logging.ERROR)
    return package


def opened(storage: str | None, place: Path) -> Any:
    """Open a storage, and make it if it is not there.

    Args:
        storage: `search.storage` of the recipe.
        place: file that is used without it, by one process at a time.

    Returns:
        The storage, of Optuna.

    Raises:
        TargetError: Optuna or a driver is not installed.
        RecipeError: the URL cannot be used.
        StorageError: the file or the database cannot be opened.
    """
    optuna()
    if storage is not None and "://" in storage:
        return _database(storage)
    return _journal(Path(storage).expanduser() if storage is not None else place, alone=storage is None)


def _journal(path: Path, *, alone: bool) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    # Locks are files beside it, which have to be found from any working directory.
    path = Path(os.path.abspath(path))
    if path.is_dir():
        raise StorageError(
            "a search keeps its trials in a file, and this is a folder", where=str(path), fix="name a file in it"
        )
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if alone:
            path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
        lock = JournalFileOpenLock(str(path))
        lock.acquire()
        try:
            _check_lines(path)
        finally:
            lock.release()
        backend = JournalFileBackend(str(path), lock)
    with told(str(path)):
        return JournalStorage(backend)


def _check_lines(path: Path) -> None:
    """Make sure that a file is a journal, and remove the part of a last line that a full disk or a power failure has left.

    Raises:
        StorageError: it is another file.
    """
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.startswith(b'{"op_code"'):
            fix = "give another file; a file of SQLite is written sqlite:///FILE"
            raise StorageError("the file has no trials of a search", where=str(path), fix=fix)
        # Lines that are added behind it could not be read.
        file.truncate(content.rfind(b"\n") + 1)


def _database(storage: str) -> Any:
    import sqlalchemy
    from optuna.storages import RDBStorage, get_storage

    try:
        url = sqlalchemy.make_url(storage)
    except sqlalchemy.exc.ArgumentError as error:
        fix = "write sqlite:///FILE or postgresql://user@host:port/database"
        raise RecipeError("the URL cannot be read", where=KEY, got=without_passwords(storage), fix=fix) from error
    # Operations are minutes apart: connections that stay open would be lost meanwhile.
    options: dict[str, Any] = {"poolclass": sqlalchemy.NullPool, "connect_args": {"timeout": _BUSY_S}}
    if url.get_backend_name() == "sqlite":
        if not url.database:
            raise RecipeError("the URL names no file", where=KEY, got=storage, fix="write sqlite:///FILE")
    else:
        if importlib.util.find_spec("psycopg") is None:
            what = "a search in PostgreSQL needs the package psycopg"
            raise TargetError(what, where=KEY, fix=environment.install("postgres"))
        url = url.set(drivername="postgresql+psycopg")
        options["connect_args"] = {"connect_timeout": 10}
    text = url.render_as_string(hide_password=False)
    with told(storage):
        for remaining in reversed(range(_TIMES)):
            try:
                # With the cache around it, finished trials are read once.
                return get_storage(RDBStorage(text, engine_kwargs=options))
            except sqlalchemy.exc.DBAPIError:
                if not remaining:
                    raise
                time.sleep(_PAUSE_S)


@contextmanager
def told(where: str) -> Iterator[None]:
    """Errors of a storage become one sentence.

    Raises:
        StorageError: the storage failed.
    """
    import sqlalchemy
    from optuna.exceptions import OptunaError, UpdateFinishedTrialError

    try:
        yield
    except (OctobertError, UpdateFinishedTrialError):
        # The latter says that another process has taken a trial over.
        raise
    except (OptunaError, sqlalchemy.exc.SQLAlchemyError, OSError, RuntimeError, ValueError, KeyError) as error:
        inner = error.__cause__ if isinstance(error.__cause__, sqlalchemy.exc.SQLAlchemyError) else error
        origin = getattr(inner, "orig", None) or inner
        fix = "see that it can be reached, and for a database that it exists and that PGPASSWORD or ~/.pgpass has its password"
        shown = without_passwords(reason(origin))
        raise StorageError("the trials of the search cannot be stored", where=where, got=shown, fix=fix) from error
