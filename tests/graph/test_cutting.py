"""Heads and neurons are cut out of graphs of all families: the rest computes what it computed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from octobert.core.errors import ModelError
from octobert.graph import cutting, operators, parts, qdq, sites, smoothing
from octobert.graph.passes import first_token, fusion
from octobert.models import families
from tests.support.graphs import REORDERED, largest_error, outputs_on_batches, plan_for

FAMILIES = families.names()
# Position scores of DeBERTa are products of each head with tables; elsewhere heads of Q share one of K and V.
HEADS_LEFT_WHOLE = ("deberta", "deberta-v2", "eurobert", "qwen3")
# Sums over fewer channels, and constants that are added in another order.
FOLDED = 1e-5
# Weights are scaled by up to 8 and back, and rounded once on each side.
SCALED = 2e-5


def copied(captured, tmp_path) -> ir.Model:
    operators.save(captured.model, tmp_path / "whole.onnx")
    return ir.load(tmp_path / "whole.onnx")


def some_units(sublayers, seed: int = 0) -> dict[str, np.ndarray]:
    """Random units that stay: of every sublayer another number, of some all, of some none."""
    generator = np.random.default_rng(seed)
    counts = {
        each.module: (each.units // 2, each.units - 1, 1, each.units, 0)[i % 5]
        for i, each in enumerate(sublayers)
    }
    return {
        each.module: np.sort(generator.permutation(each.units)[: counts[each.module]])
        for each in sublayers
    }


def zeroed(model: ir.Model, sublayers, kept: dict[str, np.ndarray]) -> ir.Model:
    """The whole graph, with zero weights for what was removed."""
    nodes = {str(node.name): node for node in model.graph}
    for each in sublayers:
        matmul = sites.linear_node(nodes, each.module)
        weight = np.zeros_like(operators.constant_of(matmul.inputs[1]))
        rows = (
            (kept[each.module][:, None] * each.width + np.arange(each.width))
            .reshape(-1)
            .astype(int)
        )
        weight[rows] = operators.constant_of(matmul.inputs[1])[rows]
        matmul.replace_input_with(
            1, operators.initializer(model.graph, f"{each.module}.zeroed", weight)
        )
    return model


def parts_of(model: ir.Model, module: str) -> parts.Linear:
    return parts.linear_at(
        sites.linear_node({str(node.name): node for node in model.graph}, module)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_neurons_that_are_computed_apart_change_no_output(captured, family: str, tmp_path) -> None:
    """The rest has no part of them, and its sites are those of before."""
    result = captured(family)
    model = copied(result, tmp_path)
    expected = outputs_on_batches(model, tmp_path, 1)
    before = sites.find_sites(model.graph, result.family)
    feed_forwards = [s for s in cutting.find(model.graph, result.family)[0] if s.kind == "ffn"]
    assert feed_forwards
    neurons = {each.module: np.array([1, each.units - 1]) for each in feed_forwards}
    cutting.split_(model, result.family, neurons)
    for ours, theirs in zip(outputs_on_batches(model, tmp_path, 1), expected, strict=True):
        assert largest_error(ours, theirs) < FOLDED
    after = sites.find_sites(model.graph, result.family)
    assert [(s.role, s.module, s.part, s.layer) for s in after] == [
        (s.role, s.module, s.part, s.layer) for s in before
    ]
    for each in feed_forwards:
        weight = operators.constant_of(parts_of(model, each.module).weight)
        assert not weight[neurons[each.module]].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_cut_units_are_units_without_weight(captured, family: str, tmp_path) -> None:
    result = captured(family)
    model = copied(result, tmp_path)
    sublayers, left = cutting.find(model.graph, result.family)
    assert {each.kind for each in sublayers} == (
        {"ffn"} if family in HEADS_LEFT_WHOLE else {"attention", "ffn"}
    )
    assert bool(left) == (family in HEADS_LEFT_WHOLE)
    kept = some_units(sublayers)
    reference = outputs_on_batches(zeroed(copied(result, tmp_path), sublayers, kept), tmp_path, 1)
    cutting.cut_(model, result.family, kept)
    for ours, theirs in zip(outputs_on_batches(model, tmp_path, 1), reference, strict=True):
        assert largest_error(ours, theirs) < REORDERED
    again = {each.module: each.units for each in cutting.find(model.graph, result.family)[0]}
    assert {module: again.get(module, 0) for module in kept} == {
        module: len(units) for module, units in kept.items()
    }
    assert cutting.fold_(model) == 0
    for ours, theirs in zip(outputs_on_batches(model, tmp_path, 1), reference, strict=True):
        assert largest_error(ours, theirs) < FOLDED
    assert not [node.name for node in model.graph if node.name.endswith(cutting.CONSTANT)]
    for target in ("openvino-cpu", "tensorrt"):
        quantized = model.clone()
        qdq.write(quantized, plan_for(quantized, result.family, target))
        assert all(
            np.isfinite(output).all() for output in outputs_on_batches(quantized, tmp_path, 1)
        )


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_transforms_and_passes_work_on_cut_graphs(captured, family: str, tmp_path) -> None:
    """Both layers gone but for their norms; then one head each, and no feed-forward."""
    result = captured(family)
    for gone in (0, 1):
        model = copied(result, tmp_path)
        sublayers, _ = cutting.find(model.graph, result.family)
        kept = {
            each.module: np.arange(gone if each.kind == "attention" else 0) for each in sublayers
        }
        cutting.cut_(model, result.family, kept)
        assert cutting.fold_(model) == 0
        before = outputs_on_batches(model, tmp_path, 1)
        generator = np.random.default_rng(0)
        for group in smoothing.groups(model.graph, result.family):
            channels = next(
                v.shape[-1]
                for node in model.graph
                for v in node.outputs
                if v.name == group.values[0]
            )
            smoothing.scale_(model, group, np.exp2(generator.uniform(-3, 3, channels)))
        fusion.fuse(model)
        sliced = model.clone()
        first_token.slice_first_token_(sliced)
        for changed in (model, sliced):
            for ours, theirs in zip(outputs_on_batches(changed, tmp_path, 1), before, strict=True):
                assert largest_error(ours, theirs) < SCALED


def test_whole_sublayers_stay_as_they_are(bert, tmp_path) -> None:
    model = copied(bert, tmp_path)
    sublayers, left = cutting.find(model.graph, bert.family)
    assert (len(sublayers), left) == (4, [])
    before = ir.to_proto(model).SerializeToString()
    cutting.cut_(model, bert.family, {each.module: np.arange(each.units) for each in sublayers})
    assert ir.to_proto(model).SerializeToString() == before


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert"])
def test_output_projections_are_replaced(captured, family: str, tmp_path) -> None:
    """Weights of what stays, and the constant of what is gone; one layer that shares weights does not change the others."""
    result = captured(family)
    model, reference = copied(result, tmp_path), copied(result, tmp_path)
    first, gone = cutting.find(model.graph, result.family)[0][:2]
    width = parts_of(reference, first.module).sizes[1]
    generator = np.random.default_rng(0)
    kept, bias = np.array([0, 2]), generator.normal(size=width).astype(np.float32)
    weight = generator.normal(size=(2 * first.width, width)).astype(np.float32)
    cutting.cut_(model, result.family, {first.module: kept, gone.module: np.zeros(0)})
    cutting.outputs_(
        model, {first.module: (weight, bias), gone.module: (np.zeros((0, width)), -bias)}
    )
    rows = (kept[:, None] * first.width + np.arange(first.width)).reshape(-1)
    whole = np.zeros(parts_of(reference, first.module).sizes, dtype=np.float32)
    whole[rows] = weight
    cutting.outputs_(
        reference,
        {first.module: (whole, bias), gone.module: (np.zeros((gone.units, width)), -bias)},
    )
    theirs = outputs_on_batches(reference, tmp_path, 1)
    for left in (2, cutting.fold_(model)):
        for ours, other in zip(outputs_on_batches(model, tmp_path, 1), theirs, strict=True):
            assert largest_error(ours, other) < FOLDED, left


def test_what_else_reads_the_value_keeps_a_constant_apart(captured, tmp_path) -> None:
    """A residual path that is an output of the model cannot take in a constant."""
    result = captured("bert")
    model = copied(result, tmp_path)
    sublayer = cutting.find(model.graph, result.family)[0][0]
    model.graph.outputs.append(
        next(n for n in model.graph if n.name == result.family.embeddings_norm).outputs[0]
    )
    cutting.cut_(model, result.family, {sublayer.module: np.zeros(0)})
    before = outputs_on_batches(model, tmp_path, 1)
    assert cutting.fold_(model) == 1
    assert all(
        (a == b).all() for a, b in zip(outputs_on_batches(model, tmp_path, 1), before, strict=True)
    )
    qdq.write(model, plan_for(model, result.family, "tensorrt"))
    outputs_on_batches(model, tmp_path, 1)


def test_what_cannot_be_cut_is_named(golden, captured, tmp_path) -> None:
    result = captured("deberta-v2")
    model = copied(result, tmp_path)
    found, left = cutting.find(model.graph, result.family)
    assert [each.module for each in left] == [
        f"encoder.layer.{i}.attention.output.dense" for i in range(2)
    ]
    assert "positions" in left[0].reason
    with golden.raises(ModelError):
        cutting.cut_(model, result.family, {left[0].module: np.zeros(0)})
    with pytest.raises(ModelError, match=r"no such sublayer .got encoder\.layer\.9"):
        cutting.cut_(model, result.family, {"encoder.layer.9.output.dense": np.zeros(0)})
    with pytest.raises(ModelError, match=r"no such unit .got 3 to 64, expected 0 to 63"):
        cutting.cut_(model, result.family, {found[0].module: np.array([3, 64])})
    with pytest.raises(ModelError, match=r"another shape .got 3 × 32, expected 64 × 32"):
        cutting.outputs_(model, {found[0].module: (np.zeros((3, 32)), np.zeros(32))})
