"""The server of `octobert compare`: on the loopback interface of this machine, until it is interrupted."""

from __future__ import annotations

import contextlib
import secrets
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from octobert.core import environment
from octobert.core.errors import RecipeError, TargetError

if TYPE_CHECKING:
    from octobert_compare.models import Models

HOST = "127.0.0.1"
# Seconds that answers in progress have to end after Ctrl-C.
_GRACE_S = 2


class Server:
    """A server that has its port and its address, and does not answer yet.

    Args:
        folder: an output directory, or a package.
        port: 0 for a free one.
        targets: to show; none for all.

    Raises:
        ModelError: the folder has no package.
        RecipeError: the port cannot be had.
        TargetError: the packages of `octobert[web]` are not installed, or no package can run here.
    """

    def __init__(self, folder: Path, *, port: int = 0, targets: tuple[str, ...] = ()) -> None:
        self._models = _models(folder, targets)
        self._socket = _bound(port)
        self._token = secrets.token_urlsafe(24)
        self.port: int = self._socket.getsockname()[1]

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self.port}/{self._token}/"

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        import uvicorn

        from octobert_compare.app import app
        from octobert_compare.guard import MOST, Connection

        # No log: addresses have the token, and tracebacks may quote texts.
        config = uvicorn.Config(
            app(self._models, token=self._token, port=self.port),
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            http=Connection,
            ws="none",
            server_header=False,
            # Many may come at once, before the first is closed.
            limit_concurrency=4 * MOST,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = uvicorn.Server(config)
        try:
            self._server.run(sockets=[self._socket])
        except KeyboardInterrupt:
            # uvicorn has ended everything, and passes the signal on.
            pass
        finally:
            self._socket.close()

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.should_exit = True


@contextlib.contextmanager
def leading_to(address: str) -> Iterator[str]:
    """The address of a file that leads to an address, and that only this user can read, as long as the context lasts.

    The arguments of a program can be read by all users of a machine, so a browser is not started with the token.
    """
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        file = Path(folder) / "compare.html"
        file.touch(0o600)
        file.write_text(
            f'<!doctype html>\n<title>octobert compare</title>\n<meta http-equiv="refresh" content="0; url={address}">\n'
            f'<p><a href="{address}">octobert compare</a></p>\n',
            encoding="utf-8",
        )
        yield file.as_uri()


def _models(folder: Path, targets: tuple[str, ...]) -> Models:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise TargetError(
            "the page needs packages that are not installed",
            got=f"no {error.name}",
            fix=environment.install("web"),
        ) from error
    from octobert_compare.models import Models

    return Models(folder, targets)


def _bound(port: int) -> socket.socket:
    """A socket that listens, so that a browser that is opened now waits for the first answer."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise RecipeError(
            "the port cannot be had",
            where="--port",
            got=f"{port}: {getattr(error, 'strerror', None) or error}",
            fix="name another one, or leave it out for a free one",
        ) from error
    return listener
