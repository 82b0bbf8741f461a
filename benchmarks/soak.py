"""One loaded model for a long time: 16 threads, consumers that stop, sources that raise; and a thousand loads.

    python benchmarks/soak.py [--texts 10000000] [--minutes 60] [--loads 1000] [--target ort-cpu] [--out runs/soak]

The model is tiny, so that the code around it dominates. Every thread takes turns: lists of one to four texts, lists of
hundreds, whole streams, streams whose consumer stops early, streams whose source raises, and inputs that are no texts. Every
answer is compared with the answer that the text got alone. With `--minutes`, the threads are slowed down to that time. Memory,
open files and threads of the process are printed as it goes. A watchdog prints all stacks and ends the process when no answer
came for a minute. The exit code is 1 if anything grew, an answer was wrong, or an error was not the expected one.
"""

from __future__ import annotations

import argparse
import faulthandler
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from soaking import make_inputs, write_recipe

import octobert
from octobert.core.errors import DataError

THREADS = 16
SAMPLES = 60
WATCHDOG_S = 60
# Growth of the memory, from a tenth of the texts to the end, that counts as flat: the allocator keeps some of its peaks.
FLAT_MB = 24.0
# A text alone and in a batch are summed in another order, which may move a value by one of 256 steps.
SAME_SCORE = 0.05


class Stopped(Exception):
    """What sources that raise raise."""


class Usage:
    """Memory, open files and threads of this process over time."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.samples: list[tuple[float, int, int]] = []

    def sample(self, what: str) -> None:
        """Take a sample and print it."""
        process = self._process
        self.samples.append(
            (process.memory_info().rss / 1e6, process.num_fds(), process.num_threads())
        )
        print(
            "{}: {:.0f} MB, {} open files, {} threads".format(what, *self.samples[-1]), flush=True
        )

    def grew(self) -> list[str]:
        """What grew between a tenth of the samples and the last one."""
        first, last = self.samples[len(self.samples) // 10], self.samples[-1]
        found = [f"memory by {last[0] - first[0]:.0f} MB"] if last[0] - first[0] > FLAT_MB else []
        names = ("open files", "threads")
        return found + [
            f"{n} from {a} to {b}"
            for n, a, b in zip(names, first[1:], last[1:], strict=True)
            if b > a
        ]


class Soak:
    """Threads that use one model until enough texts are answered.

    Args:
        expected: text → its answer when it was asked alone.
        seconds: shortest time of the whole.
    """

    def __init__(
        self, model: Any, expected: dict[str, dict[str, Any]], texts: int, seconds: float
    ) -> None:
        self.model, self.expected, self.texts, self.seconds = model, expected, texts, seconds
        self.pool = list(expected)
        self.done, self.turns, self.wrong = 0, Counter[str](), Counter[str]()
        self.started, self._lock = time.monotonic(), threading.Lock()

    def run(self, usage: Usage) -> None:
        """Run all threads to their end."""
        threads = [
            threading.Thread(target=self._work, args=(seed,), daemon=True)
            for seed in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        marks = iter(range(1, SAMPLES + 1))
        mark, seen, changed = next(marks), 0, time.monotonic()
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.1)
            if self.done != seen:
                seen, changed = self.done, time.monotonic()
            elif time.monotonic() - changed > WATCHDOG_S:
                print(f"no answer for {WATCHDOG_S} s", flush=True)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(1)
            if seen >= mark * self.texts / SAMPLES:
                rate = seen / (time.monotonic() - self.started)
                usage.sample(f"{seen:>10,} texts, {rate:,.0f} texts per second")
                mark = next(marks, SAMPLES + 1)

    def _work(self, seed: int) -> None:
        generator = random.Random(seed)
        turns: dict[str, Callable[[list[str]], None]] = {
            "few": self._list,
            "list": self._list,
            "stream": self._stream,
            "consumer stops": self._stops,
            "source raises": self._raises,
            "no text": self._no_text,
        }
        while self.done < self.texts:
            name = generator.choices(list(turns), weights=(4, 4, 4, 2, 2, 1))[0]
            texts = generator.choices(
                self.pool, k=generator.randint(1, 4) if name == "few" else generator.randint(5, 800)
            )
            try:
                turns[name](texts)
            except Exception as error:  # noqa: BLE001  # an unexpected error is a result of the soak
                self._count(0, f"{name}: {type(error).__name__}: {str(error)[:100]}")
            with self._lock:
                self.turns[name] += 1
            ahead = self.seconds * self.done / self.texts - (time.monotonic() - self.started)
            time.sleep(min(max(ahead, 0.0), 1.0))

    def _check(self, texts: Sequence[str], answers: Sequence[dict[str, Any]]) -> None:
        wrong = sum(
            not _same(self.expected[text], answer)
            for text, answer in zip(texts, answers, strict=True)
        )
        self._count(len(answers), "wrong answer" if wrong else "", wrong)

    def _count(self, answered: int, wrong: str, times: int = 1) -> None:
        with self._lock:
            self.done += answered
            if wrong:
                self.wrong[wrong] += times

    def _list(self, texts: list[str]) -> None:
        self._check(texts, self.model(texts))

    def _stream(self, texts: list[str]) -> None:
        self._check(texts, list(self.model.stream(iter(texts))))

    def _stops(self, texts: list[str]) -> None:
        # The generator is dropped while the model works on its next windows.
        answers = list(
            itertools.islice(self.model.stream(itertools.cycle(texts)), len(texts) // 2 + 1)
        )
        self._check(texts[: len(answers)], answers)

    def _raises(self, texts: list[str]) -> None:
        def source() -> Iterator[str]:
            yield from texts
            raise Stopped

        answers: list[dict[str, Any]] = []
        try:
            for answer in self.model.stream(source()):
                answers.append(answer)
            self._count(0, "a source raised and nobody was told")
        except Stopped:
            self._check(texts, answers)

    def _no_text(self, texts: list[str]) -> None:
        try:
            self.model([*texts, 7])
            self._count(0, "a number was answered")
        except DataError:
            self._count(0, "")


def _same(expected: dict[str, Any], answer: dict[str, Any]) -> bool:
    scores = [
        each["score"] if each["label"] == expected["label"] else 1 - each["score"]
        for each in (expected, answer)
    ]
    return bool(abs(scores[0] - scores[1]) < SAME_SCORE)


def pool_of_texts(count: int) -> list[str]:
    """Short texts, all different, of letters that the tiny tokenizer has."""
    generator = random.Random(0)
    words = (
        "the",
        "a",
        "quick",
        "brown",
        "fox",
        "jumps",
        "over",
        "lazy",
        "dog",
        "while",
        "rain",
        "falls",
        "quiet",
        "streets",
    )
    return [
        f"{' '.join(generator.choices(words, k=generator.randint(2, 9)))} {index}"
        for index in range(count)
    ]


def make_package(out: Path, target: str) -> Path:
    """A package of the tiny classifier."""
    inputs = make_inputs(out / "inputs")
    text = {"text-classification": {"text": "sentence1", "label": "label"}}
    recipe = write_recipe(
        out / f"{target}.yaml", inputs, task=text, targets=[target], measure=False
    )
    octobert.run(octobert.load_recipe(recipe), out / "made")
    return out / "made" / target


def load_often(package: Path, loads: int, text: str, expected: dict[str, Any]) -> list[str]:
    """Load, ask and close; what grew."""
    usage = Usage()
    for number in range(1, loads + 1):
        goal: Any = ("latency", "throughput")[number % 2]
        with octobert.load(package, goal=goal) as model:
            # More than four inputs go through the threads of the model.
            answers = model([text] * (1 + 8 * (number % 3 == 0)))
            assert all(_same(expected, answer) for answer in answers)
        if number % max(1, loads // 20) == 0:
            usage.sample(f"{number:>10,} loads")
    return usage.grew()


def main() -> None:
    """Make the model, use it, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=10_000_000)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--loads", type=int, default=1_000)
    parser.add_argument("--target", default="ort-cpu")
    parser.add_argument("--goal", default="throughput")
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    options = parser.parse_args()
    package = make_package(options.out.resolve(), options.target)
    texts = pool_of_texts(2_000)
    with octobert.load(package) as alone:
        expected = {text: alone([text])[0] for text in texts}
    problems = [
        f"loads: {what} grew"
        for what in load_often(package, options.loads, texts[0], expected[texts[0]])
    ]
    usage = Usage()
    with octobert.load(package, goal=options.goal) as model:
        soak = Soak(model, expected, options.texts, 60 * options.minutes)
        soak.run(usage)
    seconds = time.monotonic() - soak.started
    print(f"{soak.done:,} answers to {THREADS} threads in {seconds:,.0f} s: {dict(soak.turns)}")
    problems += [f"texts: {what}" for what in usage.grew()] + [
        f"{what}: {count} times" for what, count in soak.wrong.items()
    ]
    print("\n".join(problems) or "flat; every answer as expected")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
