"""What passes that quantize mean in an import: Neural Compressor's, NNCF's, and options of ONNX Runtime's that read others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.octobert_olive.configs import STATIC, config, converted, outcome, quantized

NNCF = {"type": "OpenVINOQuantization", "model_type": "TRANSFORMER"}


@pytest.mark.parametrize("kind", ["OpenVINOQuantization", "OpenVINOQuantizationWithAccuracy"])
def test_nncf_takes_the_means_of_the_rows_ends(kind: str) -> None:
    imported = converted(config({"quant": NNCF | {"type": kind}}))
    assert imported.recipe["calibrate"] == "mean-minmax"
    default = outcome(imported, "passes.quant.activations_range_estimator_params")
    assert default.default
    assert default.key == "calibrate"


def advanced(**fields: Any) -> dict[str, Any]:
    return NNCF | {"extra_configs": [{"advanced_quantization_parameters": fields}]}


@pytest.mark.parametrize(
    ("fields", "key", "value"),
    [
        ({"smooth_quant_alpha": 0.6}, "transforms", [{"smoothquant": {"alpha": 0.6}}]),
        ({"smooth_quant_alphas": {"matmul": 0.7}}, "transforms", [{"smoothquant": {"alpha": 0.7}}]),
        ({"smooth_quant_alphas": {"matmul": -1}}, "transforms", []),
        ({"smooth_quant_alphas": {"convolution": 0.7}}, "transforms", [{"smoothquant": {"alpha": 0.95}}]),
        ({"disable_bias_correction": True}, "corrections", []),
        ({"disable_bias_correction": False}, "corrections", ["bias-correction"]),
        ({"overflow_fix": "enable"}, "quantize", {"static": {"symmetric": True, "placement": "matmul-scores", "reduce_range": True}}),
    ],
)  # fmt: skip
def test_advanced_parameters_of_nncf(fields: dict[str, Any], key: str, value: Any) -> None:
    imported = converted(config({"quant": advanced(**fields)}))
    assert imported.recipe[key] == value
    assert not [each for each in imported.outcomes if each.verdict == "refused"]


def test_advanced_parameters_that_octobert_has_not_are_refused_by_name() -> None:
    step = advanced(
        quantize_outputs=True,
        activations_quantization_params={"num_bits": 8},
        activations_range_estimator_params={"min": {"statistics_type": "QUANTILE"}},
        smooth_quant_alpha=3,
    )
    imported = converted(config({"quant": step}))
    refused = {each.field.rpartition("parameters.")[2]: each.note for each in imported.outcomes if each.verdict == "refused"}  # fmt: skip
    assert refused == {
        "quantize_outputs": "outputs of models are float",
        "activations_quantization_params.num_bits": "quantize.static has types, symmetric and per_channel",
        "activations_range_estimator_params.min.statistics_type": "calibrate has the ranges; mean-minmax is taken",
        "smooth_quant_alpha": "one alpha from 0 to 1, or auto; 0.95 is taken",
    }
    plain = advanced(smooth_quant_alpha=0.6) | {"model_type": None}
    assert quantized(plain)["transforms"] == []


@pytest.mark.parametrize(
    ("fields", "options", "transforms", "calibrate"),
    [
        ({}, {"SmoothQuant": True}, [{"smoothquant": {"alpha": 0.5}}], "minmax"),
        ({}, {"SmoothQuantAlpha": 0.7, "SmoothQuant": True}, [{"smoothquant": {"alpha": 0.7}}], "minmax"),
        ({}, {"SmoothQuant": False, "SmoothQuantAlpha": 0.7}, [], "minmax"),
        ({"type": "OnnxDynamicQuantization"}, {"SmoothQuant": True, "CalibPercentile": 99}, [], None),
        ({}, {"CalibPercentile": 99}, [], "minmax"),
        ({"calibrate_method": "Percentile"}, {"CalibPercentile": 99}, [], {"percentile": {"keep": 99, "num_bins": 2048}}),
        ({}, {"CalibMovingAverageConstant": 0.1}, [], "minmax"),
        ({"calibrate_method": "MinMax"}, {"CalibMovingAverage": True}, [], {"moving-average": {}}),
        ({}, {"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.1}, [], {"moving-average": {"constant": 0.1}}),
        ({"calibrate_method": "Percentile"}, {"CalibMovingAverage": True}, [], {"percentile": {"keep": 99.999, "num_bins": 2048}}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_last", [False, True])
def test_onnx_runtime_reads_some_options_beside_others_only(
    fields: dict[str, Any],
    options: dict[str, Any],
    transforms: list[Any],
    calibrate: Any,
    is_last: bool,
) -> None:
    extra = {"extra_options": options}
    step = STATIC | fields | extra if is_last else extra | STATIC | fields
    imported = converted(config({"quant": step}))
    assert imported.recipe["transforms"] == transforms
    assert imported.recipe.get("calibrate") == calibrate
    for name in options:
        field = outcome(imported, f"passes.quant.extra_options.{name}")
        said = "transforms" if "Smooth" in name else "calibrate"
        reads = transforms if "Smooth" in name else calibrate not in (None, "minmax") and name[5:8].lower() in str(calibrate)  # fmt: skip
        assert field.key == (said if reads else None), name


@pytest.mark.parametrize(
    ("arguments", "alpha", "verdict"),
    [
        (None, 0.5, None),
        ({"alpha": 0.7}, 0.7, "mapped"),
        ({"alpha": "auto"}, "learned", "mapped"),
        ({"alpha": [0.4, 0.6]}, 0.5, "refused"),
    ],
)
def test_neural_compressor_smooths_with_one_alpha(
    arguments: Any, alpha: Any, verdict: str | None
) -> None:
    recipes = {"smooth_quant": True, "smooth_quant_args": arguments}
    imported = converted(config({"quant": {"type": "IncStaticQuantization", "recipes": recipes}}))
    assert imported.recipe["transforms"] == [{"smoothquant": {"alpha": alpha}}]
    if verdict:
        field = outcome(imported, "passes.quant.recipes.smooth_quant_args.alpha")
        assert field.verdict == verdict


@pytest.mark.parametrize(
    ("fields", "is_said"),
    [({}, True), ({"type": "IncQuantization", "approach": "dynamic"}, False)],
)
def test_operators_of_neural_compressor_are_octoberts(
    fields: dict[str, str], is_said: bool
) -> None:
    imported = converted(config({"quant": {"type": "IncStaticQuantization"} | fields}))
    said = [each for each in imported.outcomes if each.field == "passes.quant.op_type_dict"]
    assert [each.verdict for each in said] == ["refused"] * is_said
    assert all(each.default and "uint8 activations" in each.note for each in said)


@pytest.mark.parametrize(("axes", "verdict"), [({"MatMul": 1}, "not needed"), ({"MatMul": 0}, "refused")])  # fmt: skip
def test_weights_have_one_scale_for_each_output(axes: dict[str, int], verdict: str) -> None:
    extra = {"QDQOpTypePerChannelSupportToAxis": axes}
    imported = converted(config({"quant": STATIC | {"extra_options": extra}}))
    place = "passes.quant.extra_options.QDQOpTypePerChannelSupportToAxis.MatMul"
    assert outcome(imported, place).verdict == verdict


def test_a_cuda_graph_is_an_option_of_each_provider() -> None:
    step = {"type": "OrtSessionParamsTuning", "enable_cuda_graph": True}
    field = outcome(converted(config({"tune": step})), "passes.tune.enable_cuda_graph")
    assert field.verdict == "refused"
    assert {"ort-cuda:", "enable_cuda_graph:"} <= set(field.note.replace("{", " ").split())


def placed(**fields: Any) -> tuple[set[str], str]:
    """The placement and the embeddings of an import."""
    static = quantized(STATIC | fields)["quantize"]["static"]
    return set(static["placement"]), static["embeddings"]


def test_operators_that_share_kinds_are_excluded() -> None:
    kinds, embeddings = placed(op_types_to_exclude=["MatMul"])
    assert not {"linear.input", "linear.weight", "scores.query", "context.value"} & kinds
    assert {"residual.*", "activation.output"} <= kinds
    assert embeddings == "int8"
    kinds, embeddings = placed(op_types_to_exclude=["Gelu", "Gather"])
    assert "activation.output" not in kinds
    assert {"linear.input", "residual.*"} <= kinds
    assert embeddings == "float"
    # Q, K and V alone are no operators in octobert.
    raw = config({"quant": STATIC | {"op_types_to_exclude": ["Attention"]}})
    assert outcome(converted(raw), "passes.quant.op_types_to_exclude").verdict == "refused"


def test_operators_to_quantize_are_without_those_to_exclude() -> None:
    fields = {"op_types_to_quantize": ["MatMul", "Add", "Gather"], "op_types_to_exclude": ["Add"]}
    for step in (fields, dict(reversed(fields.items()))):
        kinds, embeddings = placed(**step)
        assert "linear.weight" in kinds
        assert "residual.*" not in kinds
        assert embeddings == "int8"


@pytest.mark.parametrize("field", ["op_types_to_quantize", "op_types_to_exclude"])
def test_embeddings_stay_float_beside_16_bit_activations(field: str) -> None:
    operators = {field: ["MatMul", "Gather"] if field.endswith("quantize") else ["Softmax"]}
    assert placed(**operators)[1] == "int8"
    assert placed(**operators, activation_type="uint16", precision="uint8")[1] == "float"


@pytest.mark.parametrize("is_last", [False, True])
def test_products_of_two_activations_stay_float_among_named_operators(is_last: bool) -> None:
    constant = {"extra_options": {"MatMulConstBOnly": True}}
    only = {"op_types_to_quantize": ["MatMul"]}
    kinds, _ = placed(**(only | constant if is_last else constant | only))
    assert kinds == {"linear.input", "linear.weight", "head.*@decoder"}


@pytest.mark.parametrize(
    ("fields", "embeddings"),
    [
        ({"op_types_to_quantize": ["MatMul"]}, "float"),
        ({"op_types_to_quantize": ["MatMul", "Gather"]}, "int8"),
        ({"op_types_to_quantize": ["Gather"]}, "refused"),
        ({"op_types_to_exclude": ["Gather"]}, "float"),
        ({"op_types_to_exclude": ["Softmax"]}, "int8"),
        ({"op_types_to_exclude": ["MatMul"]}, "refused"),
    ],
)
def test_operators_of_dynamic_quantization(fields: dict[str, Any], embeddings: str) -> None:
    imported = converted(config({"quant": {"type": "OnnxDynamicQuantization"} | fields}))
    field = outcome(imported, f"passes.quant.{next(iter(fields))}")
    options = imported.recipe["quantize"]["dynamic"]
    assert options.get("embeddings", field.verdict) == embeddings
    assert field.key in ("quantize.dynamic.embeddings", None)
