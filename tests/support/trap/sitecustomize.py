"""On the path of a test's process and of those that it starts: no connection leaves the machine, and each attempt is noted in a
file. Connections to this machine are allowed."""

import os
import sys

_FILE = os.environ.get("CONNECTIONS")
_HERE = ("127.0.0.1", "::1", "localhost", "")


def _trap(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    elif event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    else:
        return
    if host not in _HERE:
        with open(_FILE, "a", encoding="utf-8") as file:  # type: ignore[arg-type]
            file.write(f"{host}\n")
        raise OSError(f"the test allows no connection to {host}")


if _FILE:
    sys.addaudithook(_trap)
