"""Models with a channel, weights or a norm beyond what is usual: transforms that they do not take are left out, and float16
holds what it can hold."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file, save_file

from octobert import targets
from octobert.config.loading import parse
from octobert.core.errors import PlanError
from octobert.core.plan import QuantPlan
from octobert.core.results import TransformFacts
from octobert.data.encoded import feeds_of
from octobert.graph import operators
from octobert.graph.passes import float16
from octobert.pipeline import artifacts
from octobert.targets.shared import simulation
from tests.support.checkpoints import make_checkpoint
from tests.support.graphs import encoded, outputs_of, relative_error
from tests.support.runs import FAST, write_pairs
from tests.support.stages import call_of, step_of

FIRST, LAST = "encoder.layer.0", "encoder.layer.1"
Edits = dict[str, Callable[[np.ndarray], np.ndarray]]


def at(channel: int | slice, number: float, others: float | None = None) -> Callable:
    """Set one channel, and all others where a number is given for them."""

    def edit(array: np.ndarray) -> np.ndarray:
        edited = array.copy() if others is None else np.full_like(array, others)
        edited[..., channel] = number
        return edited

    return edit


def times(number: float) -> Callable:
    return lambda array: array * np.float32(number)


def residual(layer: str, number: float = 40_001.0) -> Edits:
    """One channel of the residual sum is twice the number, though no constant is."""
    return {
        f"{layer}.output.dense.bias": at(3, number),
        f"{layer}.attention.output.LayerNorm.bias": at(3, number),
    }


def centred(layer: str, gain: float) -> Edits:
    """A norm that brings back what a huge channel has pushed together: float32 has few digits of it."""
    return {
        f"{layer}.output.LayerNorm.weight": at(3, 0.0, gain),
        f"{layer}.output.LayerNorm.bias": at(3, 0.0, gain * 31**-0.5),
    }


def both(*modules: str, number: float) -> Edits:
    return {f"{FIRST}.{m}.{p}": times(number) for m in modules for p in ("weight", "bias")}


QKV = tuple(f"attention.self.{name}" for name in ("query", "key", "value"))
CASES: dict[str, Edits] = {
    "residual": residual(FIRST),
    "digits lost": {
        **residual(FIRST),
        **centred(FIRST, 1e5),
        **residual(LAST),
        **centred(LAST, 1e4),
    },
    "huge weights": {f"{FIRST}.intermediate.dense.weight": times(1e15)},
    "tiny weights": both("intermediate.dense", "attention.self.value", number=1e-20),
    "denormal": both("intermediate.dense", "attention.self.value", number=1e-39),
    "zero layer": both("intermediate.dense", "output.dense", *QKV, number=0.0),
    "zero gamma": both("attention.output.LayerNorm", number=0.0),
    "gamma of 0 and 1e4": {f"{FIRST}.output.LayerNorm.weight": at(slice(0, 4), 1e4, 0.0)},
    "dead head": {
        f"{FIRST}.{m}.{p}": at(slice(0, 8), 0.0) for m in QKV for p in ("weight", "bias")
    },
    "huge neuron": {f"{FIRST}.intermediate.dense.bias": at(7, 1e12)},
}
TRANSFORMS: dict[str, list] = {
    "outliers": ["outlier-neurons"],
    "smoothed": ["smoothquant"],
    "alpha": [{"smoothquant": {"alpha": 0.8}}],
    "tokens": ["token-scales"],
}
# The target of each kind: files in types of their own, and in bfloat16 as well.
MIXED = [
    name
    for name in targets.names()
    if (parts := targets.load(name).capabilities.float_parts).mixes("float16")
    and "float16" in parts.in_files
]
ALONE = [
    name
    for name in targets.names()
    if targets.load(name).capabilities.float_parts.computed == "float16"
    and not targets.load(name).capabilities.integer_only
]
# Between a quantized graph and what is rounded to float16 in it, beside channels that have lost digits.
HALF = 6e-2
FEEDS = feeds_of(encoded((9, 4, 13)), 0)


class Captured:
    """A tiny classifier, captured once for each size; what is made of it with other constants."""

    def __init__(self, folder: Path, **sizes: int) -> None:
        self.folder = folder
        self.model = make_checkpoint(folder / "model", "bert", "sequence-classification", **sizes)
        self.data = write_pairs(folder / "rows")
        self.made: dict[str, Path] = {}
        for name in ("data", "capture"):
            call = call_of(step_of(self.recipe(), name), folder / name, self.made)
            call.run()
            self.made[name] = call.work

    def recipe(self, **changes: object):
        data = {"source": str(self.data), "calibrate": {"from": "train", "samples": 8}}
        plain = {"model": str(self.model), "task": "text-classification", "data": data}
        return parse(
            {**plain, "benchmark": FAST, "profile": False, "targets": ["ort-cpu"], **changes}
        )

    def edited(self, folder: Path, edits: Edits) -> dict[str, Path]:
        """The results of the steps so far, with other constants in the graph."""
        capture = folder / "edited"
        shutil.copytree(self.made["capture"], capture)
        model = ir.load(capture / "model.onnx")
        for name, edit in edits.items():
            value = model.graph.initializers[name]
            array = edit(value.const_value.numpy()).astype(np.float32)
            value.const_value = ir.tensor(array, name=name)
        operators.save(model, capture / "model.onnx")
        return {**self.made, "capture": capture}

    def transformed(self, folder: Path, edits: Edits, transforms: list) -> TransformFacts:
        made = self.edited(folder, edits)
        call = call_of(
            step_of(self.recipe(transforms=transforms), "transform"), folder / "transform", made
        )
        call.run()
        return TransformFacts.model_validate_json((call.work / "transforms.json").read_text())

    def planned(self, folder: Path, edits: Edits, target: str, **options: object) -> Path:
        """The folder with the plan of a target and its quantized graph."""
        quantize = {"static": {"float_parts": "float16", **options}}
        recipe = self.recipe(targets=[target], transforms=[], corrections=[], quantize=quantize)
        made = self.edited(folder, edits)
        for name in ("observe", "calibrate", f"quantize/{target}"):
            call = call_of(step_of(recipe, name), folder / name.replace("/", "-"), made)
            call.run()
            made[name] = call.work
        return call.work


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Captured:
    return Captured(tmp_path_factory.mktemp("extreme"))


@pytest.mark.parametrize("case", CASES)
def test_an_extreme_model_is_transformed_or_left_as_it_is(tiny, tmp_path, case) -> None:
    every = ["outlier-neurons", "smoothquant", "token-scales"]
    facts = tiny.transformed(tmp_path, CASES[case], every)
    assert len(facts.transforms) == len(every)
    assert facts.parity.largest_difference <= facts.parity.tolerance
    for transform in facts.transforms:
        assert bool(transform.groups) != transform.summary.startswith("none: ")


@pytest.mark.parametrize(
    "case",
    {
        "norm": ("encoder.layer.0.output.LayerNorm.weight", lambda a: np.full_like(a, 6e4)),
        "channel": ("embeddings.LayerNorm.weight", at(3, 6e4)),
        "bias": ("embeddings.LayerNorm.bias", at(3, 6e4)),
        "queries": ("encoder.layer.1.attention.self.query.weight", times(1e18)),
    }.items(),
    ids=lambda case: case[0],
)
def test_padding_is_hidden_from_scores_of_any_size(tiny, tmp_path, case) -> None:
    part, edit = case[1]
    model = shutil.copytree(tiny.folder / "model", tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights[f"bert.{part}"] = edit(weights[f"bert.{part}"])
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    call = call_of(
        step_of(tiny.recipe(model=str(model)), "capture"), tmp_path / "capture", tiny.made
    )
    call.run()
    graph = ir.load(call.work / "model.onnx")
    assert graph.graph.initializers["attention_mask.bound"].const_value.numpy() < -1e37
    # Where padding is hidden in float16 too, it is in float32 there.
    rows = outputs_of(call.work / "model.onnx", FEEDS)
    float16.convert_(graph, "float16", [v.name for n in graph.graph for v in n.outputs])
    operators.save(graph, tmp_path / "half.onnx")
    assert relative_error(outputs_of(tmp_path / "half.onnx", FEEDS), rows) < HALF


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_each_transform_alone_where_float32_has_few_digits(tiny, tmp_path, transform) -> None:
    facts = tiny.transformed(tmp_path, CASES["digits lost"], TRANSFORMS[transform])
    assert facts.parity.largest_difference <= facts.parity.tolerance


def test_a_transform_that_a_model_does_not_take_is_left_out(tiny, tmp_path, monkeypatch) -> None:
    from octobert.quantization.transforms.smoothquant import SmoothQuant

    def wrong_(self, model, *_: object) -> list:
        name = f"{FIRST}.output.dense.weight"
        value = model.graph.initializers[name]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(1.01), name=name)
        return [{"kind": "norm", "module": FIRST}]

    monkeypatch.setattr(SmoothQuant, "transform_", wrong_)
    facts = tiny.transformed(tmp_path, {}, ["outlier-neurons", "smoothquant", "token-scales"])
    summary = facts.transforms[1].summary
    assert summary.startswith("none: the model does not take it: a relative difference of ")
    assert summary.endswith(", expected at most 5e-05")
    assert facts.transforms[1].groups == ()
    assert facts.transforms[2].groups
    assert facts.parity.largest_difference <= facts.parity.tolerance


@pytest.mark.parametrize("target", MIXED)
def test_a_sum_beyond_float16_stays_float32(tiny, tmp_path, target) -> None:
    """Structurally checked, not run, where a device is missing: the types in the file, and the CPU's simulation."""
    made = tiny.planned(tmp_path, CASES["residual"], target)
    plan = QuantPlan.model_validate_json((made / "plan.json").read_text())
    why = next(iter(plan.unfit.values()))
    assert "and float16 ends at 65,504: one binary digit of room is kept" in why
    graph = ir.load(made / artifacts.QUANTIZED)
    float16.convert_(graph, "float16", plan.unfit)
    types = {str(value.name): value.dtype for node in graph.graph for value in node.outputs}
    assert {types[name] for name in plan.unfit if name in types} == {ir.DataType.FLOAT}
    assert ir.DataType.FLOAT16 in types.values()
    theirs = outputs_of(made / artifacts.QUANTIZED, FEEDS)
    session = simulation.open_plan(made / artifacts.QUANTIZED, plan, tmp_path)
    ours = session.run(FEEDS)["logits"]
    assert relative_error(ours, theirs) < HALF


@pytest.mark.parametrize("kept", [True, False])
def test_the_simulation_shows_what_overflows(tiny, tmp_path, kept) -> None:
    """In a float graph: where the plan quantizes what a norm makes of infinity, it is a number again."""
    made = tiny.planned(tmp_path, CASES["residual"], "tensorrt")
    plan = QuantPlan.model_validate_json((made / "plan.json").read_text())
    model = ir.load(tmp_path / "edited" / artifacts.FLOAT)
    theirs = outputs_of(tmp_path / "edited" / artifacts.FLOAT, FEEDS)
    float16.round_(model, plan.unfit if kept else ())
    operators.save(model, tmp_path / "rounded.onnx")
    ours = outputs_of(tmp_path / "rounded.onnx", FEEDS)
    assert relative_error(ours, theirs) < HALF if kept else not np.isfinite(ours).any()


@pytest.mark.parametrize("target", ALONE)
def test_a_device_of_float16_alone_refuses_it(tiny, tmp_path, target) -> None:
    with pytest.raises(PlanError) as raised:
        tiny.planned(tmp_path, CASES["residual"], target, float_parts="float32")
    message = str(raised.value)
    assert f"target {target}: the target computes in float16, which cannot hold " in message
    assert "float16 ends at 65,504" in message


@pytest.mark.parametrize("case", ["tiny weights", "zero layer"])
def test_small_values_become_nothing_there(tiny, tmp_path, case) -> None:
    for target in (MIXED[0], ALONE[0]):
        made = tiny.planned(tmp_path / target, CASES[case], target)
        plan = QuantPlan.model_validate_json((made / "plan.json").read_text())
        assert (target == MIXED[0] and case == "tiny weights") == bool(plan.unfit)


def test_ordinary_models_are_float16_throughout(tiny, tmp_path) -> None:
    made = tiny.planned(tmp_path, {}, "tensorrt")
    assert QuantPlan.model_validate_json((made / "plan.json").read_text()).unfit == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "sizes",
    [
        {"num_hidden_layers": 1},
        {"num_attention_heads": 1},
        {"hidden_size": 4, "num_attention_heads": 2},
    ],
    ids=str,
)
def test_small_shapes_are_transformed(tmp_path, sizes) -> None:
    facts = Captured(tmp_path, **sizes).transformed(
        tmp_path / "edited", {}, ["outlier-neurons", "smoothquant", "token-scales"]
    )
    assert facts.parity.largest_difference <= facts.parity.tolerance
