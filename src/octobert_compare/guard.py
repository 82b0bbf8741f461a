"""Who may ask: only pages of this server, under the name of this machine, with the token of its address.

The token is the first part of the path, so that addresses relative to the page have it and no cookie is needed. A page of
another site cannot read answers (there are no CORS headers), cannot post (its `Origin` is another one), and cannot reach the
server by a name of its own that leads to 127.0.0.1 (the `Host` is then another one).
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

# Plot writes style elements into its charts.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


# Connections that are open at the same time: a browser has up to six for each of its profiles.
MOST = 64


class Connection(H11Protocol):
    """One that asks nothing makes room for another. Any program of this machine may open some, whoever runs it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._opened = self.loop.time()
        others = [
            each for each in self.connections if isinstance(each, Connection) and each is not self
        ]
        others = [each for each in others if not each.transport.is_closing()]
        # Those whose request is being answered stay; uvicorn's own limit counts them.
        idle = [each for each in others if each.cycle is None or each.cycle.response_complete]
        if len(others) >= MOST and idle:
            min(idle, key=lambda each: each._opened).transport.close()


class Guard:
    """Passes on what has the token, without it in the path; refuses everything else with 403.

    Args:
        app: what is guarded.
        token: the first part of every path.
        port: of the server.
    """

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app, self._token = app, token.encode()
        # Browsers leave out the port of the scheme.
        ports = (f":{port}", "") if port == 80 else (f":{port}",)
        self._hosts = {f"{name}{end}" for name in ("127.0.0.1", "localhost") for end in ports}
        self._origins = {f"http://{host}" for host in self._hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            return
        problem = self._problem(scope)
        if problem is not None:
            await PlainTextResponse(problem, 403)(scope, receive, with_headers)
            return
        rest = scope["path"][1:].partition("/")[2]
        await self._app({**scope, "path": f"/{rest}", "root_path": ""}, receive, with_headers)

    def _problem(self, scope: Scope) -> str | None:
        """Why a request is refused; None where it is not."""
        headers, (token, slash, _) = Headers(scope=scope), scope["path"][1:].partition("/")
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return "This server answers only under its own address, which octobert compare has printed."
        if not slash or not hmac.compare_digest(token.encode(errors="replace"), self._token):
            return "The address lacks its token. Open the one that octobert compare has printed; a # and what follows may stay."
        if scope["method"] not in ("GET", "HEAD") and headers.getlist("origin") not in [
            [origin] for origin in self._origins
        ]:
            return "Another site asks. Only the page of this server may."
        return None
