"""The form of Q/DQ that ONNX Runtime's optimizer fuses for CUDA: it computes the same, all of it is fused, and what is fused is right.

No machine here has the kernels. What they compute was read in their sources, and is written out below in NumPy.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

import octobert
from octobert import targets
from octobert.core import capability
from octobert.core.errors import ModelError, OctobertError, PlanError, TargetError
from octobert.core.plan import QuantPlan
from octobert.core.session import ExportOptions, SessionOptions
from octobert.data.encoded import feeds_of
from octobert.graph import operators as ops
from octobert.graph import qdq, sites, smoothing
from octobert.graph.capture import capture
from octobert.graph.passes import qordered
from octobert.models.source import resolve
from octobert.quantization.methods.static import Static
from octobert.targets import ort_cuda
from octobert.targets.runtimes import ort as onnxruntime
from tests.support.checkpoints import batch, make_checkpoint
from tests.support.graphs import encoded, outputs_of, ranges_of, statistics_of

# Differences of logits, relative to the largest. None was observed, but dividing by the root of 32 rounds differently from
# multiplying by its inverse, and a probability halfway between two integers can be rounded to the other one.
ONE_DIVISION = 2e-3
# The kernels round once per operator; Q/DQ rounds to float32 after each part. A wrong order gives about 1.
KERNELS = 1e-2
# float16 has eleven binary digits; products sum tens of numbers.
HALF = 1e-2
# The same row with more padding.
FLOAT = 1e-5
CUDA = ort_cuda.CAPABILITIES
A_LAYER = {
    "QOrderedAttention": 1,
    "QOrderedMatMul": 3,
    "QOrderedGelu": 1,
    "QOrderedLayerNormalization": 2,
}
FEEDS = batch([16, 9, 3])


class Written:
    """A tiny model whose head size is not a square number, with its sites and ranges."""

    def __init__(
        self, folder: Path, family: str, head: str = "sequence-classification", **config: object
    ) -> None:
        self.folder = folder
        self.captured = capture.capture(
            resolve(make_checkpoint(folder / "model", family, head, **config)),
            head,
            [batch([9, 4])],
        )
        self.float_path = folder / "float.onnx"
        ops.save(self.captured.model, self.float_path)
        self.sites = sites.find_sites(self.captured.model.graph, self.captured.family)
        self.ranges = ranges_of(statistics_of(self.float_path, self.sites))

    def plan(self, **options: object) -> QuantPlan:
        plan = Static(**options).plan(self.sites, self.ranges, CUDA)
        capability.check(plan, CUDA)
        return plan

    def qdq(self, plan: QuantPlan) -> ir.Model:
        model = ir.load(self.float_path)
        qdq.write(model, plan)
        return model

    def rewritten(self, plan: QuantPlan) -> ir.Model:
        model = self.qdq(plan)
        qordered.rewrite_(model)
        return model

    def logits(self, model: ir.Model) -> np.ndarray:
        path = self.folder / "logits.onnx"
        ops.save(model, path)
        onnx.checker.check_model(str(path), full_check=True)
        return outputs_of(path, FEEDS)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Written:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
    return Written(tmp_path_factory.mktemp("bert"), "bert", "token-classification", **sizes)


@pytest.fixture(scope="module")
def albert(tmp_path_factory) -> Written:
    return Written(tmp_path_factory.mktemp("albert"), "albert", num_attention_heads=2)


@pytest.fixture(scope="module")
def fused(bert) -> ir.Model:
    return qordered.fuse(bert.rewritten(bert.plan()))


def operators(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


# --- the rewritten graph


@pytest.mark.parametrize("options", [{}, {"embeddings": "float", "per_channel": False}], ids=str)
def test_the_rewritten_graph_computes_the_same(bert, options) -> None:
    plan = bert.plan(**options)
    before, after = bert.logits(bert.qdq(plan)), bert.logits(bert.rewritten(plan))
    assert distance(after, before) <= ONE_DIVISION
    assert np.abs(before).max() > 1


def test_shared_weights_are_written_for_each_layer(albert) -> None:
    plan = albert.plan()
    shared, own = albert.qdq(plan), albert.rewritten(plan)
    np.testing.assert_array_equal(albert.logits(own), albert.logits(shared))
    weights = [
        n for n in own.graph if n.op_type == "DequantizeLinear" and n.inputs[0].is_initializer()
    ]
    assert len({n.inputs[0] for n in weights}) == len(weights) == 12
    assert all(len(n.outputs[0].uses()) == 1 for n in weights)


# --- what is fused


@pytest.mark.parametrize(
    "options", [{}, {"embeddings": "float"}, {"per_channel": False, "fuse_qkv": True}], ids=str
)
def test_whole_layers_are_fused(bert, options) -> None:
    model = qordered.fuse(bert.rewritten(bert.plan(**options)))
    assert qordered.counts(model) == {kind: 2 * count for kind, count in A_LAYER.items()}
    left = operators(model)
    # One pair remains: Quantize after the norm of the embeddings, Dequantize before the classifier.
    assert [
        left[kind]
        for kind in ("QuantizeLinear", "DequantizeLinear", "LayerNormalization", "MatMul")
    ] == [1, 1, 1, 1]
    assert not {"Softmax", "Erf", "Gelu"} & set(left)


def test_an_embedding_projection_is_quantized_where_the_first_layer_reads_it(albert) -> None:
    model = qordered.fuse(albert.rewritten(albert.plan()))
    assert qordered.counts(model) == {kind: 2 * count for kind, count in A_LAYER.items()}
    # Quantized outputs alone are not enough: the first attention reads float.
    row = qordered.fuse(albert.rewritten(albert.plan(placement="qdqbert-row")))
    assert qordered.counts(row)["QOrderedAttention"] == 1


def test_on_bert_the_placement_is_qdqbert_row(bert) -> None:
    quantized = [dict(bert.plan(placement=name).quantized) for name in ("qordered", "qdqbert-row")]
    assert quantized[0] == quantized[1]


def test_a_layer_that_is_disabled_stays_float(bert) -> None:
    model = qordered.fuse(bert.rewritten(bert.plan(disable=("encoder.layer.1.*",))))
    assert qordered.counts(model) == A_LAYER
    assert operators(model)["LayerNormalization"] == 3


def test_weights_lie_by_columns_and_scales_are_the_plans(bert, fused) -> None:
    plan, before = bert.plan(), bert.qdq(bert.plan()).graph.initializers
    after = fused.graph.initializers
    weights = [site.value for site, _ in plan.quantized if site.role == "linear.weight"]
    assert len(weights) == 12
    for name in weights:
        theirs, ours = (graph[f"{name}.quantized"].const_value.numpy() for graph in (before, after))
        assert (ours.shape, ours.dtype) == (theirs.shape, np.int8)
        np.testing.assert_array_equal(by_columns(ours), theirs)
        np.testing.assert_array_equal(
            after[f"{name}.scale"].const_value.numpy(), before[f"{name}.scale"].const_value.numpy()
        )
    for site, quantizer in plan.quantized:
        if not site.is_weight:
            np.testing.assert_array_equal(
                after[f"{site.value}.scale"].const_value.numpy(),
                qdq.activation_parameters(quantizer)[0],
            )


def test_attentions_read_the_mask_itself_and_norms_keep_their_epsilon(fused) -> None:
    nodes = {kind: [n for n in fused.graph if n.op_type == kind] for kind in qordered.KINDS}
    for attention in nodes["QOrderedAttention"]:
        cast = attention.inputs[17].producer()
        assert (cast.op_type, cast.inputs[0].name, cast.attributes["to"].value) == (
            "Cast",
            "attention_mask",
            ir.DataType.INT32,
        )
        assert attention.attributes["num_heads"].value == 2
    assert [
        n.attributes["epsilon"].value for n in nodes["QOrderedLayerNormalization"]
    ] == pytest.approx([1e-12] * 4)


def test_the_runtime_takes_the_fused_graph_up_to_its_kernels(fused, tmp_path) -> None:
    ops.save(fused, tmp_path / "fused.onnx")
    # ONNX Runtime checks types, shapes and schemas before it looks for kernels.
    with pytest.raises(NoKernel, match="Could not find an implementation for QOrdered"):
        ort.InferenceSession(str(tmp_path / "fused.onnx"), providers=["CPUExecutionProvider"])


# --- the kernels


def by_columns(stored: np.ndarray) -> np.ndarray:
    """Return [in, out] of a weight that is stored column by column."""
    return stored.reshape(stored.shape[::-1]).T


def to_int8(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float32)


class QOrderedMatMul(OpRun):
    op_domain = ops.MICROSOFT

    def _run(self, a, scale_a, b, scale_b, scale_y, bias, c=None, scale_c=None, **orders):
        assert orders == {"order_A": 1, "order_B": 0, "order_Y": 1}
        result = product(a, by_columns(b)) * (scale_a * scale_b / scale_y) + bias / scale_y
        return (to_int8(result if c is None else result + c * (scale_c / scale_y)),)


class QOrderedGelu(OpRun):
    op_domain = ops.MICROSOFT

    def _run(self, x, scale_x, scale_y, **orders):
        from scipy.special import ndtr

        floats = x * scale_x
        return (to_int8(floats * ndtr(floats) / scale_y),)


class QOrderedLayerNormalization(OpRun):
    op_domain = ops.MICROSOFT

    def _run(self, x, scale_x, gamma, beta, scale_y, *, epsilon, **orders):
        floats = x * scale_x
        centered = floats - floats.mean(-1, keepdims=True)
        return (
            to_int8(
                (centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) * gamma + beta)
                / scale_y
            ),
        )


class QOrderedAttention(OpRun):
    op_domain = ops.MICROSOFT

    def _run(self, *inputs, num_heads, **attributes):
        x, scale_x, *rest = inputs
        scale_of, weights, weight_scales, biases = rest[:3], rest[3:6], rest[6:9], rest[9:12]
        scale_scores, scale_probs, scale_y, mask = rest[12:]
        assert mask.dtype == np.int32
        assert mask.shape == x.shape[:2]

        def heads(part: int) -> np.ndarray:
            floats = (
                product(x, by_columns(weights[part])) * (scale_x * weight_scales[part])
                + biases[part]
            )
            integers = to_int8(floats / scale_of[part])
            return integers.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

        query, key, value = (heads(part) for part in range(3))
        scores = to_int8(
            product(query, key.swapaxes(-1, -2)) * (scale_of[0] * scale_of[1] / scale_scores)
        ).astype(np.int64)
        powers = np.exp(
            (scores - scores.max(-1, keepdims=True)) * (scale_scores / np.sqrt(query.shape[-1]))
        )
        powers = powers * mask[:, None, None, :]
        probs = to_int8(powers / powers.sum(-1, keepdims=True) / scale_probs)
        context = to_int8(product(probs, value) * (scale_probs * scale_of[2] / scale_y))
        return (context.transpose(0, 2, 1, 3).reshape(x.shape),)


@pytest.mark.parametrize("options", [{}, {"per_channel": False}], ids=str)
def test_the_fused_graph_computes_what_the_plan_says(bert, options) -> None:
    plan = bert.plan(**options)
    model = qordered.fuse(bert.rewritten(plan))
    # The first opset of which the evaluator supports Q/DQ.
    model.opset_imports[""] = 19
    kernels = [QOrderedAttention, QOrderedMatMul, QOrderedGelu, QOrderedLayerNormalization]
    (ours,) = ReferenceEvaluator(ir.to_proto(model), new_ops=kernels).run(None, FEEDS)
    theirs = bert.logits(bert.qdq(plan))
    real = FEEDS["attention_mask"].astype(bool)
    assert distance(ours[real], theirs[real]) <= KERNELS
    # So do ONNX's own operators that the product writes for machines without the device.
    assert qordered.expand_(model) == 2 * sum(A_LAYER.values())
    assert distance(bert.logits(model)[real], ours[real]) <= KERNELS


def test_a_file_of_octobert_is_fused_with_its_attention(bert, tmp_path) -> None:
    ops.save(bert.qdq(bert.plan()), tmp_path / "quantized.onnx")
    found = octobert.fuse(tmp_path / "quantized.onnx", tmp_path / "fused.onnx", for_="ort-cuda")
    assert found.counts == {kind: 2 * count for kind, count in A_LAYER.items()}


# --- what does not fit


def refusal(bert: Written, plan: QuantPlan) -> OctobertError:
    with pytest.raises(OctobertError) as caught:
        qordered.fuse(bert.rewritten(plan))
    return caught.value


def test_asymmetric_activations_are_refused(golden, bert) -> None:
    cpu = targets.load("ort-cpu").capabilities
    plan = Static(placement="qordered").plan(bert.sites, bert.ranges, cpu)
    with golden.raises(PlanError):
        capability.check(plan, CUDA)
    error = refusal(bert, plan)
    assert isinstance(error, PlanError)
    assert error.where == "embeddings.LayerNorm.quantized"
    assert error.got.startswith("uint8 with zero point ")
    assert error.expected == "symmetric int8, whose zero point is 0"
    assert error.fix.startswith("set activations to int8")


def test_other_placements_are_refused(bert) -> None:
    with pytest.raises(PlanError, match=r"ort-cuda does not support 8-bit scores\.query"):
        bert.plan(placement="matmul-attention")
    error = refusal(bert, bert.plan(placement="matmul"))
    assert isinstance(error, PlanError)
    assert error.where == "encoder.layer.0.attention.self.probs"
    assert "no attention with quantized outputs" in error.got
    assert "placement qordered" in error.expected


def test_a_rescaled_residual_path_is_refused(golden, bert) -> None:
    model = ir.load(bert.float_path)
    group = next(g for g in smoothing.groups(model.graph, bert.captured.family) if g.kind == "norm")
    smoothing.scale_(model, group, np.full(64, 2.0))
    qdq.write(model, bert.plan())
    with golden.raises(PlanError):
        qordered.rewrite_(model)


def test_weights_behind_a_pair_are_refused(bert) -> None:
    error = refusal(bert, bert.plan(weight_form="pair"))
    assert isinstance(error, TargetError)
    assert error.got.startswith("0 QOrderedAttention, ")


def fused_from(model: ir.Model) -> ir.Model:
    qordered.rewrite_(model)
    return qordered.fuse(model)


@pytest.mark.parametrize(
    ("edit", "got"), [("scale", "scores times 0.5"), ("heads", "heads of 8 channels")]
)
def test_an_attention_that_the_kernel_computes_otherwise_is_refused(bert, edit, got) -> None:
    model = bert.qdq(bert.plan())
    constants = model.graph.initializers
    if edit == "scale":
        scale = constants["encoder.layer.0.attention.self.scale"]
        scale.const_value = ir.tensor(np.array(0.5, dtype=np.float32))
    else:
        for name, value in constants.items():
            if name == "heads.2x32":
                value.const_value = ir.tensor(np.array([0, 0, 8, 8]))
            elif name.endswith("attention.self.scale"):
                value.const_value = ir.tensor(np.array(8**-0.5, dtype=np.float32))
    with pytest.raises(ModelError, match=got):
        fused_from(model)


# --- the target


def test_the_target_writes_the_fused_graph_beside_the_other(bert, tmp_path) -> None:
    path = tmp_path / "model_quantized.onnx"
    ops.save(bert.qdq(bert.plan()), path)
    ort_cuda.export(path, tmp_path, ExportOptions())
    main = ort_cuda.model_file(tmp_path)
    assert main == tmp_path / "onnx" / "model_fused.onnx"
    assert qordered.counts(ir.load(main))["QOrderedAttention"] == 2
    probe = ort_cuda.TARGET.probe()
    assert probe.available or probe.install == "pip install onnxruntime-gpu"


@pytest.mark.parametrize("parts", ["float32", "float16"])
def test_float_graphs_get_onnx_runtimes_fused_operators(bert, tmp_path, parts) -> None:
    path = tmp_path / "model_quantized.onnx"
    ops.save(ir.load(bert.float_path), path)
    ort_cuda.export(path, tmp_path, ExportOptions(float_parts=parts))
    counted = operators(ir.load(ort_cuda.model_file(tmp_path)))
    assert counted["MultiHeadAttention"] == counted["BiasGelu"] == 2
    assert counted["SkipLayerNormalization"] == 4
    theirs, ours = (outputs_of(file, FEEDS) for file in (path, ort_cuda.model_file(tmp_path)))
    assert distance(ours, theirs) < {"float32": FLOAT, "float16": HALF}[parts]


def test_sequences_are_padded_to_the_length_that_the_kernel_takes(bert, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    ops.save(bert.qdq(bert.plan()), path)
    session = ort_cuda.PaddedSession(path, SessionOptions(), "CPUExecutionProvider")
    feeds = feeds_of(encoded((13, 9)), 0)
    ours = session.run(feeds)["logits"]
    assert ours.shape == (2, 13, 2)
    real = feeds["attention_mask"].astype(bool)
    theirs = onnxruntime.OrtSession(path, SessionOptions(), "CPUExecutionProvider").run(feeds)[
        "logits"
    ]
    np.testing.assert_allclose(ours[real], theirs[real], atol=FLOAT)
