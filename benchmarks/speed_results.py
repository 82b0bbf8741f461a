"""Results of `speed.py` as data: one JSON file for each kind of CPU, number of cores and model, in `benchmarks/results`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from octobert.core import cpus
from octobert.core.errors import OctobertError
from octobert.core.files import atomic_write
from octobert.core.frozen import FrozenModel, first_problem
from octobert.core.measurements import RESAMPLES
from octobert.evaluation.statistics import CONFIDENCE

RESULTS = Path(__file__).parent / "results"
# The shapes of the goals: at most GOAL of a rival's time on average, and at none of them more than the rival's.
GOAL_SHAPES = ("1 × 16", "1 × 53", "1 × 128", "8 × 64")
GOAL = 0.90
# Goals of texts: latency relative to NNCF's loop without padding, throughput relative to the loop of NNCF's notebook.
GOAL_SINGLE, GOAL_TIMES = 0.85, 4.5
# Target → what it is compared with → the systems that this may be. The fastest of them counts: OpenVINO's own default is
# bfloat16 where the CPU has it.
RIVALS: dict[str, dict[str, tuple[str, ...]]] = {
    "octobert openvino-cpu": {
        "NNCF": ("NNCF", "NNCF, bf16"),
        "OpenVINO, float": ("OpenVINO", "OpenVINO, bf16"),
    },
    "octobert ort-cpu": {
        "quantize_dynamic": ("onnxruntime quantize_dynamic",),
        "ONNX Runtime, float": ("ONNX Runtime",),
    },
}
# The target whose single rows run on models of static lengths; what it is compared with is that of the target before the comma.
STATIC = "octobert openvino-cpu, static lengths"
BF16 = {"avx512_bf16", "amx_bf16"}


class Spread(FrozenModel):
    """Repeated measurements of one thing.

    Args:
        median: of all of them.
        low, high: the quartiles; None where they were not recorded.
        count: of the measurements; None where it was not recorded.
    """

    median: float
    low: float | None = None
    high: float | None = None
    count: int | None = None


class Ratio(FrozenModel):
    """A value with its 95 % interval, which is None where the single measurements were not recorded."""

    value: float
    low: float | None = None
    high: float | None = None


class Compared(FrozenModel):
    """Times of an octobert target divided by those of a rival, measured in turn.

    Args:
        target, rival: names of systems.
        shapes: shape → ratio of the medians.
        mean: over those of `GOAL_SHAPES` that both were timed on; None if there are none.
    """

    target: str
    rival: str
    shapes: dict[str, Ratio]
    mean: Ratio | None = None

    @property
    def worst(self) -> str | None:
        """The one of `GOAL_SHAPES` with the largest ratio."""
        return max(
            (shape for shape in GOAL_SHAPES if shape in self.shapes),
            key=lambda s: self.shapes[s].value,
            default=None,
        )


class Singles(FrozenModel):
    """Latency of real texts, one by one: strings in, labels out.

    Args:
        texts: number of texts.
        systems: system → milliseconds, over the texts.
        ratios: target → rival → median over the texts of the ratio of their times for one text.
    """

    texts: int
    systems: dict[str, Spread]
    ratios: dict[str, dict[str, Ratio]] = Field(default_factory=dict)


class Loop(FrozenModel):
    """A system that takes all texts.

    Args:
        rate: rows per second.
        accuracy: share of right labels, for checkpoints that were trained; None for others.
        change: of the accuracy compared with the float model on the same rows.
    """

    rate: Spread
    accuracy: float | None = None
    change: Ratio | None = None


class Throughput(FrozenModel):
    """From strings to labels, on all texts of one source.

    Args:
        rows: number of texts.
        loops: `system: how it takes texts` → its figures.
    """

    rows: int
    loops: dict[str, Loop]


class Limit(FrozenModel):
    """The matrix products alone.

    Args:
        rates: `8-bit` and `float32` → billions of multiply-adds per second that were measured.
        shapes: shape → milliseconds of the model's products at these rates.
    """

    rates: dict[str, float]
    shapes: dict[str, float]


class Made(FrozenModel):
    """What a system is: `INT8` or `float`, and the precision of its float parts."""

    kind: Literal["INT8", "float"]
    float_parts: str


class Result(FrozenModel):
    """One run of `speed.py` on one model.

    Args:
        schema_version: of this form.
        benchmark: its name.
        kind: of the CPU (`kind_of`).
        model: short name, part of the name of the file.
        title: of the model.
        date: when it was measured; None if that was not recorded.
        cpu: model name of the CPU.
        features: its instruction sets that matter for 8 bits, as `octobert doctor` lists them.
        cores: that the run used.
        versions: package → version.
        command: that measured it. Paths are shortened.
        rounds: what the command asked for; each figure has its own count.
        others: cores that other programs kept busy meanwhile.
        partial: what is missing in this result and where it comes from; "" for a whole run.
        note: on this run.
        systems: name → what it is.
        shapes: system → shape → milliseconds.
        compared: octobert's targets with their rivals, on shapes.
        singles: source of texts → latency of single texts.
        throughput: source of texts → rows per second.
        starts: what → seconds in a new process.
        limit: of the machine.
        left_out: system or figure → why it was not measured.
    """

    schema_version: Literal[1] = 1
    benchmark: Literal["speed"] = "speed"
    kind: str
    model: str = Field(pattern=r"[a-z0-9-]+")
    title: str
    date: str | None = Field(default=None, pattern=r"\d{4}-\d\d-\d\d")
    cpu: str
    features: tuple[str, ...]
    cores: int
    versions: dict[str, str] = Field(default_factory=dict)
    command: str = ""
    rounds: int | None = None
    others: float | None = None
    partial: str = ""
    note: str = ""
    systems: dict[str, Made]
    shapes: dict[str, dict[str, Spread]]
    compared: tuple[Compared, ...] = ()
    singles: dict[str, Singles] = Field(default_factory=dict)
    throughput: dict[str, Throughput] = Field(default_factory=dict)
    starts: dict[str, float] = Field(default_factory=dict)
    limit: Limit | None = None
    left_out: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Self:
        if self.kind != kind_of(self.features, self.cpu):
            raise ValueError(
                f"the kind is {self.kind}, the features are those of {kind_of(self.features, self.cpu)}"
            )
        unknown = self.shapes.keys() - self.systems.keys()
        if unknown:
            raise ValueError(
                f"times of systems that `systems` does not name: {', '.join(sorted(unknown))}"
            )
        return self

    @property
    def file_name(self) -> str:
        """A run with other cores does not replace this one: figures depend on them more than on most else."""
        return f"{self.benchmark}-{self.kind}-{self.model}-{self.cores}-core{'s' * (self.cores > 1)}.json"

    def compared_with(self, target: str, what: str) -> Compared | None:
        """The comparison with the fastest system that `RIVALS` has for this name."""
        rivals = RIVALS[target.split(",")[0]][what]
        own = [
            each
            for each in self.compared
            if each.target == target and each.rival in rivals and each.mean
        ]
        return max(own, key=lambda each: each.mean.value if each.mean else 0.0, default=None)


def kind_of(features: Iterable[str], cpu: str = "") -> str:
    """The kind of a CPU: its fastest instructions for 8-bit products; its name where the system does not list them.

    Example:
        >>> kind_of(("avx2", "avx512f", "avx512_vnni", "amx_int8")), kind_of(("asimddp",)), kind_of((), "Apple M4")
        ('amx', 'arm-dotprod', 'apple-m4')
    """
    kind = cpus.kind_of(tuple(features))
    name = re.sub(r"[^a-z0-9]+", "-", cpu.lower()).strip("-")
    return kind.name if kind else name or "unknown"


def spread(samples: Sequence[float]) -> Spread:
    """Median and quartiles."""
    low, median, high = (float(each) for each in np.percentile(samples, (25, 50, 75)))
    return Spread(median=_short(median), low=_short(low), high=_short(high), count=len(samples))


def ratio(own: Sequence[float], rival: Sequence[float]) -> Ratio:
    """Ratio of the medians of times that were measured in turn; the interval is a bootstrap over the rounds.

    Args:
        own, rival: [rounds] times in the same rounds.
    """
    return _ratio(*_resampled(own, rival))


def compared(
    target: str, rival: str, times: Mapping[str, Mapping[str, Sequence[float]]]
) -> Compared:
    """An octobert target and a rival, on all shapes that both were timed on.

    Args:
        target, rival: names of systems.
        times: system → shape → [rounds] milliseconds, in the same rounds.
    """
    shapes = [shape for shape in times[target] if shape in times[rival]]
    both = {shape: _resampled(times[target][shape], times[rival][shape]) for shape in shapes}
    goal = [both[shape] for shape in shapes if shape in GOAL_SHAPES]
    mean = (
        _ratio(
            float(np.mean([value for value, _ in goal])),
            np.mean([draws for _, draws in goal], axis=0),
        )
        if goal
        else None
    )
    return Compared(
        target=target,
        rival=rival,
        shapes={shape: _ratio(*each) for shape, each in both.items()},
        mean=mean,
    )


def per_text(own: Sequence[float], rival: Sequence[float]) -> Ratio:
    """Median over texts of the ratio of two times; the interval is a bootstrap over the texts.

    Args:
        own, rival: [texts] milliseconds for the same texts.
    """
    ratios = np.array(own) / np.array(rival)
    return _ratio(float(np.median(ratios)), np.median(ratios[_drawn(len(ratios))], axis=1))


def change_of_accuracy(own: Sequence[bool], floating: Sequence[bool]) -> Ratio:
    """Difference of two accuracies on the same rows; the interval is a paired bootstrap over the rows."""
    differences = np.array(own, dtype=float) - np.array(floating, dtype=float)
    return _ratio(float(differences.mean()), differences[_drawn(len(differences))].mean(axis=1))


def write(result: Result, folder: Path) -> Path:
    """Write the file of a result; one of the same kind, cores and model is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / result.file_name
    with atomic_write(path) as partial:
        partial.write_text(
            result.model_dump_json(indent=1, exclude_none=True) + "\n", encoding="utf-8"
        )
    return path


def read_all(folder: Path) -> list[Result]:
    """All results of a folder, sorted by kind (the one with the fastest instructions first), model and cores.

    Raises:
        OctobertError: there is none, one is damaged, or has the name of another one.
    """
    results = [read(path) for path in sorted(folder.glob("speed-*.json"))]
    if not results:
        raise OctobertError(
            "there are no results",
            where=str(folder),
            expected="speed-*.json",
            fix="measure first: python benchmarks/speed.py",
        )
    order = [kind.name for kind in cpus.KINDS]
    return sorted(
        results,
        key=lambda r: (
            order.index(r.kind) if r.kind in order else len(order),
            r.kind,
            r.model,
            -r.cores,
        ),
    )


def read(path: Path) -> Result:
    """One result.

    Raises:
        OctobertError: it is damaged, or its name is not the one that its content makes.
    """
    fix = "measure again: python benchmarks/speed.py"
    try:
        result = Result.model_validate_json(path.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise OctobertError(
            "not a result of speed.py", where=path.name, got=first_problem(error), fix=fix
        ) from error
    if path.name != result.file_name:
        raise OctobertError(
            "the name is not that of the content",
            where=path.name,
            expected=result.file_name,
            fix="rename it",
        )
    return result


def without_paths(text: str) -> str:
    """A text whose absolute paths are reduced to their last two parts.

    Example:
        >>> without_paths("--texts /home/me/data/mrpc/validation.tsv: 1/2")
        '--texts mrpc/validation.tsv: 1/2'
    """
    return re.sub(
        r"(?<![\w.])(?:~|\.\.?)?(?:/[\w.+-]+)+",
        lambda found: "/".join(found[0].split("/")[-2:]).lstrip("/"),
        text,
    )


def _resampled(own: Sequence[float], rival: Sequence[float]) -> tuple[float, np.ndarray]:
    """(ratio of the medians, the same of every resample of the rounds)."""
    ours, theirs = np.array(own), np.array(rival)
    drawn = _drawn(len(ours))
    draws = np.median(ours[drawn], axis=1) / np.median(theirs[drawn], axis=1)
    return float(np.median(ours) / np.median(theirs)), draws


def _drawn(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, count, (RESAMPLES, count))


def _ratio(value: float, draws: np.ndarray) -> Ratio:
    tail = (1 - CONFIDENCE) / 2 * 100
    low, high = np.percentile(draws, [tail, 100 - tail])
    return Ratio(value=_short(value), low=_short(float(low)), high=_short(float(high)))


def _short(value: float) -> float:
    """Four digits: more is noise, and makes files larger."""
    return float(f"{value:.4g}")
