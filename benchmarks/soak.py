"""Memory of a long stream: a million short texts through `stream`, on a model so small that overhead dominates.

    python benchmarks/soak.py [--texts 1000000] [--target ort-cpu] [--out runs/soak]

Prints the memory of the process after every hundred thousand texts, and the difference between the last and the first.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from speed import make_model, package

import octobert

EVERY = 100_000


def texts(count: int) -> Iterator[str]:
    """Short texts, generated on demand, all different."""
    generator = random.Random(0)
    words = ("the", "a", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", "while", "rain", "falls", "quiet", "streets")
    for index in range(count):
        yield f"{' '.join(generator.choices(words, k=generator.randint(2, 9)))} {index}"


def main() -> None:
    """Create the model, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1_000_000)
    parser.add_argument("--target", default="ort-cpu")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "checkpoint" / "model.safetensors").is_file():
        make_model("tiny", options.out / "checkpoint")
    folder = package(options.out / "checkpoint", [(text,) for text in texts(256)], options.out)
    process, held, started = psutil.Process(), [], time.perf_counter()
    with octobert.load(folder / options.target, goal="throughput") as model:
        answers = model.stream(texts(options.texts))
        for done in itertools.count(EVERY, EVERY):
            count = sum(1 for _ in itertools.islice(answers, EVERY))
            held.append(process.memory_info().rss / 1e6)
            rate = (done - EVERY + count) / (time.perf_counter() - started)
            print(f"{done - EVERY + count:>9,} texts: {held[-1]:.0f} MB, {rate:,.0f} texts per second", flush=True)
            if count < EVERY or done >= options.texts:
                break
    print(f"growth from the first {EVERY:,} to the last: {held[-1] - held[0]:+.1f} MB")


if __name__ == "__main__":
    main()
