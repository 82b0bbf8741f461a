"""What the page asks for: its own files, the models, and work that is answered line by line, as newline-delimited JSON."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any

import anyio
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octobert.core.errors import DataError, OctobertError
from octobert.core.frozen import FrozenModel, first_problem
from octobert.report import page, vendor
from octobert.web import asking, jobs
from octobert.web.guard import Guard
from octobert.web.models import Event, Models, Work

# Bytes of a question, of a file of rows, and of all files that are read or answered at the same time. Rows take several times
# the memory of their file.
MOST_ASKED, MOST_ROWS, MOST_HELD = 4 << 20, 64 << 20, 128 << 20
# Seconds for a body to come whole, from a browser on the same machine.
BODY_S = 60.0
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_LOG = logging.getLogger("octobert.web")


class _RefusedError(Exception):
    """A body is not taken.

    Args:
        status: of the answer.
        what: a sentence.
    """

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


class _Held(StreamingResponse):
    """An answer that ends with a call, also where the browser has gone before it began."""

    def __init__(self, lines: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


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
        # Bytes of files.
        self._held = 0
        self._static = _static()

    def routes(self) -> Starlette:
        """The routes, below the token."""
        posts = (
            ("/open", asking.Open, asking.open_pair),
            ("/ask", asking.Ask, asking.ask),
            ("/lengths", asking.Lengths, asking.lengths),
            ("/search", asking.Search, asking.search),
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
            exception_handlers={_RefusedError: _refused, 404: _nothing, 405: _nothing},
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

    def _posted(
        self, form: type[FrozenModel], work: Callable[[Models, Any], Work]
    ) -> Callable[..., Any]:
        async def answer(request: Request) -> Response:
            body = await _body(request, MOST_ASKED)
            try:
                asked: BaseModel = form.model_validate_json(body)
            except ValueError as error:
                return JSONResponse(
                    {"error": f"The question has another form: {first_problem(error)}."}, 400
                )
            return self._streamed(lambda: work(self._models, asked))

        return answer

    async def _rows(self, request: Request) -> Response:
        asked = request.query_params
        size = min(int(request.headers.get("content-length", MOST_ROWS)), MOST_ROWS)
        if self._held + size > MOST_HELD:
            what, fix = "other files are being compared", "wait until they are done, or cancel them"
            full = DataError(
                what, expected=f"at most {MOST_HELD >> 20} MiB at the same time", fix=fix
            )
            await _body(request, MOST_ROWS, _RefusedError(503, str(full)))
        self._held += size

        def release() -> None:
            self._held -= size

        try:
            content = [await _body(request, MOST_ROWS)]
        except BaseException:
            release()
            raise

        def work() -> Work:
            # It takes the content, so that nothing else holds it.
            return jobs.compare_rows(
                self._models, asked.get("model", ""), asked.get("name", "rows.csv"), content.pop()
            )

        return self._streamed(work, release)

    def _streamed(
        self, work: Callable[[], Work], end: Callable[[], None] = lambda: None
    ) -> Response:
        return _Held(self._lines(work), end)

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
                return {
                    "error": f"octobert failed: {type(error).__name__}. octobert --verbose compare prints more."
                }

        try:
            while True:
                async with self._alone:
                    event = await anyio.to_thread.run_sync(step)
                if event is None:
                    return
                yield (
                    json.dumps(event, ensure_ascii=False, allow_nan=False).encode(
                        "utf-8", "replace"
                    )
                    + b"\n"
                )
        finally:
            # A cancelled step is waited for, except where the server ends: there it may still run, and cannot be closed.
            with contextlib.suppress(ValueError):
                steps.close()


async def _body(request: Request, most: int, refusal: _RefusedError | None = None) -> bytearray:
    """The body of a request.

    One that is refused is read to its end all the same, and not kept: a browser reads the answer after it has sent everything.

    Args:
        most: bytes that it may have.
        refusal: why it is refused, whatever it has.

    Raises:
        _RefusedError: it is refused, has more bytes than the limit, or does not come in time.
    """
    what, fix = "the text or file is too large", "use octobert evaluate for large files"
    large = _RefusedError(413, str(DataError(what, expected=f"at most {most >> 20} MiB", fix=fix)))
    content = bytearray()
    try:
        with anyio.fail_after(BODY_S):
            async for part in request.stream():
                if refusal is None:
                    content += part
                if len(content) > most:
                    refusal, content = large, bytearray()
    except TimeoutError as error:
        raise _RefusedError(408, f"The text or file did not come within {BODY_S:.0f} s.") from error
    if refusal is not None:
        raise refusal
    return content


async def _refused(request: Request, error: Exception) -> Response:
    return JSONResponse(
        {"error": str(error)}, getattr(error, "status", 400), headers={"Connection": "close"}
    )


async def _nothing(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "There is no such page."}, getattr(error, "status_code", 404))


def _static() -> dict[str, str]:
    """The page's files by name: its own, and what it shares with reports."""
    folder = files("octobert.web") / "static"
    shared = files(page.__name__)
    contents = {
        file.name: file.read_text("utf-8")
        for file in folder.iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }
    contents |= {name: (shared / name).read_text("utf-8") for name in ("page.css", "page.js")}
    return contents | dict(zip(("d3.js", "plot.js"), vendor.scripts(), strict=True))
