"""Models at URLs: a zip file or an `.onnx` file, downloaded once into octobert's cache folder.

A download that breaks off continues where it ended, if the server says that the file is still the same one. `#sha256=…` at the
end of a URL is the digest that all files which are taken must have (`_digest_of`). Without it the server is asked each time
whether the file has changed. Files that are there are used only with the content that they came with.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import re
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urldefrag, urljoin, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from octobert.core.environment import place_in_cache
from octobert.core.errors import DownloadWarning, ModelError, reason
from octobert.core.files import (
    atomic_write,
    canonical_digest,
    check_space,
    content_of,
    digest_or_none,
    file_digest,
    is_disk_error,
    stays_inside,
)
from octobert.core.plain import parsed_json
from octobert.core.version import __version__
from octobert.models.sources import Source

SUFFIXES = (".zip", ".onnx")
MOST_BYTES = 32 << 30
# Attempts without a single new byte, and seconds that a server may be silent, or send fewer bytes than these.
_ATTEMPTS, _TIMEOUT, _LEAST = 4, 30, 30_000
_PAUSE = 0.5
_BLOCK = 1 << 20
# What a server keeps beside an ONNX file, or above the folder `onnx`; weights have the file's name in front.
_BESIDE = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
)
_DATA = ("_data", ".data")
_RECORD, _PARTIAL = "download.json", "partial"
# A number of bytes; more digits are none.
_NUMBER = r"\d{1,18}"


class Url(Source):
    """URLs of `.zip` and `.onnx` files, with `#sha256=…` or without."""

    prefixes: tuple[str, ...] = ("http://", "https://")

    def fetch(self, name: str) -> Path:
        """Return the file behind a URL, downloaded unless it is there and unchanged.

        Raises:
            ModelError: the URL is of another kind, the server does not give the file, or not the one that it must be.
            StorageError: the cache folder cannot be written, or has no room.
        """
        try:
            quoted = quote(name, safe="%/:?#[]@!$&'()*+,;=~")
            _check_address(quoted)
            address, fragment = urldefrag(quoted)
            file = Path(unquote(urlsplit(address).path)).name
        except ValueError as error:
            raise ModelError(
                "the URL cannot be read", where=name, got=reason(error), fix="correct it"
            ) from error
        pinned = fragment.lower().removeprefix("sha256=") if fragment else None
        if pinned is not None and not re.fullmatch("[0-9a-f]{64}", pinned):
            raise ModelError(
                "the end of the URL is no digest",
                where=name,
                got=f"#{fragment}",
                expected="#sha256= and 64 digits",
            )
        if Path(file).suffix.lower() not in SUFFIXES or not stays_inside(file):
            raise ModelError(
                "the URL names no model",
                where=name,
                got=file or "no file",
                expected="a .zip file or an .onnx file",
            )
        with place_in_cache("downloads", canonical_digest(address)[:16]) as folder:
            folder.mkdir(exist_ok=True)
            record = _record_of(folder, file)
            if pinned is None or record.get("sha256") != pinned:
                _update(address, folder, file, record, pinned)
        return folder / file


def _check_address(address: str) -> None:
    """Refuse an address that is none, before anything looks for its host.

    Raises:
        ValueError: it cannot be read, or its host has no name that a host can have.
        ModelError: it has a user's name or a password, which the servers that it leads to would see.
    """
    if "@" in address.split("/", 3)[2]:
        raise ModelError(
            "the URL has a user name or a password",
            where=address,
            fix="download the file by other means, and give its path",
        )
    parts = urlsplit(address)
    # Labels of hosts that are empty or too long raise UnicodeError, which is a ValueError.
    if not (parts.hostname or "").encode("idna") or parts.port == 0:
        raise ValueError("no host, or port 0")


class _Redirects(HTTPRedirectHandler):
    """Follows to http and https only, and not from https to http."""

    def http_error_302(self, req: Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        place = urljoin(req.full_url, headers.get("location") or headers.get("uri") or "")
        scheme = urlsplit(req.full_url).scheme
        if urlsplit(place).scheme not in (scheme, "https"):
            raise ModelError(
                "the server leads to another protocol",
                where=req.full_url,
                got=place,
                expected=f"{scheme} or https",
            )
        _check_address(place)
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _record_of(folder: Path, name: str) -> dict[str, Any]:
    """The record of a complete download; empty where there is none, or a file has changed since."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        record: dict[str, Any] = parsed_json(content_of(folder / _RECORD))
        files = record["files"]
        if name in files and all(
            digest_or_none(folder / file) == digest for file, digest in files.items()
        ):
            return record
    return {}


def _digest_of(files: Mapping[str, str]) -> str:
    """The sha256 of a file; of several files that of the lines that `sha256sum` prints for them, sorted by name."""
    if len(files) == 1:
        return next(iter(files.values()))
    return hashlib.sha256(
        "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items())).encode()
    ).hexdigest()


def _update(
    address: str, folder: Path, name: str, old_record: Mapping[str, Any], pinned: str | None
) -> None:
    """Download the file of a URL, or keep the one that is there if the server says so, or does not answer."""
    partial = folder / f"{_PARTIAL}-{name}"
    try:
        stated = _fetch(
            address,
            partial,
            unless=None if pinned else old_record.get("validator"),
            same=pinned is not None,
        )
    except ModelError:
        if old_record and not pinned:
            return
        raise
    if stated is None:
        return
    beside = _fetch_beside(address, folder, name) if name.lower().endswith(".onnx") else []
    partials = {file: folder / f"{_PARTIAL}-{file}" for file in (name, *beside)}
    files = {file: file_digest(path) for file, path in partials.items()}
    digest = _digest_of(files)
    if pinned not in (None, digest):
        for path in partials.values():
            _forget(path)
        fix = "ask for the right digest, or do not trust the file"
        if pinned == files[name]:
            fix = f"this is the digest of {name} alone: with {', '.join(beside)} it is sha256={digest}"
        raise ModelError(
            "the file has another sha256", where=address, got=digest, expected=pinned, fix=fix
        )
    size = sum(path.stat().st_size for path in partials.values())
    for old in {*(name + end for end in _DATA), *_BESIDE} - set(files):
        (folder / old).unlink(missing_ok=True)
    for file, path in partials.items():
        path.replace(folder / file)
        _forget(path)
    record = {"url": address, "sha256": digest, "files": files, "validator": stated}
    with atomic_write(folder / _RECORD) as written:
        written.write_text(json.dumps(record, indent=2), encoding="utf-8")
    if pinned is None:
        what = f"{address} with {', '.join(beside)}" if beside else address
        only = "these files" if beside else "this file"
        warnings.warn(
            f"downloaded {what} ({size:,} bytes); add #sha256={digest} to its name to accept {only} only",
            DownloadWarning,
            stacklevel=2,
        )


def _fetch_beside(address: str, folder: Path, name: str) -> list[str]:
    """Download what lies beside an ONNX file: its weights, tokenizer and config. Files that are not there are left out.

    Returns:
        their names. They are still under the names of partial files.
    """
    names = []
    places = (
        [address]
        if Path(urlsplit(address).path).parent.name != "onnx"
        else [address, urljoin(address, "../")]
    )
    for beside in (*(name + end for end in _DATA), *_BESIDE):
        for place in places:
            with contextlib.suppress(_Missing):
                _fetch(urljoin(place, quote(beside)), folder / f"{_PARTIAL}-{beside}")
                names.append(beside)
                break
    return names


class _Missing(ModelError):
    """The server has no such file."""


class _Interrupted(Exception):
    """The connection broke, or could not be made."""


def _fetch(
    address: str, partial: Path, *, unless: str | None = None, same: bool = False
) -> str | None:
    """Download a file, continuing what is there of it.

    Args:
        partial: to write to. What the server said of it is kept beside it until it is complete.
        unless: a file with this validator is not wanted again.
        same: what is there is of the same file, whatever the server says. A digest will tell.

    Returns:
        the validator of the file ("" where the server states none); None where the file is not wanted.
    """
    attempts, had = 0, -1
    while True:
        try:
            return _attempt(address, partial, unless=unless, same=same)
        except _Interrupted as error:
            have = partial.stat().st_size if partial.is_file() else 0
            attempts = attempts + 1 if have <= had else 1
            had = max(have, had)
            if attempts == _ATTEMPTS:
                raise ModelError(
                    "the model could not be downloaded",
                    where=address,
                    got=f"{have:,} bytes; {error}",
                    fix="check the address and the network, and run the command again, which continues the download",
                ) from error
            time.sleep(_PAUSE * 2**attempts)


def _attempt(address: str, partial: Path, *, unless: str | None, same: bool) -> str | None:
    """One request of `_fetch`."""
    validator_file = _validator_file(partial)
    validator = validator_file.read_text(encoding="ascii") if validator_file.is_file() else ""
    have = partial.stat().st_size if partial.is_file() and (validator or same) else 0
    headers = {"User-Agent": f"octobert/{__version__}"}
    if have:
        headers |= {"Range": f"bytes={have}-"} | ({"If-Range": validator} if validator else {})
    elif unless:
        headers["If-None-Match" if unless.startswith('"') else "If-Modified-Since"] = unless
    try:
        with _opened(Request(address, headers=headers)) as response:
            if response.status == 304:
                return None
            start, total = _extent(response, have)
            _check_size(address, partial, start, total)
            validator = _validator(response.headers)
            validator_file.write_text(validator)
            _receive(response, partial, start, total)
            return validator
    except HTTPError as error:
        if error.code == 416 and have:
            _forget(partial)
            raise _Interrupted("the file was shorter than before") from error
        if error.code in (429, 500, 502, 503, 504):
            raise _Interrupted(f"{error.code} {error.reason}") from error
        # Stores that do not list their files answer 403 for those that are not there.
        kind = _Missing if error.code in (401, 403, 404, 410) else ModelError
        raise kind(
            "the server does not give the file",
            where=address,
            got=f"{error.code} {error.reason}",
            fix="check the address"
            if error.code in (404, 410)
            else "check the address, and whether it needs a login",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        if is_disk_error(error):
            raise
        raise _Interrupted(reason(error, longest=200)) from error
    except ValueError as error:
        raise ModelError(
            "the server's answer cannot be read",
            where=address,
            got=reason(error),
            fix="check the address",
        ) from error


class _Watch(contextlib.AbstractContextManager["_Watch"]):
    """Ends a connection whose server sends next to nothing: a timeout of sockets begins again with every byte."""

    def __init__(self, connection: socket.socket) -> None:
        self._received, self.is_slow = 0, False
        self._socket, self._ended = connection, threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        before = 0
        while not self._ended.wait(_TIMEOUT):
            if self._received - before < _LEAST:
                self.is_slow = True
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)
                return
            before = self._received

    def read(self, response: _Response) -> bytes:
        """What has come of an answer.

        Raises:
            ModelError: the server sends too little in time.
        """
        block = b""
        try:
            block = response.read1(_BLOCK)
        except OSError:
            if not self.is_slow:
                raise
        if self.is_slow:
            raise ModelError(
                "the server sends the file too slowly",
                where=response.url,
                got=f"fewer than {_LEAST:,} bytes in {_TIMEOUT} seconds",
                fix="try again later, which continues the download, or from another place",
            )
        self._received += len(block)
        return block

    def __exit__(self, *_: object) -> None:
        self._ended.set()


class _Response(http.client.HTTPResponse):
    """An answer whose head comes in time."""

    def __init__(self, sock: socket.socket, *given: Any, **named: Any) -> None:
        self.socket = sock
        super().__init__(sock, *given, **named)

    def begin(self) -> None:
        with _Watch(self.socket) as watch:
            super().begin()
        if watch.is_slow:  # a head that was cut may look whole
            raise TimeoutError("the answer came too slowly")


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _SecureConnection(http.client.HTTPSConnection):
    response_class = _Response


class _Http(HTTPHandler):
    def http_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _Https(HTTPSHandler):
    def https_open(self, req: Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)


@contextlib.contextmanager
def _opened(request: Request) -> Iterator[Any]:
    """The answer to a request. 304 is an answer, not an error."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler,
        _Http,
        _Https,
        HTTPDefaultErrorHandler,
        HTTPErrorProcessor,
        _Redirects,
    ):
        opener.add_handler(handler())
    try:
        response = opener.open(request, timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code != 304:
            error.close()
            raise
        response = error
    with response:
        yield response


def _extent(response: Any, have: int) -> tuple[int, int | None]:
    """(the first byte that comes, bytes of the whole file if the server says it)."""
    if response.status == 206:
        match = re.fullmatch(
            rf"bytes ({_NUMBER})-{_NUMBER}/({_NUMBER}|\*)",
            response.headers.get("Content-Range", ""),
        )
        if not match or int(match[1]) != have:
            raise _Interrupted("the server gave another part of the file")
        return have, None if match[2] == "*" else int(match[2])
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if re.fullmatch(_NUMBER, length) else None


def _check_size(address: str, partial: Path, start: int, total: int | None) -> None:
    if total is None:
        return
    if total > MOST_BYTES:
        raise ModelError(
            "the file is larger than any encoder",
            where=address,
            got=f"{total:,} bytes",
            expected=f"at most {MOST_BYTES:,}",
        )
    check_space(partial.parent, total - start)


def _receive(response: Any, partial: Path, start: int, total: int | None) -> None:
    """Write what comes to the end of a file."""
    from tqdm import tqdm

    name = partial.name.removeprefix(f"{_PARTIAL}-")
    bar = tqdm(
        total=total, initial=start, desc=name, unit="B", unit_scale=True, disable=None, leave=False
    )
    with bar, partial.open("ab" if start else "wb") as target, _Watch(response.socket) as watch:
        while block := watch.read(response):
            target.write(block)
            bar.update(len(block))
            if target.tell() > MOST_BYTES:
                raise ModelError(
                    "the file is larger than any encoder",
                    where=response.url,
                    expected=f"at most {MOST_BYTES:,}",
                )
        end = target.tell()
    if total is not None and end < total:
        raise _Interrupted("the connection broke")


def _validator(headers: Any) -> str:
    """The validator that tells a file from other files of its address: a strong ETag, or when it was changed."""
    tag = headers.get("ETag", "")
    stated = str(tag if tag.startswith('"') else headers.get("Last-Modified", ""))
    # It is sent back, on a separate line.
    return stated if re.fullmatch("[ -~]{1,300}", stated) else ""


def _validator_file(partial: Path) -> Path:
    return partial.with_name(f"{partial.name}.validator")


def _forget(partial: Path) -> None:
    """Remove a partial file, and what the server said of it."""
    partial.unlink(missing_ok=True)
    _validator_file(partial).unlink(missing_ok=True)
