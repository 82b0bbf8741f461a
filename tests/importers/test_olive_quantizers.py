"""What passes that quantize mean in an import: Neural Compressor's, NNCF's, and options of ONNX Runtime's that read others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.importers.configs import config, converted, outcome, quantized

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
        "smooth_quant_alpha": "alpha is a number up to 1, below 0 nothing is smoothed; 0.95 is taken",
    }
    plain = advanced(smooth_quant_alpha=0.6) | {"model_type": None}
    assert quantized(plain)["transforms"] == []
