"""What `speed.py` measured, as a page with tables and a plot."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

TITLES = {"base": "BERT-base (random weights)", "minilm": "all-MiniLM-L6-v2"}
_INTRODUCTION = """# Benchmarks: speed

Written by `make bench` (`benchmarks/speed.py`, whose docstring says what every system is and how it is asked). All figures of a
table come from one interleaved run: they can be compared with each other, and with nothing else.
"""


def page(results: dict[str, dict[str, Any]], note: str = "") -> str:
    """Markdown."""
    parts = [_INTRODUCTION, note]
    for name, found in results.items():
        here = found["environment"]
        parts.append(f"\n## {TITLES[name]}\n")
        units = ", ".join(f for f in here["features"] if f != "avx2") or "AVX2 alone: no 8-bit units, weights of 7 bits"
        versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
        parts.append(f"{here['cpu']}, {here['cores']} cores ({units}); {versions}.\n")
        parts += _shapes(found)
        for source, times in found["texts"].items():
            parts += _texts(source, found["rows"][source], times)
        parts += _starts(found["starts"])
        if found["failures"]:
            parts.append("\nWithout figures: " + "; ".join(f"{k}: {v}" for k, v in found["failures"].items()) + ".")
    parts.append("\n![Time per token against length](images/cost-per-token.svg)\n")
    return "\n".join(parts)


def _shapes(found: dict[str, Any]) -> list[str]:
    shapes = list(found["limits"])
    lines = ["Milliseconds, median (rows × tokens):\n", "| | kind | float parts | " + " | ".join(shapes) + " |"]
    lines.append("|---" * (3 + len(shapes)) + "|")
    for name, times in found["shapes"].items():
        kind, precision = found["systems"][name]
        cells = [_ms(statistics.median(times[s])) if s in times else "" for s in shapes]
        bold = "**" if name.startswith("octobert") else ""
        lines.append(f"| {bold}{name}{bold} | {kind} | {precision} | " + " | ".join(cells) + " |")
    rates = found["rates"]
    limit = (
        f"| the products alone, at {rates['8-bit']:.0f} and {rates['float32']:.0f} billion multiply-adds a second | limit | |"
    )
    return [*lines, f"{limit} " + " | ".join(_ms(found["limits"][s]) for s in shapes) + " |", ""]


def _texts(source: str, rows: int, times: dict[str, list[float]]) -> list[str]:
    best = {name: statistics.median(rates) for name, rates in times.items()}
    base = next((rate for name, rate in best.items() if name.startswith("NNCF: padded")), None)
    lines = [
        f"From strings to labels, {source}, {rows} rows: rows a second.\n",
        "| | rows/s | × NNCF notebook's loop |",
        "|---|---|---|",
    ]
    for name, rate in sorted(best.items(), key=lambda one: one[1]):
        bold = "**" if name.startswith("octobert") else ""
        lines.append(f"| {bold}{name}{bold} | {rate:.1f} | {f'{rate / base:.2f}' if base else ''} |")
    return [*lines, ""]


def _starts(found: dict[str, float]) -> list[str]:
    return [
        "New process, warm file cache: " + "; ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items()) + ".",
        "",
    ]


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def plot(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Microseconds per token of single rows, against their length, beside the limit; an SVG."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "octobert"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(results), figsize=(6 * len(results), 4.5), squeeze=False)
    systems = list(dict.fromkeys(system for found in results.values() for system in found["shapes"]))
    colours = dict(zip(systems, pyplot.get_cmap("tab20").colors, strict=False))  # type: ignore[attr-defined]
    for axis, (name, found) in zip(axes[0], results.items(), strict=True):
        lengths = [int(shape.split(" × ")[1]) for shape in found["limits"] if shape.startswith("1 ×")]
        for system, times in found["shapes"].items():
            own = [(n, statistics.median(times[f"1 × {n}"])) for n in lengths if f"1 × {n}" in times]
            style = {"linewidth": 2.5 if system.startswith("octobert") else 1.0, "color": colours[system]}
            if len(own) < len(lengths):
                continue
            axis.plot([n for n, _ in own], [1e3 * ms / n for n, ms in own], marker="o", label=system, **style)
        limit = [1e3 * found["limits"][f"1 × {n}"] / n for n in lengths]
        axis.plot(lengths, limit, "k--", label="the products alone")
        axis.set(xscale="log", yscale="log", xlabel="tokens of a row", ylabel="µs per token", title=TITLES[name])
        axis.set_xticks(lengths, [str(n) for n in lengths])
        axis.minorticks_off()
    axes[0][-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
