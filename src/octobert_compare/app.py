"""What the page asks for: its own files, the models, and work that is answered line by line, as newline-delimited JSON."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from octobert.core.errors import OctobertError
from octobert.core.frozen import FrozenModel, first_problem
from octobert.core.plain import as_json
from octobert.report import page, vendor
from octobert_compare import asking, jobs
from octobert_compare.guard import Guard
from octobert_compare.models import Event, Models, Work

# Bytes of a question, and of a file of rows, which take several times the memory of their file.
MOST_ASKED, MOST_ROWS = 4 << 20, 64 << 20
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_LOG = logging.getLogger("octobert_compare")


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
            ("/open", asking.Open, asking.open_pair),
            ("/ask", asking.Ask, asking.ask),
            ("/lengths", asking.Lengths, asking.lengths),
            ("/search", asking.Lookup, asking.search),
        )
        return Starlette(
            routes=[
                Route("/", self._file),
                Route("/models", self._listed),
                Route("/rows", self._rows, methods=["POST"]),
                *(
                    Route(path, self._posted(form, work), methods=["POST"])
                    for path, form, work in posts
                ),
                Route("/{name}", self._file),
            ],
            exception_handlers={HTTPException: _refused, OctobertError: _refused},
        )

    async def _file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in self._static:
            raise HTTPException(404)
        return Response(self._static[name], media_type=_TYPES[name.rpartition(".")[2]])

    async def _listed(self, request: Request) -> Response:
        async with self._alone:
            return JSONResponse({"models": await anyio.to_thread.run_sync(self._models.listed)})

    def _posted(
        self, form: type[FrozenModel], work: Callable[[Models, Any], Work]
    ) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            try:
                asked = form.model_validate_json(await _body(request, MOST_ASKED))
            except ValueError as error:
                what = f"The question has another form: {first_problem(error)}."
                raise HTTPException(400, what) from error
            return self._streamed(work(self._models, asked))

        return answer

    async def _rows(self, request: Request) -> Response:
        asked, content = request.query_params, await _body(request, MOST_ROWS)
        name, file = asked.get("model", ""), asked.get("name", "rows.csv")
        return self._streamed(jobs.compare_rows(self._models, name, file, content))

    def _streamed(self, work: Work) -> Response:
        return StreamingResponse(self._lines(work), media_type="application/x-ndjson")

    async def _lines(self, steps: Work) -> AsyncIterator[bytes]:
        """The events of work as lines. It ends where the browser goes away, which cancels this function."""

        def step() -> Event | None:
            try:
                return next(steps, None)
            except OctobertError as error:
                return {"error": str(error)}
            except Exception as error:  # noqa: BLE001  # the page has to end with a sentence
                _LOG.debug("work failed", exc_info=True)
                return {
                    "error": f"octobert failed: {type(error).__name__}. octobert --verbose compare prints more."
                }

        try:
            while True:
                async with self._alone:
                    event = await anyio.to_thread.run_sync(step)
                if event is None:
                    return
                yield as_json(event).encode("utf-8", "replace") + b"\n"
        finally:
            # A cancelled step is waited for, except where the server ends: there it may still run, and cannot be closed.
            with contextlib.suppress(ValueError):
                steps.close()


async def _body(request: Request, most: int) -> bytearray:
    """The body of a request.

    One that is too large is read to its end all the same: a browser reads the answer after it has sent everything.

    Args:
        most: bytes that it may have.

    Raises:
        HTTPException: it has more.
    """
    content, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size <= most:
            content += part
    if size > most:
        what = f"The text or file is too large, more than {most >> 20} MiB. octobert evaluate reads large files."
        raise HTTPException(413, what)
    return content


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse(
        {"error": getattr(error, "detail", str(error))}, getattr(error, "status_code", 400)
    )


def _static() -> dict[str, str]:
    """The page's files by name: its own, and what it shares with reports."""
    folder = files("octobert_compare") / "static"
    shared = files(page.__name__)
    contents = {
        file.name: file.read_text("utf-8")
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }
    contents |= {name: (shared / name).read_text("utf-8") for name in ("page.css", "page.js")}
    return contents | dict(zip(("d3.js", "plot.js"), vendor.scripts(), strict=True))
