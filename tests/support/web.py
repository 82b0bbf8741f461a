"""A web server on this machine: files with ETags and ranges, and connections that break where a test says so."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO
from urllib.parse import unquote, urlsplit


@dataclass
class Web:
    """What a server has and what it was asked.

    Args:
        address: of the server, without a path.
        files: path → content.
        breaks: path → bytes after which a connection breaks, one for each request.
        status: path → status that is answered in place of the file.
        headers: path → headers beside those of every answer.
        missing: beginning of paths → headers of answers where there is no file.
        asked: (method, path, range) of every request.
        sent: path → bodies that were sent to it.
        tags: whether answers have an ETag.
        drips: path → what follows so many bytes of an answer comes a byte at a time, head included.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    breaks: dict[str, list[int]] = field(default_factory=dict)
    status: dict[str, int] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    missing: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    sent: dict[str, list[bytes]] = field(default_factory=dict)
    tags: bool = True
    drips: dict[str, int] = field(default_factory=dict)


class _Slow:
    """Writes a byte every few milliseconds, after some that are written at once."""

    def __init__(self, file: BinaryIO, fast: int) -> None:
        self._file, self._fast = file, fast

    def write(self, data: bytes) -> None:
        self._file.write(data[: self._fast])
        for byte in data[self._fast :]:
            time.sleep(0.02)
            self._file.write(bytes([byte]))
        self._fast = max(self._fast - len(data), 0)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    closed = False


@contextmanager
def serving() -> Iterator[Web]:
    """A server, until the block ends."""
    web = Web()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, span = unquote(urlsplit(self.path).path), self.headers.get("Range")
            web.asked.append((self.command, path, span))
            if self.command == "POST":
                size = int(self.headers.get("Content-Length", 0))
                web.sent.setdefault(path, []).append(self.rfile.read(size))
            body = web.files.get(path)
            headers = dict(web.headers.get(path, {}))
            if body is None:
                headers |= next(
                    (own for start, own in web.missing.items() if path.startswith(start)), {}
                )
            if body is None or path in web.status:
                return self._answer(
                    web.status.get(path, 404), {"Content-Length": "0", **headers}, b""
                )
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            headers |= {"ETag": tag} if web.tags else {}
            if web.tags and self.headers.get("If-None-Match") == tag:
                return self._answer(304, headers, b"")
            found = re.fullmatch(r"bytes=(\d+)-", span or "")
            start = int(found[1]) if found and self.headers.get("If-Range", tag) == tag else 0
            if start:
                headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            headers.setdefault("Content-Length", str(len(body) - start))
            broken = web.breaks.get(path) if self.command == "GET" else None
            return self._answer(
                206 if start else 200, headers, body[start:], broken.pop(0) if broken else None
            )

        do_HEAD = do_POST = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

        def _answer(
            self, status: int, headers: dict[str, str], body: bytes, kept: int | None = None
        ) -> None:
            if (fast := web.drips.get(unquote(urlsplit(self.path).path))) is not None:
                self.wfile = _Slow(self.wfile, fast)
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[:kept])

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        web.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        yield web
        server.shutdown()
        thread.join()
