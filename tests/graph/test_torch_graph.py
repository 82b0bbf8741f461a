"""ONNX graphs as PyTorch modules: integer products to the last integer, half precision, any size, and what is refused.

Every family is compared with ONNX Runtime in `test_encoders`, where they are captured.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from octobert.core import plugins
from octobert.core.errors import ModelError, TargetError
from octobert.core.session import SessionOptions
from octobert.data.encoded import feeds_of
from octobert.evaluation import candidates
from octobert.graph import operators, qdq, sites, torch_operators
from octobert.graph.passes import float16
from octobert.graph.torch_graph import is_half, to_torch
from octobert.quantization.methods import dynamic, static
from octobert.targets import torch_cpu, torch_cuda
from octobert.targets.runtimes.torch import TorchGraphSession
from tests.support.checkpoints import batch
from tests.support.graphs import encoded, outputs_of, ranges_of, relative_error, statistics_of
from tests.support.tolerances import assert_same_rounding

# Integers are the same; what remains is float32 sums in another order. A wrong zero point or scale would cost 0.1.
EXACT = 1e-5
# Unit roundoffs of 11 and 8 binary digits, times ten: how far a hundred independent roundings in a row go (their square root).
HALVES = {"f16": 10 * 2**-11, "bf16": 10 * 2**-8}


def run(module: torch.nn.Module, path: Path, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """The first output of a module, for feeds in the order of a file's inputs."""
    with torch.inference_mode():
        (result,) = module(
            *(torch.from_numpy(feeds[str(value.name)]) for value in ir.load(path).graph.inputs)
        )
    return result.numpy()


def noise_of_8_bits(path: Path, float_path: Path, feeds: dict[str, np.ndarray]) -> float:
    """How far quantization moves the outputs. Rounding to fewer digits moves values by up to one more step: as far again."""
    return relative_error(outputs_of(path, feeds), outputs_of(float_path, feeds))


@pytest.fixture(scope="module")
def float_path(captured, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("torched") / "float.onnx"
    operators.save(captured("bert").model, path)
    return path


@pytest.fixture(scope="module")
def write(captured, float_path):
    """`write("matmul", activations="uint8")` → the path of the written graph."""
    found = sites.find_sites(captured("bert").model.graph, captured("bert").family)
    measured = ranges_of(statistics_of(float_path, found))

    def get(placement: str, **options: object) -> Path:
        plan = static.plan(
            found, measured, torch_cpu.CAPABILITIES, static.Options(placement=placement, **options)
        )
        path, model = float_path.with_name("written.onnx"), ir.load(float_path)
        qdq.write(model, plan)
        float16.convert_(model, plan.float_parts)
        operators.save(model, path)
        return path

    return get


@pytest.mark.parametrize("product", [torch_operators.int_mm, torch_operators.exact_mm])
@pytest.mark.parametrize("shape", [(3, 64, 8), (17, 1024, 24), (5, 2500, 16)])
def test_integer_products_are_exact(product, shape: tuple[int, int, int]) -> None:
    """At the ends of the type, where sums are largest, and in between."""
    rows, depth, width = shape
    generator = np.random.default_rng(0)
    for low in (-128, 126):
        x = generator.integers(low, 128, (rows, depth)).astype(np.int8)
        weight = generator.integers(max(low, -127), 128, (depth, width)).astype(np.int8)
        ours = product(torch.from_numpy(x), torch.from_numpy(weight))
        assert ours.dtype is torch.int32
        np.testing.assert_array_equal(ours.numpy(), x.astype(np.int32) @ weight.astype(np.int32))


@pytest.mark.parametrize("zero", [0, 5, -128])
def test_a_linear_layer_of_any_size_is_the_integer_product_rescaled(zero: int) -> None:
    """19 inputs and 3 outputs are padded to multiples of 8; the zero point is taken out of every column."""
    generator = np.random.default_rng(1)
    x, weight = (
        generator.integers(-127, 128, shape).astype(np.int8) for shape in ((2, 5, 19), (19, 3))
    )
    scales = generator.uniform(0.01, 0.1, 3).astype(np.float32)
    exact = (x.astype(np.int64) - zero) @ weight.astype(np.int64)
    padded = torch.from_numpy(np.pad(weight, ((0, 5), (0, 5))))
    shift = torch.from_numpy(-zero * weight.sum(axis=0, dtype=np.int32)) if zero else None
    for units in (True, False):
        arguments = (torch.from_numpy(x), padded, shift, torch.from_numpy(scales))
        ours = torch_operators.integer_linear(*arguments, width=3, dtype=torch.float32, units=units)
        np.testing.assert_array_equal(ours.numpy(), exact.astype(np.float32) * scales)


@pytest.mark.parametrize(
    ("placement", "options", "integer", "simulated"),
    [
        ("matmul", {}, 12, 0),
        ("matmul", {"activations": "uint8", "symmetric": False}, 12, 0),
        ("tensorrt", {"weight_form": "pair", "per_channel": False}, 14, 16),
        ("qdqbert-row", {"activations": "uint8"}, 12, None),
        ("ffn", {"activations": "uint16"}, 0, 4),
    ],
)
def test_8_bits_are_those_of_onnx_runtime(
    write, float_path, placement, options, integer, simulated
) -> None:
    path = write(placement, **options)
    module = to_torch(ir.load(path))
    targets = [node.target for node in module.graph.nodes]
    assert targets.count(torch_operators.integer_linear) == integer
    # The integers of a value are made once, and floats only for those who read them.
    quantizers = {
        node.args[0] for node in module.graph.nodes if node.target is torch_operators.quantize
    }
    assert len(quantizers) == targets.count(torch_operators.quantize)
    if simulated is not None:
        assert targets.count(torch_operators.dequantize) == simulated
    for units in (True, False):
        module = to_torch(ir.load(path), int_mm=units)
        batches = [batch(lengths) for lengths in ([9, 4, 7], [1], [30, 12, 3])]
        results = [
            (run(module, path, feeds), outputs_of(path, feeds), outputs_of(float_path, feeds))
            for feeds in batches
        ]
        assert_same_rounding(*(np.concatenate(parts) for parts in zip(*results, strict=True)))


@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_half_precision_follows_float32(float_path, write, precision: str) -> None:
    feeds = feeds_of(encoded(), 0)
    quantized = write("matmul")
    noise = noise_of_8_bits(quantized, float_path, feeds)
    for path, allowed in ((float_path, HALVES[precision]), (quantized, 2 * noise)):
        session = TorchGraphSession(path, SessionOptions(precision=precision), "cpu")
        assert session.precision == precision
        ours = session.run(feeds)["logits"]
        assert ours.dtype == np.float32
        assert 1e-5 < relative_error(ours, outputs_of(path, feeds)) < allowed


def test_a_file_that_is_float16_already_says_so(write, float_path) -> None:
    path = write("qdqbert", float_parts="float16")
    assert is_half(ir.load(path))
    session = TorchGraphSession(path, SessionOptions(), "cpu")
    assert session.precision == "f16"
    feeds = feeds_of(encoded(), 0)
    noise = noise_of_8_bits(path, float_path, feeds)
    assert relative_error(session.run(feeds)["logits"], outputs_of(path, feeds)) < 2 * noise


def test_torch_compile_takes_the_graph_whole_and_for_any_size(write, float_path) -> None:
    """Traced once, sizes symbolic: what runs is PyTorch's eager kernels, since code for two layers takes minutes to build."""
    path = write("matmul-attention")
    traced = []

    def backend(module: torch.fx.GraphModule, _: list) -> torch.fx.GraphModule:
        traced.append(module)
        return module

    whole = torch.compile(to_torch(ir.load(path)), dynamic=True, fullgraph=True, backend=backend)
    batches = [batch(lengths) for lengths in ([9, 4, 6], [30, 7, 2, 3])]
    results = [
        (run(whole, path, feeds), outputs_of(path, feeds), outputs_of(float_path, feeds))
        for feeds in batches
    ]
    assert_same_rounding(*(np.concatenate(parts) for parts in zip(*results, strict=True)))
    assert len(traced) == 1


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a compiler")
def test_a_compiled_session_computes_what_an_eager_one_does(tmp_path) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["batch", 16]))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 18}, name="g")
    step, zero = (
        operators.initializer(graph, n, np.array(v))
        for n, v in (("step", np.float32(0.02)), ("zero", np.uint8(120)))
    )
    weight = np.arange(-64, 64, dtype=np.int8).reshape(16, 8)
    stored = operators.initializer(graph, "weight", weight)
    scales = operators.initializer(graph, "scales", np.linspace(0.01, 0.1, 8, dtype=np.float32))
    pair = operators.make_node("QuantizeLinear", [x, step, zero], "q", dtype=ir.DataType.UINT8)
    floats = operators.make_node("DequantizeLinear", [pair.outputs[0], step, zero], "dq")
    matrix = operators.make_node("DequantizeLinear", [stored, scales], "w", {"axis": 1})
    product = operators.make_node(
        "MatMul", [floats.outputs[0], matrix.outputs[0]], "y", shape=["batch", 8]
    )
    graph.extend([pair, floats, matrix, product])
    graph.outputs.extend(product.outputs)
    operators.save(ir.Model(graph, ir_version=10), tmp_path / "linear.onnx")
    feeds = {"x": np.random.default_rng(0).normal(size=(3, 16)).astype(np.float32)}
    eager, compiled = (
        TorchGraphSession(tmp_path / "linear.onnx", SessionOptions(), "cpu", compiled=choice).run(
            feeds
        )["y"]
        for choice in (False, True)
    )
    np.testing.assert_array_equal(compiled, eager)
    assert relative_error(eager, outputs_of(tmp_path / "linear.onnx", feeds)) < EXACT


def test_the_float_model_of_a_package_needs_no_checkpoint(float_path) -> None:
    """In a package lies the float graph; where the model came as ONNX a run compares with ONNX Runtime."""
    session = candidates.open_float("torch-cpu", float_path, "sequence-classification")
    assert isinstance(session, TorchGraphSession)
    feeds = batch([9, 4])
    assert relative_error(session.run(feeds)["logits"], outputs_of(float_path, feeds)) < EXACT
    assert candidates.baseline_of("torch-cpu", ["ort-f32", "torch-cpu"]).name == "ort-f32"
    assert candidates.baseline_of("torch-cuda").name == "torch-cuda-f32"


def test_the_target_chooses_between_eager_and_compiled(monkeypatch, float_path) -> None:
    seen = []
    monkeypatch.setattr(
        torch_cpu.torch, "TorchGraphSession", lambda *_, compiled: seen.append(compiled)
    )
    for target in (torch_cpu, torch_cuda):
        target.open_session(float_path, SessionOptions())
    assert seen == [False, True]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused(float_path) -> None:
    with pytest.raises(TargetError, match=r"torch cannot run on cuda here .*\(got .*CUDA.*\)"):
        torch_cuda.open_session(float_path, SessionOptions())


def test_a_precision_that_is_unknown_is_refused(golden, float_path) -> None:
    with golden.raises(TargetError):
        torch_cpu.open_session(float_path, SessionOptions(precision="f8"))


def test_a_model_that_cannot_be_compiled_is_a_sentence(monkeypatch, float_path) -> None:
    session = TorchGraphSession(float_path, SessionOptions(), "cpu")

    def fail(*_: object) -> None:
        raise torch._dynamo.exc.Unsupported("no compiler")

    monkeypatch.setattr(session, "_module", fail)
    with pytest.raises(TargetError, match=r"torch cannot compile the model here .*got no compiler"):
        session.run(batch([3]))


def test_what_is_unknown_is_refused_by_name(golden, captured, float_path) -> None:
    model = ir.load(float_path)
    found = sites.find_sites(model.graph, captured("bert").family)
    qdq.write(
        model,
        dynamic.plan(
            found, None, plugins.load("targets", "ort-cpu").CAPABILITIES, dynamic.Options()
        ),
    )
    with golden.raises(ModelError):
        to_torch(model)


@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [("Softmax", {"flavour": 1}), ("Cast", {"to": ir.DataType.COMPLEX64})],
)
def test_an_odd_node_is_refused(golden, op_type: str, attributes: dict) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n"]))
    node = operators.make_node(op_type, [x], "odd", attributes)
    graph = ir.Graph([x], list(node.outputs), nodes=[node], opset_imports={"": 18}, name="g")
    with golden.raises(ModelError):
        to_torch(ir.Model(graph, ir_version=10))


def test_integers_with_a_scale_that_is_computed_are_refused(golden) -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n"]))
    scale = ir.Value(name="scale", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    quantize = operators.make_node(
        "QuantizeLinear", [x, scale], "odd.quantized", dtype=ir.DataType.UINT8
    )
    dequantize = operators.make_node("DequantizeLinear", [quantize.outputs[0], scale], "odd")
    nodes = [quantize, dequantize]
    graph = ir.Graph(
        [x, scale], list(dequantize.outputs), nodes=nodes, opset_imports={"": 18}, name="g"
    )
    with golden.raises(ModelError):
        to_torch(ir.Model(graph, ir_version=10))


def test_names_in_a_file_never_become_code(float_path, tmp_path) -> None:
    """torch.fx writes Python source: a name such as this one would run when the model is opened."""
    mark = tmp_path / "ran"
    model = ir.load(float_path)
    for number, value in enumerate((model.graph.inputs[0], model.graph.outputs[0])):
        value.name = f"x{number}=open({str(mark)!r}, 'w')"
    for number, (name, value) in enumerate(list(model.graph.initializers.items())):
        model.graph.initializers.pop(name)
        value.name = f"w{number}²\n    open({str(mark)!r}, 'w')"
        model.graph.initializers[value.name] = value
    for node in model.graph:
        node.name = f"n\nopen({str(mark)!r}, 'w')"
    operators.save(model, tmp_path / "model.onnx")
    module = to_torch(ir.load(tmp_path / "model.onnx"))
    feeds = batch([4, 2])
    module(
        *(
            torch.from_numpy(feeds[name])
            for name in ("input_ids", "attention_mask", "token_type_ids")
        )
    )
    assert not mark.exists()
