"""The memory of a service: one model, and calls of random numbers of texts of random lengths, on one thread or on several.

    python benchmarks/soak_shapes.py PACKAGE [--calls 20000] [--threads 1] [--rows 8] [--words 100] [--static N]
        [--option NAME=VALUE]

Every call is a list of 1 to ROWS texts of 1 to WORDS words. The memory of the process and the time per token are printed as it
goes. `--static 0` opens the model without models of static lengths (`static_up_to` of `octobert.load`), and `--option` with an
option of its runtime in place of octobert's own, such as CPU_RUNTIME_CACHE_CAPACITY=5000 for what OpenVINO does by default. The
exit code is 1 if the memory still grows: if the last half of the calls adds more than a twentieth.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from octobert.core import environment
from octobert.core.session import SessionEntries
from octobert.inference.opened import open_model
from octobert.inference.predictor import Predictor

# Parts of the calls at whose ends a line is printed.
PARTS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FLAT = 1.05
WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
)


def megabytes() -> float:
    return float(psutil.Process().memory_info().rss / 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--static", type=int, help="default: that of octobert.load")
    parser.add_argument("--option", action="append", default=[])
    given = parser.parse_args()
    opened = open_model(given.package)
    if given.option:
        options = dict(option.split("=", 1) for option in given.option)
        opened = dataclasses.replace(opened, entries=SessionEntries(options=options))
    model = Predictor(opened, static_up_to=given.static)
    here = environment.current()
    print(
        f"{given.package}: {here.cpu}, {here.cores} cores, {', '.join(here.features)}; {here.versions}"
    )
    print(f"opened: {megabytes():.0f} MB", flush=True)
    lock, marks = threading.Lock(), [round(part * given.calls) for part in PARTS]
    done, words, started = 0, 0, time.perf_counter()
    # Calls → MB.
    seen: dict[int, float] = {}

    def work(seed: int) -> None:
        nonlocal done, words
        generator = random.Random(seed)
        while done < given.calls:
            texts = [
                " ".join(generator.choices(WORDS, k=generator.randint(1, given.words)))
                for _ in range(generator.randint(1, given.rows))
            ]
            model(texts)
            with lock:
                done, words = done + 1, words + sum(text.count(" ") + 1 for text in texts)
                if done in marks:
                    seen[done] = megabytes()
                    each = (time.perf_counter() - started) / words * 1000
                    print(
                        f"{done:>7,} calls: {seen[done]:>6.0f} MB, {each:.3f} ms per word",
                        flush=True,
                    )

    with ThreadPoolExecutor(given.threads) as pool:
        # An error of a thread ends the program.
        list(pool.map(work, range(given.threads)))
    middle, end = seen[marks[PARTS.index(0.5)]], seen[marks[-1]]
    print(f"the last half of the calls added {end - middle:.0f} MB")
    return int(end > FLAT * middle)


if __name__ == "__main__":
    sys.exit(main())
