"""Planners, placements, sensitivity and corrections; contracts hold for every plugin."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir
import pytest

from octobert import targets
from octobert.core import capability
from octobert.core.errors import PlanError
from octobert.core.plan import LIMITS, Quantizer, QuantPlan, Site
from octobert.core.ranges import Collector, Interval, Ranges
from octobert.data.encoded import feeds_of
from octobert.graph import qdq
from octobert.graph.capture import shapes
from octobert.quantization import apply_corrections, corrections, placements, sensitivity
from octobert.quantization.corrections import LinearLayer, Moments, MomentsCollector
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from octobert.quantization.methods.weight_only import WeightOnly
from tests.support.graphs import (
    capabilities,
    constant,
    encoded,
    outputs_on_batches,
    ranges,
    ranges_for,
)

INTEGERS = [dtype for dtype in LIMITS if dtype != "float8e4m3"]
CORRECTIONS = corrections.names()
# A value read from the histogram is off by half a bin of 1/128 of it: 0.07 dB of a signal, and as much of the noise.
BINS_DB = 0.14
# Errors of outputs, measured in a session with fused operators and in one without.
FUSED = 1e-2
# Sums over the same tokens, in float32 here and there.
SUMS = 1e-5


def plan_of(
    placed: tuple[Site, ...], chosen: Ranges, target: str = "ort-cpu", **options: object
) -> QuantPlan:
    return Static(**options).plan(placed, chosen, capabilities(target))


def linear(module: str, role: str = "linear.input", layer: int | None = 0) -> Site:
    """A site of a linear layer, by hand."""
    weight = role == "linear.weight"
    value = f"{module}.weight" if weight else f"{module}.read"
    node = f"{module}.matmul"
    return Site(
        role=role,
        part="ffn_up",
        module=module,
        layer=layer,
        node=node,
        input=int(weight),
        value=value,
    )


# --- placements


def kinds(plan: QuantPlan, layer: int | None) -> Counter[str]:
    return Counter(site.kind for site, _ in plan.quantized if site.layer == layer)


@pytest.mark.parametrize("target", targets.names())
def test_qdqbert_has_20_quantizers_a_layer(bert_sites, target) -> None:
    plan = plan_of(bert_sites, ranges_for(bert_sites), target, placement="qdqbert")
    linears = ("query", "key", "value", "attention_output", "ffn_up", "ffn_down")
    expected = {f"linear.{what}@{part}": 1 for what in ("input", "weight") for part in linears}
    expected |= dict.fromkeys(("scores.query@attention", "scores.key@attention"), 1)
    expected |= dict.fromkeys(("context.probs@attention", "context.value@attention"), 1)
    expected |= {
        f"residual.{what}@{part}": 1
        for what in ("branch", "skip")
        for part in ("attention_norm", "ffn_norm")
    }
    assert sum(expected.values()) == 20
    for layer in range(2):
        assert kinds(plan, layer) == expected
    assert kinds(plan, None) == (
        {"embedding.weight@embeddings": 1}
        if "embedding.weight" in capabilities(target).roles
        else {}
    )


def test_tensorrt_is_qdqbert_with_heads(bert_sites) -> None:
    qdqbert, tensorrt = (
        plan_of(bert_sites, ranges_for(bert_sites), placement=name)
        for name in ("qdqbert", "tensorrt")
    )
    more = {s for s, _ in tensorrt.quantized} - {s for s, _ in qdqbert.quantized}
    assert {s for s, _ in qdqbert.quantized} < {s for s, _ in tensorrt.quantized}
    assert sorted((s.module, s.role) for s in more) == [
        ("classifier", "head.input"),
        ("classifier", "head.weight"),
        ("pooler.dense", "head.input"),
        ("pooler.dense", "head.weight"),
    ]


def test_ffn_takes_feed_forward_layers_only(bert_sites) -> None:
    plan = plan_of(bert_sites, ranges_for(bert_sites), placement="ffn", embeddings="float")
    wanted = [
        f"linear.{what}@{part}" for part in ("ffn_up", "ffn_down") for what in ("input", "weight")
    ]
    assert kinds(plan, 0) == kinds(plan, 1) == dict.fromkeys(wanted, 1)
    assert kinds(plan, None) == {}


def test_qdqbert_row_quantizes_where_values_are_made(bert_sites) -> None:
    plan = plan_of(bert_sites, ranges_for(bert_sites), placement="qdqbert-row")
    expected = {f"linear.output@{part}": 1 for part in ("query", "key", "value", "ffn_up")}
    expected |= {f"{what}.output@attention": 1 for what in ("scores", "probs", "context")}
    expected |= {"activation.output@activation": 1}
    expected |= {
        f"{what}.output@{part}": 1
        for what in ("residual", "norm")
        for part in ("attention_norm", "ffn_norm")
    }
    weights = {
        f"linear.weight@{part}": 1
        for part in ("query", "key", "value", "attention_output", "ffn_up", "ffn_down")
    }
    for layer in range(2):
        assert kinds(plan, layer) == expected | weights
    assert kinds(plan, None) == {"norm.output@embeddings": 1, "embedding.weight@embeddings": 1}
    # Inputs are not quantized a second time, and the plan says why.
    reasons = {d.site.role: d.reason for d in plan.decisions if d.quantizer is None}
    assert (
        reasons["linear.input"]
        == reasons["scores.key"]
        == "quantized at the operator that outputs it"
    )


def test_a_placement_may_be_written_out(bert_sites) -> None:
    plan = plan_of(bert_sites, ranges_for(bert_sites), placement=["linear.*@ffn_*", "scores.key"])
    taken = {s for s, _ in plan.quantized if s.role != "embedding.weight"}
    expected = {
        s for s in bert_sites if fnmatchcase(s.kind, "linear.*@ffn_*") or s.role == "scores.key"
    }
    # The output of the first layer is quantized where it is made; GELU is between it and the second.
    assert taken == expected
    assert (plan.placement, len(taken)) == ("custom", 2 * 7)
    both = plan_of(bert_sites, ranges_for(bert_sites), placement=("linear.input", "norm.output"))
    reasons = {d.site.kind: d.reason for d in both.decisions if d.site.layer == 1}
    assert reasons["linear.input@query"] == "quantized at the operator that outputs it"
    assert reasons["linear.input@ffn_down"] == "placement custom"


@pytest.mark.parametrize(
    "placement",
    [
        "qdqbrt",
        "linear.input",
        ("linear.imput",),
        ("linear.input@fn_up",),
        ("linear.input", "conv.*"),
        (),
        ("scores.key@ffn_up",),
    ],
    ids=str,
)
def test_unknown_placements_and_kinds_are_refused(golden, placement) -> None:
    with golden.raises(ValueError):
        Static(placement=placement)


@pytest.mark.parametrize("enable", [(), ("classifier",)])
@pytest.mark.parametrize("placement", ["auto", *placements.names(), ("linear.*@ffn_*",)], ids=str)
def test_what_is_observed_is_enough_for_every_plan(
    bert_sites, bert_ranges, placement, enable
) -> None:
    method = Static(placement=placement, enable=enable)
    tables = [capabilities(name) for name in targets.names()]
    wanted = method.observed_kinds(tables)
    seen = {
        s.value
        for s in bert_sites
        if any(fnmatchcase(s.kind, k) or fnmatchcase(s.role, k) for k in wanted)
    }
    few = bert_ranges.model_copy(
        update={"intervals": {k: v for k, v in bert_ranges.intervals.items() if k in seen}}
    )
    for table in tables:
        assert method.plan(bert_sites, few, table) == method.plan(bert_sites, bert_ranges, table)
    assert Dynamic(enable=enable).observed_kinds(tables) == ()


# --- disable and enable


def disabled(placed: tuple[Site, ...], *patterns: str) -> set[str]:
    plan = plan_of(placed, ranges_for(placed), placement="matmul", disable=patterns)
    return {
        f"{d.site.module}:{d.site.role}"
        for d in plan.decisions
        if d.reason.startswith("disabled by")
    }


def test_patterns_are_words_wildcards_and_roles() -> None:
    names = [f"encoder.layer.{i}.output.dense" for i in (0, 1, 10)]
    by_hand = tuple(
        linear(name, role) for name in names for role in ("linear.input", "linear.weight")
    )
    every = {f"{s.module}:{s.role}" for s in by_hand}

    def of(*layers: int, role: str = "") -> set[str]:
        return {one for one in every if any(f".{i}." in one for i in layers) and one.endswith(role)}

    # A word is a whole part of a path: layer 1 is not layer 10.
    assert (
        disabled(by_hand, "layer.1") == disabled(by_hand, "encoder.layer.1.output.dense") == of(1)
    )
    assert disabled(by_hand, "layer.1", "layer.0") == of(0, 1)
    # A wildcard is held against the whole path, so it may take both.
    assert disabled(by_hand, "*.layer.1*") == of(1, 10)
    assert disabled(by_hand, "encoder.layer.[01].*") == of(0, 1)
    assert disabled(by_hand, "*.dense:linear.weight") == of(0, 1, 10, role="linear.weight")
    assert disabled(by_hand, "layer.1.output.dense:linear.input") == of(1, role="linear.input")
    for nothing in ("ayer.1", "layer.1*", "dens", "layer.1:linear.input"):
        with pytest.raises(PlanError, match="matches no module"):
            disabled(by_hand, nothing)


def test_enable_beats_the_placement_and_disable(bert_sites) -> None:
    options = {
        "placement": "ffn",
        "disable": ("layer.0",),
        "enable": ("*.query:linear.*t", "classifier"),
    }
    decisions = {
        d.site: d for d in plan_of(bert_sites, ranges_for(bert_sites), **options).decisions
    }
    reasons = {f"{s.module}:{s.role}": d.reason for s, d in decisions.items()}
    for layer in (0, 1):
        assert (
            reasons[f"encoder.layer.{layer}.attention.self.query:linear.weight"]
            == 'enabled by "*.query:linear.*t"'
        )
    assert reasons["classifier:head.input"] == 'enabled by "classifier"'
    assert reasons["encoder.layer.0.intermediate.dense:linear.weight"] == 'disabled by "layer.0"'
    assert reasons["encoder.layer.1.intermediate.dense:linear.weight"] == "placement ffn"
    assert "attention" in reasons["encoder.layer.1.attention.self:scores.key"]
    for site, decision in decisions.items():
        expected = (
            decision.reason.startswith(("enabled", "placement")) or site.role == "embedding.weight"
        )
        assert (decision.quantizer is not None) == expected, site


@pytest.mark.parametrize("method", [Static, Dynamic])
@pytest.mark.parametrize(
    ("disable", "enable"),
    [
        (("encoder.layer.0.intermediate.dens",), ()),
        ((), ("poler.dense",)),
        (("query", "key"), ("key",)),
        (("query",), ("layer.0", "encoder.layer.1.*")),
    ],
)
def test_patterns_that_cannot_be_meant_are_errors(
    golden, bert_sites, method, disable, enable
) -> None:
    with golden.raises(PlanError):
        method(disable=disable, enable=enable).plan(
            bert_sites, ranges_for(bert_sites), capabilities("ort-cpu")
        )


# --- options of the static method


QKV = ("scores.query", "scores.key", "context.value")


def held(quantizer: Quantizer) -> tuple[float, float]:
    return quantizer.low, quantizer.high


@pytest.mark.parametrize("target", targets.names())
def test_fused_q_k_and_v_have_one_range_a_layer(bert_sites, bert_ranges, target) -> None:
    alone = {
        s: q
        for s, q in plan_of(bert_sites, bert_ranges, target, placement="matmul-attention").quantized
    }
    fused = dict(
        plan_of(
            bert_sites, bert_ranges, target, placement="matmul-attention", fuse_qkv=True
        ).quantized
    )
    groups = []
    for layer in range(2):
        inside = [s for s in fused if s.layer == layer and s.role in QKV]
        low, high = min(alone[s].low for s in inside), max(alone[s].high for s in inside)
        for site in inside:
            both = max(-low, high)
            assert held(fused[site]) == ((-both, both) if fused[site].symmetric else (low, high)), (
                site.kind
            )
        groups.append((low, high))
    assert groups[0] != groups[1]
    # OpenVINO takes symmetric Q and K beside an asymmetric V on CPUs.
    table = capabilities(target)
    expected = {table.activations.computed[0][1]} | (
        {True} if table.activations.symmetric_int8 else set()
    )
    assert {fused[s].symmetric for s in fused if s.role in QKV} == expected
    # Weights with one scale each share it among Q, K and V.
    rest = [
        s
        for s in fused
        if s.role not in (*QKV, "linear.weight" if table.weights.axis is None else "")
    ]
    assert {s: fused[s] for s in rest} == {s: alone[s] for s in rest}


def test_a_wide_value_stays_symmetric_where_q_and_k_are(bert_sites) -> None:
    """OpenVINO's symmetric Q and K hold twice the wider side of an asymmetric V, and V holds what they hold."""
    given = {"scores.query": (-2.0, 1.0), "scores.key": (-1.0, 1.0), "context.value": (-1.0, 5.0)}
    chosen = {
        s.value: Interval(low=low, high=high, bound=max(-low, high))
        for s in bert_sites
        for low, high in [given.get(s.role, (0, 1))]
    }
    plan = plan_of(
        bert_sites, ranges(chosen), "openvino-cpu", placement="matmul-attention", fuse_qkv=True
    )
    assert {s.role: held(q) for s, q in plan.quantized if s.role in QKV and s.layer == 1} == {
        "scores.query": (-5.0, 5.0),
        "scores.key": (-5.0, 5.0),
        "context.value": (-2.0, 5.0),
    }


def test_fused_q_k_and_v_have_one_range_where_they_are_made(bert_sites, bert_ranges) -> None:
    plan = plan_of(bert_sites, bert_ranges, placement="qdqbert-row", fuse_qkv=True)
    parts = [f"linear.output@{part}" for part in ("query", "key", "value")]
    assert len({held(q) for s, q in plan.quantized if s.kind in parts and s.layer == 0}) == 1


@pytest.mark.parametrize(
    ("placement", "kind"),
    [("matmul", "linear.input@ffn_down"), ("qdqbert-row", "activation.output@activation")],
)
@pytest.mark.parametrize("activations", ["auto", "int16"])
def test_clip_gelu_bounds_the_range_of_gelu_alone(
    bert_sites, bert_ranges, placement, kind, activations
) -> None:
    options = {"placement": placement, "activations": activations}
    plain, clipped, wide = (
        dict(plan_of(bert_sites, bert_ranges, clip_gelu=clip, **options).quantized)
        for clip in (None, 2.0, 1000.0)
    )
    # The bound is kept for ranges that are observed or learned later.
    assert {
        site: quantizer.model_copy(update={"ceiling": None}) for site, quantizer in wide.items()
    } == plain
    changed = {s for s in plain if clipped[s] != plain[s]}
    assert changed == {s for s in plain if s.kind == kind}
    for site in changed:
        assert plain[site].high > 2.0
        low = -2.0 if activations == "int16" else plain[site].low
        assert held(clipped[site]) == (low, 2.0)


def test_clip_gelu_is_positive() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Static(clip_gelu=0.0)


@pytest.mark.parametrize(
    ("options", "update"),
    [
        ({"per_channel": False}, {"axis": None}),
        ({"weight_ranges": "mse"}, {"weight_ranges": "mse"}),
        ({"reduce_range": True}, {"reduce_range": True}),
    ],
)
@pytest.mark.parametrize("method", [Static, Dynamic])
def test_options_of_weights_change_weights_alone(
    bert_sites, bert_ranges, method, options, update
) -> None:
    plain, changed = (
        dict(method(**one).plan(bert_sites, bert_ranges, capabilities("ort-cpu")).quantized)
        for one in ({}, options)
    )
    assert set(plain) == set(changed)
    for site, quantizer in plain.items():
        expected = (
            quantizer.model_copy(update=update) if site.role == "linear.weight" else quantizer
        )
        assert changed[site] == expected, site.kind


def test_q_and_k_stay_float_where_products_saturate(bert_sites, bert_ranges) -> None:
    """OpenVINO multiplies symmetric Q and K in integers, with no weight to take a bit from; asymmetric ones in float."""
    kinds = {}
    for reduced, placement in (
        ("auto", "auto"),
        (False, "auto"),
        (True, "auto"),
        (True, "matmul-scores"),
    ):
        plan = plan_of(
            bert_sites, bert_ranges, "openvino-cpu", reduce_range=reduced, placement=placement
        )
        capability.check(plan, capabilities("openvino-cpu"))
        of = [d for d in plan.decisions if d.site.role in ("scores.query", "scores.key")]
        kinds[reduced, placement] = {
            (d.quantizer.dtype, d.quantizer.symmetric) if d.quantizer else d.reason for d in of
        }
    why = "without integer units symmetric Q and K saturate, and a float product is faster than one behind quantizers"
    named = {(True, "auto"): {why}, (True, "matmul-scores"): {("uint8", False)}}
    assert kinds == {("auto", "auto"): {("int8", True)}, (False, "auto"): {("int8", True)}, **named}
    asked = plan_of(
        bert_sites,
        bert_ranges,
        "openvino-cpu",
        reduce_range=True,
        activations="int8",
        symmetric=True,
    )
    assert {(q.dtype, q.symmetric) for s, q in asked.quantized if not s.is_weight} == {
        ("int8", True)
    }


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        (("avx2",), True),
        (("avx2", "avx512f"), True),
        (("avx2", "avx_vnni"), False),
        (("avx2", "avx512f", "avx512_vnni"), False),
        (("asimddp", "i8mm"), False),
        ((), False),
        (("ssse3",), True),
        (("asimddp", "i8mm", "bf16"), False),
    ],
)
def test_8_bit_products_saturate_on_x86_without_vnni(features, expected) -> None:
    for target in ("ort-cpu", "openvino-cpu"):
        assert capability.saturates(capabilities(target), features) is expected
    assert not capability.saturates(capabilities("ort-cuda"), features)


def test_embeddings_may_stay_float(bert_sites, bert_ranges) -> None:
    for method in (Static, Dynamic):
        made = method(embeddings="float")
        plan = made.plan(bert_sites, bert_ranges, capabilities("ort-cpu"))
        (decision,) = (d for d in plan.decisions if d.site.role == "embedding.weight")
        assert (decision.quantizer, decision.reason) == (None, "option embeddings is float")


# --- the dynamic method


def test_dynamic_takes_linear_layers_and_heads_only_when_enabled(bert_sites, bert_ranges) -> None:
    def taken(**options: object) -> Counter[str]:
        plan = Dynamic(**options).plan(bert_sites, bert_ranges, capabilities("ort-cpu"))
        assert all(q.dynamic != s.is_weight for s, q in plan.quantized)
        return Counter(s.role for s, _ in plan.quantized)

    plain = {"linear.input": 12, "linear.weight": 12, "embedding.weight": 1}
    assert taken() == plain
    assert taken(enable=("classifier",)) == plain | {"head.input": 1, "head.weight": 1}
    # What has no dynamic form stays float even then.
    assert taken(enable=("attention.self",)) == plain
    assert taken(disable=("layer.1",)) == plain | {"linear.input": 6, "linear.weight": 6}


def test_dynamic_activations_are_refused_where_they_would_be_float(bert_sites, bert_ranges) -> None:
    plan = Dynamic().plan(bert_sites, bert_ranges, capabilities("openvino-gpu"))
    words = r"openvino-gpu: the plan breaks 8 rules .*openvino-gpu does not quantize activations per batch.* 3 more"
    with pytest.raises(PlanError, match=words):
        capability.check(plan, capabilities("openvino-gpu"))
    capability.check(plan, capabilities("ort-cpu"))


def test_each_target_gets_the_dynamic_form_that_it_computes(bert_sites, bert_ranges) -> None:
    forms = {"ort-cpu": None, "openvino-cpu": 128}
    for target, group in forms.items():
        plan = Dynamic().plan(bert_sites, bert_ranges, capabilities(target))
        assert {q.group for s, q in plan.quantized if not s.is_weight} == {group}
        assert plan.group == group
        capability.check(plan, capabilities(target))
        other = next(name for name in forms if name != target)
        with pytest.raises(PlanError, match="does not quantize activations per"):
            capability.check(plan, capabilities(other))
        assert all(s.is_weight for s, _ in capability.repaired(plan, capabilities(other)).quantized)


# --- sensitivity


def silent(*_: object) -> None:
    """No progress to show."""


@pytest.mark.parametrize(("low", "high"), [(-4.5, 5.5), (-2.0, 3.0), (-60.0, 60.0), (-0.5, 1.0)])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_noise_of_an_activation_equals_numpy(dtype, symmetric, low, high) -> None:
    values = np.random.default_rng(0).normal(0.3, 1.0, 100_000).astype(np.float32)
    collector = Collector(1)
    collector.add([0], [values])
    quantizer = Quantizer(dtype=dtype, symmetric=symmetric, low=low, high=high)
    scale, zero = qdq.activation_parameters(quantizer)
    codes = np.clip(np.rint(values.astype(np.float64) / scale) + int(zero), *LIMITS[dtype])
    noise = np.mean((values - (codes - int(zero)) * float(scale)) ** 2)
    expected = 10 * np.log10(np.mean(values.astype(np.float64) ** 2) / noise)
    assert sensitivity.activation_snr(collector.statistics(), quantizer) == pytest.approx(
        expected, abs=BINS_DB
    )


# --- corrections


def correlated(seed: int, mean: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [2000, 32] of a few directions, as activations are, and their 8-bit forms."""
    generator = np.random.default_rng(seed)
    x = (
        generator.normal(size=(2000, 6)) @ generator.normal(size=(6, 32))
        + 0.2 * generator.normal(size=(2000, 32))
        + mean
    )
    return x.astype(np.float32), in_8_bits(x.astype(np.float32))


def in_8_bits(x: np.ndarray) -> np.ndarray:
    quantizer = Quantizer(dtype="uint8", symmetric=False, low=float(x.min()), high=float(x.max()))
    scale, zero = qdq.activation_parameters(quantizer)
    return ((np.clip(np.rint(x / scale) + int(zero), 0, 255) - int(zero)) * scale).astype(
        np.float32
    )


def moments_of(x: np.ndarray, q: np.ndarray) -> Moments:
    collector = MomentsCollector(x.shape[1], products=True)
    for part, quantized in zip(np.array_split(x, 3), np.array_split(q, 3), strict=True):
        if len(part):
            collector.add(part, quantized)
    return collector.moments()


def layer_of(
    seed: int, *, bias: bool = True, axis: int | None = 1, least: str = "max"
) -> LinearLayer:
    generator = np.random.default_rng(100 + seed)
    weight = generator.normal(size=(32, 16)).astype(np.float32)
    quantizer = Quantizer(dtype="int8", symmetric=True, axis=axis, weight_ranges=least)
    return LinearLayer.uncorrected(
        weight, generator.normal(size=16).astype(np.float32) if bias else None, quantizer
    )


def corrected(name: str, layer: LinearLayer, moments: Moments) -> LinearLayer:
    return corrections.load(name).correct(layer, moments)


def squared_error(x: np.ndarray, q: np.ndarray, layer: LinearLayer, result: LinearLayer) -> float:
    """Of q W8 + b8, as it will be written, against x W + b."""
    written = qdq.dequantized_weight(result.weight, result.quantizer, result.scale).astype(
        np.float64
    )
    ours, theirs = (0 if each.bias is None else each.bias for each in (result, layer))
    difference = q @ written + ours - (x.astype(np.float64) @ layer.weight + theirs)
    return float(np.mean(difference**2))


def test_moments_equal_numpy() -> None:
    x, q = correlated(0)
    moments = moments_of(x, q)
    centred = q - q.mean(axis=0, dtype=np.float64)
    assert moments.count == 2000
    np.testing.assert_allclose(moments.mean, x.mean(axis=0, dtype=np.float64), atol=SUMS)
    np.testing.assert_allclose(moments.mean_quantized, q.mean(axis=0, dtype=np.float64), atol=SUMS)
    np.testing.assert_allclose(moments.products, centred.T @ centred / 2000, atol=10 * SUMS)


@pytest.mark.parametrize("least", ["max", "mse"])
@pytest.mark.parametrize("axis", [1, None])
@pytest.mark.parametrize("name", CORRECTIONS)
class TestEveryRefiner:
    """What holds for any rule that changes a layer's constants."""

    def test_the_error_of_outputs_does_not_rise(
        self, name: str, axis: int | None, least: str
    ) -> None:
        for seed in range(4):
            x, q = correlated(seed)
            layer = layer_of(seed, axis=axis, least=least)
            plain = squared_error(x, q, layer, layer)
            ours = squared_error(x, q, layer, corrected(name, layer, moments_of(x, q)))
            # What is lost of the inputs is most of the plain error, and no choice of weights brings all of it back.
            assert ours <= plain * (0.9 if name == "weight-rounding" else 1 + 1e-6), seed

    def test_a_channel_that_is_always_zero(self, name: str, axis: int | None, least: str) -> None:
        x, q = correlated(0)
        x[:, 3] = q[:, 3] = 0.0
        layer = layer_of(0, axis=axis, least=least)
        result = corrected(name, layer, moments_of(x, q))
        for one in (
            result.weight,
            result.bias,
            qdq.dequantized_weight(result.weight, result.quantizer, result.scale),
        ):
            assert np.isfinite(one).all()
        assert squared_error(x, q, layer, result) <= squared_error(x, q, layer, layer) * (1 + 1e-6)

    def test_types_and_shapes_stay(self, name: str, axis: int | None, least: str) -> None:
        x, q = correlated(0)
        for bias in (True, False):
            layer = layer_of(0, bias=bias, axis=axis, least=least)
            before = layer.weight.copy()
            result = corrected(name, layer, moments_of(x, q))
            assert (result.weight.shape, result.weight.dtype) == ((32, 16), np.float32)
            assert (result.bias is None) == (not bias)
            if bias:
                assert (result.bias.shape, result.bias.dtype) == ((16,), np.float32)
            assert result.quantizer == layer.quantizer
            # A pure function: the layer that came in is what it was.
            np.testing.assert_array_equal(layer.weight, before)


@pytest.mark.parametrize("dead", [False, True])
@pytest.mark.parametrize("name", CORRECTIONS)
def test_inputs_that_never_vary(name: str, dead: bool) -> None:
    # A head that calibration showed one row, or a layer whose inputs are all zero.
    x = np.zeros((5, 32), dtype=np.float32) if dead else correlated(0)[0][:1]
    layer, q = layer_of(0), in_8_bits(x)
    result = corrected(name, layer, moments_of(x, q))
    assert np.isfinite(result.weight).all()
    assert np.isfinite(result.bias).all()
    assert squared_error(x, q, layer, result) <= squared_error(x, q, layer, layer) * (1 + 1e-6)


def test_bias_correction_moves_the_bias_by_the_mean_error_and_nothing_else() -> None:
    x, q = correlated(1)
    layer, moments = layer_of(1), moments_of(x, q)
    result = corrected("bias-correction", layer, moments)
    lost = layer.weight - qdq.dequantized_weight(layer.weight, layer.quantizer)
    np.testing.assert_allclose(
        result.bias - layer.bias, q.mean(axis=0, dtype=np.float64) @ lost, atol=SUMS
    )
    np.testing.assert_array_equal(result.weight, layer.weight)
    assert result.scale is None


def test_bias_correction_leaves_a_layer_without_bias_alone() -> None:
    layer = layer_of(1, bias=False)
    assert corrected("bias-correction", layer, moments_of(*correlated(1))) is layer


@pytest.mark.parametrize(
    ("changes", "highest", "shape"),
    [
        ({}, 127, (16,)),
        ({"axis": None}, 127, ()),
        ({"reduce_range": True}, 127, (16,)),
        ({"dtype": "int4", "group": 8}, 7, (4, 16)),
    ],
    ids=["per channel", "per tensor", "no saturation", "4 bits in groups"],
)
def test_rounded_weights_lie_on_the_grid_of_their_scale(changes, highest: int, shape) -> None:
    plain = layer_of(2)
    quantizer = plain.quantizer.model_copy(update=changes)
    result = corrected(
        "weight-rounding",
        LinearLayer.uncorrected(plain.weight, plain.bias, quantizer),
        moments_of(*correlated(2)),
    )
    assert result.scale.shape == shape
    steps = np.repeat(result.scale, 8, axis=0) if len(shape) == 2 else result.scale
    codes = result.weight.astype(np.float64) / steps
    np.testing.assert_allclose(codes, np.rint(codes), atol=1e-4)
    assert np.abs(codes).max() <= highest + 1e-4
    if quantizer.limits_pairs:
        assert np.abs(codes[::2] + codes[1::2]).max() <= 128 + 1e-4
    # So the writer keeps them: it rounds with the same scale.
    integers, _ = qdq.quantize_weight(result.weight, quantizer, result.scale)
    np.testing.assert_array_equal(integers, np.rint(codes))
    nearest, _ = qdq.quantize_weight(plain.weight, quantizer)
    assert np.any(integers != nearest)


@pytest.mark.parametrize("axis", [None, 1])
def test_asymmetric_weights_are_rounded_to_their_own_grid(axis: int | None) -> None:
    x, q = correlated(2)
    plain = layer_of(2)
    weight = (plain.weight + 0.7 * np.abs(plain.weight).max()).astype(np.float32)
    errors = {}
    for symmetric in (False, True):
        quantizer = Quantizer(dtype="uint8", symmetric=symmetric, axis=axis)
        layer = LinearLayer.uncorrected(weight, plain.bias, quantizer)
        result = corrected("weight-rounding", layer, moments_of(x, q))
        codes, _ = qdq.quantize_weight(result.weight, quantizer, result.scale)
        steps = qdq.spread(result.scale, weight.shape, axis)
        np.testing.assert_allclose(codes * steps, result.weight, atol=1e-4 * float(steps.max()))
        span = codes.max(axis=0) - np.minimum(codes.min(axis=0), 0)
        assert span.max() <= 255
        errors[symmetric] = squared_error(x, q, layer, result)
        assert errors[symmetric] <= squared_error(x, q, layer, layer)
    # All weights lie on one side of zero, where the symmetric grid has half of its numbers.
    assert errors[False] < errors[True]


def test_without_a_bias_the_mean_of_an_input_counts() -> None:
    """Inputs far from zero: what rounding makes of their mean is most of the error, unless the weights themselves keep it small."""
    for seed in range(4):
        x, _ = correlated(seed)
        x = x + np.float32(3.0) * np.abs(x).max()
        q, layer = in_8_bits(x), layer_of(seed, bias=False)
        result = corrected("weight-rounding", layer, moments_of(x, q))
        assert result.bias is None
        assert squared_error(x, q, layer, result) < 0.5 * squared_error(x, q, layer, layer), seed


def test_a_scale_that_is_chosen_already_is_kept() -> None:
    plain = layer_of(3)
    scale = qdq.weight_scale(plain.weight, plain.quantizer) * np.float32(1.1)
    result = corrected(
        "weight-rounding",
        LinearLayer.uncorrected(plain.weight, plain.bias, plain.quantizer, scale),
        moments_of(*correlated(3)),
    )
    np.testing.assert_array_equal(result.scale, scale)


@pytest.mark.parametrize(
    "order",
    [("weight-rounding", "bias-correction"), pytest.param(("bias-correction", "weight-rounding"))],
    ids=str,
)
def test_corrections_one_after_another_are_as_good_as_the_best(order) -> None:
    x, q = correlated(0)
    layer, moments = layer_of(0), moments_of(x, q)
    result = layer
    for name in order:
        result = corrected(name, result, moments)
    best = squared_error(x, q, layer, corrected("weight-rounding", layer, moments))
    assert squared_error(x, q, layer, result) <= best * (1 + 1e-3)


@pytest.mark.parametrize(
    "module", ["encoder.layer.1.intermediate.dense", pytest.param("pooler.dense")]
)
def test_corrected_layers_of_a_model_equal_numpy(
    float_path, bert_sites, bert_ranges, tmp_path, module
) -> None:
    plan = plan_of(bert_sites, bert_ranges, placement="tensorrt")
    correction = corrections.load("bias-correction")
    layers = apply_corrections.correct_layers(
        ir.load(float_path), encoded(), 0, plan, [correction], silent
    )
    assert len(layers) == 14
    # The inputs of the layer, row by row, so that there is no padding.
    model = ir.load(float_path)
    site, quantizer = next(
        (s, q) for s, q in plan.quantized if s.module == module and not s.is_weight
    )
    value = next(v for n in model.graph for v in n.outputs if v.name == site.value)
    session = shapes.open_session(model, [value])
    names = [i.name for i in session.get_inputs()]
    every = [
        session.run(None, {k: feeds_of([row], 0)[k] for k in names})[0].reshape(-1, 32)
        for row in encoded()
    ]
    x = np.concatenate(every)
    scale, zero = qdq.activation_parameters(quantizer)
    q = (np.clip(np.rint(x / scale) + int(zero), 0, 255) - int(zero)) * scale
    weight, bias = constant(model, f"{module}.weight"), constant(model, f"{module}.bias")
    lost = weight - qdq.dequantized_weight(weight, Quantizer(dtype="int8", symmetric=True, axis=1))
    np.testing.assert_allclose(layers[module].bias - bias, q.mean(axis=0) @ lost, atol=SUMS)


@pytest.mark.parametrize("method", [Dynamic, WeightOnly])
def test_weights_are_corrected_where_inputs_have_no_fixed_range(
    float_path, bert_sites, bert_ranges, tmp_path, method
) -> None:
    """Their inputs count as float: what is left is the error of the weights, which rounding with data makes smaller."""
    plan = method().plan(bert_sites, bert_ranges, capabilities("ort-cpu"))
    correction = corrections.load("weight-rounding")
    layers = apply_corrections.correct_layers(
        ir.load(float_path), encoded(), 0, plan, [correction], silent
    )
    assert len(layers) == 12
    plain, better = ir.load(float_path), ir.load(float_path)
    qdq.write(plain, plan)
    qdq.write(better, plan, apply_corrections.apply_(better, layers, plan))
    floating = outputs_on_batches(ir.load(float_path), tmp_path, 0)
    errors = [
        sum(np.square(ours - theirs).sum() for ours, theirs in zip(outputs, floating, strict=True))
        for outputs in (outputs_on_batches(model, tmp_path, 0) for model in (plain, better))
    ]
    assert errors[1] < errors[0]


@pytest.mark.parametrize(
    ("placement", "count"),
    [
        (name, 4 if name == "ffn" else 14 if name in ("tensorrt", "whole") else 12)
        for name in placements.names()
        if name != "qdqbert-row"
    ]
    + [pytest.param("qdqbert-row", 12)],
)
def test_every_linear_layer_in_8_bits_is_corrected(
    float_path, bert_sites, bert_ranges, placement, count
) -> None:
    correction = corrections.load("bias-correction")
    plan = plan_of(bert_sites, bert_ranges, placement=placement)
    assert (
        len(
            apply_corrections.correct_layers(
                ir.load(float_path), encoded(), 0, plan, [correction], silent
            )
        )
        == count
    )


@pytest.mark.parametrize("name", CORRECTIONS)
def test_corrected_q_k_and_v_still_share_one_scale(
    float_path, bert_sites, bert_ranges, name
) -> None:
    plan = plan_of(
        bert_sites, bert_ranges, placement="matmul-attention", fuse_qkv=True, per_channel=False
    )
    correction = corrections.load(name)
    layers = apply_corrections.correct_layers(
        ir.load(float_path), encoded(), 0, plan, [correction], silent
    )
    model = ir.load(float_path)
    qdq.write(model, plan, apply_corrections.apply_(model, layers, plan))
    names = [
        f"encoder.layer.0.attention.self.{part}.weight.scale" for part in ("query", "key", "value")
    ]
    assert len({float(constant(model, one)) for one in names}) == 1
