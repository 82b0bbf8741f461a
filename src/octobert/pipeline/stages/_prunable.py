"""The model that is pruned, with the rows that its weights are fitted to; and models with fewer heads and neurons as files of a
target, for timing: any ranges do there, as times do not depend on them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert import targets
from octobert.config.recipe import Choice
from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.core.frozen import FrozenModel
from octobert.core.pruning import LeftWhole, Sublayer
from octobert.core.ranges import Interval, Provenance, Ranges
from octobert.core.session import Session, SessionEntries, SessionOptions
from octobert.data.tokenization import Encoded, EncodedTexts, Tokenizer
from octobert.evaluation import candidates
from octobert.evaluation.level_times import Cut
from octobert.graph import cutting, operators, sites
from octobert.inference.batching import run_rows
from octobert.pipeline.contract import ScoredTask, StepResult, TaskSpec
from octobert.pipeline.stages import _artifacts, _plans, export
from octobert.quantization.pruning.sublayer_losses import Overridden
from octobert.tasks import Result, Task

# Texts that are tokenized at a time, until there are enough tokens.
_ENCODED = 256
# Rows that losses are measured on, and their tokens: the same rows for all, so that few settle which is larger.
LOSS_ROWS, LOSS_TOKENS = 256, 16_384
# Neurons are removed in multiples of this: the tiles of 8-bit kernels have 16 rows or columns of 64 bytes.
TILE = 64
_RANGE = 4.0


class Timing(FrozenModel):
    """How the 8-bit models are made that are timed.

    Args:
        method: of quantization.
        entries: how sessions of the target are opened.
        form: what the target's files are like.
        lengths: that the user has named; none for those of the rows.
        batch, threads: of the timing; with 0 threads the runtime chooses.
    """

    method: Choice
    entries: SessionEntries
    form: export.Form
    lengths: tuple[int, ...]
    batch: int
    threads: int


def levels_of(sublayer: Sublayer) -> list[int]:
    """The levels of a sublayer, ascending: every number of heads, or every multiple of 64 neurons, from none to all.

    Example:
        >>> levels_of(Sublayer(layer=0, kind="ffn", module="m", units=150, width=1))
        [0, 64, 128, 150]
    """
    return [*range(0, sublayer.units, TILE if sublayer.kind == "ffn" else 1), sublayer.units]


def is_last(sublayer: Sublayer, sublayers: Sequence[Sublayer]) -> bool:
    """Whether a sublayer is in the last layer."""
    return sublayer.layer == max(other.layer for other in sublayers)


def units_of(cut: Cut | None, sublayers: Sequence[Sublayer]) -> dict[str, int]:
    """Module → its units in a model of which levels are timed, for the sublayers that it cuts."""
    if cut is None:
        return {}
    larger = [
        sublayer
        for sublayer in sublayers
        if sublayer.kind == cut.kind and sublayer.units > cut.units
    ]
    return {
        sublayer.module: cut.units
        for sublayer in [s for s in larger if is_last(s, sublayers) == cut.last] or larger
    }


def open_cut(
    capture: StepResult, units: Mapping[str, int], folder: Path, timing: Timing
) -> Session:
    """Write a model in the form of a target, and open it.

    Args:
        units: module → the heads or neurons that are left, for sublayers that are cut.
        folder: to write into.
    """
    family = _artifacts.family_of(capture)
    folder.mkdir(exist_ok=True)
    model = ir.load(capture.path(_artifacts.FLOAT))
    if units:
        cutting.cut_(model, family, {module: np.arange(left) for module, left in units.items()})
        cutting.fold_(model)
    graph, quantized = folder / "cut.onnx", folder / _artifacts.QUANTIZED
    operators.save(model, graph)
    values = {site.value for site in sites.find_sites(model.graph, family) if not site.is_weight}
    plan = _plans.plan_of(capture, graph, _any_ranges(values), timing.form.target, timing.method)
    _plans.write_quantized(graph, plan, {}, quantized)
    export.write(plan, quantized, timing.form, folder)
    target = targets.load(timing.form.target)
    return target.open_session(
        target.model_file(folder), SessionOptions(threads=timing.threads, entries=timing.entries)
    )


def _any_ranges(values: set[str]) -> Ranges:
    """The same range for every value."""
    interval = Interval(low=-_RANGE, high=_RANGE, bound=_RANGE)
    nothing = Provenance(samples=0, tokens=0, data_digest="", model_digest="", source="")
    return Ranges(
        calibrator="minmax",
        options={},
        intervals=dict.fromkeys(sorted(values), interval),
        provenance=nothing,
    )


@dataclass(frozen=True)
class Whole:
    """The model that is pruned, and its rows.

    Args:
        path: its float graph.
        rows: that weights are fitted to.
        compared: some of them, that losses are measured on.
        seconds: by step.
    """

    path: Path
    family: EncoderFamily
    tokenizer: Tokenizer
    task: Task
    sublayers: tuple[Sublayer, ...]
    rows: tuple[Encoded, ...]
    compared: EncodedTexts
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time of a block to a step."""
        began = time.monotonic()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.monotonic() - began

    def result_of(self, session: Session | Overridden) -> Result:
        """Result of a session on the rows that losses are measured on."""
        rows, pad_id = self.compared.flat, self.tokenizer.pad_id
        outputs = run_rows(session, rows, pad_id, per_token=self.task.per_token)
        return Result(outputs, self.compared)


def open_graph(path: Path, head: str) -> Session:
    """A float graph in ONNX Runtime."""
    return candidates.open_candidate(
        candidates.Candidate(name=candidates.REFERENCE.name, path=str(path), head=head), 0
    )


def whole_of(
    capture: StepResult, data: StepResult, scored: ScoredTask, most_tokens: int
) -> tuple[Whole, tuple[LeftWhole, ...]]:
    """The model with its rows; the parts that cannot be pruned.

    Args:
        scored: the task of the recipe.
        wanted: tokens of the rows.

    Raises:
        ModelError: nothing can be pruned.
    """
    # Divergences are of the task's own outputs, whatever metrics the recipe has.
    task = TaskSpec.build(scored)
    tokenizer, family = _artifacts.tokenizer_of(capture, task), _artifacts.family_of(capture)
    path = capture.path(_artifacts.FLOAT)
    sublayers, left = cutting.find(ir.load(path).graph, family)
    if not sublayers:
        raise ModelError(
            "no heads or neurons of this model can be removed",
            where="prune",
            got="; ".join(f"{part.module}: {part.reason}" for part in left[:3]),
            fix="remove prune from the recipe",
        )
    texts = texts_of(data)
    rows: list[Encoded] = []
    tokens = 0
    for start in range(0, len(texts), _ENCODED):
        if tokens >= most_tokens:
            break
        for row in _artifacts.encoded(texts[start : start + _ENCODED], task, tokenizer).flat:
            if tokens < most_tokens:
                rows.append(row)
                tokens += len(row)
    compared = _compared(_artifacts.encoded(texts[:LOSS_ROWS], task, tokenizer))
    return Whole(path, family, tokenizer, task, tuple(sublayers), tuple(rows), compared), tuple(
        left
    )


def texts_of(data: StepResult) -> list[Any]:
    """The texts that weights are fitted to: the calibration rows, and the training rows behind them."""
    return [
        text
        for name in ("calibration.json", "fitting.json")
        for text in data.read_json(name)["inputs"]
    ]


def _compared(encoded: EncodedTexts) -> EncodedTexts:
    """The first texts, up to the tokens that losses are measured on."""
    ends = np.cumsum([sum(map(len, rows)) for rows in encoded.rows])
    count = max(1, int(np.searchsorted(ends, LOSS_TOKENS, side="right")))
    return EncodedTexts(encoded.texts[:count], encoded.rows[:count], encoded.tokenizer)
