"""What the page asks for: its own files, the models, and work that is answered line by line, as newline-delimited JSON."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Generator
from importlib.resources import files
from typing import Any

import anyio
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from octobert.core.errors import DataError, OctobertError
from octobert.core.frozen import FrozenModel, first_problem
from octobert.report import page, vendor
from octobert.web import asking, jobs, search
from octobert.web.guard import Guard
from octobert.web.models import Models

Event = dict[str, Any]
Work = Generator[Event, None, None]
# Bytes of a question, and of a file of rows.
MOST_ASKED, MOST_ROWS = 4 << 20, 256 << 20
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_LOG = logging.getLogger("octobert.web")


class _TooLarge(Exception):
    """A body has more bytes than its limit."""


def app(models: Models, *, token: str, port: int) -> Guard:
    """The server's application.

    Args:
        models: what is asked.
        token: that every path begins with.
        port: of the server, which stands in its own name.
    """
    return Guard(_Routes(models).routes(), token=token, port=port)


class _Routes:
    """Routes, and the lock that lets one step of work run at a time."""

    def __init__(self, models: Models) -> None:
        self._models = models
        # Waiting work takes turns, step by step.
        self._alone = anyio.Lock()
        self._static = _static()

    def routes(self) -> Starlette:
        """The routes, below the token."""
        posts = (
            ("/ask", asking.Ask, asking.ask),
            ("/lengths", asking.Lengths, asking.lengths),
            ("/search", search.Search, search.search),
        )
        return Starlette(
            routes=[
                Route("/", self._file),
                Route("/models", self._listed),
                Route("/rows", self._rows, methods=["POST"]),
                *(Route(path, self._posted(form, work), methods=["POST"]) for path, form, work in posts),
                Route("/{name}", self._file),
            ],
            exception_handlers={_TooLarge: _too_large, 404: _nothing, 405: _nothing},
        )

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self._static:
            return JSONResponse({"error": "There is no such page."}, 404)
        return Response(self._static[name], media_type=_TYPES[name.rpartition(".")[2]])

    async def _listed(self, request: Request) -> Response:
        async with self._alone:
            try:
                return JSONResponse({"models": await anyio.to_thread.run_sync(self._models.listed)})
            except OctobertError as error:
                return JSONResponse({"error": str(error)}, 400)

    def _posted(self, form: type[FrozenModel], work: Callable[[Models, Any], Work]) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            body = await _body(request, MOST_ASKED)
            try:
                asked: BaseModel = form.model_validate_json(body)
            except ValueError as error:
                return JSONResponse({"error": f"The question has another form: {first_problem(error)}."}, 400)
            return self._streamed(lambda: work(self._models, asked))

        return answer

    async def _rows(self, request: Request) -> Response:
        content, asked = await _body(request, MOST_ROWS), request.query_params
        return self._streamed(
            lambda: jobs.compare_rows(self._models, asked.get("model", ""), asked.get("name", "rows.csv"), content)
        )

    def _streamed(self, work: Callable[[], Work]) -> Response:
        return StreamingResponse(self._lines(work), media_type="application/x-ndjson")

    async def _lines(self, work: Callable[[], Work]) -> AsyncIterator[bytes]:
        """The events of work as lines. It ends where the browser goes away, which cancels this function."""
        steps = work()

        def step() -> Event | None:
            try:
                return next(steps, None)
            except OctobertError as error:
                return {"error": str(error)}
            except Exception as error:  # noqa: BLE001  # the page has to end with a sentence
                _LOG.debug("work failed", exc_info=True)
                return {"error": f"octobert failed: {type(error).__name__}. octobert --verbose compare prints more."}

        try:
            while True:
                async with self._alone:
                    event = await anyio.to_thread.run_sync(step)
                if event is None:
                    return
                yield json.dumps(event, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        finally:
            # A cancelled step is waited for, except where the server ends: there it may still run, and cannot be closed.
            with contextlib.suppress(ValueError):
                steps.close()


async def _body(request: Request, most: int) -> bytes:
    """The body of a request.

    Raises:
        _TooLarge: it has more bytes than the limit. The rest is not read.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _TooLarge(most)
        parts.append(part)
    return b"".join(parts)


async def _too_large(request: Request, error: Exception) -> Response:
    expected, fix = f"at most {error.args[0] >> 20} MiB", "use octobert evaluate for large files"
    what = DataError("the text or file is too large", expected=expected, fix=fix)
    return JSONResponse({"error": str(what)}, 413, headers={"Connection": "close"})


async def _nothing(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "There is no such page."}, getattr(error, "status_code", 404))


def _static() -> dict[str, str]:
    """The page's files by name: its own, and what it shares with reports."""
    own = files("octobert.web") / "static"
    shared = files(page.__name__)
    found = {each.name: each.read_text("utf-8") for each in own.iterdir() if each.name.rpartition(".")[2] in _TYPES}
    found |= {name: (shared / name).read_text("utf-8") for name in ("page.css", "page.js")}
    return found | dict(zip(("d3.js", "plot.js"), vendor.scripts(), strict=True))
