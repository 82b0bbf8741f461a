"""Damaged files: what octobert says of thousands of mutations of each kind of file that it reads.

    python benchmarks/fuzz.py [--kind onnx …] [--mutations 10000] [--seconds 7200] [--seed 0] [--out runs/fuzz] [--page FILE]
    python benchmarks/fuzz.py --kind onnx --only 4711            # repeat one case here, with its traceback

Each case is a valid tiny file with one to four changes, and an operation that a user would start on it. A worker process does
one case after another, with a limit on its memory. Every case must end in one of two ways: the file is accepted, or an
`OctobertError` says what is wrong. Counted apart: other exceptions, cases that take longer than --patience seconds, and cases
that end the worker. The exit code is 1 if there are any, except that the worker may end in kinds of files that only stages
read, as a stage is a process of its own. `OUT/<kind>.jsonl` has every case that was not accepted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

os.environ["HF_HUB_OFFLINE"] = "1"

from fuzz_kinds import KINDS, Kind

from octobert.core.errors import OctobertError

OUTCOMES = ("accepted", "sentence", "exception", "hang", "crash")
# What a worker may allocate beyond what it has after the valid file, and how long its start may take.
MEMORY_BYTES = 3 * 2**30
START_S = 300.0
LONGEST_LINE, MOST_LINES = 2000, 25
CASES_PER_WORKER = 2000


def main() -> int:
    """Mutate, count, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument(
        "--seconds",
        type=float,
        default=7200.0,
        help="after which a kind ends before its last mutation",
    )
    parser.add_argument(
        "--patience", type=float, default=20.0, help="seconds until a case counts as a hang"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="repeat the case of this number")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"))
    parser.add_argument(
        "--page", type=Path, help="a Markdown file; the table goes between its two fuzz comments"
    )
    options = parser.parse_args()
    chosen = [KINDS[name] for name in options.kind or KINDS]
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only is not None:
        for kind in chosen:
            repeat(kind, options.seed, options.only, options.out)
        return 0
    lines = [
        "| file | mutations | accepted | a sentence | other exceptions, hangs, crashes |",
        "| --- |" + " ---: |" * 4,
    ]
    print("\n".join(lines), flush=True)
    failed = False
    for kind in chosen:
        begun = time.monotonic()
        counts, found = run(kind, options)
        print(
            f"{kind.name}: {time.monotonic() - begun:.0f} s for {counts.total()} mutations",
            file=sys.stderr,
            flush=True,
        )
        others = [f"{counts[name]} × {name}" for name in OUTCOMES[2:] if counts[name]]
        stage = " (stage)" if kind.in_stage and counts["crash"] else ""
        cells = [
            kind.label,
            sum(counts.values()),
            *(counts[name] for name in OUTCOMES[:2]),
            f"{', '.join(others) or 0}{stage}",
        ]
        lines.append(
            "| "
            + " | ".join(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells)
            + " |"
        )
        print(lines[-1], flush=True)
        for what, number in found.most_common(25):
            print(f"    {number:5} × {what}", file=sys.stderr, flush=True)
        failed = failed or bool(
            counts["exception"] + counts["hang"] + (0 if kind.in_stage else counts["crash"])
        )
    if options.page is not None:
        write_table(options.page, lines)
    return int(failed)


def mutated(kind: Kind, base: Path, seed: int, index: int) -> bytes:
    """The content of a case."""
    return kind.mutate((base / kind.file).read_bytes(), Random(f"{seed}/{kind.name}/{index}"))


def base_of(kind: Kind, out: Path) -> Path:
    """A new folder with the valid file."""
    folder = out / "valid" / kind.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kind.make(folder)
    return folder


def repeat(kind: Kind, seed: int, index: int, out: Path) -> None:
    """Do one case in this process, with its traceback; the file stays in `OUT/case`."""
    case = out / "case"
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(base_of(kind, out), case)
    (case / kind.file).write_bytes(mutated(kind, out / "valid" / kind.name, seed, index))
    try:
        kind.use(case)
    except BaseException:  # noqa: BLE001  # whatever it is, it is shown
        traceback.print_exc()
    else:
        print("accepted")


def run(kind: Kind, options: argparse.Namespace) -> tuple[Counter[str], Counter[str]]:
    """(how often each outcome occurred, how often each bad one did)."""
    base, counts, found = base_of(kind, options.out), Counter[str](), Counter[str]()
    until = time.monotonic() + options.seconds
    with (options.out / f"{kind.name}.jsonl").open("w", encoding="utf-8") as log:
        for index, outcome, detail in cases(kind, base, options, until):
            counts[outcome] += 1
            if outcome != "accepted":
                log.write(json.dumps({"case": index, "outcome": outcome, "detail": detail}) + "\n")
            if outcome not in OUTCOMES[:2]:
                found[
                    f"{outcome}: {detail}"
                    if outcome == "exception"
                    else f"{outcome}: case {index} {detail}"
                ] += 1
    return counts, found


def cases(
    kind: Kind, base: Path, options: argparse.Namespace, until: float
) -> Iterator[tuple[int, str, str]]:
    """(number, outcome, detail) of each case, from one worker after another."""
    context = get_context("spawn")
    index = 0
    while index < options.mutations and time.monotonic() < until:
        ours, theirs = context.Pipe()
        last = min(options.mutations, index + CASES_PER_WORKER)
        worker = context.Process(
            target=work, args=(kind.name, base, options.seed, index, last, theirs)
        )
        worker.start()
        theirs.close()
        try:
            patience = START_S
            while index < last and time.monotonic() < until:
                if not ours.poll(patience):
                    worker.kill()
                    yield index, "hang", f"more than {patience:.0f} s"
                    index += 1
                    break
                patience = options.patience
                answer = ours.recv()
                if answer is None:
                    worker.join()
                    raise SystemExit(f"{kind.name}, case {index}: the harness failed")
                ready, outcome, detail = answer
                if ready:
                    yield index, outcome, detail
                    index += 1
        except EOFError:
            worker.join()
            yield (
                index,
                "crash",
                f"signal {-(worker.exitcode or 0)}"
                if (worker.exitcode or 0) < 0
                else f"exit {worker.exitcode}",
            )
            index += 1
        finally:
            worker.kill()
            worker.join()
            ours.close()


def work(name: str, base: Path, seed: int, first: int, last: int, pipe: Connection) -> None:
    """Do cases in this process, and tell how each ended."""
    kind = KINDS[name]
    silent, said = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    for stream in (1, 2):
        os.dup2(silent, stream)
    try:
        _work(kind, base, seed, range(first, last), pipe)
    except BaseException:
        os.dup2(said, 2)
        pipe.send(None)
        raise


def _work(kind: Kind, base: Path, seed: int, numbers: range, pipe: Connection) -> None:
    with tempfile.TemporaryDirectory(prefix="octobert-fuzz-") as scratch:
        folder = Path(scratch) / "case"
        shutil.copytree(base, folder)
        kind.use(folder)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        pipe.send((False, "", ""))
        for index in numbers:
            (folder / kind.file).write_bytes(mutated(kind, base, seed, index))
            pipe.send((True, *outcome_of(kind, folder)))


def outcome_of(kind: Kind, folder: Path) -> tuple[str, str]:
    """(outcome, what was said)."""
    try:
        kind.use(folder)
    except OctobertError as error:
        text = str(error)
        # A page of text is no sentence, and whoever reads it must not find the words of a bug in it. Recipes list mistakes.
        lines = text.split("\n")
        unfit = (
            "unexpectedly" in text or len(lines) > MOST_LINES or max(map(len, lines)) > LONGEST_LINE
        )
        return ("exception", f"not a sentence: {text[:200]!r}") if unfit else ("sentence", text)
    except BaseException as error:  # noqa: BLE001  # panics of Rust are no Exception
        return "exception", f"{type(error).__name__} at {_place(error)}: {str(error)[:80]!r}"
    return "accepted", ""


def _place(error: BaseException) -> str:
    """The innermost line of octobert in a traceback."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/octobert/" in frame.filename
    ]
    return (
        f"{own[-1].filename.rpartition('/octobert/')[2]}:{own[-1].lineno}" if own else "the harness"
    )


def write_table(page: Path, lines: list[str]) -> None:
    """Put the table between the page's comments."""
    before, mark, rest = page.read_text(encoding="utf-8").partition("<!-- fuzz -->\n")
    after = rest.partition("<!-- /fuzz -->")[2]
    table = "\n".join(lines)
    page.write_text(f"{before}{mark}\n{table}\n\n<!-- /fuzz -->{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
