"""A disk that is full at every write of a command: a sentence, exit code 8, and the same packages once there is space.

    python benchmarks/soak_disk.py [--flows run,finetune,…] [--kind bytes|names] [--step 4096] [--out runs/soak-disk]

The flows are those of `soak_kills.py`. The output directory, the home folder and the folder for temporary files lie on a file
system in memory, which a file (`bytes`) or many empty files (`names`: no new file can be created) fill up. The command starts
with nothing free. After each failure `--step` bytes or one name become free, and the same command is started again, until it
succeeds: the limit moves through the whole command. After some of the failures, all space is freed instead, and the command
must end there with the packages of an undisturbed run; then it starts anew with the limit at which it was.

After every failure: exit code 8 and one sentence, no traceback, no process, and what is published is as it was or will be.

The file system is mounted in name spaces of the harness itself (`unshare`), which needs no root where the kernel lets users
have them. Its blocks are pages of 4,096 bytes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from soaking import (
    Flow,
    events,
    flows_in,
    half_published,
    litter,
    names_below,
    prepare,
    published,
    run,
    table,
    wait_for_end,
)

SIZE, NAMES = 96 << 20, 4_000
INSIDE = "OCTOBERT_SOAK_INSIDE"
# All space is freed after every so many failures.
FREED_AFTER = 12
FULL = ("the disk is full", "No space left on device")


def enter_namespace() -> None:
    """Start this program again in name spaces in which it may mount."""
    if os.environ.get(INSIDE):
        return
    unshare = ["unshare", "--map-root-user", "--mount"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*unshare, "true"], capture_output=True).returncode
    ):
        sys.exit(
            "this harness mounts a small file system, and needs unshare and a kernel with user name spaces"
        )
    os.execvpe(unshare[0], [*unshare, sys.executable, *sys.argv], {**os.environ, INSIDE: "1"})


def mount(folder: Path) -> None:
    """Mount an empty file system in memory on a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(
        b"soak", str(folder).encode(), b"tmpfs", 0, f"size={SIZE},nr_inodes={NAMES}".encode()
    ):
        raise OSError(ctypes.get_errno(), "the file system cannot be mounted", str(folder))


class Filler:
    """Fills a file system up to what a command may use beyond what is there now.

    Args:
        disk: the file system.
        kind: what runs out: `bytes` or `names`.
    """

    def __init__(self, disk: Path, kind: str) -> None:
        self._disk, self._kind, self._filler = disk, kind, disk / "filler"
        self._base = self._used()

    def _used(self) -> int:
        usage = os.statvfs(self._disk)
        return (
            usage.f_files - usage.f_ffree
            if self._kind == "names"
            else (usage.f_blocks - usage.f_bfree) * usage.f_frsize
        )

    def allow(self, amount: int) -> None:
        """Let the command have so many bytes or names in all; what it has already counts."""
        self.remove()
        usage = os.statvfs(self._disk)
        left = max(0, amount - (self._used() - self._base))
        if self._kind == "names":
            self._filler.mkdir()
            for number in range(usage.f_ffree - left - 1):
                (self._filler / str(number)).touch()
            return
        with self._filler.open("wb") as stream:
            if (taken := usage.f_bavail * usage.f_frsize - left) > 0:
                os.posix_fallocate(stream.fileno(), 0, taken)

    def remove(self) -> None:
        """Free everything."""
        if self._filler.is_dir():
            shutil.rmtree(self._filler)
        self._filler.unlink(missing_ok=True)


@dataclass
class Results:
    """What happened to a flow: failures by what the command was at, completions, problems."""

    failures: Counter[str] = field(default_factory=Counter)
    ends: int = 0
    problems: list[str] = field(default_factory=list)

    def problem(self, what: str) -> None:
        """Note and print a problem."""
        self.problems.append(what)
        print(f"PROBLEM {what}", flush=True)


def fill_up(flow: Flow, disk: Path, kind: str, step: int, results: Results) -> None:
    """Move the limit through a flow until it succeeds."""
    amount, number = 0, 0
    flow.begin(flow.out)
    filler = Filler(disk, kind)
    filler.allow(0)
    while True:
        before, begun = published(flow.out), len(events(flow.out))
        done = run(flow, flow.out)
        if done.returncode == 0:
            check_end(flow, results, f"with {amount:,} free in all")
            filler.remove()
            return
        number += 1
        check_failure(flow, done, before, begun, f"with {amount:,} free in all", results)
        if number % FREED_AFTER == 0:
            check_freed(flow, filler, results, amount)
        amount += step
        filler.allow(amount)


def check_failure(
    flow: Flow,
    done: subprocess.CompletedProcess[str],
    before: dict[str, str],
    begun: int,
    when: str,
    results: Results,
) -> None:
    """A sentence, exit code 8, no process, and what was published is as it was, or as it will be."""
    last = next((event for event in reversed(events(flow.out)[begun:]) if "step" in event), None)
    results.failures[str(last["step"]) if last else "start or publish"] += 1
    sentences = [line for line in done.stderr.splitlines() if line.startswith("octobert: ")]
    if (
        done.returncode != 8
        or not sentences
        or not any(text in sentences[-1] for text in FULL)
        or "Traceback" in done.stderr
    ):
        results.problem(f"{flow.name} {when}: exit code {done.returncode}: {done.stderr[-600:]!r}")
    _, left = wait_for_end(f"{flow.folder}-end")
    if left:
        results.problem(f"{flow.name} {when}: {len(left)} processes are left")
    for name, what in half_published(flow, before):
        results.problem(
            f"{flow.name} {when}: {name} is neither what it was nor what it will be: {what}"
        )


def check_freed(flow: Flow, filler: Filler, results: Results, amount: int) -> None:
    """All space is freed: the command succeeds. Then everything is put back."""
    kept = flow.folder.parent / "kept"
    filler.remove()
    shutil.rmtree(kept, ignore_errors=True)
    places = {"out": flow.out, **flow.places()}
    for name, place in places.items():
        if place.exists():
            shutil.copytree(place, kept / name, symlinks=True)
    done = run(flow, flow.out)
    if done.returncode:
        results.problem(
            f"{flow.name}: with all space freed after {amount:,}: {done.returncode}: {done.stderr[-600:]!r}"
        )
    else:
        check_end(flow, results, f"with all space freed after {amount:,}")
    for name, place in places.items():
        shutil.rmtree(place, ignore_errors=True)
        if (kept / name).exists():
            shutil.copytree(kept / name, place, symlinks=True)


def check_end(flow: Flow, results: Results, when: str) -> None:
    """The same packages as those of the undisturbed run, and nothing else is left."""
    results.ends += 1
    got = flow.comparable(flow.out)
    if got != flow.expected:
        other = sorted(
            n for n in set(got) | set(flow.expected) if got.get(n) != flow.expected.get(n)
        )
        results.problem(
            f"{flow.name} {when}: other files than those of the undisturbed run: {other[:5]}"
        )
    for place, reference in flow.names.items():
        found = litter({"out": flow.out, **flow.places()}[place], reference)
        if found:
            results.problem(f"{flow.name} {when}: litter: {', '.join(found[:5])}")


def main() -> None:
    """Mount, fill, count, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--flows", default="run,publish,finetune,qat,search,tune,predict")
    parser.add_argument("--kind", choices=("bytes", "names"), default="bytes")
    parser.add_argument("--step", type=int, default=0, help="default: 4,096 bytes, or one name")
    parser.add_argument("--out", type=Path, default=Path("runs/soak-disk"))
    options = parser.parse_args()
    enter_namespace()
    disk, step = options.out.resolve(), options.step or {"bytes": 4096, "names": 1}[options.kind]
    mount(disk)
    found, rows, started = flows_in(disk), list[list[object]](), time.monotonic()
    wanted, problems = options.flows.split(","), 0
    needed = {"publish": "before", "tune": "run", "predict": "embed"}
    for name in dict.fromkeys([*(needed[w] for w in wanted if w in needed), *wanted]):
        prepare(found[name])
        print(
            f"{name}: {found[name].seconds:.0f} s undisturbed, {len(names_below(found[name].reference))} names",
            flush=True,
        )
    for name in wanted:
        results = Results()
        fill_up(found[name], disk, options.kind, step, results)
        shutil.rmtree(found[name].out, ignore_errors=True)
        places = ", ".join(f"{place} {count}" for place, count in results.failures.items())
        rows.append(
            [name, sum(results.failures.values()), results.ends, len(results.problems), places]
        )
        problems += len(results.problems)
        print(f"{time.monotonic() - started:6.0f} s: {rows[-1]}", flush=True)
    print(table(["flow", "failures", "completed", "problems", "the disk was full at"], rows))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
