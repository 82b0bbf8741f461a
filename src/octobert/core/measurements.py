"""Measurements as data: scores, paired comparisons, latencies, speedups, memory.

Names carry units. Measurements keep their raw samples or confidence intervals, and the precision that the runtime reports.
"""

from __future__ import annotations

import numpy as np

from octobert.core.frozen import FrozenModel


class Score(FrozenModel):
    """A metric with its 95 % confidence interval.

    Args:
        metric: its name.
        value: on all rows.
        low: lower end of the interval (percentile bootstrap over items).
        high: upper end of the interval.
        rows: evaluation rows.
        chance: the best value on these rows of a model that does not read its input, such as the share of the most frequent
            class; None where the task does not say.
    """

    metric: str
    value: float
    low: float
    high: float
    rows: int
    chance: float | None = None


class Comparison(FrozenModel):
    """A quantized model compared with a float baseline on the same rows.

    Args:
        candidate: name of the quantized model.
        reference: name of the float baseline.
        metric: name of the metric; None for data without labels.
        difference: metric of the candidate minus metric of the reference.
        low: lower end of the paired 95 % confidence interval of the difference.
        high: upper end of that interval.
        p_value: of the hypothesis "no difference": exact McNemar test for accuracy, otherwise the paired bootstrap.
        fidelity_name: what `fidelity` measures, such as agreement.
        fidelity: how closely the candidate follows the reference.
        fidelity_chance: `fidelity` of a candidate that always gives the reference's most frequent answer; 1 where the reference
            has only one answer, so that agreement says nothing. None where the task does not say.
        output_error: root mean square difference of the raw outputs.
        changed: items with another answer: index, expected answer, answer of the reference, answer of the candidate.
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
    fidelity_chance: float | None = None


class Latency(FrozenModel):
    """Latencies of one candidate at one shape.

    Args:
        candidate: its name.
        batch: rows of a batch.
        sequence: tokens of a row, or `data` for evaluation rows.
        samples_ms: raw samples in the order of measurement.
        rows: rows of all samples together.
        tokens: tokens of all samples together, without padding.
    """

    candidate: str
    batch: int
    sequence: int | str
    samples_ms: tuple[float, ...]
    rows: int
    tokens: int

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the samples.

        Args:
            percent: from 0 to 100.
        """
        return float(np.percentile(self.samples_ms, percent))

    @property
    def rows_per_second(self) -> float:
        """Throughput of one batch after another."""
        return self.rows / (sum(self.samples_ms) / 1000.0)


class Speedup(FrozenModel):
    """How many times as fast as a float model a model is, at one shape.

    Args:
        candidate: name of the model.
        reference: name of the float model.
        batch: rows of a batch.
        sequence: tokens of a row, or `data` for evaluation rows.
        ratio: median time of the reference divided by the median time of the candidate.
        low: lower end of the 95 % confidence interval of the ratio (bootstrap over the rounds that timed both).
        high: upper end of that interval.
    """

    candidate: str
    reference: str
    batch: int
    sequence: int | str
    ratio: float
    low: float
    high: float


class Load(FrozenModel):
    """What else a machine did while models were timed.

    Args:
        cores: number of cores.
        others: cores that other programs used, on average.
        stolen: share of the CPU time that the hypervisor gave to other machines (0 where it is not known).
    """

    cores: int
    others: float
    stolen: float


class Footprint(FrozenModel):
    """Load time, size and memory of a candidate, measured in a process of its own.

    Args:
        candidate: its name.
        load_ms: time to open the model.
        size_bytes: size of the files that are opened.
        peak_memory_bytes: peak memory of the process after it has run all shapes.
        precision: precision of the float operators, as the runtime reports it.
        threads: threads of one inference.
        device: what it ran on, such as `CPU` or `NVIDIA GPU`.
    """

    candidate: str
    load_ms: float
    size_bytes: int
    peak_memory_bytes: int
    precision: str
    threads: int
    device: str = "CPU"
