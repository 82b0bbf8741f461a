"""Neurons of feed-forwards are computed apart in graphs of all families, and no output changes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from octobert.core import families
from octobert.graph import branches, operators, parts, sites
from tests.support.graphs import largest_error, outputs_on_batches

FAMILIES = families.names()
# Sums over fewer channels, and constants that are added in another order.
FOLDED = 1e-5


def copied(captured, tmp_path) -> ir.Model:
    operators.save(captured.model, tmp_path / "whole.onnx")
    return ir.load(tmp_path / "whole.onnx")


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
    feed_forwards = branches.separable(model.graph, result.family)
    assert feed_forwards
    neurons = {each: np.array([1, parts_of(model, each).sizes[0] - 1]) for each in feed_forwards}
    branches.split_(model, result.family, neurons)
    for ours, theirs in zip(outputs_on_batches(model, tmp_path, 1), expected, strict=True):
        assert largest_error(ours, theirs) < FOLDED
    after = sites.find_sites(model.graph, result.family)
    assert [(s.role, s.module, s.part, s.layer) for s in after] == [
        (s.role, s.module, s.part, s.layer) for s in before
    ]
    for each in feed_forwards:
        weight = operators.constant_of(parts_of(model, each).weight)
        assert not weight[neurons[each]].any()
