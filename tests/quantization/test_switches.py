"""The graph with a switch for every quantizer: each switch computes the plan of its sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from octobert.core.plan import QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.data.tokenization import feeds_of
from octobert.graph import operators as ops
from octobert.quantization import sensitivity
from octobert.quantization.methods import dynamic, static
from tests.support.checkpoints import exact_options
from tests.support.graphs import capabilities, encoded, outputs_of, plain_session, written

# Absolute; outputs are near 2. Switched and written graphs differ only in float32 sums of dynamic products.
SWITCHED = 5e-6


@pytest.fixture(scope="module")
def float_logits(float_path) -> np.ndarray:
    return outputs_of(float_path, feeds_of(encoded(), 0))


def plan_named(name: str, placed: tuple[Site, ...], chosen: Ranges, **options: object) -> QuantPlan:
    if name == "dynamic":
        return dynamic.plan(
            placed, chosen, capabilities("ort-cpu"), exact_options(dynamic, **options)
        )
    return static.plan(
        placed, chosen, capabilities("ort-cpu"), exact_options(static, placement=name, **options)
    )


def with_switches(source: Path, plan: QuantPlan, path: Path):
    """(switches → outputs, the sites behind each switch)."""
    model = ir.load(source)
    behind = sensitivity.write_switches_(model, plan)
    ops.save(model, path)
    session, feeds = plain_session(path), feeds_of(encoded(), 0)
    fed = {i.name: feeds[i.name] for i in session.get_inputs() if i.name != sensitivity.SWITCHES}
    return lambda on: session.run(None, {**fed, sensitivity.SWITCHES: np.array(on, dtype=bool)})[
        0
    ], behind


@pytest.mark.parametrize("name", ["matmul", "qdqbert", "qdqbert-row", "dynamic"])
def test_switches_go_from_the_float_graph_to_the_written_one(
    float_path, bert_sites, bert_ranges, float_logits, tmp_path, name
) -> None:
    plan = plan_named(name, bert_sites, bert_ranges)
    run, behind = with_switches(float_path, plan, tmp_path / "switched.onnx")
    assert sorted(s.kind for group in behind for s in group) == sorted(
        s.kind for s, _ in plan.quantized
    )
    assert len(behind) == len({(s.value, q) for s, q in plan.quantized})
    count = len(behind)
    np.testing.assert_allclose(run([False] * count), float_logits, rtol=0, atol=1e-6)
    written(float_path, plan, tmp_path / "written.onnx")
    expected = outputs_of(tmp_path / "written.onnx", feeds_of(encoded(), 0))
    assert np.abs(expected - float_logits).max() > 1000 * SWITCHED
    np.testing.assert_allclose(run([True] * count), expected, rtol=0, atol=SWITCHED)
    for number in range(count):
        assert np.abs(run(np.arange(count) == number) - float_logits).max() > 0, behind[number][
            0
        ].value


@pytest.mark.parametrize("name", ["qdqbert", "qdqbert-row"])
def test_a_switch_alone_is_the_plan_of_its_sites(
    float_path, bert_sites, bert_ranges, tmp_path, name
) -> None:
    plan = plan_named(name, bert_sites, bert_ranges)
    run, behind = with_switches(float_path, plan, tmp_path / "switched.onnx")
    for number in range(0, len(behind), 3):
        alone = plan.model_copy(
            update={"decisions": tuple(d for d in plan.decisions if d.site in behind[number])}
        )
        written(float_path, alone, tmp_path / "alone.onnx")
        expected = outputs_of(tmp_path / "alone.onnx", feeds_of(encoded(), 0))
        ours = run(np.arange(len(behind)) == number)
        np.testing.assert_allclose(
            ours, expected, rtol=0, atol=SWITCHED, err_msg=behind[number][0].value
        )


@pytest.mark.parametrize(
    "options",
    [
        {"per_channel": False},
        {"weight_ranges": "mse", "reduce_range": True},
        {"fuse_qkv": True},
        pytest.param({"fuse_qkv": True, "per_channel": False}),
        pytest.param({"activations": "uint16"}),
        {"weight_form": "pair"},
    ],
    ids=str,
)
def test_switches_know_every_option(float_path, bert_sites, bert_ranges, tmp_path, options) -> None:
    plan = plan_named("matmul-attention", bert_sites, bert_ranges, **options)
    written(float_path, plan, tmp_path / "written.onnx")
    expected = outputs_of(tmp_path / "written.onnx", feeds_of(encoded(), 0))
    run, behind = with_switches(float_path, plan, tmp_path / "switched.onnx")
    np.testing.assert_allclose(run([True] * len(behind)), expected, rtol=0, atol=SWITCHED)
