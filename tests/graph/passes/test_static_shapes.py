"""Static shapes, and linear layers as Gemm: the outputs stay the same, and nothing depends on a shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from octobert.core.errors import ModelError
from octobert.graph import operators as ops
from octobert.graph import qdq, sites
from octobert.graph.passes.npu import make_static_, matmul_add_to_gemm_
from octobert.quantization.methods.static import Static
from tests.support.checkpoints import batch, exact_method, pad_of
from tests.support.graphs import (
    SAME,
    assert_static,
    capabilities,
    largest_error,
    operator_counts,
    outputs_of,
    plan_for,
    ranges_for,
)

# tests/models/test_families.py covers all families; these two have both kinds of positions.
FAMILIES = ("bert", "deberta-v2")
LAYERS = 2
SIZE = (2, 16)
# Gemm adds the bias as part of the sum.
GEMM = 5e-6
FORMS = ("float", "int8")


@pytest.fixture(scope="module")
def made(captured, checkpoint, tmp_path_factory) -> Callable[[str, str], tuple[Path, int]]:
    """`made("bert", "int8")` → the quantized graph with dynamic shapes, and the padding id."""
    folder, paths = tmp_path_factory.mktemp("dynamic"), {}

    def get(name: str, form: str) -> tuple[Path, int]:
        if (name, form) not in paths:
            source = captured(name, "embedding")
            paths[name, form] = folder / f"{name}-{form}.onnx"
            ops.save(source.model, paths[name, form])
            if form != "float":
                model = ir.load(paths[name, form])
                placed = sites.find_sites(model.graph, source.family)
                method = exact_method(Static, **({} if form == "int8" else {"activations": form}))
                qdq.write(model, method.plan(placed, ranges_for(placed), capabilities("ort-cpu")))
                ops.save(model, paths[name, form])
        return paths[name, form], pad_of(checkpoint(name, "embedding"))

    return get


def run(path: Path, pad_id: int, lengths: tuple[int, ...] = (16, 9)) -> np.ndarray:
    return outputs_of(path, batch(list(lengths), pad_id=pad_id))


def fixed(path: Path, out: Path, size: tuple[int, int] = SIZE) -> ir.Model:
    model = ir.load(path)
    make_static_(model, batch=size[0], sequence=size[1])
    ops.save(model, out)
    onnx.checker.check_model(str(out), full_check=True)
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_fixed_graph_is_static_and_computes_the_same(
    made, tmp_path, name: str, form: str
) -> None:
    path, pad_id = made(name, form)
    model = fixed(path, tmp_path / "fixed.onnx")
    assert_static(model)
    assert [tuple(v.shape.numpy()) for v in model.graph.inputs] == [SIZE] * len(model.graph.inputs)
    assert largest_error(run(tmp_path / "fixed.onnx", pad_id), run(path, pad_id)) <= SAME
    # Weights stay 8-bit weights.
    assert (
        operator_counts(model)["DequantizeLinear"]
        == operator_counts(ir.load(path))["DequantizeLinear"]
    )


def test_one_row_of_one_token_is_a_size_too(made, tmp_path) -> None:
    path, pad_id = made("bert", "float")
    assert_static(fixed(path, tmp_path / "fixed.onnx", (1, 1)))
    assert (
        largest_error(run(tmp_path / "fixed.onnx", pad_id, (1,)), run(path, pad_id, (1,))) <= SAME
    )


def test_a_fixed_graph_can_be_fixed_to_its_own_size_only(golden, made, tmp_path) -> None:
    path, pad_id = made("bert", "float")
    once = fixed(path, tmp_path / "once.onnx")
    fixed(tmp_path / "once.onnx", tmp_path / "twice.onnx")
    assert largest_error(run(tmp_path / "twice.onnx", pad_id), run(path, pad_id)) <= SAME
    with golden.raises(ModelError):
        make_static_(once, batch=2, sequence=32)


def test_a_length_beyond_the_table_of_positions_is_an_error(golden, made) -> None:
    model = ir.load(made("bert", "float")[0])
    with golden.raises(ModelError):
        make_static_(model, batch=1, sequence=5000)


def make_model(
    nodes: list, constants: dict[str, np.ndarray] | None = None, output: str = "y", rank: int = 2
) -> ir.Model:
    """A graph of int64 [batch, sequence] ids and one float output."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()],
    )
    return ir.serde.deserialize_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    )


def test_a_size_that_depends_on_numbers_is_an_error_that_names_the_value(golden) -> None:
    nodes = [
        helper.make_node("NonZero", ["input_ids"], ["places"]),
        helper.make_node("Cast", ["places"], ["y"], to=TensorProto.FLOAT),
    ]
    with golden.raises(ModelError):
        make_static_(make_model(nodes), batch=1, sequence=4)


def test_a_target_of_reshape_made_of_a_shape_becomes_a_constant(tmp_path) -> None:
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Shape", ["x"], ["length"], start=1),
        helper.make_node("Concat", ["length", "minus"], ["sizes"], axis=0),
        helper.make_node("Reshape", ["x", "sizes"], ["y"]),
    ]
    model = make_model(nodes, {"minus": np.array([-1], dtype=np.int64)})
    make_static_(model, batch=3, sequence=5)
    assert_static(model)
    assert operator_counts(model) == {"Cast": 1, "Reshape": 1}
    assert model.graph.outputs[0].shape == (5, 3)


def gemmed(path: Path, out: Path, folder: Path) -> tuple[ir.Model, int]:
    model = fixed(path, folder / "fixed.onnx")
    count = matmul_add_to_gemm_(model)
    ops.save(model, out)
    onnx.checker.check_model(str(out), full_check=True)
    return model, count


@pytest.mark.parametrize("form", [*FORMS, "uint16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_linear_layers_become_gemm(made, captured, tmp_path, name: str, form: str) -> None:
    path, pad_id = made(name, form)
    model, count = gemmed(path, tmp_path / "gemm.onnx", tmp_path)
    assert_static(model)
    # One Reshape after each Gemm, and one before all Gemms that read the same value.
    read = {node.inputs[0] for node in model.graph if node.op_type == "Gemm"}
    before = operator_counts(ir.load(tmp_path / "fixed.onnx"))["Reshape"]
    assert operator_counts(model)["Reshape"] - before == operator_counts(model)["Gemm"] + len(read)
    # Four projections of attention and two of the feed-forward in each layer; MatMul is left for activations and positions.
    assert count == operator_counts(model)["Gemm"] == 6 * LAYERS
    constants = [
        ops.const_array(node.inputs[1]) for node in model.graph if node.op_type == "MatMul"
    ]
    assert [array.shape for array in constants if array is not None and array.ndim == 2] == []
    assert largest_error(run(tmp_path / "gemm.onnx", pad_id), run(path, pad_id)) <= GEMM
    if form != "float":
        gemms = [node for node in model.graph if node.op_type == "Gemm"]
        assert all(ops.producer(v, "DequantizeLinear") for node in gemms for v in node.inputs[:2])


def test_what_is_quantized_behind_a_linear_layer_is_quantized_on_both_sides_of_the_reshape(
    captured, made, tmp_path
) -> None:
    path, pad_id = made("bert", "float")
    bert = captured("bert", "embedding")
    model = ir.load(path)
    plan = plan_for(model, bert.family, placement="qdqbert-row")
    qdq.write(model, plan)
    ops.save(model, tmp_path / "rows.onnx")
    model, _ = gemmed(tmp_path / "rows.onnx", tmp_path / "gemm.onnx", tmp_path)
    followed = [
        ops.consumers(node.outputs[0], "QuantizeLinear")
        for node in model.graph
        if node.op_type == "Gemm"
    ]
    assert any(followed)
    for quantize in [q for readers in followed for q in readers]:
        (dequantize,) = ops.readers(quantize.outputs[0])
        (reshape,) = ops.readers(dequantize.outputs[0])
        (again,) = ops.readers(reshape.outputs[0])
        assert (reshape.op_type, again.op_type) == ("Reshape", "QuantizeLinear")
        assert again.inputs[1:] == quantize.inputs[1:]
    assert (
        largest_error(run(tmp_path / "gemm.onnx", pad_id), run(tmp_path / "rows.onnx", pad_id))
        <= GEMM
    )


def test_gemm_needs_static_shapes(golden, made) -> None:
    with golden.raises(ModelError):
        matmul_add_to_gemm_(ir.load(made("bert", "float")[0]))


def test_a_head_of_two_dimensions_becomes_a_gemm_that_keeps_the_name_of_the_output(
    captured, tmp_path
) -> None:
    ops.save(captured("bert", "sequence-classification").model, tmp_path / "float.onnx")
    model, _ = gemmed(tmp_path / "float.onnx", tmp_path / "gemm.onnx", tmp_path)
    assert [v.name for v in model.graph.outputs] == ["logits"]
    assert model.graph.outputs[0].producer().op_type == "Gemm"
    assert largest_error(run(tmp_path / "gemm.onnx", 0), run(tmp_path / "float.onnx", 0)) <= GEMM


def test_a_product_that_something_else_reads_stays(tmp_path) -> None:
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["sum"]),
        helper.make_node("Mul", ["product", "sum"], ["y"]),
    ]
    model = make_model(nodes, {"w": np.ones((4, 3), np.float32), "b": np.ones(3, np.float32)})
    make_static_(model, batch=2, sequence=4)
    assert matmul_add_to_gemm_(model) == 0
    assert "Gemm" not in operator_counts(model)


def test_onnxruntime_opens_fixed_graphs_without_a_warning(made, tmp_path, capfd) -> None:
    """ONNX Runtime warns of wrong shape annotations."""
    for form in FORMS:
        gemmed(made("bert", form)[0], tmp_path / "gemm.onnx", tmp_path)
        settings = ort.SessionOptions()
        settings.log_severity_level = 2
        session = ort.InferenceSession(str(tmp_path / "gemm.onnx"), settings)
        feeds = batch([16, 9])
        session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    assert capfd.readouterr().err == ""
