"""Products as integer operators: the numbers of the Q/DQ graph, in 8 bits for the inspector, and refused where they cannot be."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from octobert.config.loading import parse
from octobert.core.errors import ModelError, RecipeError
from octobert.core.session import ExportOptions, SessionOptions, WrittenOpset
from octobert.data.encoded import feeds_of
from octobert.graph import operators, parity, qdq, sites
from octobert.graph.passes import cpu
from octobert.inspection import linter, profilers
from octobert.pipeline import planner
from octobert.pipeline.stages import export
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from octobert.targets import ort_cpu
from tests.support.checkpoints import exact_method
from tests.support.graphs import capabilities, encoded, plan_for, ranges_for

# ONNX Runtime runs the same operators in both forms; only the order of float sums may differ.
SAME = 1e-5


def written(got, path: Path, **options: object) -> ir.Model:
    model = got.model.clone()
    qdq.write(model, plan_for(model, got.family, **options))
    operators.save(model, path)
    return model


def difference(ours: ir.Model, theirs: ir.Model) -> float:
    batches = parity.sample_batches(theirs)
    return parity.largest_difference(
        *(parity.onnx_outputs(model, batches) for model in (ours, theirs))
    )


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        # Twelve linear layers of two encoder layers.
        ("bert", {}, {"MatMulIntegerToFloat": 12}),
        ("bert", {"weights": "uint8", "per_channel": False}, {"MatMulIntegerToFloat": 12}),
        ("bert", {"placement": "whole"}, {"MatMulIntegerToFloat": 16, "QLinearMatMul": 2}),
        ("modernbert", {}, {"MatMulIntegerToFloat": 8}),
    ],
)
def test_the_same_numbers_in_other_operators(
    captured, tmp_path: Path, name: str, options, expected: dict[str, int]
) -> None:
    model = written(captured(name, "sequence-classification"), tmp_path / "pairs.onnx", **options)
    copy = model.clone()
    count = cpu.rewrite_products_(copy)
    counts = Counter(node.op_type for node in copy.graph)
    found = {
        kind: counts[kind] for kind in ("MatMulIntegerToFloat", "QLinearMatMul") if counts[kind]
    }
    assert count == sum(found.values())
    assert found == expected
    assert counts["MatMul"] == Counter(node.op_type for node in model.graph)["MatMul"] - count
    operators.save(copy, tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    assert difference(copy, model) <= (
        SAME if options.get("placement") != "whole" else cpu.TOLERANCE
    )


def test_the_target_writes_it_and_the_inspector_sees_integers(captured, tmp_path: Path) -> None:
    written(captured("bert", "sequence-classification"), tmp_path / "pairs.onnx")
    ort_cpu.export(
        tmp_path / "pairs.onnx",
        tmp_path,
        ExportOptions(qoperator=True, opset=WrittenOpset(opset=20)),
    )
    path = ort_cpu.TARGET.model_file(tmp_path)
    profiler = profilers.load("ort")
    seen = profiler.products(path)
    assert len(seen) == 12
    assert all(product.weight for product in seen)
    assert {(a.dtype, b.dtype) for a, b in (product.inputs for product in seen)} == {
        ("uint8", "int8")
    }
    feeds = feeds_of(encoded(), 0)
    ran = profiler.profile(
        path, feeds, SessionOptions(threads=1), warmup=1, runs=1, family="bert"
    ).operators
    assert sum(each.type == "MatMulIntegerToFloat" for each in ran) == 12
    found = linter.lint(path, capabilities("ort-cpu"))
    assert (found.passes, found.integer) == (True, 12)
    outputs = ort_cpu.TARGET.open_session(path, SessionOptions()).run(feeds)
    assert np.isfinite(outputs["logits"]).all()


def test_dynamic_activations_are_integer_operators_already(captured) -> None:
    from octobert.core.ranges import Provenance, Ranges

    got = captured("bert", "sequence-classification")
    model = got.model.clone()
    nothing = Ranges(
        calibrator="none",
        options={},
        intervals={},
        provenance=Provenance(samples=0, tokens=0, data_digest="", model_digest="", source=""),
    )
    placed = sites.find_sites(model.graph, got.family)
    qdq.write(
        model,
        exact_method(Dynamic, "ort-cpu").plan(placed, nothing, capabilities("ort-cpu")),
    )
    before = Counter(node.op_type for node in model.graph)
    assert cpu.rewrite_products_(model) == 0
    assert Counter(node.op_type for node in model.graph) == before


def test_sixteen_bits_have_no_such_operators(golden, captured, tmp_path: Path) -> None:
    model = written(
        captured("bert", "sequence-classification"), tmp_path / "pairs.onnx", activations="uint16"
    )
    with golden.raises(ModelError):
        cpu.rewrite_products_(model)


def test_ort_cpu_gets_integer_operators_with_their_biases_by_default(finished) -> None:
    counts = {
        target: Counter(
            node.op_type
            for node in ir.load(finished[1] / target / "onnx" / "model_quantized.onnx").graph
        )
        for target in ("ort-cpu", "openvino-cpu")
    }
    assert counts["ort-cpu"]["MatMulIntegerToFloat"] == 12
    assert counts["ort-cpu"]["DequantizeLinear"] == 0
    assert counts["openvino-cpu"]["DequantizeLinear"] > 0
    assert counts["openvino-cpu"]["MatMulIntegerToFloat"] == 0
    graph = ir.load(finished[1] / "ort-cpu" / "onnx" / "model_quantized.onnx").graph
    products = [node for node in graph if node.op_type == "MatMulIntegerToFloat"]
    # Behind the product of scaled tokens stands their scale, and then the bias.
    assert [len(node.inputs) == 6 for node in products] == [
        str(node.name).endswith(".output.dense") and "attention" not in str(node.name)
        for node in products
    ]


@pytest.mark.parametrize(
    ("target", "options", "taken"),
    [
        ("ort-cpu", {}, True),
        ("ort-cpu", {"placement": "matmul-attention"}, True),
        ("openvino-cpu", {}, False),
        # In float on ONNX Runtime: these files are for other runtimes.
        ("ort-cpu", {"placement": "qdqbert"}, False),
        ("ort-cpu", {"activations": "int8"}, False),
        ("ort-cpu", {"activations": "uint16"}, False),
        ("ort-cpu", {"float_parts": "float16"}, False),
    ],
)
def test_auto_takes_them_where_all_products_are_computed_so(
    captured, target: str, options, taken: bool
) -> None:
    bert, table = captured("bert"), capabilities(target)
    placed = sites.find_sites(bert.model.graph, bert.family)
    plan = exact_method(Static, **options).plan(placed, ranges_for(placed), table)
    assert export.takes_integer_operators(plan, table) == taken


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (
            {"targets": ["openvino-cpu"], "format": "qoperator"},
            "the target openvino-cpu takes quantized products as Q/DQ only",
        ),
        (
            {"targets": ["ort-cpu"], "format": "onnx"},
            "format: input should be 'auto', 'qdq' or 'qoperator'",
        ),
    ],
)
def test_formats_that_cannot_be(finished, keys: dict[str, object], text: str) -> None:
    plain = finished[0].model_dump(by_alias=True, exclude_unset=True)
    with pytest.raises(RecipeError) as caught:
        planner.steps_of(parse({**plain, "task": plain["task"]["name"], **keys}))
    assert text in str(caught.value)
