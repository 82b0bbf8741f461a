"""Observation and calibrators against NumPy that sees all values at once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pydantic
import pytest
from onnxruntime.quantization.calibrate import HistogramCollector

from octobert.config.recipe import Choice
from octobert.core.errors import DataError, ModelError
from octobert.core.ranges import (
    BINS,
    Collector,
    Interval,
    Ranges,
    TensorStatistics,
)
from octobert.data.encoded import Encoded, feeds_of
from octobert.graph import operators
from octobert.graph.capture import shapes
from octobert.quantization import calibrators, observer
from octobert.quantization.calibrators.entropy import Entropy, _smallest_divergence
from tests.support.statistics import batched, seen

CALIBRATORS = calibrators.names()
# Their result depends on the order of the rows, by definition.
ORDERED = {"moving-average"}
# A value read from the histogram is at most one bin away from the exact one.
BIN = 2.0**-7
# Kernels add up in another order at another batch size or length.
SAME = {"rtol": 1e-4, "atol": 1e-5}
# That difference moves a value on the edge of a bin to the next one.
SHARE_ACROSS_AN_EDGE = 2e-3
# An end of the mse calibrator is one of 64 fractions, and the errors are those of a histogram.
AS_GOOD = 1.02
# Of float32 sums of two squares.
RELATIVE = 1e-6
# What entropy calibration needs at least: as many values as it has bins.
ENOUGH = Entropy().num_bins
LEVELS = Entropy().num_quantized_bins
# Divergences of bounds in a row differ by less than this, and bins that are 1/128 wide do not show which is the least.
DIVERGENCE = 1.02
LENGTHS = [5, 12, 3, 30, 30, 1, 8, 17]


def drawn(seed: int, count: int = 12, size: int = 400) -> list[np.ndarray]:
    """Rows of different spread and length, with long tails."""
    generator = np.random.default_rng(seed)
    return [
        (generator.standard_t(3, size + 7 * i) * (1 + i % 3)).astype(np.float32)
        for i in range(count)
    ]


def interval(name: str, statistics: TensorStatistics, **options: object) -> Interval:
    return calibrators.PLUGINS.make(Choice(name=name, options=options)).interval(statistics)


def assert_same(observed: TensorStatistics, other: TensorStatistics) -> None:
    assert (observed.minimum, observed.maximum, observed.count) == (
        other.minimum,
        other.maximum,
        other.count,
    )
    np.testing.assert_array_equal(observed.histogram, other.histogram)
    np.testing.assert_array_equal(observed.extremes, other.extremes)
    assert (observed.relative is None) == (other.relative is None)
    if observed.relative is not None and other.relative is not None:
        np.testing.assert_array_equal(observed.relative, other.relative)


def of_tokens(*rows: np.ndarray) -> TensorStatistics:
    """Statistics of rows [S, C] whose errors count relative to each token."""
    collector = Collector(len(rows), relative=True)
    assert collector.add(range(len(rows)), rows) is None
    return collector.statistics()


@pytest.fixture(scope="module")
def graph(float_path, bert_sites):
    return float_path, sorted({s.value for s in bert_sites if not s.is_weight})


def rows(lengths: list[int]) -> list[Encoded]:
    generator = np.random.default_rng(1)
    return [
        Encoded(generator.integers(4, 90, n), np.zeros(n, dtype=np.int64), False) for n in lengths
    ]


@pytest.fixture(scope="module")
def alone(graph):
    """The reference: every row alone, so that there is no padding at all, and everything kept, as [S, ...] a row."""
    path, values = graph
    model = ir.load(path)
    by_name = {v.name: v for n in model.graph for v in n.outputs}
    values = sorted({*values, *NORM})
    session = shapes.open_session(model, [by_name[v] for v in values])
    kept: dict[str, list[np.ndarray]] = {v: [] for v in values}
    for row in rows(LENGTHS):
        for name, output in zip(values, session.run(values, feeds_of([row], 0)), strict=True):
            kept[name].append(output[0])
    return kept


# One token a batch means one row a batch.
@pytest.mark.parametrize("tokens", [1, 64, 1024])
def test_statistics_equal_numpy_over_all_real_values_at_once(
    graph, alone, monkeypatch, tokens: int
) -> None:
    path, values = graph
    monkeypatch.setattr(observer, "TOKENS_PER_BATCH", tokens)
    statistics = observer.observe(path, rows(LENGTHS), 0, values)
    assert set(statistics) == set(values)
    for name in values:
        everything = np.concatenate([row.reshape(-1) for row in alone[name]])
        observed = statistics[name]
        assert observed.count == everything.size, name
        np.testing.assert_allclose(
            [observed.minimum, observed.maximum], [everything.min(), everything.max()], **SAME
        )
        np.testing.assert_allclose(
            observed.extremes, [(row.min(), row.max()) for row in alone[name]], **SAME
        )
        low, high = observed.quantiles(0.01, 0.99)
        exact = np.quantile(everything, [0.01, 0.99], method="inverted_cdf")
        np.testing.assert_allclose([low, high], exact, rtol=2 * BIN, atol=1e-4)
        bins = np.bincount(everything.view(np.uint32) >> 16, minlength=BINS)
        assert np.abs(observed.histogram - bins).sum() / 2 <= max(
            2, SHARE_ACROSS_AN_EDGE * observed.count
        ), name


def test_padding_changes_nothing(graph) -> None:
    path, values = graph
    data = rows([6, 6, 40])

    def first_two(some: list[Encoded], pad_id: int) -> dict[str, TensorStatistics]:
        collectors = {name: Collector(2) for name in values}
        widths = []

        def take(name: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
            wanted = [(i, part) for i, part in zip(indices, parts, strict=True) if i < 2]
            collectors[name].add([i for i, _ in wanted], [part for _, part in wanted])
            widths.append(len(indices))

        observer.stream(ir.load(path), some, pad_id, values, take)
        # All in one batch, so that the long row is what the short ones were padded to.
        assert set(widths) == {len(some)}
        return {name: observed.statistics() for name, observed in collectors.items()}

    tight = first_two(data[:2], 0)
    for other in (first_two(data, 0), first_two(data, 77)):
        for name in values:
            assert tight[name].count == other[name].count, name
            np.testing.assert_allclose(tight[name].maximum, other[name].maximum, **SAME)
            np.testing.assert_allclose(tight[name].minimum, other[name].minimum, **SAME)
            np.testing.assert_allclose(tight[name].extremes, other[name].extremes, **SAME)


def test_attention_is_masked_in_rows_and_columns() -> None:
    scores = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    first, second = observer.real_rows(scores, ("batch", 3, "sequence", "sequence"), [4, 2])
    np.testing.assert_array_equal(first, scores[0])
    np.testing.assert_array_equal(second, scores[1, :, :2, :2])


# In a part, everywhere, nowhere.
@pytest.mark.parametrize("length", [3, 0, 5])
def test_padding_is_left_out(length: int) -> None:
    lengths, real = [5, length], slice(length)
    generator = np.random.default_rng(0)

    def second(layout: observer.Layout, *shape: int) -> tuple[np.ndarray, np.ndarray]:
        output = generator.standard_normal(shape).astype(np.float32)
        whole, row = observer.real_rows(output, layout, lengths)
        np.testing.assert_array_equal(whole.reshape(-1), output.reshape(2, -1)[0])
        return output.reshape(2, *output.shape[1:]) if layout[0] == "batch" else output.reshape(
            2, 5, *shape[1:]
        ), row

    output, row = second(("batch", "sequence", 4), 2, 5, 4)
    np.testing.assert_array_equal(row, output[1][real])
    output, row = second(("batch", 3, "sequence", 4), 2, 3, 5, 4)
    np.testing.assert_array_equal(row, output[1][:, real])
    output, row = second(("batch", 3, "sequence", "sequence"), 2, 3, 5, 5)
    np.testing.assert_array_equal(row, output[1][:, real][:, :, real])
    output, row = second(("tokens", 4), 10, 4)
    np.testing.assert_array_equal(row, output[1][real])
    # Without a sequence axis, as after pooling, there is no padding.
    output, row = second(("batch", 4), 2, 4)
    np.testing.assert_array_equal(row, output[1])


def test_order_and_batching_do_not_matter() -> None:
    values = np.random.default_rng(0).standard_t(2, 5000).astype(np.float32)
    observed = seen(values)
    other = seen(*np.array_split(values[::-1], 7))
    assert (observed.minimum, observed.maximum, observed.count) == (
        other.minimum,
        other.maximum,
        other.count,
    )
    np.testing.assert_array_equal(observed.histogram, other.histogram)
    parts = drawn(0)
    assert_same(batched(parts, [range(12)]), seen(*parts))
    assert_same(batched(parts, [[11, 0, 5], [7], [10, 9, 8, 6], [1, 2, 3, 4]]), seen(*parts))


def test_statistics_of_rows_equal_numpy_exactly() -> None:
    parts = [part.reshape(1, -1) for part in drawn(1)]
    together = np.concatenate(parts, axis=1)
    observed = batched(parts, [[3, 1, 2, 0], range(4, 12)])
    assert (observed.minimum, observed.maximum, observed.count) == (
        together.min(),
        together.max(),
        together.size,
    )
    np.testing.assert_array_equal(observed.extremes, [(part.min(), part.max()) for part in parts])
    np.testing.assert_array_equal(
        observed.histogram, np.bincount(together.view(np.uint32)[0] >> 16, minlength=BINS)
    )


def test_a_row_may_come_in_parts() -> None:
    first, second = drawn(2, count=2)
    collector = Collector(1)
    collector.add([0], [first])
    collector.add([0], [second])
    assert_same(collector.statistics(), seen(np.concatenate([first, second])))


def test_tokens_count_by_their_inverse_energy() -> None:
    loud, quiet, silent = np.float32([[30, 40]]), np.float32([[3, 4], [0.3, 0.4]]), np.zeros((1, 2))
    observed = of_tokens(loud, quiet, silent.astype(np.float32))
    middles, counts = observed.points(relative=True)
    # Inverse mean squares: of a token ten times as loud, a hundredth. A token of zeros has no error.
    expected = {40: 0.0008, 30: 0.0008, 4: 0.08, 3: 0.08, 0.4: 8.0, 0.3: 8.0}
    for value, count in expected.items():
        assert counts[np.argmin(np.abs(middles - value))] == pytest.approx(count, rel=RELATIVE)
    plain, exact = observed.points()
    np.testing.assert_array_equal(plain, middles)
    assert exact.tolist() == [2, 1, 1, 1, 1, 1, 1]
    assert (observed.minimum, observed.maximum, observed.count) == (0.0, 40.0, 8)


def test_memory_does_not_grow_with_samples() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    observed, many = seen(values), seen(*[values * k for k in range(1, 50)])
    assert observed.histogram.nbytes == many.histogram.nbytes == 65536 * 8
    # Two float32 a row, however many values it has.
    assert observed.extremes.nbytes == 8
    assert many.extremes.nbytes == 49 * 8
    assert seen(np.tile(values, 50)).extremes.nbytes == 8


def test_statistics_survive_the_disk(tmp_path) -> None:
    before = {
        "a.b/c": seen(np.array([1.5, -2.0, 0.0], dtype=np.float32)),
        "d": seen(np.zeros(4, dtype=np.float32)),
        "e": seen(*drawn(0)),
        "tokens": of_tokens(*(row[:400].reshape(50, 8) for row in drawn(1))),
    }
    observer.save(before, tmp_path / "statistics.npz")
    after = observer.load(tmp_path / "statistics.npz")
    assert set(after) == set(before)
    for name, observed in before.items():
        assert_same(after[name], observed)
        assert after[name].extremes.dtype == observed.extremes.dtype == np.float32
        assert after[name].histogram.dtype == observed.histogram.dtype
    for name in CALIBRATORS:
        assert interval(name, after["e"]) == interval(name, before["e"])


def changed(path: Path, to: Path, name: str, index: int, value: float) -> Path:
    """The graph with one row of an initializer set to a value."""
    model = ir.load(path)
    weight = model.graph.initializers[name]
    broken = weight.const_value.numpy().copy()
    broken[index] = value
    weight.const_value = ir.tensor(broken, name=weight.name)
    operators.save(model, to)
    return to


def test_nan_in_an_activation_is_named(golden, graph, tmp_path) -> None:
    path, values = graph
    broken = changed(
        path, tmp_path / "broken.onnx", "encoder.layer.1.intermediate.dense.bias", 0, np.nan
    )
    with golden.raises(ModelError):
        observer.observe(broken, rows([5]), 0, values)


@pytest.mark.parametrize("tokens", [1, 64, 1024])
@pytest.mark.parametrize("bad", [0, 3, 6])
# The word's row holds NaN or infinity itself, before any arithmetic turns the one into the other.
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_name_the_tensor_and_the_row(
    golden, graph, tmp_path, monkeypatch, value: float, bad: int, tokens: int
) -> None:
    path, _ = graph
    monkeypatch.setattr(observer, "TOKENS_PER_BATCH", tokens)
    data = rows([9, 9, 12, 4, 30, 2, 9])
    # A word that no other row has; it is the last but one, so that neither the row nor the batch starts with it.
    data[bad].ids[-2] = 100
    broken = changed(
        path, tmp_path / "broken.onnx", "embeddings.word_embeddings.weight", 100, value
    )
    asked = []

    def name_of(index: int) -> str:
        asked.append(index)
        return f"text {index + 1}"

    where = "embeddings.word_embeddings.gather"
    message = rf'broken\.onnx: the activation "{where}" contains NaN or infinity \(got text {bad + 1}\); check the model'
    with pytest.raises(ModelError, match=message):
        observer.observe(broken, data, 0, [where, "embeddings.LayerNorm"], name_of=name_of)
    assert asked == [bad]
    # What such a value does further on is found there just as well, at the same row, and at no row that lacks the word.
    with golden.raises(ModelError):
        observer.observe(broken, data, 0, ["encoder.layer.1.attention.self.probs"])
    others = [row for index, row in enumerate(data) if index != bad]
    assert observer.observe(broken, others, 0, [where])[where].extremes.shape == (6, 2)


def test_a_position_that_is_nan_names_the_row_that_reaches_it(graph, tmp_path) -> None:
    path, values = graph
    broken = changed(
        path, tmp_path / "broken.onnx", "embeddings.position_embeddings.weight", 20, np.nan
    )
    with pytest.raises(ModelError, match=r"contains NaN or infinity \(got row 2\)"):
        observer.observe(broken, rows([9, 20, 21, 4]), 0, values)
    observer.observe(broken, rows([9, 20, 4]), 0, values)


def test_a_nan_in_a_later_batch_is_not_lost() -> None:
    good = np.ones(3, dtype=np.float32)
    for value in (np.nan, np.inf, -np.inf):
        bad = np.array([1.0, value], dtype=np.float32)
        for parts in ((good, bad), (bad, good), (good, bad, good)):
            expected = next(index for index, part in enumerate(parts) if part is bad)
            collector = Collector(len(parts))
            assert [collector.add([i], [part]) for i, part in enumerate(parts)].count(expected) == 1
            assert Collector(len(parts)).add(range(len(parts)), parts) == expected
        # The index is the row's in the data, not in the batch, and of the first of several.
        assert Collector(9).add([7, 3, 5], [good, bad, bad]) == 3


def test_an_axis_that_is_not_known_is_refused() -> None:
    for layout in (("batch", "unknown"), ("sequence", 4), (1, 4)):
        with pytest.raises(ModelError, match="padding cannot be removed"):
            list(observer.real_rows(np.zeros((1, 4)), layout, [1]))
    np.testing.assert_array_equal(list(observer.real_rows(np.arange(2), ("tokens",), [1])), [[0]])


def test_an_unknown_value_is_refused(graph) -> None:
    with pytest.raises(ModelError, match='the graph has no value "nothing"'):
        observer.observe(graph[0], rows([5]), 0, ["nothing"])


def test_every_row_is_handed_over_once_and_counted(graph, monkeypatch) -> None:
    path, _ = graph
    monkeypatch.setattr(observer, "TOKENS_PER_BATCH", 64)
    data = rows(LENGTHS)
    result: dict[str, dict[int, tuple[int, ...]]] = {name: {} for name in NORM}
    done: list[int] = []

    def take(name: str, indices: Sequence[int], parts: Sequence[np.ndarray]) -> None:
        for index, part in zip(indices, parts, strict=True):
            assert index not in result[name]
            result[name][index] = part.shape

    observer.stream(ir.load(path), data, 0, NORM, take, on_rows=done.append)
    for name in NORM:
        assert result[name] == {index: (length, 32) for index, length in enumerate(LENGTHS)}
    assert len(done) > 1
    assert done == sorted(set(done))
    assert done[-1] == len(data)


def test_nothing_is_run_for_no_values(tmp_path) -> None:
    assert observer.observe(tmp_path / "absent.onnx", rows([5]), 0, []) == {}


# A LayerNorm and what goes into it: the one follows from the other token by token.
NORM = ["embeddings.LayerNorm", "embeddings.add_1"]


class TestSample:
    """Tokens for the methods that need more than a histogram."""

    def sample(
        self, path: Path, monkeypatch: pytest.MonkeyPatch, tokens: int, seed: int = 0
    ) -> dict:
        # Several batches, so that what is kept has to be put together.
        monkeypatch.setattr(observer, "TOKENS_PER_BATCH", 64)
        return observer.sample(ir.load(path), rows(LENGTHS), 0, NORM, tokens=tokens, seed=seed)

    @pytest.mark.parametrize("tokens", [20, 10**6])
    def test_ranges_equal_numpy_over_all_tokens(
        self, graph, alone, monkeypatch, tokens: int
    ) -> None:
        result = self.sample(graph[0], monkeypatch, tokens)
        for name in NORM:
            tokens_alone = np.concatenate(alone[name])
            assert result[name].low.shape == (32,)
            np.testing.assert_allclose(result[name].low, tokens_alone.min(axis=0), **SAME)
            np.testing.assert_allclose(result[name].high, tokens_alone.max(axis=0), **SAME)

    def test_as_many_tokens_as_there_are_or_more_gives_all(self, graph, alone, monkeypatch) -> None:
        for tokens in (sum(LENGTHS), 10**6):
            result = self.sample(graph[0], monkeypatch, tokens)
            for name in NORM:
                expected = np.concatenate(alone[name])
                # In order of the first channel: the rows of a sample come batch by batch.
                ours = result[name].rows[np.argsort(result[name].rows[:, 0])]
                np.testing.assert_allclose(ours, expected[np.argsort(expected[:, 0])], **SAME)

    def test_a_sample_is_of_real_tokens_about_as_many_as_asked_and_repeatable(
        self, graph, monkeypatch
    ) -> None:
        everything = self.sample(graph[0], monkeypatch, 10**6)
        first, again, other = (self.sample(graph[0], monkeypatch, 50, seed) for seed in (3, 3, 4))
        for name in NORM:
            picked = Counter(row.tobytes() for row in first[name].rows)
            assert picked < Counter(row.tobytes() for row in everything[name].rows)
            # Five standard deviations of a binomial.
            assert abs(picked.total() - 50) <= 5 * math.sqrt(50)
            np.testing.assert_array_equal(first[name].rows, again[name].rows)
            assert first[name].rows.tobytes() != other[name].rows.tobytes()

    def test_all_values_are_sampled_at_the_same_tokens(self, graph, monkeypatch) -> None:
        model = ir.load(graph[0])
        weight, bias = (
            model.graph.initializers[f"{NORM[0]}.{part}"].const_value.numpy()
            for part in ("weight", "bias")
        )
        result = self.sample(graph[0], monkeypatch, 50)
        into = result[NORM[1]].rows.astype(np.float64)
        centred = into - into.mean(axis=1, keepdims=True)
        expected = (
            centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12) * weight + bias
        )
        np.testing.assert_allclose(result[NORM[0]].rows, expected, **SAME)

    def test_no_tokens_are_a_sample_too(self, graph, alone, monkeypatch) -> None:
        result = self.sample(graph[0], monkeypatch, 0)
        assert [result[name].rows.shape for name in NORM] == [(0, 32), (0, 32)]

    @pytest.mark.parametrize("seed", range(4))
    def test_one_long_text_is_not_the_sample(self, graph, seed: int) -> None:
        """Of texts that are longer than a sample, several are taken, and progress ends with the last of them."""
        data, done = rows([40] * 30), list[tuple[int, int]]()
        for tokens in (1, 10):
            observer.sample(
                ir.load(graph[0]),
                data,
                0,
                NORM,
                tokens=tokens,
                seed=seed,
                on_rows=lambda *n: done.append(n),
            )
            assert done[-1] == (16, 16)

    def test_an_unknown_value_is_refused(self, graph) -> None:
        with pytest.raises(ModelError, match='the graph has no value "nothing"'):
            observer.sample(ir.load(graph[0]), rows([5]), 0, ["nothing"], tokens=4, seed=0)


@pytest.mark.parametrize("name", CALIBRATORS)
class TestEveryCalibrator:
    """What holds for any rule that turns statistics into an interval."""

    def test_all_zero(self, name: str) -> None:
        result = interval(name, seen(*np.zeros((4, ENOUGH), dtype=np.float32)))
        assert (result.low, result.high, result.bound) == (0.0, 0.0, 0.0)

    def test_never_beyond_what_was_seen_or_zero(self, name: str) -> None:
        for seed in range(5):
            parts = [part + np.float32(seed) for part in drawn(seed)]
            values = np.concatenate(parts)
            result = interval(name, seen(*parts))
            assert min(values.min(), 0) <= result.low <= result.high <= max(values.max(), 0)
            assert 0 < result.bound <= np.abs(values).max()

    def test_one_sided_values_stay_one_sided(self, name: str) -> None:
        parts = [np.abs(part) for part in drawn(0)]
        positive, negative = (
            interval(name, seen(*parts)),
            interval(name, seen(*[-part for part in parts])),
        )
        assert 0.0 <= positive.low < positive.high
        assert negative.low < negative.high <= 0.0
        assert min(positive.bound, negative.bound) > 0

    def test_batching_does_not_matter(self, name: str) -> None:
        parts = drawn(3)
        expected = interval(name, seen(*parts))
        assert interval(name, batched(parts, [range(12)])) == expected
        assert (
            interval(name, batched(parts, [[11, 0, 5], [7], [10, 9, 8, 6], [1, 2, 3, 4]]))
            == expected
        )

    def test_the_order_of_rows_does_not_matter(self, name: str) -> None:
        parts = drawn(3)
        expected = interval(name, seen(*parts))
        for order in (range(11, -1, -1), np.random.default_rng(0).permutation(12)):
            assert (interval(name, seen(*[parts[i] for i in order])) == expected) is (
                name not in ORDERED
            )

    # The first is the start of one of the statistics' bins, the others lie within one.
    @pytest.mark.parametrize("value", [3.25, 0.1, 1.9999, 3e38])
    @pytest.mark.parametrize("sign", [1, -1])
    def test_a_single_value(self, name: str, value: float, sign: int) -> None:
        value = float(np.float32(value))
        result = interval(name, seen(*np.full((3, ENOUGH), sign * value, dtype=np.float32)))
        far, near = (result.high, result.low) if sign > 0 else (-result.low, -result.high)
        assert 0 <= near <= far <= value
        assert far == pytest.approx(value, rel=2 * BIN)
        assert result.bound == pytest.approx(value, rel=2 * BIN)
        assert result.bound <= value

    def test_values_far_from_zero(self, name: str) -> None:
        for seed in range(10):
            values = np.random.default_rng(seed).normal(10, 0.3, (5, 40_000)).astype(np.float32)
            for sign in (1, -1):
                result = interval(name, seen(*(sign * values)))
                assert result.low <= result.high
                assert 0 < result.bound <= values.max()

    def test_a_row_that_is_all_zero(self, name: str) -> None:
        result = interval(name, seen(*drawn(0), np.zeros(5, dtype=np.float32)))
        assert result.low < 0 < result.high
        assert result.bound > 0

    def test_options_that_do_not_exist_are_refused(self, name: str) -> None:
        with pytest.raises(pydantic.ValidationError, match="Extra inputs are not permitted"):
            calibrators.PLUGINS.make(Choice(name=name, options={"nothing": 1}))


@pytest.mark.parametrize(
    ("name", "option", "within", "beyond"),
    [
        ("percentile", "keep", [50.1, 100], [50, 100.1, -1]),
        ("percentile", "num_bins", [0, 16384], [-1, 16385]),
        ("mse", "candidates", [4, 1024], [3, 1025]),
        ("mse", "rounds", [1, 20], [0, 21]),
        ("moving-average", "constant", [1e-9, 1], [0, 1.1, -0.1]),
        ("entropy", "num_bins", [129, 16384], [16385]),
        ("entropy", "num_quantized_bins", [8, 1024], [7, 1025]),
    ],
)
def test_options_have_limits(
    name: str, option: str, within: list[float], beyond: list[float]
) -> None:
    options = type(calibrators.load(name))
    for value in within:
        assert getattr(options(**{option: value}), option) == value
    for value in beyond:
        with pytest.raises(
            pydantic.ValidationError, match=f"{option}\n.*should be (greater|less) than"
        ):
            options(**{option: value})


def test_minmax_is_exact() -> None:
    parts = drawn(0)
    values = np.concatenate(parts)
    result = interval("minmax", seen(*parts))
    assert (result.low, result.high) == (values.min(), values.max())
    assert result.bound == np.abs(values).max()


def test_mean_minmax_is_the_mean_of_the_rows_exactly() -> None:
    parts = drawn(0)
    result = interval("mean-minmax", seen(*parts))
    low = math.fsum(float(part.min()) for part in parts) / len(parts)
    high = math.fsum(float(part.max()) for part in parts) / len(parts)
    assert (result.low, result.high, result.bound) == (low, high, max(-low, high))


@pytest.mark.parametrize("options", [{}, {"constant": 0.3}, {"constant": 1.0}])
def test_moving_average_is_the_loop_over_rows_exactly(options: dict[str, float]) -> None:
    parts = drawn(0, count=300)
    constant = options.get("constant", 0.01)
    low, high = float(parts[0].min()), float(parts[0].max())
    for part in parts[1:]:
        low += constant * (float(part.min()) - low)
        high += constant * (float(part.max()) - high)
    # Batches hold rows of similar length, so the rows of the data arrive in quite another order.
    for groups in ([[i] for i in range(300)], [range(299, 149, -1), range(0, 150)]):
        result = interval("moving-average", batched(parts, groups), **options)
        assert (result.low, result.high, result.bound) == (low, high, max(-low, high))


def test_one_row_is_its_own_average() -> None:
    (part,) = drawn(0, count=1)
    expected = interval("minmax", seen(part))
    assert interval("mean-minmax", seen(part)) == interval("moving-average", seen(part)) == expected


@pytest.mark.parametrize("keep", [90.0, 99.0, 99.9, 99.99])
def test_percentile_equals_numpy_to_one_bin(keep: float) -> None:
    values = np.random.default_rng(0).standard_t(3, 200_000).astype(np.float32)
    result = interval("percentile", seen(*np.array_split(values, 9)), keep=keep)
    cut = (1 - keep / 100) / 2
    exact = np.quantile(values, [cut, 1 - cut], method="inverted_cdf")
    np.testing.assert_allclose([result.low, result.high], exact, rtol=BIN)
    assert result.bound == pytest.approx(
        np.quantile(np.abs(values), keep / 100, method="inverted_cdf"), rel=BIN
    )


@pytest.mark.parametrize("bins", [128, 2048])
@pytest.mark.parametrize("keep", [99.0, 99.99])
@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_percentile_with_bins_is_that_of_onnxruntime(bins: int, keep: float, shift: float) -> None:
    values = (np.random.default_rng(0).standard_t(3, 200_000) + shift).astype(np.float32)
    result = interval("percentile", seen(*np.array_split(values, 9)), keep=keep, num_bins=bins)
    width = 2 * float(np.abs(values).max()) / bins
    theirs = {}
    for symmetric in (False, True):
        collector = HistogramCollector("percentile", symmetric, bins, 128, keep, "same")
        collector.collect({"x": [values]})
        found = collector.compute_collection_result()["x"]
        theirs[symmetric] = [float(end) for end in found[:2]]
    # A value on an edge may lie in the bin beside it here.
    np.testing.assert_allclose([result.low, result.high], theirs[False], atol=1.01 * width)
    assert result.bound == pytest.approx(theirs[True][1], abs=1.01 * width)
    if bins == 128:
        finer = interval("percentile", seen(values), keep=keep)
        assert abs(result.high - finer.high) > BIN * finer.high


def test_percentile_ignores_an_outlier_that_minmax_keeps() -> None:
    values = np.concatenate([np.random.default_rng(0).standard_normal(100_000), [500.0]]).astype(
        np.float32
    )
    assert interval("percentile", seen(values), keep=99.99).high < 6
    assert interval("minmax", seen(values)).high == 500.0
    assert interval("percentile", seen(values), keep=100) == interval("minmax", seen(values))


def test_mse_clips_the_outlier_of_one_token_where_tokens_count_relative_to_their_energy() -> None:
    tokens = np.random.default_rng(0).standard_normal((50, 384)).astype(np.float32)
    tokens[0, 99] = 195.0
    # It costs all other tokens digits, but the square of its own error is larger than the sum of theirs.
    assert interval("mse", seen(tokens)).high > 150
    clipped = interval("mse", of_tokens(tokens))
    assert 4 < clipped.high < 60
    assert 4 < clipped.bound < 60
    assert interval("minmax", of_tokens(tokens)).high == 195.0


def quantization_error(values: np.ndarray, low: float, high: float) -> float:
    """Of the asymmetric grid that is written for these ends."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint(values / scale) + zero, 0, 255)
    return float(np.mean((values - (codes - zero) * scale) ** 2))


def symmetric_error(values: np.ndarray, bound: float) -> float:
    """Of the symmetric grid that is written for this bound."""
    scale = bound / 127
    return float(np.mean((values - np.clip(np.rint(values / scale), -128, 127) * scale) ** 2))


def shapes_of_values(count: int = 20_000) -> dict[str, np.ndarray]:
    """Values as activations have them: bells, long tails, one side, a pile of zeros."""
    generator = np.random.default_rng(0)
    normal = generator.standard_normal(count)
    wide = np.exp(3 * generator.standard_normal((count // 20, 20)))
    result = {
        "normal": normal,
        "long tails": generator.standard_t(3, count),
        "off centre": normal + 2,
        "gelu": normal * (1 + np.tanh(0.7979 * (normal + 0.044715 * normal**3))) / 2,
        "relu": np.maximum(normal, 0),
        "probabilities": (wide / wide.sum(axis=1, keepdims=True)).reshape(-1),
    }
    return {name: values.astype(np.float32) for name, values in result.items()}


SHAPES = shapes_of_values()


def test_mse_is_the_best_of_all_intervals_on_a_grid() -> None:
    values = np.random.default_rng(0).standard_t(3, 50_000).astype(np.float32)
    result = interval("mse", seen(values))
    ours = quantization_error(values, result.low, result.high)
    for name in ("minmax", "percentile"):
        other = interval(name, seen(values))
        assert ours <= quantization_error(values, other.low, other.high)
    fractions = np.linspace(0.05, 1, 40)
    grid = [
        quantization_error(values, values.min() * a, values.max() * b)
        for a in fractions
        for b in fractions
    ]
    # The search goes over a finer grid than this one, so it must be as good to within the histogram's resolution.
    assert ours <= min(grid) * AS_GOOD


@pytest.mark.parametrize("shape", SHAPES)
def test_mse_beats_every_other_calibrator(shape: str) -> None:
    parts = np.array_split(SHAPES[shape], 9)
    values = SHAPES[shape]
    result = interval("mse", seen(*parts))
    for name in CALIBRATORS:
        other = interval(name, seen(*parts))
        assert quantization_error(values, result.low, result.high) <= AS_GOOD * quantization_error(
            values, other.low, other.high
        )
        assert symmetric_error(values, result.bound) <= AS_GOOD * symmetric_error(
            values, other.bound
        )
    grid = [symmetric_error(values, np.abs(values).max() * f) for f in np.linspace(0.05, 1, 100)]
    assert symmetric_error(values, result.bound) <= AS_GOOD * min(grid)


def divergences(counts: np.ndarray, levels: int) -> np.ndarray:
    """The classical algorithm, bound by bound and bin by bin: the divergence of every number of bins from `levels` on."""
    h = [float(observed) for observed in counts]
    result = []
    for i in range(levels, len(h) + 1):
        raw = h[:i]
        p = [*raw[:-1], raw[-1] + sum(h[i:])]
        q = [0.0] * i
        for group in range(levels):
            start = group * (i // levels)
            stop = i if group == levels - 1 else start + i // levels
            nonzero = [k for k in range(start, stop) if p[k] > 0]
            mean = sum(raw[start:stop]) / max(len(nonzero), 1)
            for k in nonzero:
                q[k] = mean
        occupied = np.array(p) > 0
        ours, theirs = np.array(p)[occupied] / sum(p), np.array(q)[occupied]
        if (theirs == 0).any():
            result.append(math.inf)
            continue
        result.append(float((ours * np.log(ours / (theirs / theirs.sum()))).sum()))
    return np.array(result)


def least(result: np.ndarray, levels: int) -> int:
    """The number of bins of the least divergence: the last one of equally good."""
    return levels + int(np.flatnonzero(result <= result.min() + 1e-12)[-1])


def exact_magnitudes(values: np.ndarray, bins: int = ENOUGH) -> np.ndarray:
    magnitudes = np.abs(values)
    return np.histogram(magnitudes, bins=bins, range=(0, magnitudes.max()))[0]


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    """Divergences of every bound by the classical algorithm, over exact histograms."""
    return {name: divergences(exact_magnitudes(values), LEVELS) for name, values in SHAPES.items()}


@pytest.mark.parametrize("shape", SHAPES)
def test_entropy_equals_the_classical_algorithm(reference, shape: str) -> None:
    counts = exact_magnitudes(SHAPES[shape])
    assert _smallest_divergence(counts, LEVELS) == least(reference[shape], LEVELS)


def test_entropy_equals_the_classical_algorithm_on_odd_histograms() -> None:
    """Empty bins, empty groups, outliers behind gaps, bounds that cut everything off, one bin that has all."""
    generator = np.random.default_rng(0)
    result = []
    for _ in range(150):
        bins, levels = int(generator.integers(17, 80)), int(generator.integers(8, 16))
        counts = generator.integers(0, 50, bins) * (
            generator.random(bins) < generator.choice([0.05, 0.3, 0.9])
        )
        counts[: int(generator.choice([0, bins // 2]))] = 0
        counts[-1] += 1
        result.append(_smallest_divergence(counts.astype(np.float64), levels))
        assert result[-1] == least(divergences(counts, levels), levels), counts.tolist()
    assert len(set(result)) > 20


@pytest.mark.parametrize("shape", SHAPES)
def test_entropy_from_statistics_is_as_good_as_from_all_values(reference, shape: str) -> None:
    values = SHAPES[shape]
    result = interval("entropy", seen(*np.array_split(values, 9)))
    largest = float(np.abs(values).max())
    kept = result.bound / largest * ENOUGH
    assert kept == pytest.approx(round(kept))
    assert reference[shape][round(kept) - LEVELS] <= DIVERGENCE * reference[shape].min()
    assert (result.low, result.high) == (
        max(values.min(), -result.bound),
        min(values.max(), result.bound),
    )


def test_entropy_of_too_few_values_is_refused_with_the_name_of_the_tensor() -> None:
    few = seen(np.ones(ENOUGH - 1, dtype=np.float32))
    words = "too few values for entropy calibration (got 2047 values, expected at least num_bins = 2048); calibrate on more rows, or set a lower num_bins."
    with pytest.raises(DataError) as caught:
        interval("entropy", few)
    assert str(caught.value) == words
    with pytest.raises(DataError) as caught:
        Entropy().interval_of("encoder.layer.0.output.dense", few)
    assert str(caught.value) == f'"encoder.layer.0.output.dense": {words}'
    assert interval("entropy", few, num_bins=ENOUGH - 1).bound == 1.0
    assert Entropy().interval_of("a", seen(np.ones(ENOUGH, dtype=np.float32))).bound == 1.0


def test_entropy_needs_more_bins_than_levels(golden) -> None:
    for bins in (64, 128):
        with golden.raises(pydantic.ValidationError):
            Entropy(num_bins=bins, num_quantized_bins=128)
    assert Entropy(num_bins=129, num_quantized_bins=128).num_bins == 129


@pytest.mark.parametrize("bins", [16, 128, ENOUGH])
@pytest.mark.parametrize("shape", SHAPES)
def test_magnitudes_are_close_to_numpy(shape: str, bins: int) -> None:
    values = SHAPES[shape]
    largest = float(np.abs(values).max())
    counts = seen(*np.array_split(values, 9)).magnitudes(bins)
    assert counts.shape == (bins,)
    assert counts.min() >= 0
    assert counts.sum() == pytest.approx(values.size, rel=1e-12)
    # A value is moved by less than its bin's width: below any edge lie at least the values below it by that much, and at
    # most those that are not beyond it by that much.
    edges = np.linspace(0, largest, bins + 1)[1:-1]
    ordered = np.sort(np.abs(values).astype(np.float64))
    below = np.cumsum(counts)[:-1]
    fuzz = 1e-6 * values.size
    assert (np.searchsorted(ordered, edges / (1 + 1.01 * BIN)) <= below + fuzz).all()
    assert (below <= np.searchsorted(ordered, edges * (1 + 1.01 * BIN)) + fuzz).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_counts_below_a_number_are_those_of_numpy_to_one_bin(shape: str) -> None:
    values = SHAPES[shape].astype(np.float64)
    ends = np.linspace(values.min(), values.max(), 65)
    below = seen(*np.array_split(SHAPES[shape], 9)).cumulated(ends)
    assert below[-1] == pytest.approx(values.size)
    assert (np.diff(below) >= 0).all()
    ordered = np.sort(values)
    shift = 1.01 * BIN * np.abs(ends[1:-1])
    fuzz = 1e-6 * values.size
    assert (np.searchsorted(ordered, ends[1:-1] - shift) <= below[1:-1] + fuzz).all()
    assert (below[1:-1] <= np.searchsorted(ordered, ends[1:-1] + shift, side="right") + fuzz).all()


def test_values_that_are_all_alike_are_counted() -> None:
    assert seen(np.full(7, 2.5, dtype=np.float32)).cumulated(np.array([2.0, 3.0])).tolist() == [
        0,
        7,
    ]


def test_a_point_is_in_the_middle_of_its_bin() -> None:
    # Between 1 and 2 all bins are 1/128 wide.
    values = np.linspace(1, 2, 10_000, endpoint=False, dtype=np.float32)
    points, counts = seen(values).points()
    assert len(points) == 128
    assert np.abs(values - np.repeat(points, counts)).max() <= 1 / 256


def test_magnitudes_of_zeros_are_all_there() -> None:
    assert seen(np.zeros(7, dtype=np.float32)).magnitudes(16).sum() == 7


def test_magnitudes_are_exact_where_the_bins_agree() -> None:
    # Quarters are edges of both kinds of bins.
    values = np.random.default_rng(0).uniform(-1, 1, 10_000).astype(np.float32)
    values[0] = 1.0
    np.testing.assert_allclose(seen(values).magnitudes(4), exact_magnitudes(values, 4), rtol=1e-12)


def test_ranges_have_a_json_form() -> None:
    ranges = Ranges(
        calibrator="minmax",
        options={},
        intervals={"a": Interval(low=-1.0, high=2.0, bound=2.0)},
        provenance={
            "samples": 3,
            "tokens": 9,
            "data_digest": "d",
            "model_digest": "m",
            "source": "train",
        },
    )
    assert Ranges.model_validate_json(ranges.model_dump_json()) == ranges
