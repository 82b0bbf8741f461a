"""Which files a value passes: a calibrator option from the recipe to an interval, a median from the benchmark to the page.

A run of a small random model, in this process, is traced with a value that nothing else has. A function hands the value on
where what it returns is it, or holds it at most three levels deep: the number, a plugin with it, a choice, a recipe, a step, a
text. A file is passed where one of its functions does that, or holds the value at any depth while it calls one that does. What
only carries a whole run is not counted. Stages run in this process, so the files that carry requests to children are missing
on either side of a comparison, and so is the child that times.

python -m benchmarks.house.walks [option | median]
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

from pydantic import BaseModel

import octobert
from octobert.engine.executors import inline, local
from tests.support.checkpoints import make_checkpoint
from tests.support.runs import write_pairs

ROOT = str(Path(octobert.__file__).parent)
# How deep the value lies at most in what hands it on, and in what holds it.
HANDED, HELD = 3, 7
# What holds more holds rows.
_MANY = 200
KEEP, MEDIAN_MS = 99.87654, 77.654321
# Question → the value, and the file and the function where its walk ends.
_ENDS = {
    "option": (KEEP, ("quantization/calibrators/percentile.py", "interval")),
    "median": (MEDIAN_MS, ("report/page/__init__.py", "page")),
}


class Walk:
    """The files that a value passes, in order of the first time.

    Args:
        value: the number, in any unit of a power of ten.
        last: (file, function) where the walk ends, when it returns.
    """

    def __init__(self, value: float, last: tuple[str, str]) -> None:
        digits = f"{value}".replace(".", "")[:4]
        self.value, self.last, self.ended = value, last, False
        self.text = re.compile(r"(?<!\d)" + r"\.?".join(digits))
        # File → the function that was first, and the types that held the number itself in all of them.
        self.passed: dict[str, str] = {}
        self.holders: dict[str, set[str]] = {}
        self._holder = ""

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Look at what each function of octobert returns, and at the arguments of the last one."""
        if self.ended or not frame.f_code.co_filename.startswith(ROOT):
            return None
        frame.f_trace_lines = False
        here = (frame.f_code.co_filename.removeprefix(f"{ROOT}/"), frame.f_code.co_name)
        if event == "return" and (here == self.last or self._is_in(argument, HANDED + 1)):
            self._note(frame)
            self.ended = here == self.last
        return self.trace

    def _note(self, top: FrameType) -> None:
        """Note the file of a frame, and those of its callers that hold the value too."""
        frame: FrameType | None = top
        stack = []
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(ROOT):
                name = file.removeprefix(f"{ROOT}/")
                if frame is top or self._reaches(frame.f_locals.values(), HELD):
                    stack.append((name, frame.f_code.co_name))
                    self.holders.setdefault(name, set()).add(self._holder)
            frame = frame.f_back
        for name, function in reversed(stack):
            self.passed.setdefault(name, function)

    def _reaches(self, values: Iterable[Any], depth: int) -> bool:
        return any(self._is_in(value, depth) for value in list(values))

    def _is_in(self, value: Any, depth: int) -> bool:
        """Return whether a value is that of the walk, or holds it less than `depth` levels deep."""
        found = False
        if isinstance(value, float):
            found = self._is(value)
        elif isinstance(value, str):
            found = self.text.search(value[:100_000]) is not None
        elif depth > 1:
            parts = _parts(value)
            return len(parts) < _MANY and any(
                self._is_in(part, depth - 1) and self._held_by(value, part) for part in parts
            )
        if found:
            self._holder = type(value).__name__
        return found

    def _held_by(self, value: Any, part: Any) -> bool:
        """Remember the type of what holds the number itself; return True."""
        if isinstance(part, float):
            self._holder = type(value).__name__
        return True

    def _is(self, number: float) -> bool:
        if number <= 0 or not math.isfinite(number):
            return False
        power = math.log10(number / self.value)
        return abs(power) < 10 and abs(power - round(power)) < 1e-6


def _parts(value: Any) -> list[Any]:
    """Return what a value of octobert, or a plain one, holds."""
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, dict | MappingProxyType):
        return list(value.values())
    if isinstance(value, BaseModel) or type(value).__module__.startswith("octobert"):
        return list(getattr(value, "__dict__", {}).values())
    return []


def walk(question: str) -> Walk:
    """Run the command line on a small model, and follow the value."""
    from octobert.cli import main as command

    local.run = inline.run
    value, last = _ENDS[question]
    seen = Walk(value, last)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_checkpoint(folder / "model", "bert", "sequence-classification")
        data = write_pairs(folder / "data")
        recipe = folder / "recipe.yaml"
        recipe.write_text(
            f"model: {model}\ndata: {data}\ntargets: [ort-cpu]\ntask:\n  text-classification:\n"
            f"    text: [sentence1, sentence2]\ncalibrate:\n  percentile:\n    keep: {KEEP}\n"
            f"measure: {'false' if question == 'option' else 'true'}\nbaselines: []\n"
            "benchmark: {batch: [1], sequence: [16], repeats: 3}\n",
            encoding="utf-8",
        )
        if question == "median":
            _answer_with(MEDIAN_MS)
        sys.argv = ["octobert", "run", str(recipe), "--out", str(folder / "out")]
        sys.settrace(seen.trace)
        try:
            command.main()
        except SystemExit as ended:
            if ended.code:
                raise
        finally:
            sys.settrace(None)
    return seen


def _answer_with(milliseconds: float) -> None:
    """Let every timed inference take so long."""
    from octobert.evaluation.worker import Worker

    ask = Worker.ask

    def answered(self: Worker, request: str, argument: Any) -> Any:
        answer = ask(self, request, argument)
        return milliseconds if request == "time" else answer

    Worker.ask = answered  # type: ignore[method-assign]


def main() -> None:
    """Walk, print."""
    for question in sys.argv[1:] or ["option"]:
        seen = walk(question)
        print(f"{question}: {len(seen.passed)} files")
        for file, function in seen.passed.items():
            print(f"  {file} {function} ({', '.join(sorted(seen.holders[file]))})")


if __name__ == "__main__":
    main()
