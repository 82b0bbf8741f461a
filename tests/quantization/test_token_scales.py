"""Tokens relative to their largest neuron: the function stays, and the error of rounding is the expected one."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from octobert.core import plugins
from octobert.core.ranges import Sample
from octobert.graph import branches, operators, qdq, sites
from octobert.graph.passes import cpu, opset
from octobert.quantization.transforms import token_scales
from tests.support.graphs import largest_error, outputs_on_batches, plan_for, sliced

FAMILIES = plugins.names("families")
# A quotient and a product more are rounded, in each layer.
ROUNDING = 2e-5
# Of tokens far below the largest, some values are less than a step, and lose less than a step spread evenly.
ESTIMATE = 0.2
CHANNELS = 512
# The family whose neurons get as far below zero as above in these tests, as those of gated feed-forwards do.
SIGNED = "modernbert"


def neurons(spread: float, *, slope: float = 0.05, top: float = 0) -> np.ndarray:
    """[2000, C] tokens whose size differs by factors of e^spread.

    Args:
        slope: of what is negative.
        top: the first neuron of all tokens, where not 0.
    """
    generator = np.random.default_rng(0)
    rows = generator.normal(0, 1, (2000, CHANNELS)) * np.exp(generator.normal(0, spread, (2000, 1)))
    rows[:, 0] = top or rows[:, 0]
    return np.where(rows < 0, slope * rows, rows).astype(np.float32)


def measured(rows: np.ndarray, divisors: np.ndarray) -> float:
    """The mean square error of 255 steps for what is left, relative to the mean square."""
    left = rows.astype(np.float64) / divisors
    step = (left.max() - min(left.min(), 0)) / 255
    return float(
        np.square((np.rint(left / step) * step - left) * divisors).mean() / np.square(rows).mean()
    )


@pytest.mark.parametrize(("slope", "signed"), [(0.05, False), (1.0, True)])
def test_the_error_is_the_expected_one(slope: float, signed: bool) -> None:
    rows = neurons(0.7, slope=slope)
    floor, before, after = token_scales._floor(rows, signed=signed)
    largest = (np.abs(rows) if signed else rows).max(axis=1, keepdims=True)
    assert before == pytest.approx(measured(rows, np.full((len(rows), 1), 1.0)), rel=ESTIMATE)
    assert after == pytest.approx(measured(rows, np.maximum(largest, floor)), rel=ESTIMATE)
    assert after < before / 3
    # No other floor is better than the one that was taken.
    others = [
        measured(rows, np.maximum(largest, other * largest.max())) for other in (0.02, 0.5, 1)
    ]
    assert after < min(others) * (1 + ESTIMATE)


@pytest.mark.parametrize("rows", [np.zeros((8, 4)), np.full((8, 4), -1.0), np.full((8, 4), 2.0)])
def test_tokens_that_are_all_alike_gain_nothing(rows: np.ndarray) -> None:
    signed = bool(rows.min() < 0)
    floor, before, after = token_scales._floor(rows.astype(np.float32), signed=signed)
    assert floor > 0
    assert after == pytest.approx(before)


def scaled(
    captured, family: str, tmp_path, rows: np.ndarray, apart: tuple[int, ...] = ()
) -> tuple[ir.Model, ir.Model, list[dict]]:
    """(The graph, the same with tokens scaled as these samples ask for, the records).

    Args:
        apart: neurons of every feed-forward that are computed apart before.
    """
    result = captured(family)
    operators.save(result.model, tmp_path / "whole.onnx")
    whole, model = (ir.load(tmp_path / "whole.onnx") for _ in range(2))
    blocks = branches.separable(model.graph, result.family)
    if apart:
        branches.split_(model, result.family, {module: np.array(apart) for module in blocks})
    scales = token_scales.TokenScales()
    values = scales.values(model.graph, result.family)
    samples = {name: Sample(rows.min(axis=0), rows.max(axis=0), rows) for name in values}
    records = scales.transform_(model, result.family, samples, lambda *_: None)
    assert len(records) == len(values) > 0
    assert not apart or len(values) == len(blocks)
    return whole, model, records


@pytest.mark.parametrize("family", FAMILIES)
def test_the_function_stays_and_its_sites(captured, family: str, tmp_path) -> None:
    rows = neurons(0.7, slope=1.0 if family == SIGNED else 0.05)
    whole, model, records = scaled(captured, family, tmp_path, rows)
    count = len(records)
    assert token_scales.TokenScales().summary(records) == (
        f"neurons divided by the largest one of their token in {count} of {count} feed-forwards"
    )
    expected = outputs_on_batches(whole, tmp_path, 1)
    for ours, theirs in zip(outputs_on_batches(model, tmp_path, 1), expected, strict=True):
        assert largest_error(ours, theirs) < ROUNDING
    table = captured(family).family
    before, after = (sites.find_sites(each.graph, table) for each in (whole, model))
    assert [(s.role, s.module, s.part, s.layer) for s in after] == [
        (s.role, s.module, s.part, s.layer) for s in before
    ]
    # What is divided is what is quantized.
    nodes = operators.nodes_of(model.graph)
    for site in after:
        if site.role == "linear.input" and site.module in {r["module"] for r in records}:
            assert nodes[site.value].op_type == "Div"
    signed = any(
        node.op_type == "Abs" for node in model.graph if str(node.name).endswith(".magnitudes")
    )
    assert signed is (family == SIGNED)


def test_tokens_stay_where_too_little_would_be_gained(captured, tmp_path) -> None:
    whole, model, records = scaled(captured, "bert", tmp_path, neurons(0.0, top=6.0))
    assert all(record["left_error"] == record["error"] for record in records)
    assert len(list(model.graph)) == len(list(whole.graph))


def test_other_forms_of_the_graph_hold_them(captured, tmp_path) -> None:
    """Older opsets, integer operators, and the last layer of the first token alone."""
    whole, model, _ = scaled(captured, "bert", tmp_path, neurons(0.7))
    _, products = sliced(whole)
    first, sliced_products = sliced(model)
    assert products == sliced_products > 0
    expected = outputs_on_batches(whole, tmp_path, 1)
    assert largest_error(outputs_on_batches(first, tmp_path, 1)[0], expected[0]) < ROUNDING
    table = captured("bert").family
    plan = plan_for(model, table)
    written = model.clone()
    qdq.write(written, plan)
    pairs = outputs_on_batches(written, tmp_path, 1)
    wanted = cpu.count_products(written)
    assert cpu.rewrite_products_(written) == wanted == 12
    integers = outputs_on_batches(written, tmp_path, 1)
    for ours, theirs in zip(integers, pairs, strict=True):
        assert largest_error(ours, theirs) < ROUNDING
    opset.convert_(model, 14)
    for ours, theirs in zip(outputs_on_batches(model, tmp_path, 1), expected, strict=True):
        assert largest_error(ours, theirs) < ROUNDING


def test_neurons_that_are_apart_and_scaled_tokens_go_together(captured, tmp_path) -> None:
    whole, model, _ = scaled(captured, "bert", tmp_path, neurons(0.7), apart=(1, 5))
    expected = outputs_on_batches(whole, tmp_path, 1)
    for ours, theirs in zip(outputs_on_batches(model, tmp_path, 1), expected, strict=True):
        assert largest_error(ours, theirs) < ROUNDING
    table = captured("bert").family
    roles = [(s.role, s.module) for s in sites.find_sites(model.graph, table)]
    assert roles == [(s.role, s.module) for s in sites.find_sites(whole.graph, table)]
