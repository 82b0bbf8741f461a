"""The float graph and calibration texts → constant-size statistics of every activation a plan may quantize.

Writes `statistics.npz`: per value its minimum, maximum, count and occupied histogram bins; and `observed.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert import observe, plugins, texts
from octobert.graph import sites
from octobert.ranges import BINS, TensorStatistics
from octobert.results import CaptureFacts
from octobert.stages import Context

VERSION = 1
# A batch of so many tokens bounds the activations in memory: about 0.26 GB for all linear inputs of a BERT-base.
TOKENS_PER_BATCH = 1024


def run(context: Context) -> dict[str, Any]:
    """Observe."""
    folder = context.inputs["capture"]
    facts = context.read("capture", "capture.json", CaptureFacts)
    encoder = texts.TextEncoder(folder, context.options["max_length"])
    rows = encoder.encode([tuple(t) for t in context.read_json("data", "calibration.json")["inputs"]])
    family = plugins.load("encoders", facts.encoder).ENCODER
    graph = ir.load(folder / "model.onnx").graph
    names = {str(v.name) for v in graph.inputs}
    roles = set(context.options["roles"])
    values = sorted({site.value for site in sites.find_sites(graph, family) if site.role in roles})
    del graph
    groups = list(texts.batches(rows, max_tokens=TOKENS_PER_BATCH))
    done = 0

    def count(size: int) -> None:
        nonlocal done
        done += size
        context.progress("observing", done, len(rows))

    def feeds() -> Any:
        for group in groups:
            batch = texts.feeds_of([rows[i] for i in group], encoder.pad_id)
            yield {k: v for k, v in batch.items() if k in names}

    statistics = observe.observe(folder / "model.onnx", feeds(), values, on_batch=count)
    save(statistics, context.work / "statistics.npz")
    observed = {
        "samples": len(rows),
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
                found[name] = TensorStatistics(float(low), float(high), int(count), histogram)
    return found
