"""Times of models as rows and sentences: latencies, speedups over float models, and what made them unreliable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from octobert.config.measuring import Benchmark
from octobert.core import wording
from octobert.core.measurements import Figures, Latency, Load, Speedup, Throughput, TimedShape

# Share of the cores that other programs use, and of CPU time that the hypervisor takes, above which a machine is called busy.
_BUSY, _STOLEN = 0.1, 0.02
# p99 / p50 of equal inputs above which times are called noisy; on an idle machine it is below 1.5.
_NOISY = 2.0
# Statistics that tables show; the JSON has all.
SHOWN = ("min", "avg", "p50", "p90", "p99", "max")


@dataclass(frozen=True)
class Timing:
    """The times of one model, of one inference after another or of inferences at the same time.

    Args:
        name: of the model; with the number of streams, for inferences at the same time.
        precision: of the arithmetic; 8 bits come first.
        threads: of one inference.
        quantized: not a float baseline.
        latencies: shape → times and rates.
        baseline: shape → speedup over the float baseline; empty for float models.
        fastest: shape → speedup over the fastest float form on the same runtime; empty where that is the baseline.
        elsewhere: the float baseline and its device, if that is another device; else None.
    """

    name: str
    precision: str
    threads: int
    quantized: bool
    latencies: dict[TimedShape, Latency | Throughput]
    baseline: dict[TimedShape, Speedup]
    fastest: dict[TimedShape, Speedup]
    elsewhere: str | None = None


def timings(
    models: Sequence[Figures], precisions: Mapping[str, str], *, together: bool = False
) -> list[Timing]:
    """Return the times of each timed model, in order.

    Args:
        models: all models of a run or a benchmark.
        precisions: model → its arithmetic; that which the runtime reports is taken for those that are not in it.
        together: times of inferences at the same time, where they were measured.
    """
    devices = {
        figures.model: figures.footprint.device
        for figures in models
        if figures.footprint is not None
    }
    result = []
    for figures in models:
        footprint, title = figures.footprint, figures.model
        timed = figures.throughputs if together else figures.times
        if footprint is None or not timed:
            continue
        threads, first = footprint.threads, timed[0]
        if isinstance(first, Throughput):
            title += f", {first.streams} stream{'' if first.streams == 1 else 's'}"
            title += f", {first.requests} requests" if first.requests != first.streams else ""
            threads = first.threads
        over: dict[str, dict[TimedShape, Speedup]] = {}
        for speedup in figures.ratios if together else figures.speedups:
            over.setdefault(speedup.reference, {})[speedup.shape] = speedup
        reference = next(iter(over), "")
        strongest = min(
            over,
            key=lambda rival: prod(speedup.ratio.value for speedup in over[rival].values()),
            default="",
        )
        device = devices.get(reference, footprint.device)
        elsewhere = None if device == footprint.device else f"{reference} ran on the {device}"
        result.append(
            Timing(
                name=title,
                precision=precisions.get(figures.model, footprint.precision),
                threads=threads,
                quantized=bool(over),
                latencies={one.shape: one for one in timed},
                baseline=over.get(reference, {}),
                fastest=over[strongest] if strongest != reference else {},
                elsewhere=elsewhere,
            )
        )
    return result


def how(settings: Benchmark, throughputs: Sequence[Throughput]) -> list[str]:
    """Return sentences on how times were measured: turns, warm-up, pauses, tokens.

    Args:
        settings: of the benchmark.
        throughputs: that it measured.
    """
    pause = f"a pause of {settings.pause_ms:g} ms"
    before = f"; {settings.warmup} more before the first round" if settings.warmup else ""
    sentences = [
        f"Latency: one inference after another. Before each timed run: {pause}, and one untimed run of the same inputs{before}."
    ]
    if throughputs:
        turns = throughputs[0].turns
        length = f"{sum(turn.seconds for turn in turns) / len(turns):.2g} s"
        more = f" and {settings.warmup} more" if settings.warmup else ""
        sentences.append(
            f"Streams: inferences at the same time, {len(turns)} turns of {length} for each model and shape, in the order A B, "
            f"B A, …, each after {pause}. Before its first turn, each request runs every batch{more} untimed. Ratios are those "
            "of rows per second in the same round."
        )
    return [*sentences, "Tokens per second do not count padding."]


def strongest(timing: Timing) -> dict[TimedShape, Speedup]:
    """Return the speedups of a model over the fastest float form that was timed on its runtime."""
    return timing.fastest or timing.baseline


def rival_of(timing: Timing) -> str:
    """Return the name of the fastest float form that was timed on a model's runtime."""
    return next((speedup.reference for speedup in strongest(timing).values()), "")


def speed(timing: Timing) -> list[str]:
    """Return sentences on how fast a quantized model is: compared with its float baseline and with the fastest float form."""
    if not timing.baseline:
        return []
    reference = next(iter(timing.baseline.values())).reference
    device = f" ({timing.elsewhere})" if timing.elsewhere else ""
    figures = [f"{_span(timing.baseline)} × {reference}{device}"]
    if timing.fastest:
        figures.append(
            f"{_span(timing.fastest)} × {rival_of(timing)} (the fastest float form here)"
        )
    sentences = [f"{timing.name}: speed {', '.join(figures)}."]
    over = strongest(timing)
    slow = [
        f"{shape} ({wording.estimate_text(speedup.ratio)}, {'slower' if speedup.ratio.high < 1 else 'within noise'})"
        for shape, speedup in over.items()
        if speedup.ratio.low <= 1
    ]
    if slow:
        where = "any timed shape: " if len(slow) == len(over) else ""
        verdict = (
            "not faster"
            if any(speedup.ratio.high < 1 for speedup in over.values())
            else "not clearly faster"
        )
        sentences.append(
            f"{timing.name} is {verdict} than {rival_of(timing)} at {where}{', '.join(slow)}."
        )
    return sentences


def _span(speedups: Mapping[TimedShape, Speedup]) -> str:
    """The ratios of all shapes; the ratio with its interval where there is one shape."""
    ratios = [speedup.ratio for speedup in speedups.values()]
    if len(ratios) == 1:
        return wording.estimate_text(ratios[0])
    values = [ratio.value for ratio in ratios]
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def noise(latencies: Sequence[Latency], load: Load | None) -> list[str]:
    """Return sentences on what makes times unreliable: a busy machine, and times that vary."""
    sentences = []
    if load is not None and (load.others > _BUSY * load.cores or load.stolen > _STOLEN):
        stolen = (
            f", and the hypervisor took {load.stolen:.0%} of the CPU time"
            if load.stolen > _STOLEN
            else ""
        )
        sentences.append(
            f"The machine was busy during the timing: other programs used {load.others:.1f} of {load.cores} cores{stolen}. "
            "Compare models with each other, and repeat absolute times on an idle machine."
        )
    # Rows of the data differ in length, so their times differ on an idle machine too.
    spread = {
        latency: latency.percentile_ms(99) / latency.percentile_ms(50)
        for latency in latencies
        if latency.sequence != "data"
    }
    worst = max(spread, key=spread.__getitem__, default=None)
    if worst is not None and spread[worst] > _NOISY:
        sentences.append(
            f"The times vary: p99 is up to {spread[worst]:.1f} × p50 ({worst.candidate} at "
            f"{worst.shape}). Speedups compare medians; their intervals include this."
        )
    return sentences
