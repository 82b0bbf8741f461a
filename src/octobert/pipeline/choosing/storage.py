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
from octobert.core.files import disk_error, is_disk_error, remove_unless_file, storage_errors
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
        raise TargetError(
            "a search needs the package optuna", fix=environment.install("tune")
        ) from error
    package.logging.set_verbosity(package.logging.ERROR)
    return package


def check(storage: str) -> None:
    """Check that a storage can be opened. Nothing is made.

    Raises:
        TargetError: Optuna or a driver is not installed.
        RecipeError: the URL cannot be used.
        StorageError: the file or the database cannot be opened.
    """
    optuna()
    if "://" not in storage:
        path = _path(storage)
        with storage_errors(path):
            _lines(path)
        return
    import sqlalchemy

    url, options = _url(storage)
    file = Path(url.database or "")
    if url.get_backend_name() == "sqlite" and not file.exists() and file.parent.is_dir():
        return
    with optuna_errors(storage):
        sqlalchemy.create_engine(url, **options).connect().close()


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
    return _journal(place if storage is None else _path(storage), alone=storage is None)


def _path(storage: str) -> Path:
    # Locks are files beside it, which have to be found from any working directory.
    return Path(os.path.expanduser(storage)).absolute()


def _journal(path: Path, *, alone: bool) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if alone:
            remove_unless_file(path)
            path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
        lock = JournalFileOpenLock(str(path))
        lock.acquire()
        try:
            content = _lines(path)
            # A full disk or a power failure may have left a part of a last line. Lines behind it could not be read.
            if content and not content.endswith(b"\n"):
                os.truncate(path, content.rfind(b"\n") + 1)
        finally:
            lock.release()
        backend = JournalFileBackend(str(path), lock)
    with optuna_errors(str(path)):
        return JournalStorage(backend)


def _lines(path: Path) -> bytes:
    """The content of a journal; nothing where there is no file yet.

    Raises:
        StorageError: it is another file.
    """
    if path.is_dir():
        raise StorageError(
            "a search keeps its trials in a file, and this is a folder",
            where=str(path),
            fix="name a file in it",
        )
    if not path.exists():
        return b""
    content = path.read_bytes() if path.is_file() else None
    if content is None or not (content == b"" or content.startswith(b'{"op_code"')):
        raise StorageError(
            "the file has no trials of a search",
            where=str(path),
            fix="give another file; a file of SQLite is written sqlite:///FILE",
        )
    return content


def _url(storage: str) -> tuple[Any, dict[str, Any]]:
    """The URL of a database, of SQLAlchemy, and options of its engine."""
    import sqlalchemy

    try:
        url = sqlalchemy.make_url(storage)
    except sqlalchemy.exc.ArgumentError as error:
        raise RecipeError(
            "the URL cannot be read",
            where=KEY,
            got=without_passwords(storage),
            fix="write sqlite:///FILE or postgresql://user@host:port/database",
        ) from error
    # Operations are minutes apart: connections that stay open would be lost meanwhile.
    options: dict[str, Any] = {
        "poolclass": sqlalchemy.NullPool,
        "connect_args": {"timeout": _BUSY_S},
    }
    if url.get_backend_name() == "sqlite":
        if not url.database:
            raise RecipeError(
                "the URL names no file", where=KEY, got=storage, fix="write sqlite:///FILE"
            )
        url = url.set(database=os.path.expanduser(url.database))
    else:
        if importlib.util.find_spec("psycopg") is None:
            raise TargetError(
                "a search in PostgreSQL needs the package psycopg",
                where=KEY,
                fix=environment.install("postgres"),
            )
        url = url.set(drivername="postgresql+psycopg")
        # A server that loses its power while it is asked does not answer; the system looks after two hours by default.
        alive = {
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 60_000,
        }
        options["connect_args"] = {"connect_timeout": 10, **alive}
    return url, options


def _database(storage: str) -> Any:
    import sqlalchemy
    from optuna.storages import RDBStorage, get_storage

    url, options = _url(storage)
    text = url.render_as_string(hide_password=False)
    with optuna_errors(storage):
        for remaining in reversed(range(_TIMES)):
            try:
                # With the cache around it, finished trials are read once.
                return get_storage(RDBStorage(text, engine_kwargs=options))
            except sqlalchemy.exc.DBAPIError:
                if not remaining:
                    raise
                time.sleep(_PAUSE_S)


@contextmanager
def optuna_errors(where: str) -> Iterator[None]:
    """Whatever Optuna raises while it opens, reads or writes a storage becomes one sentence.

    Raises:
        StorageError: the storage failed, or what is in it is damaged.
    """
    import sqlalchemy
    from optuna.exceptions import OptunaError, UpdateFinishedTrialError

    try:
        yield
    except (OctobertError, UpdateFinishedTrialError):
        # The latter says that another process has taken a trial over.
        raise
    except (OptunaError, sqlalchemy.exc.SQLAlchemyError, OSError) as error:
        if isinstance(error, OSError) and is_disk_error(error):
            raise disk_error(error, Path(where)) from error
        inner = (
            error.__cause__
            if isinstance(error.__cause__, sqlalchemy.exc.SQLAlchemyError)
            else error
        )
        origin = getattr(inner, "orig", None) or inner
        fix = "see that it can be reached, and for a database that it exists and that PGPASSWORD or ~/.pgpass has its password"
        raise StorageError(
            "the trials of the search cannot be stored",
            where=where,
            got=without_passwords(reason(origin)),
            fix=fix,
        ) from error
    # Optuna checks nothing of what it reads, so damage is an error of any kind.
    except Exception as error:
        raise StorageError(
            "the trials of the search cannot be read",
            where=where,
            got=f"{type(error).__name__}: {reason(error)}".removesuffix(": "),
            fix="remove it, or give another one, and run the same command again",
        ) from error
