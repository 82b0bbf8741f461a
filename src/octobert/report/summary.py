"""A report as rows of a table: what the terminal and the HTML page both show. Reads plain data, computes nothing new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from octobert.core.measurements import Comparison, Footprint, Latency, Score
from octobert.core.results import Report, Search

_BESIDE = 4


@dataclass(frozen=True)
class Shape:
    """A timed shape: rows of a batch × tokens of a row, or rows of the user's data."""

    batch: int
    sequence: int | str

    def __str__(self) -> str:
        return f"{self.batch} × {self.sequence}"


@dataclass(frozen=True)
class Timed:
    """The times of one candidate.

    Args:
        precision: of the arithmetic, 8 bits named where there are any.
        quantized: it is not a float baseline.
        speedup: shape → median of its float baseline divided by this median; None without a baseline.
        elsewhere: the float baseline and its device, if that is another device; else None.
    """

    name: str
    precision: str
    threads: int
    quantized: bool
    latencies: dict[Shape, Latency]
    speedup: dict[Shape, float | None]
    elsewhere: str | None = None


@dataclass(frozen=True)
class Line:
    """One candidate in full."""

    name: str
    quantized: bool
    precision: str
    scores: tuple[Score, ...]
    comparison: Comparison | None
    timed: Timed
    footprint: Footprint


def metrics(report: Report) -> list[str]:
    """The metrics in order."""
    return list(dict.fromkeys(score.metric for scores in report.scores.values() for score in scores))


def beside(report: Report) -> list[str]:
    """The metrics that stand beside a model's other figures: all, or the first where many have a table of their own."""
    found = metrics(report)
    return found if len(found) <= _BESIDE else found[:1]


def shapes(latencies: Sequence[Latency]) -> list[Shape]:
    """The timed shapes in order."""
    return list(dict.fromkeys(Shape(one.batch, one.sequence) for one in latencies))


def timed(latencies: Sequence[Latency], footprints: Sequence[Footprint], reference: Mapping[str, str]) -> list[Timed]:
    """Times by candidate.

    Args:
        reference: quantized candidate → its float baseline.
    """
    times: dict[str, dict[Shape, Latency]] = {}
    for one in latencies:
        times.setdefault(one.candidate, {})[Shape(one.batch, one.sequence)] = one
    devices = {footprint.candidate: footprint.device for footprint in footprints}
    found = []
    for footprint in footprints:
        name, own = footprint.candidate, times[footprint.candidate]
        base = times.get(reference.get(name, ""))
        ratios = {s: base[s].percentile_ms(50) / own[s].percentile_ms(50) if base else None for s in own}
        quantized = name in reference
        precision = f"int8 + {footprint.precision}" if quantized else footprint.precision
        baseline = devices.get(reference.get(name, ""), footprint.device)
        elsewhere = None if baseline == footprint.device else f"{reference[name]} ran on the {baseline}"
        found.append(Timed(name, precision, footprint.threads, quantized, own, ratios, elsewhere))
    return found


def lines(report: Report) -> list[Line]:
    """All candidates, baselines first."""
    compared = {c.candidate: c for c in report.comparisons}
    reference = {name: c.reference for name, c in compared.items() if name in report.plans}
    timings = timed(report.latencies, report.footprints, reference)
    half = {name for name, plan in report.plans.items() if plan.float_parts == "float16"}
    timings = [replace(one, precision="int8 + f16") if one.name in half else one for one in timings]
    return [
        Line(one.name, one.quantized, one.precision, report.scores[one.name], compared.get(one.name), one, footprint)
        for one, footprint in zip(timings, report.footprints, strict=True)
    ]


def score_text(score: Score) -> str:
    """`0.8186 [0.779, 0.855]`."""
    return f"{score.value:.4f} [{score.low:.3f}, {score.high:.3f}]"


def ms(value: float) -> str:
    """Milliseconds with the digits that matter."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def probability(p_value: float | None) -> str:
    """`p = 0.15`, or `p < 0.01`."""
    return "" if p_value is None else "p < 0.01" if p_value < 0.01 else f"p = {p_value:.2f}"


def verdicts(report: Report) -> list[str]:
    """One sentence a target: what 8 bits cost and what they gained."""
    found = []
    for line in lines(report):
        comparison = line.comparison
        if not line.quantized or comparison is None:
            continue
        parts = []
        if comparison.difference is not None:
            parts.append(
                f"{comparison.metric} {comparison.difference:+.4f} against {comparison.reference} "
                f"(95 % interval {comparison.low:+.4f} to {comparison.high:+.4f}, {probability(comparison.p_value)})"
            )
        share = comparison.fidelity_name == "agreement"
        parts.append(f"{comparison.fidelity_name} " + (f"{comparison.fidelity:.2%}" if share else f"{comparison.fidelity:.5f}"))
        gains = [f"{ratio:.2f}× at {shape}" for shape, ratio in line.timed.speedup.items() if ratio is not None]
        device = f" ({line.timed.elsewhere}, {line.name} on the {line.footprint.device})" if line.timed.elsewhere else ""
        parts.append(f"speed against {comparison.reference}{device} " + ", ".join(gains))
        found.append(f"{line.name}: " + "; ".join(parts) + ".")
    for target in report.plans:
        stage = report.stages.get(f"export/{target}")
        done = stage.summary if stage is not None else {}
        if done.get("first_token"):
            found.append(
                f"{target}: the head reads the first token only, so the last layer computes no other "
                f"({done['first_token']} matrix products; exact; the float model it is set against computes all)."
            )
        if done.get("fast_norms"):
            found.append(
                f"{target}: {done['fast_norms']} norms are written as InstanceNormalization, which is faster on "
                f"{report.environment.cores} cores (exact; for a machine with many cores, run octobert there)."
            )
    found += [f"{target}: {searched(search)}." for target, search in report.searches.items()]
    for target, one in report.simulations.items():
        own = next((f"{s.metric} {s.value:.4f} there; " for s in one.scores if s.metric == report.task.primary), "")
        found.append(
            f"{target}: the exported model beside what was trained with its values rounded in PyTorch, on {one.rows:,} rows: "
            f"{own}{one.name} {one.agreement:.2%}, outputs differ by {one.error:.4f} (root mean square)."
        )
    return found


def trainings(report: Report) -> list[str]:
    """One sentence a training: how long, how fast, how far."""
    found = []
    for name, what in (("finetune", "Fine-tuned in float"), ("qat", "Trained on with values rounded")):
        settings, stage = report.recipe.get(name), report.stages.get(name)
        if settings is None or stage is None:
            continue
        done = stage.summary
        steps = f"{done['steps']:,} steps, last loss {done['loss']:.4f}" if "steps" in done else f"by {settings['code']}"
        parts = [f"{what} on {done['texts']:,} texts: {steps}, {stage.seconds:.0f} s"]
        parts.append(f"rate {settings['learning_rate']:g}, {settings['epochs']:g} epochs, batch {settings['batch']}")
        if settings.get("distill"):
            parts.append(f"{settings['distill']['share']:.0%} of the loss a teacher's")
        if name == "qat":
            parts.append(f"ranges {settings['ranges']}, their ends moved by {done['moved']:.1%} of their width (median)")
        found.append("; ".join(parts) + ".")
    return found


def searched(search: Search) -> str:
    """What an accuracy search found, in a sentence without a final stop."""
    back = len(search.taken.fallback)
    stepped = "everything planned stays in 8 bits" if not back else f"{back} parts step back from 8 bits"
    verdict = "met" if search.met else "MISSED"
    return (
        f"“{search.criterion}” {verdict} on {search.taken.rows} tuning rows ({search.metric} {search.taken.value:.4f}, float "
        f"{search.float_value:.4f}) after {len(search.trials)} trials in {search.seconds:.0f} s; {stepped}; {search.ended}"
    )


def warnings(report: Report) -> list[str]:
    """What a reader must know before believing the figures."""
    data, found = report.data, []
    if data.leaked_rows:
        found.append(
            f"{data.leaked_rows} calibration rows are also evaluated (allow_leakage: true), so the scores are flattered."
        )
    if data.dropped_rows:
        found.append(f"{data.dropped_rows} rows were left out of calibration because they are also evaluated.")
    evaluated = [stage.summary for name, stage in report.stages.items() if name.startswith("evaluate/")]
    cut = max((summary.get("truncated", 0) for summary in evaluated), default=0)
    if cut:
        found.append(f"{cut} evaluated texts were longer than the model takes, and were cut.")
    found += [f"{name} was written, and not measured: {report.absent[name]}." for name in report.plans if name in report.absent]
    found += [f"{name} was not measured: {why}." for name, why in report.absent.items() if name not in report.plans]
    return found
