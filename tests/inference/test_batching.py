"""Which rows run together, to which length they are padded, and the measured times that decide it."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import octobert
from octobert import targets
from octobert.core.session import MAX_RUN_TOKENS, Feeds, SessionOptions
from octobert.inference import batching, cost_model
from octobert.inference.batching import Batch, make_batches, shared_length
from octobert.inference.cost_model import (
    CostModel,
    measure_cost_model,
    read_or_measure_cost_model,
    stored_path,
)
from octobert.inference.opened import FinishedModel, open_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for each test."""
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ---- batching


def total(
    batches: list[Batch], lengths: list[int], cost: CostModel, seen: set[tuple[int, int]]
) -> float:
    """The cost of batches, one after another."""
    assert all(batch.length >= max(lengths[i] for i in batch.rows) for batch in batches)
    new = [
        0.0 if b.shape in seen else cost.new_shape_ms / (1 if b.length % 8 else 2) for b in batches
    ]
    return sum(float(cost.batch_ms(np.array([len(b.rows)]), b.length)[0]) for b in batches) + sum(
        new
    )


def steps(rows: int, length: int) -> float:
    """Tiles of 16 tokens; what does not fill its last tile is masked, at an extra cost."""
    return 3.0 + 2.4 * -(-rows * length // 16) + (1.5 if rows * length % 16 else 0.0)


# Points on both sides of every step.
_EDGES = tuple(sorted({max(1, 16 * k + d) for k in range(41) for d in (-1, 0, 1)}))
STEPS = CostModel(
    tokens=_EDGES,
    ms=tuple(steps(1, n) for n in _EDGES),
    square_ms=0.0,
    lengths=tuple(range(16, 129, 16)),
    margin=0.05,
)


@pytest.mark.parametrize("new_shape_ms", [0.0, 20.0])
@pytest.mark.parametrize("seed", range(5))
def test_batches_are_the_cheapest(seed: int, new_shape_ms: float) -> None:
    generator = np.random.default_rng(seed)
    lengths = [int(n) for n in generator.integers(1, 60, 9)]
    own = float(generator.integers(0, 30))
    cost = CostModel(
        tokens=(0, 40, 400), ms=(own, 60.0, 500.0), square_ms=0.01, new_shape_ms=new_shape_ms
    )
    seen = {(int(n), int(length)) for n, length in generator.integers((1, 1), (5, 65), (60, 2))}
    batches = make_batches(lengths, cost, max_length=64, seen=seen)
    assert sorted(i for batch in batches for i in batch.rows) == list(range(9))
    order = sorted(range(9), key=lambda i: (-lengths[i], i))
    every = []
    for cuts in itertools.product((False, True), repeat=8):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 9]
        parts = [order[a:b] for a, b in itertools.pairwise(edges)]
        if new_shape_ms and any(len(part) in (5, 7, 9) for part in parts):
            continue
        widths = [
            {
                shared_length(lengths[part[0]]) if new_shape_ms else lengths[part[0]],
                -(-lengths[part[0]] // 8) * 8 if new_shape_ms else lengths[part[0]],
            }
            for part in parts
        ]
        every += [
            [Batch(p, w) for p, w in zip(parts, chosen, strict=True)]
            for chosen in itertools.product(*widths)
        ]
    least = min(total(way, lengths, cost, seen) for way in every)
    assert total(batches, lengths, cost, seen) == pytest.approx(least, rel=1e-12)


PLAIN = CostModel(tokens=(0, 1024), ms=(16.0, 1040.0), square_ms=0.0)


def test_batches_stay_within_their_limits() -> None:
    lengths = [512] * 9 + [3] * 200
    batches = make_batches(lengths, PLAIN, max_length=512)
    assert all(len(batch.rows) <= batching.MAX_ROWS for batch in batches)
    assert all(len(batch.rows) * batch.length <= MAX_RUN_TOKENS for batch in batches)
    assert make_batches([], PLAIN, max_length=512) == []
    # A row with more tokens than a batch may have forms a batch of its own.
    assert make_batches([5000], PLAIN, max_length=5000) == [Batch([0], 5000)]


def test_every_stream_gets_a_batch() -> None:
    assert len(make_batches([10] * 32, PLAIN, max_length=512)) == 1
    assert len(make_batches([10] * 32, PLAIN, max_length=512, streams=4)) == 4


def test_shapes_are_reused_where_new_ones_are_slow() -> None:
    generator, seen = np.random.default_rng(0), set()
    cost = PLAIN.model_copy(update={"new_shape_ms": 100.0})
    new = []
    for _ in range(30):
        batches = make_batches(
            [int(n) for n in generator.integers(5, 120, 200)], cost, max_length=120, seen=seen
        )
        assert all(batch.length <= 120 for batch in batches)
        new.append(len({batch.shape for batch in batches} - seen))
        seen.update(batch.shape for batch in batches)
    assert sum(new[-10:]) <= 0.3 * sum(new[:10])


NEW_SHAPE_MS = 7.0


class Clockwork:
    """A session whose time is a formula, measured with a fake clock."""

    outputs, precision, threads, streams = ("logits",), "f32", 1, 1

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        ms: Callable[[int, int], float],
        *,
        prepares_shapes: bool = True,
    ) -> None:
        self.prepares_shapes = prepares_shapes
        self._now, self._ms, self._seen = 0.0, ms, set[tuple[int, ...]]()
        monkeypatch.setattr(cost_model.time, "perf_counter", lambda: self._now)

    @property
    def seconds(self) -> float:
        """That all runs took."""
        return self._now

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        shape = feeds["input_ids"].shape
        self._now += (
            self._ms(*shape)
            + (NEW_SHAPE_MS if self.prepares_shapes and shape not in self._seen else 0.0)
        ) / 1e3
        self._seen.add(shape)
        return {}


@pytest.mark.parametrize("longest", [512, 128, 32, 7])
def test_the_measured_cost_model_predicts_the_times(monkeypatch, longest: int) -> None:
    def ms(rows: int, length: int) -> float:
        return 2.0 + 0.01 * rows * length + 5e-6 * rows * length**2

    cost = measure_cost_model(Clockwork(monkeypatch, ms), longest)
    assert cost.new_shape_ms == pytest.approx(NEW_SHAPE_MS)
    for rows, length in ((1, 5), (3, 64), (16, 30), (30, 64), (2, 384)):
        if length <= longest:
            assert float(cost.batch_ms(np.array([rows]), length)[0]) == pytest.approx(
                ms(rows, length), rel=0.03
            )


@pytest.mark.parametrize("seed", range(4))
def test_batches_of_a_staircase_are_the_cheapest(seed: int) -> None:
    lengths = [int(n) for n in np.random.default_rng(seed).integers(1, 60, 8)]
    batches = make_batches(lengths, STEPS, max_length=64)
    order = sorted(range(8), key=lambda i: (-lengths[i], i))
    every = []
    for cuts in itertools.product((False, True), repeat=7):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 8]
        whole = 0.0
        for part in (order[a:b] for a, b in itertools.pairwise(edges)):
            own = steps(len(part), lengths[part[0]])
            padded = [
                steps(len(part), n)
                for n in (16, 32, 48, 64)
                if lengths[part[0]] < n <= lengths[part[0]] + 15
            ]
            whole += min([own, *(ms for ms in padded if ms * 1.05 < own)])
        every.append(whole)
    assert sum(steps(*batch.shape) for batch in batches) == pytest.approx(min(every), rel=1e-12)


def test_one_text_is_padded_to_the_end_of_its_step_where_that_is_faster_beyond_noise(
    monkeypatch,
) -> None:
    cost = measure_cost_model(Clockwork(monkeypatch, steps, prepares_shapes=False), 128)
    assert cost.margin == cost_model._LEAST_MARGIN
    for length in range(1, 129):
        (batch,) = make_batches([length], cost, max_length=128)
        best = min(range(length, min(length + 15, 128) + 1), key=lambda n: steps(1, n))
        # A step is 1.5 ms at the most, which is less than the margin from 43.8 ms on: never, up to 128 tokens.
        expected = best if steps(1, best) * (1 + cost.margin) < steps(1, length) else length
        assert batch.length == expected, length


@pytest.mark.parametrize("longest", [60, 100])
def test_no_text_is_padded_beyond_the_models_limit(longest: int) -> None:
    assert all(
        b.length <= longest
        for n in range(1, longest + 1)
        for b in make_batches([n], STEPS, max_length=longest)
    )


def test_nothing_is_padded_without_steps(monkeypatch) -> None:
    cost = measure_cost_model(
        Clockwork(
            monkeypatch, lambda rows, length: 2.0 + 0.1 * rows * length, prepares_shapes=False
        ),
        128,
    )
    assert cost.lengths == ()
    assert len(cost.tokens) > 20
    assert all(make_batches([n], cost, max_length=128)[0].length == n for n in range(1, 129))


def test_a_step_that_is_not_there_any_more_is_not_used(monkeypatch) -> None:
    """The machine was slower for a while: one length looked slow, but not in the rounds that confirm it."""
    runs: dict[tuple[int, int], int] = {}

    def ms(rows: int, length: int) -> float:
        runs[rows, length] = runs.get((rows, length), 0) + 1
        slow = length % 16 == 8 and runs[rows, length] <= 1 + cost_model._LEAST_REPEATS
        return (2.0 + 0.1 * rows * length) * (1.5 if slow else 1.0)

    monkeypatch.setattr(cost_model, "_MOST_REPEATS", cost_model._LEAST_REPEATS)
    cost = measure_cost_model(Clockwork(monkeypatch, ms, prepares_shapes=False), 128)
    assert cost.lengths == ()
    assert all(make_batches([n], cost, max_length=128)[0].length == n for n in range(1, 129))


def test_nothing_is_padded_by_what_a_busy_machine_measured(monkeypatch) -> None:
    generator = np.random.default_rng(0)
    busy = Clockwork(
        monkeypatch,
        lambda rows, length: steps(rows, length) * generator.uniform(1, 3),
        prepares_shapes=False,
    )
    cost = measure_cost_model(busy, 128)
    assert (cost.lengths, cost.margin > 2 * cost_model._BUSY) == ((), True)


@pytest.mark.parametrize("ms", [0.1, 20.0, 2000.0])
def test_measuring_takes_little_time(monkeypatch, ms: float) -> None:
    session = Clockwork(monkeypatch, lambda rows, length: ms * rows * length / 64)
    measure_cost_model(session, 512)
    # A model of 2 s is run at two shapes, of 0.25 s and 2 s, four times each.
    assert session.seconds <= max(2 * cost_model._SECONDS, 5 * ms / 1e3)


# ---- the stored cost model


def test_the_cost_model_is_measured_once(finished, cache: Path) -> None:
    for _ in range(2):
        octobert.load(finished[1] / "ort-cpu", goal="throughput").close()
        (file,) = cache.iterdir()
        content = file.read_text()
    assert CostModel.model_validate_json(content).tokens
    written = file.stat().st_mtime_ns
    octobert.load(finished[1] / "ort-cpu", goal="throughput").close()
    assert file.stat().st_mtime_ns == written
    file.write_text("{")
    octobert.load(finished[1] / "ort-cpu", goal="throughput").close()
    assert CostModel.model_validate_json(file.read_text())


def test_a_cost_model_of_a_busy_machine_is_measured_again(monkeypatch, tmp_path: Path) -> None:
    path, session = tmp_path / "cost.json", Clockwork(monkeypatch, steps, prepares_shapes=False)
    noisy = STEPS.model_copy(update={"margin": 0.4, "lengths": ()})
    path.write_text(noisy.model_dump_json())
    assert read_or_measure_cost_model(path, lambda: session, 128) == noisy
    long_ago = time.time() - 2 * cost_model._BUSY_S
    os.utime(path, (long_ago, long_ago))
    found = read_or_measure_cost_model(path, lambda: session, 128)
    assert found is not None
    assert found.lengths
    assert CostModel.model_validate_json(path.read_text()) == found
    os.utime(path, (long_ago, long_ago))
    assert read_or_measure_cost_model(path, lambda: session, 128) == found


def test_one_text_at_a_time_measures_only_what_can_be_stored(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    session = Clockwork(monkeypatch, steps)
    assert (
        read_or_measure_cost_model(
            tmp_path / "file" / "cost.json", lambda: session, 128, only_if_stored=True
        )
        is None
    )
    assert session.seconds == 0.0
    assert (
        read_or_measure_cost_model(
            tmp_path / "new" / "cost.json", lambda: session, 128, only_if_stored=True
        )
        is not None
    )


@pytest.mark.parametrize("goal", ["latency", "throughput"])
def test_files_of_an_earlier_form_are_not_used(finished, cache: Path, goal: str) -> None:
    octobert.load(finished[1] / "ort-cpu", goal=goal).close()
    (file,) = cache.iterdir()
    file.write_text('{"tokens": [1, 2], "ms": "fast"}')
    octobert.load(finished[1] / "ort-cpu", goal=goal).close()
    assert CostModel.model_validate_json(file.read_text())


# ---- what a stored cost model belongs to


def keys(model: FinishedModel, **changed: object) -> str:
    options = SessionOptions(threads=1, streams=1).model_copy(update=changed)
    session = model.session(options)
    return stored_path(
        model.shape_facts, session, options.model_dump(mode="json", exclude={"cache", "log"}), 64
    ).name


def test_other_weights_of_the_same_shape_share_it(finished, tmp_path: Path, monkeypatch) -> None:
    for target in ("ort-cpu", "openvino-cpu"):
        model = open_model(finished[1] / target)
        assert model.manifest is not None
        plan = model.manifest.plan
        digests = dict.fromkeys(model.manifest.files, "0" * 64)
        ranged = tuple(
            d.model_copy(
                update={"quantizer": d.quantizer.model_copy(update={"low": -7.0, "high": 7.0})}
            )
            if d.quantizer
            else d
            for d in plan.decisions
        )
        other = model.manifest.model_copy(
            update={"files": digests, "plan": plan.model_copy(update={"decisions": ranged})}
        )
        again = FinishedModel(**{**vars(model), "manifest": other})
        assert again.shape_facts == model.shape_facts
        fewer = plan.model_copy(
            update={
                "decisions": tuple(d.model_copy(update={"quantizer": None}) for d in plan.decisions)
            }
        )
        sizes = {name: size + 8192 for name, size in model.manifest.sizes.items()}
        layers = model.manifest.model.sizes.model_copy(update={"layers": 5})
        for update in (
            {"plan": fewer},
            {"sizes": sizes},
            {"model": model.manifest.model.model_copy(update={"sizes": layers})},
        ):
            changed = FinishedModel(
                **{**vars(model), "manifest": model.manifest.model_copy(update=update)}
            )
            assert changed.shape_facts != model.shape_facts


def test_other_settings_machines_and_targets_do_not_share_it(finished, monkeypatch) -> None:
    ort, openvino = open_model(finished[1] / "ort-cpu"), open_model(finished[1] / "openvino-cpu")
    found = [
        keys(ort),
        keys(openvino),
        keys(ort, streams=2),
        keys(ort, threads=2),
        keys(openvino, precision="bf16"),
    ]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    found.append(keys(openvino))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    with monkeypatch.context() as patch:
        patch.setattr(cost_model, "machine_id", lambda: "another")
        found.append(keys(ort))
    assert len(set(found)) == len(found)
    assert keys(ort) == found[0]


# ---- answers do not depend on it


# Sums of a softmax over more columns, of which the last are zero, may be taken in another order.
PADDED_FLOAT = 1e-5


@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_padding_changes_no_answer(finished, target: str) -> None:
    model = open_model(finished[1] / target)
    assert model.ignores_padding
    assert model.floating is not None
    session = model.session(SessionOptions(threads=1, streams=1))
    floating = targets.load(target).open_session(
        model.floating.path, SessionOptions(threads=1, streams=1)
    )
    generator = np.random.default_rng(0)
    for length in (1, 5, 13, 16, 17, 30):
        ids = generator.integers(5, 50, (1, length))
        for padded in (length + 1, 32, 48):
            more = ((0, 0), (0, padded - length))
            short: Feeds = {
                "input_ids": ids,
                "attention_mask": np.ones_like(ids),
                "token_type_ids": np.zeros_like(ids),
            }
            long = {name: np.pad(array, more) for name, array in short.items()}
            (own,), (other,) = session.run(short).values(), session.run(long).values()
            assert np.array_equal(own, other), (length, padded)
            (own,), (other,) = floating.run(short).values(), floating.run(long).values()
            assert np.abs(own - other).max() <= PADDED_FLOAT * max(1.0, float(np.abs(own).max()))


def test_dynamic_ranges_and_files_of_other_tools_are_not_padded(finished, tmp_path: Path) -> None:
    model = open_model(finished[1] / "ort-cpu")
    assert model.manifest is not None
    decisions = model.manifest.plan.decisions
    dynamic = tuple(
        d.model_copy(update={"quantizer": d.quantizer.model_copy(update={"dynamic": True})})
        if d.quantizer
        else d
        for d in decisions
    )
    plan = model.manifest.plan.model_copy(update={"decisions": dynamic})
    changed = FinishedModel(
        **{**vars(model), "manifest": model.manifest.model_copy(update={"plan": plan})}
    )
    assert not changed.ignores_padding
    assert not FinishedModel(**{**vars(model), "manifest": None}).ignores_padding


def test_scores_are_made_without_measured_times(finished, cache: Path, monkeypatch) -> None:
    with octobert.load(finished[1] / "ort-cpu", goal="throughput") as model:
        engine = model._engine.get()
        encoded = engine.tokenizer.encode(["the of and to in"] * 3)
        seen = []
        monkeypatch.setattr(
            batching, "make_batches", lambda lengths, cost, **_: seen.append(cost) or []
        )
        model.outputs(encoded)
    assert seen == [cost_model.default_cost_model(engine.session)]
