"""The page that `speed.py` writes: tables and a plot of its measurements."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

TITLES = {"base": "BERT-base (random weights)", "minilm": "all-MiniLM-L6-v2"}
_INTRODUCTION = """# Speed compared with other tools

`make bench` writes this page. The docstring of `benchmarks/speed.py` says what each system is and how it is called. All
figures of one table come from one interleaved run. Compare them only with each other.
"""


def page(results: dict[str, dict[str, Any]], note: str = "") -> str:
    """Markdown."""
    parts = [_INTRODUCTION, note]
    for name, result in results.items():
        here = result["environment"]
        parts.append(f"\n## {TITLES[name]}\n")
        units = ", ".join(f for f in here["features"] if f != "avx2") or "AVX2 without VNNI: 7-bit weights"
        versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
        parts.append(f"{here['cpu']}, {here['cores']} cores ({units}); {versions}.\n")
        parts += _shapes(result)
        for source, times in result["texts"].items():
            parts += _texts(source, result["rows"][source], times)
        parts += _starts(result["starts"])
        if result["failures"]:
            parts.append("\nNot measured: " + "; ".join(f"{k}: {v}" for k, v in result["failures"].items()) + ".")
    parts.append("\n![Time per token against length](images/cost-per-token.svg)\n")
    return "\n".join(parts)


def _shapes(result: dict[str, Any]) -> list[str]:
    shapes = list(result["limits"])
    lines = ["Median latency in milliseconds (rows × tokens):\n", "| | kind | float parts | " + " | ".join(shapes) + " |"]
    lines.append("|---" * (3 + len(shapes)) + "|")
    for name, times in result["shapes"].items():
        kind, precision = result["systems"][name]
        cells = [_ms(statistics.median(times[s])) if s in times else "" for s in shapes]
        bold = "**" if name.startswith("octobert") else ""
        lines.append(f"| {bold}{name}{bold} | {kind} | {precision} | " + " | ".join(cells) + " |")
    rates = result["rates"]
    speeds = f"{rates['8-bit']:.0f} and {rates['float32']:.0f} billion multiply-adds per second"
    limit = f"| matrix products only, at {speeds} | limit | |"
    return [*lines, f"{limit} " + " | ".join(_ms(result["limits"][s]) for s in shapes) + " |", ""]


def _texts(source: str, rows: int, times: dict[str, list[float]]) -> list[str]:
    best = {name: statistics.median(rates) for name, rates in times.items()}
    base = next((rate for name, rate in best.items() if name.startswith("NNCF: padded")), None)
    lines = [
        f"Throughput from strings to labels, {source}, {rows} rows, in rows per second:\n",
        "| | rows/s | × NNCF notebook's loop |",
        "|---|---|---|",
    ]
    for name, rate in sorted(best.items(), key=lambda item: item[1]):
        bold = "**" if name.startswith("octobert") else ""
        lines.append(f"| {bold}{name}{bold} | {rate:.1f} | {f'{rate / base:.2f}' if base else ''} |")
    return [*lines, ""]


def _starts(times: dict[str, float]) -> list[str]:
    starts = "; ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items())
    return [f"Start of a new process, warm file cache: {starts}.", ""]


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def plot(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Microseconds per token of single rows, against their length, beside the limit; an SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "octobert"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(6 * len(results), 4.5), squeeze=False)
    systems = list(dict.fromkeys(system for result in results.values() for system in result["shapes"]))
    colours = dict(zip(systems, pyplot.get_cmap("tab20")(range(20)), strict=False))
    for axis, (name, result) in zip(axes[0], results.items(), strict=True):
        lengths = [int(shape.split(" × ")[1]) for shape in result["limits"] if shape.startswith("1 ×")]
        for system, times in result["shapes"].items():
            own = [(n, statistics.median(times[f"1 × {n}"])) for n in lengths if f"1 × {n}" in times]
            style = {"linewidth": 2.5 if system.startswith("octobert") else 1.0, "color": colours[system]}
            if len(own) < len(lengths):
                continue
            axis.plot([n for n, _ in own], [1e3 * ms / n for n, ms in own], marker="o", label=system, **style)
        limit = [1e3 * result["limits"][f"1 × {n}"] / n for n in lengths]
        axis.plot(lengths, limit, "k--", label="matrix products only")
        axis.set(xscale="log", yscale="log", xlabel="tokens of a row", ylabel="µs per token", title=TITLES[name])
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
    axes[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
