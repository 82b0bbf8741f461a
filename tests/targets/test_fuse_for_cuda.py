"""A Q/DQ file of another tool becomes CUDA's int8 operators, and what these compute is checked without a GPU."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import octobert
from octobert.core.errors import ModelError, ParityError, RecipeError, TargetError
from octobert.graph import operators as ops
from octobert.graph.passes import qordered

WIDTH, HEADS, INNER, VOCABULARY = 64, 4, 128, 200
# Float sums in another order.
SUM_ORDER = 5e-5


def rounded(x: torch.Tensor, scale: float = 0.05) -> torch.Tensor:
    return torch.fake_quantize_per_tensor_affine(x, scale, 0, -128, 127)


class Linear(nn.Linear):
    """As quantization-aware training leaves it: the weight behind a pair, one scale per output channel."""

    def __init__(self, width: int, to: int) -> None:
        super().__init__(width, to)
        self.register_buffer("scale", (self.weight.abs().amax(1) / 127).detach())
        self.register_buffer("zero", torch.zeros(to, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.fake_quantize_per_channel_affine(
            self.weight, self.scale, self.zero, 0, -128, 127
        )
        return nn.functional.linear(x, weight, self.bias)


class Layer(nn.Module):
    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = Linear(WIDTH, INNER), Linear(INNER, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2)])
        self.divisor = divisor

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0), x.size(1), HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            self.heads(rounded(part(x))) for part in (self.query, self.key, self.value)
        )
        scores = rounded(query @ key.transpose(-1, -2)) / self.divisor + mask
        context = rounded(rounded(scores.softmax(-1), 1 / 127) @ value).permute(0, 2, 1, 3)
        context = context.contiguous().view(x.size(0), x.size(1), WIDTH)
        x = rounded(self.norms[0](rounded(self.out(context) + x)))
        up = rounded(nn.functional.gelu(rounded(self.up(x))))
        return rounded(self.norms[1](rounded(self.down(up) + x)))


class Encoder(nn.Module):
    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(VOCABULARY, WIDTH), nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Layer(divisor) for _ in range(2)])
        self.classifier = nn.Linear(WIDTH, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        x = rounded(self.norm(self.words(input_ids)))
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(x[:, 0])


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Write the file of an encoder whose scores are divided by a number, as PyTorch's older exporter does."""

    def write(divisor: float = math.sqrt(WIDTH // HEADS)):
        folder = tmp_path_factory.mktemp("exported")
        config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"]}
        (folder / "config.json").write_text(json.dumps(config))
        torch.manual_seed(0)
        path = folder / "model.onnx"
        example = (torch.ones(2, 16, dtype=torch.int64),) * 2
        names = ["input_ids", "attention_mask"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                Encoder(divisor).eval(),
                example,
                str(path),
                dynamo=False,
                opset_version=17,
                input_names=names,
                output_names=["logits"],
                dynamic_axes={name: {0: "batch", 1: "sequence"} for name in names},
            )
        return path

    return write


def test_a_file_of_another_tool_gets_the_int8_operators(exported, tmp_path) -> None:
    path = exported()
    found = octobert.fuse(path, tmp_path / "fused.onnx", for_="ort-cuda")
    # ONNX Runtime's own optimizer leaves the attention and the GELU of such files unfused.
    assert found.counts == {
        "QOrderedAttention": 2,
        "QOrderedMatMul": 6,
        "QOrderedGelu": 2,
        "QOrderedLayerNormalization": 4,
    }
    assert found.parity.largest_difference <= SUM_ORDER
    written = ir.load(tmp_path / "fused.onnx")
    left = Counter(node.op_type for node in written.graph)
    assert not {"Softmax", "Erf"} & set(left)
    assert {
        n.attributes["num_heads"].value for n in written.graph if "num_heads" in n.attributes
    } == {HEADS}
    # Expanded, it answers as the file does, with padding.
    assert qordered.expand_(written) == 14
    generator = np.random.default_rng(1)
    mask = (np.arange(16) < np.array([16, 5])[:, None]).astype(np.int64)
    feeds = {"input_ids": generator.integers(0, VOCABULARY, (2, 16)), "attention_mask": mask}
    ours, theirs = (ops_run(model, feeds) for model in (written, ir.load(path)))
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(ours, theirs, atol=SUM_ORDER)


def ops_run(model: ir.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    from octobert.graph import parity

    return parity.onnx_outputs(model, [feeds], optimized=False)[0][0]


def test_scores_that_the_kernel_divides_otherwise_are_found(exported, tmp_path) -> None:
    with pytest.raises(ParityError, match="the fused graph"):
        octobert.fuse(exported(1.0), tmp_path / "fused.onnx", for_="ort-cuda")
    assert not (tmp_path / "fused.onnx").exists()


def test_what_cannot_be_fused_for_cuda_is_a_sentence(exported, tmp_path) -> None:
    path, out = exported(), tmp_path / "out.onnx"
    with pytest.raises(RecipeError, match='"cuda"; did you mean "ort-cuda"'):
        octobert.fuse(path, out, for_="cuda")
    model = ir.load(path)
    unpaired = path.with_name("float.onnx")
    for node in [n for n in model.graph if n.op_type == "DequantizeLinear"]:
        floats = ops.input_of(node.inputs[0].producer(), 0)
        ir.convenience.replace_all_uses_with(node.outputs[0], floats)
    ops.clean_(model)
    ops.save(model, unpaired)
    with pytest.raises(ModelError, match="no Q/DQ pairs"):
        octobert.fuse(unpaired, out, for_="ort-cuda")
    asymmetric = onnx.load(path)
    for tensor in (t for n in asymmetric.graph.node for a in n.attribute for t in [a.t]):
        if tensor.data_type == onnx.TensorProto.INT8 and not tensor.dims:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.array(3, dtype=np.int8)))
    onnx.save(asymmetric, path.with_name("asymmetric.onnx"))
    with pytest.raises(TargetError, match="fused no matrix product"):
        octobert.fuse(path.with_name("asymmetric.onnx"), out, for_="ort-cuda")
    assert not out.exists()
