"""Connections of the server, with limits: requests that never come whole do not use up what the process may open."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds for the headers of a request. A browser sends them at once.
HEADERS_S = 10.0
# Connections that are open at the same time: a browser has up to six for each of its profiles.
MOST = 64


class Connection(H11Protocol):
    """A connection that is dropped where no request comes in time, and of many the one that has waited longest for one."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST:
            waiting = [
                each
                for each in self.connections
                if isinstance(each, Connection) and each._is_waiting
            ]
            longest = min(waiting, key=lambda each: each._since)
            self.connections.discard(longest)
            longest.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait()

    @property
    def _is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._since = self.loop.time()
        self.loop.call_later(HEADERS_S, self._end, self._since)

    def _end(self, since: float) -> None:
        if since == self._since and self._is_waiting:
            self.transport.abort()
