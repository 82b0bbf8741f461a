"""Draw closeness against time, of all tools, from the results of accuracy.py: `pip install matplotlib`.

    python benchmarks/accuracy_plot.py runs/accuracy/results.json mrpc-0 docs/images/closeness.svg

Left and low is better: time is that of the median row, divided by that of `nncf.quantize`; RMSE is of the logits, against float
on the same runtime. The line joins the forms that no other one beats in both.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

BASE = "nncf TRANSFORMER"
COLOURS = {"octobert": "#0b7285", "nncf": "#e8590c", "onnxruntime": "#868e96"}
MARKERS = {"ort": "s", "openvino": "o"}
TICKS = (0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4)


def points(methods: list[dict[str, Any]]) -> list[tuple[float, float, str, str]]:
    """(time ÷ that of BASE, RMSE, name, runtime) of every 8-bit model that has figures."""
    medians = {
        (m["name"], m["runtime"]): float(np.median(m["samples_ms"])) for m in methods if m["judged"]
    }
    base = medians[BASE, "openvino"]
    found = []
    for method in methods:
        judged: dict[str, Any] = next(iter(method["judged"].values()), {})
        if "comparison" in judged:
            key = method["name"], method["runtime"]
            found.append((medians[key] / base, judged["comparison"]["output_error"], *key))
    return found


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("experiment")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    found = points(json.loads(options.results.read_text(encoding="utf-8"))[options.experiment])
    plt.rcParams["svg.fonttype"] = "none"
    figure, axes = plt.subplots(figsize=(9, 5.5))
    best = np.inf
    front = [(x, y) for x, y, *_ in sorted(found) if y < best and (best := y) is not None]
    axes.step(*zip(*front, strict=True), where="post", color="#ced4da", zorder=0)
    for x, y, name, runtime in found:
        tool, _, form = name.partition(" ")
        axes.scatter(x, y, color=COLOURS[tool], marker=MARKERS[runtime], s=40)
        text = form.replace("per token, groups of ", "per token ").replace(
            "4-bit weights", "4 bits"
        )
        below = -11 if runtime == "ort" or tool == "nncf" else 3
        axes.annotate(text, (x, y), (5, below), textcoords="offset points", fontsize=7)
    for label, colour in COLOURS.items():
        axes.scatter([], [], color=colour, label=label)
    for runtime, marker in MARKERS.items():
        axes.scatter([], [], color="black", marker=marker, label=runtime)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(0.8, 5),
        xlabel=f"time ÷ {BASE}",
        ylabel="RMSE of the logits",
    )
    axes.set_xticks(TICKS, map(str, TICKS), minor=False)
    axes.minorticks_off()
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(options.out)


if __name__ == "__main__":
    main()
