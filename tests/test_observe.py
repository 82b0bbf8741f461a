"""Observation and calibrators against NumPy that sees all values at once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from octobert import observe, plugins
from octobert.errors import ModelError
from octobert.graph import capture, ops, shapes, sites
from octobert.ranges import RELATIVE_BIN_WIDTH, Interval, Ranges, TensorStatistics
from octobert.stages import observe as stage
from octobert.texts import Encoded, batches, feeds_of
from tests.tiny import batch

CALIBRATORS = plugins.names("calibrators")
# A value read from the histogram is at most one bin away from the exact one.
BIN = RELATIVE_BIN_WIDTH


def seen(*parts: np.ndarray) -> TensorStatistics:
    statistics = TensorStatistics.empty()
    for part in parts:
        statistics = statistics.update(part)
    return statistics


def interval(name: str, statistics: TensorStatistics, **options: object) -> Interval:
    module = plugins.load("calibrators", name)
    return module.interval(statistics, module.Options(**options))


@pytest.fixture(scope="module")
def graph(checkpoint, tmp_path_factory):
    result = capture.capture(checkpoint("bert"), "sequence-classification", [batch([9, 4])])
    path = tmp_path_factory.mktemp("observe") / "model.onnx"
    ops.save(result.model, path)
    found = sites.find_sites(result.model.graph, result.encoder)
    return path, sorted({s.value for s in found if not s.is_weight})


def rows(lengths: list[int]) -> list[Encoded]:
    generator = np.random.default_rng(1)
    return [Encoded(generator.integers(4, 90, n), np.zeros(n, dtype=np.int64), False) for n in lengths]


def test_statistics_equal_numpy_over_all_real_values_at_once(graph) -> None:
    path, values = graph
    data = rows([5, 12, 3, 30, 30, 1, 8, 17])
    feeds = [feeds_of([data[i] for i in group], 0) for group in batches(data, max_tokens=64)]
    statistics = observe.observe(path, feeds, values)
    # The reference: every row alone, so that there is no padding at all, and everything kept.
    import onnxruntime as ort

    model = ir.load(path)
    by_name = {v.name: v for n in model.graph for v in n.outputs}
    alone = path.parent / "alone.onnx"
    shapes.save_with_outputs(model, [by_name[v] for v in values], alone)
    session = ort.InferenceSession(str(alone))
    kept: dict[str, list[np.ndarray]] = {v: [] for v in values}
    for row in data:
        for name, output in zip(values, session.run(values, feeds_of([row], 0)), strict=True):
            kept[name].append(output.reshape(-1))
    for name in values:
        everything = np.concatenate(kept[name])
        one = statistics[name]
        assert one.count == everything.size, name
        np.testing.assert_allclose([one.minimum, one.maximum], [everything.min(), everything.max()], rtol=1e-4, atol=1e-5)
        low, high = one.quantiles(0.01, 0.99)
        exact = np.quantile(everything, [0.01, 0.99], method="inverted_cdf")
        np.testing.assert_allclose([low, high], exact, rtol=2 * BIN, atol=1e-4)


def test_padding_changes_nothing(graph) -> None:
    path, values = graph
    tight, wide = batch([6, 6], seed=2), batch([6, 6, 40], seed=2)
    wide = {k: v[:2] for k, v in wide.items()}
    wide["input_ids"][:, :6] = tight["input_ids"]
    wide["input_ids"][:, 6:] = 77
    first, second = observe.observe(path, [tight], values), observe.observe(path, [wide], values)
    assert wide["input_ids"].shape[1] == 40
    for name in values:
        assert first[name].count == second[name].count, name
        np.testing.assert_allclose(first[name].maximum, second[name].maximum, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(first[name].minimum, second[name].minimum, rtol=1e-4, atol=1e-5)


def test_attention_is_masked_in_rows_and_columns() -> None:
    scores = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=bool)
    kept = observe.real_values(scores, ("batch", 3, "sequence", "sequence"), mask)
    expected = np.concatenate([scores[0].reshape(-1), scores[1, :, :2, :2].reshape(-1)])
    np.testing.assert_array_equal(np.sort(kept), np.sort(expected))


def test_order_and_batching_do_not_matter() -> None:
    values = np.random.default_rng(0).standard_t(2, 5000).astype(np.float32)
    one = seen(values)
    other = seen(*np.array_split(values[::-1], 7))
    assert (one.minimum, one.maximum, one.count) == (other.minimum, other.maximum, other.count)
    np.testing.assert_array_equal(one.histogram, other.histogram)


def test_memory_does_not_grow_with_samples() -> None:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    one, many = seen(values), seen(*[values * k for k in range(1, 50)])
    assert one.histogram.nbytes == many.histogram.nbytes == 65536 * 8


def test_statistics_survive_the_disk(tmp_path) -> None:
    before = {"a.b/c": seen(np.array([1.5, -2.0, 0.0], dtype=np.float32)), "d": seen(np.zeros(4, dtype=np.float32))}
    stage.save(before, tmp_path / "statistics.npz")
    after = stage.load(tmp_path / "statistics.npz")
    assert set(after) == set(before)
    for name, one in before.items():
        assert (after[name].minimum, after[name].maximum, after[name].count) == (one.minimum, one.maximum, one.count)
        np.testing.assert_array_equal(after[name].histogram, one.histogram)


def test_nan_in_an_activation_is_named(graph, tmp_path) -> None:
    path, values = graph
    model = ir.load(path)
    bias = model.graph.initializers["encoder.layer.1.intermediate.dense.bias"]
    broken = bias.const_value.numpy().copy()
    broken[0] = np.nan
    bias.const_value = ir.tensor(broken, name=bias.name)
    ops.save(model, tmp_path / "broken.onnx")
    with pytest.raises(ModelError, match=r'"encoder\.layer\.1\..*" became NaN or infinite'):
        observe.observe(tmp_path / "broken.onnx", [batch([5])], values)


def test_a_nan_in_a_later_batch_is_not_lost() -> None:
    good, bad = np.ones(3, dtype=np.float32), np.array([1.0, np.nan], dtype=np.float32)
    for parts in ((good, bad), (bad, good), (good, bad, good)):
        assert not seen(*parts).is_finite


def test_an_axis_that_is_not_known_is_refused() -> None:
    mask = np.array([[1, 0]], dtype=bool)
    with pytest.raises(ModelError, match="padding cannot be left out"):
        observe.real_values(np.zeros((1, 4)), ("batch", "unknown"), mask)
    np.testing.assert_array_equal(observe.real_values(np.arange(2), ("tokens",), mask), [0])


def test_an_unknown_value_is_refused(graph) -> None:
    with pytest.raises(ModelError, match='the graph has no value "nothing"'):
        observe.observe(graph[0], [batch([5])], ["nothing"])


@pytest.mark.parametrize("name", CALIBRATORS)
class TestEveryCalibrator:
    """What holds for any rule that turns statistics into an interval."""

    def test_all_zero(self, name: str) -> None:
        found = interval(name, seen(np.zeros(100, dtype=np.float32)))
        assert (found.low, found.high, found.bound) == (0.0, 0.0, 0.0)

    def test_never_beyond_what_was_seen_or_zero(self, name: str) -> None:
        for seed in range(5):
            values = np.random.default_rng(seed).standard_t(3, 4000).astype(np.float32) + seed
            found = interval(name, seen(values))
            assert min(values.min(), 0) <= found.low <= found.high <= max(values.max(), 0)
            assert 0 < found.bound <= np.abs(values).max()

    def test_one_sided_values_stay_one_sided(self, name: str) -> None:
        values = np.abs(np.random.default_rng(0).standard_normal(4000)).astype(np.float32)
        assert interval(name, seen(values)).low >= 0.0
        assert interval(name, seen(-values)).high <= 0.0

    def test_the_order_of_batches_does_not_matter(self, name: str) -> None:
        values = np.random.default_rng(3).standard_t(2, 3000).astype(np.float32)
        assert interval(name, seen(values)) == interval(name, seen(*np.array_split(values[::-1], 5)))

    def test_a_single_value(self, name: str) -> None:
        found = interval(name, seen(np.full(10, 3.25, dtype=np.float32)))
        assert found.high == pytest.approx(3.25, rel=2 * BIN)
        assert found.bound == pytest.approx(3.25, rel=2 * BIN)


def test_minmax_is_exact() -> None:
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    found = interval("minmax", seen(values))
    assert (found.low, found.high) == (values.min(), values.max())
    assert found.bound == np.abs(values).max()


@pytest.mark.parametrize("keep", [90.0, 99.0, 99.9, 99.99])
def test_percentile_equals_numpy_to_one_bin(keep: float) -> None:
    values = np.random.default_rng(0).standard_t(3, 200_000).astype(np.float32)
    found = interval("percentile", seen(values), keep=keep)
    cut = (1 - keep / 100) / 2
    exact = np.quantile(values, [cut, 1 - cut], method="inverted_cdf")
    np.testing.assert_allclose([found.low, found.high], exact, rtol=2 * BIN)
    assert found.bound == pytest.approx(np.quantile(np.abs(values), keep / 100), rel=2 * BIN)


def test_percentile_ignores_an_outlier_that_minmax_keeps() -> None:
    values = np.concatenate([np.random.default_rng(0).standard_normal(100_000), [500.0]]).astype(np.float32)
    assert interval("percentile", seen(values), keep=99.99).high < 6
    assert interval("minmax", seen(values)).high == 500.0


def quantization_error(values: np.ndarray, low: float, high: float) -> float:
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    codes = np.clip(np.rint(values / scale) + zero, 0, 255)
    return float(np.mean((values - (codes - zero) * scale) ** 2))


def test_mse_is_the_best_of_all_intervals_on_a_grid() -> None:
    values = np.random.default_rng(0).standard_t(3, 50_000).astype(np.float32)
    found = interval("mse", seen(values))
    ours = quantization_error(values, found.low, found.high)
    for name in ("minmax", "percentile"):
        other = interval(name, seen(values))
        assert ours <= quantization_error(values, other.low, other.high)
    fractions = np.linspace(0.05, 1, 40)
    grid = [quantization_error(values, values.min() * a, values.max() * b) for a in fractions for b in fractions]
    # The search goes over a finer grid than this one, so it must be as good to within the histogram's resolution.
    assert ours <= min(grid) * 1.02


def test_ranges_have_a_json_form() -> None:
    ranges = Ranges(
        calibrator="minmax",
        options={},
        intervals={"a": Interval(low=-1.0, high=2.0, bound=2.0)},
        provenance={"samples": 3, "tokens": 9, "data_digest": "d", "model_digest": "m", "source": "train"},
    )
    assert Ranges.model_validate_json(ranges.model_dump_json()) == ranges
