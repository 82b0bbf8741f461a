"""A progress bar for terminals and notebooks: the steps of a run as a graph, what is at work, the best model of a search.

A `View` takes events and gives lines. It draws nothing; `ProgressBar` does.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Group
from rich.live import Live
from rich.text import Text

from octobert.core.plain import printable
from octobert.core.wording import duration
from octobert.report.events import ProgressEvent
from octobert.report.tables import PlainConsole

# Pictures per second.
_FRAMES = 8
# Seconds between lines on what is at work, where nothing can be drawn.
_REMIND_S = 30.0
# A taller view would push away what is printed above it.
_MOST_LINES = 14
# Steps at work that have a line of their own, the characters of their bars, and seconds until a rate means something.
_AT_WORK, _BAR, _RATE_AFTER = 3, 10, 1.0
# Seconds that a step must take for its time to be shown.
_WORTH_SAYING = 0.05
# Pictures of the spinner per second.
_TURNS = 8

State = Literal["waiting", "running", "finished", "reused", "failed"]
_STYLES: dict[State, str] = {
    "waiting": "dim",
    "running": "bold",
    "finished": "green",
    "reused": "green",
    "failed": "red",
}


@dataclass(frozen=True)
class Marks:
    """The characters of the view.

    Args:
        states: mark of each state of a step; of a running one, where nothing moves.
        spinner: pictures of a step at work.
        arrow: between steps that follow each other.
        branch: before the steps of one target.
        last: before the steps that follow all targets.
        bar: what is done, and what is not.
    """

    states: dict[State, str]
    spinner: str
    arrow: str
    branch: str
    last: str
    bar: tuple[str, str]

    @staticmethod
    def for_encoding(encoding: str | None) -> Marks:
        """The marks that an encoding can represent."""
        try:
            # All of them are in the representation.
            repr(UNICODE).encode(encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            return ASCII
        return UNICODE


UNICODE = Marks(
    {"waiting": "·", "running": "…", "finished": "✓", "reused": "↺", "failed": "✗"},
    "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏",
    "→",
    "├",
    "└",
    ("━", "─"),
)
ASCII = Marks(
    {"waiting": ".", "running": "~", "finished": "+", "reused": "=", "failed": "x"},
    "|/-\\",
    ">",
    "|-",
    "`-",
    ("#", "-"),
)


@dataclass
class _Step:
    """A step, and how far it is.

    Args:
        inputs: names of the steps that it needs.
        began: when it started.
        since: when the present detail was first heard of, and the units that were done then.
    """

    inputs: tuple[str, ...] = ()
    state: State = "waiting"
    seconds: float = 0.0
    detail: str = ""
    done: int = 0
    total: int = 0
    began: float = 0.0
    since: tuple[float, int] = (0.0, 0)


class View:
    """A run, as far as events have told.

    Args:
        marks: the characters that it is drawn with.
        clock: seconds.
    """

    def __init__(
        self, marks: Marks = UNICODE, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._marks, self._clock = marks, clock
        self._began, self._ends = clock(), None  # type: float, float | None
        self._steps: dict[str, _Step] = {}
        # Steps that are not planned: those of a search, and calls that are one step.
        self._loose: dict[str, _Step] = {}
        self._search = ""

    @property
    def searching(self) -> bool:
        """True while a search is at work, whose many steps are not printed one by one."""
        return bool(self._search)

    @property
    def planned(self) -> bool:
        """True once the steps of the run are known."""
        return bool(self._steps)

    def take(self, event: ProgressEvent) -> None:
        """Take over an event."""
        if event.state == "planned":
            self._steps = {name: _Step(inputs) for name, inputs in event.plan.items()}
            self._loose = {}
            self._search = ""
        elif event.state == "searching":
            self._search = event.detail
            self._expect(event.left_seconds)
        elif event.state != "note":
            self._take_step(event)

    def _take_step(self, event: ProgressEvent) -> None:
        now = self._clock()
        if event.number:
            # A numbered step comes after the search.
            self._search = ""
        step = self._steps.get(event.step) or self._loose.setdefault(event.step, _Step(began=now))
        if event.state == "finished" or event.state == "reused":
            step.state, step.seconds = event.state, event.seconds
            self._loose.pop(event.step, None)
        else:
            if step.state != "running" or event.state == "started":
                step.state, step.began, step.since = "running", now, (now, event.done)
            if event.state == "started" and not self._search:
                self._expect(event.left_seconds)
            if event.detail != step.detail or event.done < step.done:
                step.since = (now, event.done)
            step.detail, step.done, step.total = event.detail, event.done, event.total
        self._reuse(step.inputs)

    def _reuse(self, names: Iterable[str]) -> None:
        """What a step at work needs is there, though nothing was said of it: a search has made it."""
        for name in names:
            step = self._steps.get(name)
            if step is not None and step.state == "waiting":
                step.state = "reused"
                self._reuse(step.inputs)

    def _expect(self, left_seconds: float | None) -> None:
        self._ends = None if left_seconds is None else self._clock() + left_seconds

    def fail(self) -> None:
        """The run has ended; what is at work has failed."""
        for step in self._steps.values():
            if step.state == "running":
                step.state = "failed"
        self._loose = {}

    def lines(self, width: int, height: int) -> list[Text]:
        """What to show now.

        Args:
            width: of the terminal, in columns.
            height: of the terminal, in lines. One stays free for the cursor.
        """
        most = max(1, min(_MOST_LINES, height - 1))
        search = [Text(line) for line in _wrapped(self._search, width)[:2]]
        now = [*self._at_work(width), *self._clock_line()]
        for graph in (self._graph(width), self._graph(width, lanes=False), []):
            shown = [*search, *graph, *now]
            if len(shown) <= most:
                break
        else:
            shown = [*now, *search][:most]
        return [_cut(line, width) for line in shown]

    def reminders(self) -> list[str]:
        """What is at work, for a log: `still working on capture (1:30): capturing 1/2`; during a search also how far it is."""
        running, more = self._running()
        lines = [self._search] if self._search else []
        for name, step in running:
            detail = f"{step.detail} {step.done}/{step.total}" if step.total else step.detail
            line = f"still working on {name} ({duration(self._clock() - step.began)})"
            lines.append(f"{line}: {detail.strip()}" if detail.strip() else line)
        return [*lines, f"and {more} more steps at work"] if more else lines

    def summary(self, width: int) -> list[Text]:
        """What stays when the run has ended: the graph, and how long it took; nothing of a call that is one step."""
        if not self._steps:
            return []
        graph = self._graph(width)
        if len(graph) >= _MOST_LINES:
            graph = self._graph(width, lanes=False)
        took = duration(self._clock() - self._began)
        clock = Text(f"{_done(self._steps.values())} of {len(self._steps)} steps in {took}")
        return [_cut(line, width) for line in (*graph, clock)]

    def _clock_line(self) -> list[Text]:
        if not self._steps and not self._search:
            return []
        now = self._clock()
        parts = [f"{_done(self._steps.values())}/{len(self._steps)} steps"] if self._steps else []
        parts.append(duration(now - self._began))
        if self._ends is not None and self._ends > now:
            parts.append(f"about {duration(self._ends - now)} left")
        return [Text("  " + ", ".join(parts))]

    def _running(self) -> tuple[list[tuple[str, _Step]], int]:
        """The last steps at work, and how many more there are."""
        steps = {**self._steps, **self._loose}
        running = [(name, step) for name, step in steps.items() if step.state == "running"]
        return running[-_AT_WORK:], max(0, len(running) - _AT_WORK)

    def _at_work(self, width: int) -> list[Text]:
        """A line for each step at work, the last ones where there are many."""
        running, more = self._running()
        lines = [self._work_line(name, step, width) for name, step in running]
        return [*lines, Text(f"  and {more} more steps at work")] if more else lines

    def _work_line(self, name: str, step: _Step, width: int) -> Text:
        now, count, bar, ends = self._clock(), "", "", ""
        (then, first), marks = step.since, self._marks
        if step.total:
            count = f" {step.done}/{step.total}"
            full = round(_BAR * min(1.0, step.done / step.total))
            bar = f" {marks.bar[0] * full}{marks.bar[1] * (_BAR - full)}"
        if step.total and step.done > first and now - then > _RATE_AFTER:
            rate = (step.done - first) / (now - then)
            ends = f" {_per_second(rate)}"
            if step.done < step.total:
                ends += f", {duration((step.total - step.done) / rate)} left"
        text = f"{self._spinner(now)} {_one_line(name)} {duration(now - step.began)}  {_one_line(step.detail)}{count}"
        whole = Text((text + bar + ends).rstrip())
        # The bar says nothing that the count does not say.
        return whole if whole.cell_len <= width else Text((text + ends).rstrip())

    def _spinner(self, now: float) -> str:
        return self._marks.spinner[int(now * _TURNS) % len(self._marks.spinner)]

    def _graph(self, width: int, *, lanes: bool = True) -> list[Text]:
        """The steps: those before the targets, a line for each target, those after them.

        Args:
            lanes: with the steps of each target. Otherwise only how many of them are done.
        """
        if not self._steps:
            return []
        before, targets, after = _parts(self._steps)
        marks, arrow = self._marks, f" {self._marks.arrow} "
        lines = _flowed(Text(), [self._named(name, name) for name in before], arrow, width)
        if lanes:
            space = max((Text(_one_line(label)).cell_len for label in targets), default=0)
            for label, steps in targets.items():
                head = Text(f"{marks.branch} {_one_line(label)}")
                head.pad_right(max(0, space + len(marks.branch) + 3 - head.cell_len))
                # Float models of different runtimes do not follow each other.
                between = arrow if label == steps[0][1].partition("/")[2] else ", "
                lines += _flowed(
                    head, [self._named(short, name) for short, name in steps], between, width
                )
        elif targets:
            counts = [self._counted(label, steps) for label, steps in targets.items()]
            lines += _flowed(Text(f"{marks.branch} "), counts, ", ", width)
        if after:
            head = Text(f"{marks.last} " if targets else "")
            lines += _flowed(head, [self._named(name, name) for name in after], arrow, width)
        return lines

    def _named(self, label: str, name: str) -> Text:
        """A step in the graph: `observe ✓ 9.7s`."""
        step = self._steps[name]
        mark = self._marks.states[step.state]
        if step.state == "running":
            mark = self._spinner(self._clock())
        worth_saying = step.state == "finished" and step.seconds >= _WORTH_SAYING
        took = f" {_brief(step.seconds)}" if worth_saying else ""
        return Text(f"{_one_line(label)} {mark}{took}", style=_STYLES[step.state])

    def _counted(self, label: str, steps: Sequence[tuple[str, str]]) -> Text:
        """A target with how many of its steps are done: `ort-cpu 2/4`."""
        done = _done(self._steps[name] for _, name in steps)
        style = _STYLES["finished" if done == len(steps) else "waiting"]
        return Text(f"{_one_line(label)} {done}/{len(steps)}", style=style)


def _done(steps: Iterable[_Step]) -> int:
    """The number of steps that are done."""
    return sum(step.state in ("finished", "reused") for step in steps)


def _parts(
    steps: dict[str, _Step],
) -> tuple[list[str], dict[str, list[tuple[str, str]]], list[str]]:
    """The steps as a graph is drawn: names before the targets; target → (short name, name); names after the targets.

    Steps are called `quantize/ort-cpu`. Targets with one step only, such as float models that are evaluated, share a line.
    """
    target_of = {name: name.partition("/")[2] for name in steps}
    # A step whose result two targets use stands before them, whatever it is called.
    shared = {
        needed
        for name, step in steps.items()
        for needed in step.inputs
        if target_of[name] and target_of.get(needed) not in ("", None, target_of[name])
    }
    target_steps = [name for name in steps if target_of[name] and name not in shared]
    targets: dict[str, list[tuple[str, str]]] = {}
    for name in target_steps:
        stage, _, target = name.partition("/")
        alone = sum(target_of[other] == target for other in target_steps) == 1
        label, short = (stage, target) if alone else (target, stage)
        targets.setdefault(label, []).append((short, name))
    order = list(steps)
    first = order.index(target_steps[0]) if target_steps else len(order)
    rest = [name for name in steps if name not in target_steps]
    before = [name for name in rest if order.index(name) < first]
    return before, targets, rest[len(before) :]


def _flowed(head: Text, items: Sequence[Text], between: str, width: int) -> list[Text]:
    """Items after a heading, on as many lines as they need; the further ones begin below the first item."""
    lines, indent = [head.copy()], " " * max(2, head.cell_len)
    for index, item in enumerate(items):
        gap = between if index else ""
        # The arrow at the end of a line needs room, too.
        if index and lines[-1].cell_len + 2 * len(gap) + item.cell_len > width:
            lines[-1].append(gap.rstrip(), style="dim")
            lines.append(Text(indent))
            gap = ""
        lines[-1].append(gap, style="dim").append_text(item)
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    """A text on lines that are cut at spaces."""
    lines: list[str] = []
    for word in printable(text).split():
        if lines and Text(f"{lines[-1]} {word}").cell_len <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}" if lines else word)
    return lines


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _cut(line: Text, width: int) -> Text:
    """A line that does not wrap."""
    line.no_wrap, line.overflow = True, "crop"
    line.truncate(max(1, width), overflow="crop")
    return line


def _brief(seconds: float) -> str:
    """A time in a few characters: `0.1s`, `22s`, `3:05`."""
    if seconds >= 99.5:
        return duration(seconds)
    return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"


def _per_second(rate: float) -> str:
    """A rate in a few characters: `123/s`, `1.2/s`, `8.3 s each`."""
    if rate < 1:
        return f"{1 / rate:.1f} s each"
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


class ProgressBar:
    """A progress callback that draws a run while it goes on, in a terminal (on stderr) or in a notebook.

    It is a context manager. It shows the steps of the run as a graph (✓ done, ↺ reused, · waiting), what is at work with its
    rate and the time left, and of a search for the best model how far it is. The graph stays when the run has ended, also
    where it has failed. A call that is one step leaves one line.

    Elsewhere it prints one line for each finished step, for each new best variant of a search, and every half minute what is at
    work. Without `with` it prints the first two only.

    Example:
        >>> with ProgressBar() as progress:                      # doctest: +SKIP
        ...     octobert.run("recipe.yaml", "out", progress=progress)
    """

    def __init__(self) -> None:
        self._console = PlainConsole(stderr=True)
        is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        # Where ipywidgets is missing, a notebook cannot draw.
        is_notebook = (
            self._console.is_jupyter and importlib.util.find_spec("ipywidgets") is not None
        )
        self._can_draw = is_terminal or is_notebook
        self._marks = Marks.for_encoding(self._console.encoding)
        self._view = View(self._marks)
        # Events come from several threads, and the lines are made in another one.
        self._lock = threading.Lock()
        self._live = Live(
            console=self._console,
            get_renderable=self._drawn,
            transient=True,
            refresh_per_second=_FRAMES,
            vertical_overflow="crop",
        )
        self._best = ""
        self._ended = threading.Event()

    def __enter__(self) -> ProgressBar:
        self._view = View(self._marks)
        if self._can_draw:
            self._live.start()
        else:
            self._ended.clear()
            threading.Thread(target=self._remind, name="octobert-progress", daemon=True).start()
        return self

    def _remind(self) -> None:
        """Say what is at work, again and again until the end."""
        while not self._ended.wait(_REMIND_S):
            with self._lock:
                lines = self._view.reminders()
            for line in lines:
                self._say(f"  {line}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        drawn = self._live.is_started
        self._live.stop()
        self._ended.set()
        if kind is not None:
            self._view.fail()
        if drawn:
            for line in self._view.summary(self._console.width):
                self._console.print(line)

    def _drawn(self) -> Group:
        with self._lock:
            # The last column stays free: some terminals wrap a line that reaches it.
            return Group(*self._view.lines(self._console.width - 1, self._console.height))

    def __call__(self, event: ProgressEvent) -> None:
        """Draw an event, or print it."""
        with self._lock:
            searching = self._view.searching
            self._view.take(event)
            # The graph shows the planned steps.
            is_printed = not (self._live.is_started and self._view.planned) and not (
                searching and not event.number
            )
        # Printing draws the view anew, which takes the lock.
        if event.state == "note":
            self._say(f"! {event.detail}")
        elif event.state == "searching" and event.best != self._best:
            self._best = event.best
            self._say(f"  {event.detail}")
        elif event.state in ("finished", "reused") and is_printed:
            name = f"{event.place} {event.step}".lstrip()
            how = "reused" if event.state == "reused" else f"{event.seconds:.1f} s"
            self._say(f"  {name:<34} {how}")

    def _say(self, text: str) -> None:
        """Print a text: one line in a file, wrapped in a terminal."""
        self._console.print(text, soft_wrap=not self._console.is_terminal)
