"""SmoothQuant: the float function stays what it was, and what outlier channels broke is whole again."""

from __future__ import annotations

import shutil
from collections import Counter
from types import SimpleNamespace

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import scipy.optimize
from pydantic import ValidationError

from octobert.config.loading import parse
from octobert.core import families
from octobert.core.ranges import Sample
from octobert.data.encoded import Encoded
from octobert.engine.executors import inline
from octobert.graph import operators, parity, smoothing
from octobert.graph.capture import capture, lowering
from octobert.models.source import resolve
from octobert.pipeline import runner
from octobert.quantization import observer
from octobert.quantization.transforms import smoothquant
from octobert.quantization.transforms.outlier_neurons import OutlierNeurons
from tests.support.checkpoints import batch, make_tokenizer, plant_outliers

FAMILIES = families.names()
# Where Q and K, or V, cannot be rescaled: they are rotated, compared with positions, shared by heads, or made by one linear
# layer.
FOLDED = {
    **dict.fromkeys(("modernbert", "deberta", "eurobert", "gemma3-text", "qwen3"), ()),
    **dict.fromkeys(("deberta-v2", "gte", "jina-embeddings-v3", "nomic-bert"), ("value",)),
}
# Scales up to 64 and back are rounded once on each side.
ROUNDING = 2e-5
ROWS = [
    Encoded(np.random.default_rng(i).integers(4, 90, 3 + i), np.zeros(3 + i, dtype=np.int64), False)
    for i in range(12)
]


def run(model: ir.Model, feeds: dict[str, np.ndarray], tmp_path) -> list[np.ndarray]:
    operators.save(model, tmp_path / "run.onnx")
    session = ort.InferenceSession(str(tmp_path / "run.onnx"))
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


def smoothed(captured, tmp_path, **options: object) -> tuple[ir.Model, list]:
    operators.save(captured.model, tmp_path / "float.onnx")
    model, chosen = ir.load(tmp_path / "float.onnx"), smoothquant.SmoothQuant(**options)
    wanted = chosen.values(model.graph, captured.family)
    samples = observer.sample(ir.load(tmp_path / "float.onnx"), ROWS, 0, wanted, tokens=64, seed=0)
    return model, chosen.transform_(model, captured.family, samples, lambda *_: None)


@pytest.mark.parametrize("family", ["bert", "albert", "mpnet", "modernbert"])
def test_samples_follow_the_graph(captured, family: str, tmp_path) -> None:
    """What later transforms read is what a new pass over the changed graph would give them."""
    result = captured(family)
    operators.save(result.model, tmp_path / "float.onnx")
    model = ir.load(tmp_path / "float.onnx")
    transforms = OutlierNeurons(gain=1e-6), smoothquant.SmoothQuant()
    wanted = sorted({v for each in transforms for v in each.values(model.graph, result.family)})
    given = {"tokens": 64, "seed": 0}
    before = observer.sample(model, ROWS, 0, wanted, **given)
    samples = dict(before)
    for transform in transforms:
        transform.transform_(model, result.family, samples, lambda *_: None)
    again = observer.sample(model, ROWS, 0, wanted, **given)
    moved = [name for name in wanted if not np.allclose(again[name].rows, before[name].rows)]
    assert moved
    for name, expected in again.items():
        close = {"atol": ROUNDING * max(1, np.abs(expected.rows).max())}
        np.testing.assert_allclose(samples[name].rows, expected.rows, **close)
        np.testing.assert_allclose(samples[name].low, expected.low, **close)
        np.testing.assert_allclose(samples[name].high, expected.high, **close)


@pytest.mark.parametrize(
    ("family", "head"),
    [(family, "sequence-classification") for family in FAMILIES]
    + [(family, "embedding") for family in ("bert", "modernbert")]
    + [("bert", "question-answering"), ("modernbert", "token-classification")],
)
def test_any_scales_leave_the_float_function_alone(
    captured, family: str, head: str, tmp_path
) -> None:
    """Every group, shifted and scaled at random (from 1/64 to 64): what is folded and what is written must cancel out."""
    result = captured(family, head)
    feeds = batch([11, 3, 7], pad_id=1, seed=3)
    operators.save(result.model, tmp_path / "float.onnx")
    before = run(result.model, feeds, tmp_path)
    model = ir.load(tmp_path / "float.onnx")
    generator = np.random.default_rng(0)
    groups = smoothing.groups(model.graph, result.family)
    assert {g.kind for g in groups} == {"norm", "activation"} | set(
        FOLDED.get(family, ("scores", "value"))
    )
    for group in groups:
        width = smoothing.weight_of(model.graph, group.readers[0]).shape[
            1 if group.kind == "scores" else 0
        ]
        shifts = generator.normal(0, 3, width)
        can_shift = smoothing.can_shift(model.graph, group)
        smoothing.scale_(
            model, group, 2.0 ** generator.uniform(-6, 6, width), shifts if can_shift else None
        )
    for ours, theirs in zip(run(model, feeds, tmp_path), before, strict=True):
        mask = feeds["attention_mask"].astype(bool)
        real = mask if ours.shape[:2] == mask.shape else slice(None)
        np.testing.assert_allclose(
            ours[real], theirs[real], rtol=0, atol=ROUNDING * max(1.0, np.abs(theirs).max())
        )
    assert [v.name for v in model.graph.outputs] == [v.name for v in result.model.graph.outputs]


@pytest.mark.parametrize(
    ("family", "reasons"),
    [
        ("bert", {}),
        ("electra", {"it reads no norm": 1}),
        ("deberta-v2", {"it reads no norm": 1, "more than Q·Kᵀ reads Q and K": 2}),
        ("modernbert", {"Q, K and V are one linear layer": 4}),
        (
            "albert",
            {
                "it reads no norm": 1,
                "layers that cannot be scaled the same way share its weights": 1,
            },
        ),
    ],
)
def test_what_cannot_be_scaled_is_left_alone_for_a_reason(
    captured, family: str, reasons: dict, tmp_path
) -> None:
    _, facts = smoothed(captured(family), tmp_path)
    assert Counter(fact["left"] for fact in facts if "left" in fact) == reasons
    assert all(fact["alpha"] is None for fact in facts if "left" in fact)


def test_layers_that_share_weights_are_scaled_together(captured, tmp_path) -> None:
    result = captured("albert")
    groups = smoothing.groups(result.model.graph, result.family)
    assert Counter(g.kind for g in groups) == {"norm": 1, "scores": 1, "value": 1, "activation": 1}
    assert all([place.layer for place in g.places] == [0, 1] for g in groups)
    names = set(result.model.graph.initializers)
    model, _ = smoothed(result, tmp_path, alpha=0.5)
    added = set(model.graph.initializers) - names
    # One vector for each Mul that was added; no weight twice.
    assert len(added) == 4
    assert all(name.endswith(".smoothing") for name in added)


@pytest.mark.parametrize("alpha", ["learned", 0.0, 0.5, 1.0])
@pytest.mark.parametrize("activation", [True, False])
def test_every_option_keeps_the_function(
    captured, tmp_path, alpha: object, activation: bool
) -> None:
    result = captured("bert")
    feeds = batch([11, 3, 7], seed=3)
    before = run(result.model, feeds, tmp_path)
    model, facts = smoothed(result, tmp_path, alpha=alpha, activation=activation)
    np.testing.assert_allclose(
        run(model, feeds, tmp_path)[0], before[0], rtol=0, atol=ROUNDING * 10
    )
    kinds = {fact["kind"] for fact in facts}
    assert ("activation" in kinds) is activation
    alphas = {fact["alpha"] for fact in facts if fact["kind"] != "scores"}
    assert alphas == {alpha}


def test_only_groups_with_biases_on_both_sides_are_shifted(captured) -> None:
    shifted = {}
    for family in ("bert", "modernbert"):
        graph = captured(family).model.graph
        groups = smoothing.groups(graph, captured(family).family)
        shifted[family] = {g.kind for g in groups if smoothing.can_shift(graph, g)}
    # ModernBERT has no biases.
    assert shifted == {"bert": {"norm", "value"}, "modernbert": set()}


def test_channels_are_centred_where_that_is_free(bert, tmp_path) -> None:
    model, _ = smoothed(bert, tmp_path)
    operators.save(model, tmp_path / "smooth.onnx")
    value = "encoder.layer.0.attention.self.context"
    seen = observer.sample(ir.load(tmp_path / "smooth.onnx"), ROWS, 0, [value], tokens=64, seed=0)[
        value
    ]
    np.testing.assert_allclose(seen.low, -seen.high, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("channels", "weights"), [(1e-12, 1), (1e4, 1), (1e8, 1e-6), (0, 1)])
def test_single_precision_is_enough_for_channels_and_weights_of_any_size(
    channels: float, weights: float
) -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(200, 64)).astype(np.float32)
    weight = generator.normal(size=(64, 32)).astype(np.float32)
    rows[:, :8] *= channels
    weight[:, :4] *= weights
    weight[3] *= weights
    sample = Sample(rows.min(axis=0), rows.max(axis=0), rows)
    learned = smoothquant._learned(sample, weight)
    assert np.isfinite(learned).all()
    plain = smoothquant.product_error(sample, weight, np.ones(64))
    assert smoothquant.product_error(sample, weight, learned) < plain


def test_scales_are_learned_by_the_exact_gradient(monkeypatch) -> None:
    """The expected error falls from the start to the end, and its gradient equals differences of its values."""
    generator = np.random.default_rng(5)
    spread = 2.0 ** generator.normal(0, 2, 24)
    rows = (generator.normal(0.3, 1, (300, 24)) * spread).astype(np.float32)
    weight = generator.normal(0, 1, (24, 8))
    asked = []

    def check(error, start, **_):
        asked.append(error)
        return SimpleNamespace(x=start)

    sample = Sample(rows.min(axis=0), rows.max(axis=0), rows)
    monkeypatch.setattr(scipy.optimize, "minimize", check)
    smoothquant._learned(sample, weight)
    monkeypatch.undo()
    at = generator.normal(0, 0.3, 24)
    _, gradient = asked[0](at)
    steps = 1e-6 * np.eye(24)
    measured = [(asked[0](at + step)[0] - asked[0](at - step)[0]) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, measured, atol=2e-5)
    learned = smoothquant._learned(sample, weight)
    fixed = [smoothquant.balanced(sample.largest, weight, alpha) for alpha in (0.0, 0.5, 0.8)]
    ours, *theirs = (
        smoothquant.product_error(sample, weight, s) for s in (learned, np.ones(24), *fixed)
    )
    # What stands for a maximum is a little larger than it.
    assert ours < 1.1 * min(theirs)


@pytest.mark.parametrize("alpha", [-0.1, 1.01, "most"])
def test_an_alpha_out_of_range_is_refused(alpha: object) -> None:
    with pytest.raises(ValidationError):
        smoothquant.SmoothQuant(alpha=alpha)


def test_learned_scales_have_a_smaller_error_than_any_fixed_alpha(bert, tmp_path) -> None:
    """Of all groups together: single groups may differ from what is expected of them."""
    totals = {}
    for alpha in ("learned", 0.3, 0.5, 0.8):
        _, records = smoothed(bert, tmp_path, alpha=alpha)
        totals[alpha] = sum(np.log(each["error"]) for each in records if each["error"] is not None)
    assert min(totals, key=totals.get) == "learned"


def test_channels_before_and_after_are_as_far_apart_as_the_factors(bert, tmp_path) -> None:
    """The magnitudes that are kept for the report equal those of the smoothed graph."""
    model, records = smoothed(bert, tmp_path, alpha=0.5)
    operators.save(model, tmp_path / "smooth.onnx")
    before, after = next(each["channels"] for each in records if each["kind"] == "value")
    value = "encoder.layer.0.attention.self.context"
    for file, expected in (("float.onnx", before), ("smooth.onnx", after)):
        seen = observer.sample(ir.load(tmp_path / file), ROWS, 0, [value], tokens=64, seed=0)[
            value
        ].largest
        np.testing.assert_allclose(seen, expected, rtol=1e-4)


def test_planted_outliers_are_found_and_taken_back(bert, checkpoint, tmp_path) -> None:
    """The helper plants what per-tensor ranges cannot hold; the float function stays; smoothing brings the ranges back."""
    folder = plant_outliers(checkpoint("bert"), tmp_path / "planted", factor=100.0, channels=2)
    head, feeds = "sequence-classification", batch([11, 3, 7], seed=3)
    planted = capture.capture(resolve(folder), head, [batch([9, 4])])
    before = run(bert.model, feeds, tmp_path)[0]
    np.testing.assert_allclose(run(planted.model, feeds, tmp_path)[0], before, rtol=0, atol=1e-4)
    model, _ = smoothed(planted, tmp_path)
    operators.save(model, tmp_path / "smooth.onnx")
    values = [f"encoder.layer.0.attention.self.{name}" for name in ("context", "query")]
    wild = observer.sample(ir.load(tmp_path / "float.onnx"), ROWS, 0, values, tokens=64, seed=0)
    tame = observer.sample(ir.load(tmp_path / "smooth.onnx"), ROWS, 0, values, tokens=64, seed=0)
    for value in values:
        # Spread between the widest and the median channel, which is what a range for all of them has to hold.
        spreads = [
            float(s[value].largest.max() / np.median(s[value].largest)) for s in (wild, tame)
        ]
        assert spreads[0] > 20
        assert spreads[1] < 8


@pytest.mark.parametrize("level", ["ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_a_graph_that_onnxruntime_optimized_is_taken_apart(
    bert, float_path, checkpoint, tmp_path, level: str
) -> None:
    """SkipLayerNormalization, FusedMatMul and the like: the norms are found again, and with them the residual adds."""
    head = "sequence-classification"
    folder = tmp_path / "optimized"
    shutil.copytree(checkpoint("bert"), folder)
    settings = ort.SessionOptions()
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    settings.optimized_model_filepath = str(folder / "model.onnx")
    settings.log_severity_level = 4
    ort.InferenceSession(str(float_path), settings)
    fused = {n.op_type for n in ir.load(folder / "model.onnx").graph if n.domain == "com.microsoft"}
    assert "SkipLayerNormalization" in fused
    assert fused <= set(lowering.FUSED)
    make_tokenizer(folder, pad_id=0)
    again = capture.capture(resolve(folder / "model.onnx"), head, [batch([9, 4]), batch([5])])
    assert again.parity.largest_difference <= parity.TOLERANCE
    assert {n.op_type for n in again.model.graph} == {n.op_type for n in bert.model.graph}


@pytest.mark.needs_shared
def test_outliers_that_break_plain_ranges_cost_nothing_after_smoothing(shared, tmp_path) -> None:
    """Measured: plain min-max loses 9.6 points, the default none."""
    model = plant_outliers(
        shared / "checkpoints" / "minilm-mrpc", tmp_path / "planted", factor=100.0, channels=8
    )
    recipe = {
        "model": str(model),
        "task": "mrpc",
        "data": {
            "source": str(shared / "data" / "mrpc"),
            "calibrate": {"from": "train", "samples": 96},
        },
        "targets": ["ort-cpu"],
        "baselines": ["ort-f32"],
        "benchmark": {"batch": [1], "sequence": [32], "repeats": 3},
        "profile": False,
    }
    broken = runner.run(
        parse({**recipe, "transforms": [], "corrections": [], "calibrate": "minmax"}),
        tmp_path / "out",
        executor=inline.run,
    )
    whole = runner.run(parse(recipe), tmp_path / "out", executor=inline.run)
    drops = [report.of("ort-cpu").against_float.difference for report in (broken, whole)]
    assert drops[0] < -0.05
    assert abs(drops[1]) <= 0.01
