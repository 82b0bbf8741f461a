"""What the control groups of this process leave it of the machine: containers, Kubernetes and systemd limit by them.

A quota is CPU time per period: 50 ms of each 100 ms are half a core, however many cores the process may run on. With more
threads than that, all of them are stopped for the rest of each period. The limits of every group above count as well, as far
as they are visible.

Source: Linux, admin-guide/cgroup-v2 (cpu.max, memory.max) and scheduler/sched-bwc (cpu.cfs_quota_us).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

_V2 = "cgroup2"
# What version 1 writes where there is no limit: the largest number of whole pages.
_NONE = 1 << 60


class Limits(NamedTuple):
    """Limits of the control groups of this process.

    Args:
        cores: CPU time per time, such as 1.5; None without a quota.
        memory_bytes: memory that the processes of a group may use; None without a limit.
        free_bytes: of that, what is not in use; None without a limit.
    """

    cores: float | None
    memory_bytes: int | None
    free_bytes: int | None


def limits(root: Path = Path("/")) -> Limits:
    """Return the limits that hold now: some managers change them while a process runs.

    Args:
        root: of the file system that has `proc` and the mounted control groups.
    """
    cores = [quota for group in _groups(root, "cpu") if (quota := _quota(group)) is not None]
    memory = [limit for group in _groups(root, "memory") if (limit := _memory(group)) is not None]
    return Limits(
        cores=min(cores, default=None),
        memory_bytes=min((most for most, _ in memory), default=None),
        free_bytes=min((free for _, free in memory), default=None),
    )


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group and of those above it, in every version that has the controller."""
    groups = [line.split(":", 2) for line in _lines(root / "proc/self/cgroup")]
    paths = {part[1]: part[2] for part in groups if len(part) == 3}
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, system = (part.split() for part in line.partition(" - "))
        if len(mount) < 5 or len(system) < 3:
            continue
        if system[0] == _V2:
            path = paths.get("")
        elif system[0] == "cgroup" and controller in system[2].split(","):
            path = next((p for names, p in paths.items() if controller in names.split(",")), None)
        else:
            continue
        if path is None:
            continue
        top = root / _unescaped(mount[4]).lstrip("/")
        # A container without a name space of its own sees the host's path, of which its mount is a part.
        inside, above = PurePosixPath(path), PurePosixPath(_unescaped(mount[3]))
        parts = inside.relative_to(above).parts if inside.is_relative_to(above) else ()
        if ".." in parts:
            parts = ()
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _quota(group: Path) -> float | None:
    """The cores that a group may use."""
    numbers = _numbers(group / "cpu.max") or [
        *_numbers(group / "cpu.cfs_quota_us"),
        *_numbers(group / "cpu.cfs_period_us"),
    ]
    return numbers[0] / numbers[1] if len(numbers) == 2 and min(numbers) > 0 else None


def _memory(group: Path) -> tuple[int, int] | None:
    """(the bytes that a group may use, those that are free). Cached files that nobody reads any more are free."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        most, now = _numbers(group / limit), _numbers(group / used)
        if most and now and most[0] < _NONE:
            facts = dict(
                line.split() for line in _lines(group / "memory.stat") if line.count(" ") == 1
            )
            return most[0], max(0, most[0] - max(0, now[0] - int(facts.get(cached, 0))))
    return None


def _numbers(file: Path) -> list[int]:
    """The numbers of a file; none where it is missing, or says `max`."""
    try:
        return [int(word) for line in _lines(file) for word in line.split()]
    except ValueError:
        return []


def _lines(file: Path) -> list[str]:
    """The lines of a file; none where it cannot be read, as on other systems."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _unescaped(path: str) -> str:
    """A path as mountinfo writes it: a space is `\\040`."""
    return path.encode().decode("unicode_escape") if "\\" in path else path
