"""Measured figures as data: scores, paired comparisons, latencies, memory.

Every figure carries its unit in its name, its raw samples or its interval, and the precision that really ran.
"""

from __future__ import annotations

import numpy as np

from octobert.core.frozen import FrozenModel


class Score(FrozenModel):
    """A metric with its 95 % interval (percentile bootstrap over items)."""

    metric: str
    value: float
    low: float
    high: float
    rows: int


class Comparison(FrozenModel):
    """A quantized model against the float model of the same runtime, on the same rows.

    Args:
        candidate, reference: names of the two.
        metric: what was compared; None where the data has no gold.
        difference: metric of candidate minus metric of reference, with its paired 95 % interval.
        p_value: of "no difference": exact McNemar for accuracy, the paired bootstrap centred on zero otherwise.
        fidelity: name and value of how closely the candidate follows the reference.
        output_error: root mean square difference of the raw outputs.
        changed: items that came out otherwise: index, what was expected, what the reference said, what the candidate says.
    """

    candidate: str
    reference: str
    metric: str | None
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    fidelity_name: str
    fidelity: float
    output_error: float
    changed: tuple[tuple[int, str, str, str], ...]


class Latency(FrozenModel):
    """Times of one candidate at one shape.

    Args:
        candidate: its name.
        batch, sequence: rows of a batch; tokens of a row, or `data` for rows of the user's data.
        samples_ms: raw, in the order they were taken.
        rows: rows in all samples together.
        tokens: real tokens in all samples together.
    """

    candidate: str
    batch: int
    sequence: int | str
    samples_ms: tuple[float, ...]
    rows: int
    tokens: int

    def percentile_ms(self, percent: float) -> float:
        """Percentile of the samples."""
        return float(np.percentile(self.samples_ms, percent))

    @property
    def rows_per_second(self) -> float:
        """Throughput of this candidate run alone, one batch after another."""
        return self.rows / (sum(self.samples_ms) / 1000.0)


class Footprint(FrozenModel):
    """What a candidate costs beside time, measured in a process of its own.

    Args:
        load_ms: from opening the file to being ready.
        size_bytes: of the files it opens.
        peak_memory_bytes: of the whole process, after all shapes were run.
        precision: arithmetic of its float parts, as the runtime reports it.
        device: what it ran on, such as `CPU` or `NVIDIA GPU`.
    """

    candidate: str
    load_ms: float
    size_bytes: int
    peak_memory_bytes: int
    precision: str
    threads: int
    device: str = "CPU"
