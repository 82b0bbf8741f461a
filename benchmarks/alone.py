"""What answers cost that do not depend on other texts: `load(alone=True)` beside `load()`, in turns.

    python benchmarks/alone.py PACKAGE … [--texts 200] [--rounds 9]

Random words, 3 to 60 of them. Printed for one text at a time and for a stream: the median over rounds of the ratio of times
(alone / not), with its quartiles, and what `octobert verify` says of the package.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak_shapes import WORDS

import octobert


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packages", type=Path, nargs="+")
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(3, 60))) for _ in range(given.texts)]
    here, _ = octobert.doctor()
    print(f"{here.cpu}, {here.cores} cores, {', '.join(here.features)}")
    for package in given.packages:
        print(f"{package}: {octobert.verify(package).batches}")
        for goal in ("latency", "throughput"):
            plain, alone = (octobert.load(package, goal=goal, alone=a) for a in (False, True))
            ways: dict[str, Callable[[Any], object]] = {
                "one at a time": lambda model: [model(text) for text in texts[:50]],
                "a stream": lambda model: list(model.stream(texts)),
            }
            for way, answer in ways.items():
                ratios = []
                for turn in range(given.rounds + 1):
                    took = {}
                    for name, model in sorted(
                        {"plain": plain, "alone": alone}.items(), reverse=bool(turn % 2)
                    ):
                        start = time.perf_counter()
                        answer(model)
                        took[name] = time.perf_counter() - start
                    ratios.append(took["alone"] / took["plain"])
                low, middle, high = statistics.quantiles(ratios[1:], n=4)
                print(f"  {goal}, {way}: {middle:.2f} [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
