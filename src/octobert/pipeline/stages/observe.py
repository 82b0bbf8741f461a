"""The float graph and calibration texts → statistics of every activation a plan may quantize.

Writes `statistics.npz`: per value its minimum, maximum, count, occupied histogram bins and the extremes of each row; and
`observed.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core import plugins
from octobert.core.placement import Placement
from octobert.core.ranges import BINS, TensorStatistics
from octobert.core.results import CaptureFacts
from octobert.graph import sites
from octobert.pipeline.stages import Context, calibration
from octobert.quantization import observer

VERSION = 3
_SHOWN_CHARACTERS = 60


def run(context: Context) -> dict[str, Any]:
    """Observe."""
    facts = context.read("capture", "capture.json", CaptureFacts)
    encoder, asked = calibration(context)
    rows = asked.flat
    texts = [(number, text) for number, (text, own) in enumerate(zip(asked.texts, asked.rows, strict=True), 1) for _ in own]
    family = plugins.load("families", facts.family).FAMILY
    path = context.inputs["float"] / "model.onnx"
    wanted = Placement(description="", kinds=tuple(context.options["kinds"]))
    found = sites.find_sites(ir.load(path).graph, family)
    values = sorted({site.value for site in found if wanted.takes(site) and not site.is_weight})
    statistics = observer.observe(
        path,
        rows,
        encoder.pad_id,
        values,
        name_of=lambda i: f'calibration row {texts[i][0]}, "{texts[i][1][0][:_SHOWN_CHARACTERS]}"',
        on_rows=lambda done: context.progress("observing", done, len(rows)),
    )
    save(statistics, context.work / "statistics.npz")
    observed = {
        "samples": len(asked.texts),
        "rows": len(rows),
        "tokens": sum(map(len, rows)),
        "truncated": sum(r.truncated for r in rows),
        "values": len(values),
        "data_digest": context.read_json("data", "calibration.json")["digest"],
    }
    context.write_json("observed.json", observed)
    return observed


def save(statistics: dict[str, TensorStatistics], path: Path) -> None:
    """Write statistics with only the occupied bins."""
    arrays: dict[str, np.ndarray] = {}
    for name, one in statistics.items():
        bins = np.flatnonzero(one.histogram)
        arrays[f"{name}/summary"] = np.array([one.minimum, one.maximum, one.count], dtype=np.float64)
        arrays[f"{name}/bins"] = bins.astype(np.uint16)
        arrays[f"{name}/counts"] = one.histogram[bins]
        arrays[f"{name}/extremes"] = one.extremes
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> dict[str, TensorStatistics]:
    """The inverse of `save`."""
    found: dict[str, TensorStatistics] = {}
    with np.load(path) as arrays:
        for key in arrays.files:
            name, _, part = key.rpartition("/")
            if part == "summary":
                histogram = np.zeros(BINS, dtype=np.int64)
                histogram[arrays[f"{name}/bins"]] = arrays[f"{name}/counts"]
                low, high, count = arrays[key]
                extremes = arrays[f"{name}/extremes"]
                found[name] = TensorStatistics(float(low), float(high), int(count), histogram, extremes)
    return found
