"""`docs/evidence/speed.md`, made of all results of `speed.py`: a summary, and a section for each kind of CPU.

python benchmarks/speed_page.py
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from speed_results import (
    BF16,
    GOAL,
    GOAL_SHAPES,
    GOAL_SINGLE,
    GOAL_TIMES,
    RESULTS,
    RIVALS,
    STATIC,
    Compared,
    Ratio,
    Result,
    Singles,
    Throughput,
    read_all,
)

from octobert.core import cpus
from octobert.core.errors import OctobertError
from octobert.core.files import atomic_write

PAGE = Path(__file__).parents[1] / "docs" / "evidence" / "speed.md"
NOTEBOOK = ("NNCF: padded", "NNCF, bf16: padded")
_NAMES = {kind.name: kind.title for kind in cpus.KINDS}
_INTRODUCTION = f"""# Speed compared with other tools

`python benchmarks/speed.py` measures on the machine at hand, writes a file into `benchmarks/results`, and makes this page of
all files. They also have the ratios at each shape, single texts and throughput of every system, with intervals. Figures of
one file come from one interleaved run: compare only them with each other.

## Summary

Time of octobert's 8-bit model divided by that of the other model: the mean over those of {", ".join(GOAL_SHAPES)}
(rows × tokens) that were timed, with its 95 % interval in brackets, and the largest. Below 1, octobert is faster. The goal is
at most {GOAL:.2f} on average and never above 1. Of NNCF and OpenVINO in float, the faster one with float parts in float32 or
bfloat16 counts. BERT-base has random weights. "Static lengths" is `octobert.load(…, static_up_to=128)`.
"""
_TEXTS = f"""
From strings to labels: time of single texts divided by that of the other tool's loop without padding (median over the texts),
and throughput as a multiple of the loop of NNCF's notebook, which pads to 128 tokens. Goals: at most {GOAL_SINGLE:.2f} of
NNCF's time, and {GOAL_TIMES:.1f} times the notebook's loop.
"""


def page(results: Sequence[Result]) -> str:
    """The page.

    Args:
        results: in the order of `speed_results.read_all`.
    """
    parts = [_INTRODUCTION, _summary(results)]
    if any(result.singles or result.throughput for result in results):
        parts += [_TEXTS, _summary_of_texts(results)]
    parts += [
        section(list(own)) for _, own in itertools.groupby(results, key=lambda result: result.kind)
    ]
    return "\n".join(parts)


def merge(folder: Path = RESULTS, path: Path = PAGE) -> None:
    """Write the page."""
    text = page(read_all(folder))
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def section(results: Sequence[Result]) -> str:
    """The section of one kind of CPU. Its first sentences say where INT8 is slower than float.

    Args:
        results: of this kind. Of each model only the newest is shown in full, of one day that with the most cores.
    """
    newest = {
        result.model: result
        for result in sorted(results, key=lambda result: (result.date or "", result.cores))
    }
    shown = [result for result in results if result in newest.values()]
    befores = [None, *shown]
    tables = [_of_model(result, before) for result, before in zip(shown, befores, strict=False)]
    return "\n".join([f"\n## {kind_name(results[0])}\n", verdict(results), *tables])


def kind_name(result: Result) -> str:
    return _NAMES.get(result.kind, result.cpu)


def verdict(results: Sequence[Result]) -> str:
    """Whether INT8 is faster than float on a kind of CPU, target by target; those that are slower come first."""
    slower, partly, faster, unknown = [], [], [], []
    for target, rivals in RIVALS.items():
        what = next(name for name in rivals if name.endswith("float"))
        runtime, name = what.removesuffix(", float"), f"`{target.removeprefix('octobert ')}`"
        found = [
            (_of(result), each)
            for result in results
            if (each := result.compared_with(target, what))
        ]
        means = {model: each.mean.value for model, each in found if each.mean}
        lost = {
            model: each.mean.value for model, each in found if each.mean and _least(each.mean) > 1
        }
        unclear = {
            model: value for model, value in means.items() if model not in lost and value > 1
        }
        shapes = [
            f"{model} at {', '.join(names)}" for model, each in found if (names := _slower_at(each))
        ]
        if lost and len(lost) == len(means):
            slower.append(
                f"**INT8 of {name} is slower than {runtime} in float: {_range(lost)} times its time; use float there.**"
            )
        elif lost:
            models = ", ".join(
                f"{value:.2f} times its time for {model}" for model, value in lost.items()
            )
            slower.append(
                f"**INT8 of {name} is slower than {runtime} in float for some models: {models}; use float for them.**"
            )
        elif unclear:
            partly.append(
                f"INT8 of {name} is not clearly faster than {runtime} in float: {_range(means)} of its time on average."
            )
        elif shapes:
            gain = f"INT8 of {name} is faster than {runtime} in float on average ({_range(means)} of its time)"
            partly.append(f"{gain}, and slower for {'; '.join(shapes)}.")
        elif means:
            faster.append(
                f"INT8 of {name} is faster than {runtime} in float at every shape: {_range(means)} of its time on average."
            )
        else:
            unknown.append(
                f"{runtime} in float was not measured, so nothing says whether INT8 of {name} gains."
            )
    return " ".join(slower + partly + faster + unknown)


def _of(result: Result) -> str:
    return f"{result.title.split(' (')[0]} on {_cores(result)}"


def _cores(result: Result) -> str:
    return f"{result.cores} core{'s' * (result.cores > 1)}"


def _slower_at(each: Compared) -> list[str]:
    """Shapes at which the target is slower beyond noise, or slower at all where no interval is known."""
    return [shape for shape, ratio in each.shapes.items() if _least(ratio) > 1]


def _least(ratio: Ratio) -> float:
    """The lower end of the interval, or the value where no interval is known."""
    return ratio.value if ratio.low is None else ratio.low


def _range(values: Mapping[str, float]) -> str:
    low, *_, high = (f"{value:.2f}" for value in sorted((*values.values(), *values.values())))
    return low if low == high else f"{low}–{high}"


def _summary(results: Sequence[Result]) -> str:
    pairs = [
        (STATIC, "NNCF"),
        *((target, what) for target, rivals in RIVALS.items() for what in rivals),
    ]
    heads = [f"{target.removeprefix('octobert ')} ÷ {what}" for target, what in pairs]
    rows = [
        [*_about(result), *(_cell(result, target, what) for target, what in pairs)]
        for result in results
    ]
    return _table(["CPU", "model", "cores", "date", *heads], rows)


def _about(result: Result) -> list[str]:
    link = kind_name(result).lower().replace(" ", "-")
    partial = ", partial" if result.partial else ""
    return [
        f"[{kind_name(result)}](#{link})",
        result.title.split(" (")[0],
        str(result.cores),
        (result.date or "not recorded") + partial,
    ]


def _cell(result: Result, target: str, what: str) -> str:
    each = result.compared_with(target, what)
    if each is None or each.mean is None or each.worst is None:
        return ""
    worst = each.shapes[each.worst].value
    bf16 = " (bf16)" if each.rival.endswith("bf16") else ""
    return f"{_ratio(each.mean)}, {worst:.2f} at {each.worst}{bf16}"


def _summary_of_texts(results: Sequence[Result]) -> str:
    rows = []
    for result in results:
        for source in dict.fromkeys((*result.singles, *result.throughput)):
            single, all_texts = result.singles.get(source), result.throughput.get(source)
            cells = [_slowest(single, STATIC)]
            for target in RIVALS:
                cells += [
                    _slowest(single, target),
                    _times_notebook(all_texts, f"{target}: throughput"),
                ]
            rows.append([*_about(result), source, *cells])
    heads = [f"{STATIC.removeprefix('octobert ')} ÷ NNCF, single texts"]
    for target, rivals in RIVALS.items():
        short = target.removeprefix("octobert ")
        heads += [f"{short} ÷ {next(iter(rivals))}, single texts", f"{short}, × notebook"]
    return _table(["CPU", "model", "cores", "date", "texts", *heads], rows)


def _slowest(single: Singles | None, target: str) -> str:
    """The ratio of single texts to the faster of the systems that come first in `RIVALS`."""
    own = single.ratios.get(target, {}) if single else {}
    first = next(iter(RIVALS[target.split(",")[0]].values()))
    found = max(
        (own[name] for name in first if name in own), key=lambda ratio: ratio.value, default=None
    )
    return _ratio(found) if found else ""


def _times_notebook(all_texts: Throughput | None, loop: str) -> str:
    """Throughput of a loop as a multiple of that of NNCF's notebook, "" where one of them was not measured."""
    loops = all_texts.loops if all_texts else {}
    notebook = max((loops[name].rate.median for name in NOTEBOOK if name in loops), default=None)
    return f"{loops[loop].rate.median / notebook:.2f}" if notebook and loop in loops else ""


# ---- the tables of one model


def _of_model(result: Result, before: Result | None) -> str:
    """A model's tables. What it shares with the one before it on the page is not repeated."""
    versions = ", ".join(f"{package} {version}" for package, version in result.versions.items())
    features = ", ".join(result.features) or "features not listed by the system"
    facts = [result.cpu, _cores(result), features, *([versions] if versions else [])]
    if before and (before.cpu, before.features, before.versions) == (
        result.cpu,
        result.features,
        result.versions,
    ):
        facts = ["CPU and versions as above"]
    measured = [f"Measured on {result.date}" if result.date else "The date was not recorded"]
    measured += [f"with `{result.command}`"] if result.command else []
    busy = (
        f" Other programs kept {result.others:.1f} cores busy meanwhile."
        if result.others is not None
        else ""
    )
    bf16 = " with bfloat16" if BF16 & set(result.features) else ""
    parts = [
        f"\n### {result.title}, {_cores(result)}: {kind_name(result)}{bf16}\n",
        f"{' '.join(measured)}.{busy}",
    ]
    parts += [f"{'; '.join(facts)}."]
    parts += [result.note] if result.note else []
    if result.partial:
        parts.append(f"This result is partial: {result.partial} All medians: `{result.file_name}`.")
        return "\n".join(parts)
    parts += _latency(result)
    for source, own in result.throughput.items():
        parts += _scored_texts(source, own)
    if result.starts:
        starts = "; ".join(f"{name} {seconds:.2f} s" for name, seconds in result.starts.items())
        parts.append(f"\nStart of a new process, warm file cache: {starts}.")
    reasons: dict[str, list[str]] = {}
    for name, reason in result.left_out.items():
        reasons.setdefault(reason, []).append(name)
    if reasons:
        parts.append(
            "\nNot measured: "
            + "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
            + "."
        )
    return "\n".join(parts)


def _latency(result: Result) -> list[str]:
    measured = dict.fromkeys(shape for own in result.shapes.values() for shape in own)
    shapes = [shape for shape in measured if shape in GOAL_SHAPES]
    rows = [
        [f"{_bold(name)}, {result.systems[name].kind}"]
        + [_ms(own[shape].median) if shape in own else "" for shape in shapes]
        for name, own in result.shapes.items()
    ]
    if result.limit:
        rates = f"{result.limit.rates['8-bit']:.0f} and {result.limit.rates['float32']:.0f} billion multiply-adds per second"
        limits = [_ms(result.limit.shapes[shape]) for shape in shapes]
        rows.append([f"matrix products only, at {rates}", *limits])
    counts = sorted(
        {
            own[shape].count or 0
            for own in result.shapes.values()
            for shape in shapes
            if shape in own
        }
    )
    most = f" to {counts[-1]}" if len(counts) > 1 else ""
    rounds = f", {counts[0]}{most} rounds" if counts[0] else ""
    return [
        f"\nMedian latency in milliseconds (rows × tokens){rounds}:\n",
        _table(["", *shapes], rows),
    ]


def _scored_texts(source: str, own: Throughput) -> list[str]:
    """Throughput of a model that was trained for a task, beside its accuracy."""
    if all(loop.accuracy is None for loop in own.loops.values()):
        return []
    rows = []
    for name, loop in sorted(own.loops.items(), key=lambda item: item[1].rate.median):
        row = [
            _bold(name),
            f"{loop.rate.median:.1f}",
            "" if loop.rate.count is None else str(loop.rate.count),
        ]
        row += [
            _times_notebook(own, name),
            "" if loop.accuracy is None else f"{100 * loop.accuracy:.2f}",
        ]
        rows.append([*row, _points(loop.change)])
    heads = [
        "",
        "rows/s",
        "rounds",
        "× NNCF notebook's loop",
        "accuracy, %",
        "change from float, points",
    ]
    return [
        f"\nThroughput from strings to labels, {source}, {own.rows} rows:\n",
        _table(heads, rows),
    ]


def _points(change: Ratio | None) -> str:
    if change is None or change.low is None or change.high is None:
        return ""
    return f"{100 * change.value:+.2f} [{100 * change.low:+.2f}, {100 * change.high:+.2f}]"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _ratio(ratio: Ratio) -> str:
    interval = (
        "" if ratio.low is None or ratio.high is None else f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    )
    return f"{ratio.value:.2f}{interval}"


def _bold(name: str) -> str:
    return f"**{name}**" if name.startswith("octobert") else name


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    try:
        merge()
    except OctobertError as error:
        raise SystemExit(str(error)) from error
