"""What a search of Olive varies, and what becomes of values that octobert does not vary."""

from __future__ import annotations

from typing import Any

import pytest

from octobert.config import importers
from tests.octobert_olive.configs import STATIC, config, converted, outcome, quantized, system

INC = {"type": "IncQuantization", "data_config": "pairs"}


def searched(step: dict[str, Any], *providers: str) -> importers.Imported:
    return converted(config({"quant": step}, search_strategy=True, **system(*providers or ["CPU"])))


@pytest.mark.parametrize("approach", [None, "SEARCHABLE_VALUES", ["static", "weight_only"]])
def test_weight_only_is_said_to_be_left_out(approach: Any) -> None:
    imported = searched(INC | {"approach": approach} if approach else INC)
    field = outcome(imported, "passes.quant.approach")
    assert "without weight_only" in field.note
    space = imported.recipe["search"]["space"]
    assert len(space["quantize"]) == (1 if isinstance(approach, list) else 2)
    dynamic = [key for key in space if key.startswith("quantize.dynamic")]
    assert bool(dynamic) == (not isinstance(approach, list))


def test_axes_that_a_target_forbids_have_an_outcome() -> None:
    both = searched(STATIC, "CPU", "OpenVINO")
    assert "format" not in both.recipe["search"]["space"]
    for name, why in (("quant_format", "Q/DQ only"), ("precision", "int8 only")):
        field = outcome(both, f"passes.quant.{name}")
        assert (field.verdict, why in field.note) == ("refused", True)
        alone = outcome(searched(STATIC), f"passes.quant.{name}")
        assert (alone.verdict, alone.default) == ("mapped", True)


@pytest.mark.parametrize("method", [None, "SEARCHABLE_VALUES", ["MinMax", "Percentile"]])
def test_a_search_of_calibrators_has_their_defaults(method: Any) -> None:
    step = STATIC | {"extra_options": {"CalibPercentile": 99}}
    imported = searched(step | {"calibrate_method": method} if method else step)
    assert outcome(imported, "passes.quant.extra_options.CalibPercentile").verdict == "refused"
    alone = converted(config({"quant": step}))
    assert outcome(alone, "passes.quant.extra_options.CalibPercentile").verdict == "not needed"


def test_the_type_of_activations_follows_that_of_weights_in_a_search() -> None:
    named = STATIC | {"precision": "uint8"}
    options = searched(named).recipe["search"]["space"].get("quantize")
    static = searched(named).recipe["quantize"]["static"]
    assert options is None
    assert (static["weights"], static["activations"]) == ("uint8", "uint8")
    alone = converted(config({"quant": named})).recipe["quantize"]["static"]
    assert alone["activations"] == "int8"
    fixed = searched(named | {"activation_type": "int8"}).recipe["quantize"]["static"]
    assert fixed["activations"] == "int8"


def test_a_search_varies_what_olive_varies() -> None:
    def space(step: dict[str, Any], **fields: Any) -> Any:
        return quantized(step, search_strategy=True, **fields)["search"]["space"]

    # Types of weights and activations are one axis, as in Olive's own space.
    forms = [form["static"] for form in space(STATIC)["quantize"]]
    assert [(form["weights"], form["activations"]) for form in forms] == [
        ("int8", "int8"),
        ("uint8", "uint8"),
    ]
    assert not [key for key in space(STATIC) if key.endswith(("weights", "activations"))]
    assert space({"type": "IncDynamicQuantization"}) == {
        "quantize.dynamic.reduce_range": [True, False]
    }
    assert {"quantize", "quantize.static.reduce_range"} <= space({"type": "IncQuantization"}).keys()
    typed = STATIC | {"weight_type": ["QInt8", "QUInt8"]}
    raw = config({"quant": typed}, search_strategy=True, **system("CPU", "OpenVINO"))
    imported = converted(raw)
    assert imported.recipe["quantize"]["static"]["weights"] == "int8"
    assert len(imported.recipe["search"]["space"].get("quantize", [1])) == 1
    assert "int8 only" in outcome(imported, "passes.quant.weight_type").note
