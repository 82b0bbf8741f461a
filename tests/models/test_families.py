"""Every family from the canonical graph to 8 bits on both CPU targets, and what is peculiar to one of them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from octobert import targets
from octobert.core import plugins
from octobert.core.errors import ModelError
from octobert.core.family import LINEAR_PARTS
from octobert.core.heads import HEADS
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Ranges
from octobert.core.session import Feeds, Session, SessionOptions
from octobert.data.encoded import Encoded, feeds_of
from octobert.graph import operators, parity, parts, qdq, sites
from octobert.graph.capture import capture, lowering, shapes, structure
from octobert.graph.passes import npu
from octobert.graph.torch_graph import to_torch
from octobert.models.checkpoint import load_torch
from octobert.models.source import resolve
from octobert.quantization import apply_corrections, observer, search, sensitivity
from octobert.quantization.calibrators.minmax import MinMax
from octobert.quantization.corrections.weight_rounding import WeightRounding
from octobert.quantization.methods.static import Static
from octobert.quantization.transforms.smoothquant import SmoothQuant
from tests.support.checkpoints import batch, exact_method, make_checkpoint, pad_of, parity_feeds
from tests.support.graphs import SAME, assert_static, largest_error, outputs_of, relative_error

FAMILIES = plugins.names("families")
NEW = (
    "albert",
    "deberta",
    "deberta-v2",
    "eurobert",
    "gemma3-text",
    "mobilebert",
    "modernbert",
    "mpnet",
    "nomic-bert",
    "qwen3",
)
TARGETS = ("ort-cpu", "openvino-cpu")
# Mean-pooled states: a classifier's tanh would hide errors behind saturation, or make steps of them.
HEAD = "embedding"
# Random weights, every linear layer in 8 bits, attention scores too on OpenVINO: measured 0.013 to 0.038.
LOOSE = 0.06
# The same row alone and in a longer batch, relative to the largest number: float32 sums in another order.
PADDED = 1e-5
# Float32 sums in another order: measured up to 2e-6.
PYTORCH = 1e-5
LENGTHS = (9, 4, 30, 1, 7, 22)


def rows(pad_id: int) -> list[Encoded]:
    """Random rows, none of whose tokens is padding."""
    generator = np.random.default_rng(1)
    return [
        Encoded(generator.integers(pad_id + 4, 90, n), np.zeros(n, dtype=np.int64), False)
        for n in LENGTHS
    ]


class Family:
    """One family, smoothed and observed once."""

    def __init__(self, name: str, captured: capture.Captured, pad_id: int, folder: Path) -> None:
        self.name = name
        self.family = captured.family
        self.pad_id = pad_id
        self.rows = rows(pad_id)
        self.folder = folder
        self.captured = folder / "captured.onnx"
        operators.save(captured.model, self.captured)
        model, smoothing = ir.load(self.captured), SmoothQuant(alpha=0.5)
        values = smoothing.values(model.graph, self.family)
        samples = observer.sample(
            ir.load(self.captured), self.rows, pad_id, values, tokens=64, seed=0
        )
        smoothing.transform_(model, self.family, samples, lambda *_: None)
        self.float = folder / "float.onnx"
        operators.save(model, self.float)
        self.sites = sites.find_sites(model.graph, self.family)
        activations = sorted({site.value for site in self.sites if not site.is_weight})
        self.statistics = observer.observe(self.float, self.rows, pad_id, activations)
        intervals = {name: MinMax().interval(one) for name, one in self.statistics.items()}
        provenance = {
            "samples": 1,
            "tokens": 1,
            "data_digest": "",
            "model_digest": "",
            "source": "test",
        }
        self.ranges = Ranges(
            calibrator="minmax", options={}, intervals=intervals, provenance=provenance
        )

    def plan(self, target: str, **options: object) -> QuantPlan:
        capabilities = targets.load(target).capabilities
        return exact_method(Static, target, **options).plan(self.sites, self.ranges, capabilities)

    def refined(self, plan: QuantPlan) -> dict:
        return apply_corrections.correct_layers(
            ir.load(self.float),
            self.rows,
            self.pad_id,
            plan,
            [WeightRounding()],
            lambda *_: None,
        )

    def written(self, plan: QuantPlan, name: str, changes: dict | None = None) -> Path:
        model, path = ir.load(self.float), self.folder / f"{name}.onnx"
        qdq.write(model, plan, apply_corrections.apply_(model, changes or {}, plan))
        operators.save(model, path)
        return path


@pytest.fixture(scope="session")
def family(captured, checkpoint, tmp_path_factory) -> Callable[[str], Family]:
    made: dict[str, Family] = {}

    def get(name: str) -> Family:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = Family(name, captured(name, HEAD), pad_of(checkpoint(name, HEAD)), folder)
        return made[name]

    return get


def opened(target: str, path: Path) -> Session:
    return targets.load(target).open_session(path, SessionOptions(threads=1))


def states(session: Session, feeds: Feeds) -> np.ndarray:
    return session.run(feeds)["sentence_embedding"]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", FAMILIES)
def test_8_bits_follow_the_float_model(family, name: str, target: str) -> None:
    """Smoothed, refined, planned, written and run: finite everywhere, near the captured graph, padding or not."""
    one = family(name)
    plan = one.plan(target)
    quantized = opened(target, one.written(plan, target, one.refined(plan)))
    theirs = opened(target, one.captured)
    together = feeds_of(one.rows, one.pad_id)
    ours = states(quantized, together)
    assert np.isfinite(ours).all()
    assert relative_error(ours, states(theirs, together)) < LOOSE
    for index in (0, 3):
        alone = feeds_of([one.rows[index]], one.pad_id)
        whole = states(theirs, together)[index]
        np.testing.assert_allclose(
            states(theirs, alone)[0], whole, rtol=0, atol=PADDED * np.abs(whole).max()
        )
        # In 8 bits a sum in another order may round a value the other way.
        np.testing.assert_allclose(
            states(quantized, alone)[0], ours[index], rtol=0, atol=0.02 * np.abs(ours).max()
        )


@pytest.mark.parametrize("name", FAMILIES)
def test_onnx_runtime_answers_a_row_the_same_in_any_batch(family, name: str) -> None:
    """Every length alone, padded, and beside other rows: to the last bit."""
    one, generator = family(name), np.random.default_rng(0)
    every = [
        Encoded(generator.integers(one.pad_id + 4, 90, n), np.zeros(n, dtype=np.int64), False)
        for n in (*range(1, 35), 47, 48, 49, 60, 63)
    ]
    for placement in ("matmul", "matmul-attention"):
        path = one.written(one.plan("ort-cpu", placement=placement), f"exact-{placement}")
        session = opened("ort-cpu", path)
        alone = [states(session, feeds_of([row], one.pad_id))[0] for row in every]
        for row, expected in zip(every, alone, strict=True):
            for length in {min(len(row) + 1, 63), 63}:
                padded = states(session, feeds_of([row], one.pad_id, length))[0]
                np.testing.assert_array_equal(padded, expected)
        for _ in range(20):
            drawn = generator.permutation(len(every))[: generator.integers(2, 9)]
            together = states(session, feeds_of([every[i] for i in drawn], one.pad_id))
            np.testing.assert_array_equal(together, np.stack([alone[i] for i in drawn]))


@pytest.mark.parametrize("name", FAMILIES)
def test_pytorch_computes_what_is_written(family, name: str) -> None:
    """Of any size: what ONNX Runtime computes operator by operator."""
    one = family(name)
    model = ir.load(one.float)
    module, names = to_torch(model), [str(value.name) for value in model.graph.outputs]
    for lengths in ([9, 4, 1], [1], [30]):
        feeds = batch(lengths, pad_id=one.pad_id)
        inputs = (torch.from_numpy(feeds[str(value.name)]) for value in model.graph.inputs)
        ours = module(*inputs)[names.index("sentence_embedding")].detach().numpy()
        assert relative_error(ours, outputs_of(one.float, feeds)) < PYTORCH, lengths


@pytest.mark.parametrize("name", FAMILIES)
def test_the_plan_covers_every_linear_layer_of_every_layer(family, name: str) -> None:
    one = family(name)
    graph = ir.load(one.float).graph
    planned = {site.node for site, _ in one.plan("ort-cpu").quantized if site.is_weight}
    outside = {site.node for site in one.sites if site.role == "head.weight"}
    assert {str(linear.matmul.name) for linear in parts.all_linears(graph)} - planned == outside
    layers = [one.family.layer.format(i) for i in range(2)]
    assert not [node for node in outside if any(node.startswith(f"{layer}.") for layer in layers)]
    assert {site.part for site in one.sites if site.role == "linear.weight"} <= set(LINEAR_PARTS)
    assert len({(s.node, s.input) for s in one.sites}) == len(one.sites)


@pytest.mark.parametrize("placement", ["ffn", "qdqbert", "qdqbert-row", "tensorrt"])
@pytest.mark.parametrize("name", NEW)
def test_every_placement_can_be_written_and_run(family, name: str, placement: str) -> None:
    one = family(name)
    plan = one.plan("ort-cpu", placement=placement)
    feeds = feeds_of(one.rows, one.pad_id)
    ours = states(opened("ort-cpu", one.written(plan, placement)), feeds)
    # Everything in 8 bits, residual stream and probabilities included, costs more than linear layers alone.
    assert relative_error(ours, states(opened("ort-cpu", one.captured), feeds)) < 3 * LOOSE
    if placement == "ffn":
        linears = [
            s
            for s in one.sites
            if s.part in ("ffn_up", "ffn_down") and s.role in ("linear.input", "linear.weight")
        ]
        assert {site for site, _ in plan.quantized if site.role != "embedding.weight"} == set(
            linears
        )


@pytest.mark.parametrize("name", NEW)
def test_rows_of_one_token_and_of_padding_alone_are_finite(family, name: str) -> None:
    one = family(name)
    feeds = batch([1, 12], pad_id=one.pad_id)
    feeds["attention_mask"][0] = 0
    for target in TARGETS:
        assert np.isfinite(states(opened(target, one.captured), feeds)).all()


@pytest.mark.parametrize("name", NEW)
def test_sensitivity_knows_every_value(family, name: str) -> None:
    one = family(name)
    plan = one.plan("ort-cpu")
    result = sensitivity.estimate(ir.load(one.float), plan, one.rows, one.pad_id, lambda *_: None)
    assert {h.value for h in result.values} == {site.value for site, _ in plan.quantized}
    assert all(np.isfinite(h.output_error) for h in result.values)
    assert all(h.output_error > 0 for h in result.values)
    units = search.units_of(plan)
    assert {site for unit in units for site in unit.sites} == {site for site, _ in plan.quantized}
    assert Counter(u.kind for u in units)["qkv"] == 2


def test_weights_that_layers_share_are_there_once(captured, family) -> None:
    """ALBERT, float and in 8 bits: no matrix twice, and as many matrices as one layer and what lies outside have."""
    one = family("albert")
    changes = one.refined(one.plan("ort-cpu"))
    assert len(changes) == 6
    stem = one.family.shared_layer
    for path in (one.captured, one.float, one.written(one.plan("ort-cpu"), "shared", changes)):
        matrices = [
            n
            for n, v in ir.load(path).graph.initializers.items()
            if len(v.shape) == 2 and n.startswith(stem)
        ]
        assert len(matrices) == 6, path
        assert not [n for n in matrices if ".repeat." in n]
    quantized = ir.load(one.folder / "shared.onnx").graph
    readers = [
        n
        for n in quantized
        if n.op_type == "DequantizeLinear" and str(n.inputs[0].name).startswith(stem)
    ]
    assert len([n for n in readers if n.inputs[0].const_value is not None]) == 6


def test_a_layer_that_is_stepped_back_reads_the_float_weight(family) -> None:
    """One of the layers that share a weight goes back to float: it reads the weight as it was, the other one the refined."""
    one = family("albert")
    plan = one.plan("ort-cpu")
    changes = one.refined(plan)
    unit = next(u for u in search.units_of(plan) if u.name == "layer 1 ffn_up")
    model = ir.load(one.written(search.with_fallback(plan, [unit], None), "mixed", changes))
    path = one.family.part(1, "ffn_up")
    weight = sites.linear_node({str(n.name): n for n in model.graph}, path).inputs[1]
    name = f"{one.family.module(0, 'ffn_up')}.weight"
    before = ir.load(one.float).graph.initializers[name].const_value.numpy()
    np.testing.assert_array_equal(weight.const_value.numpy(), before)
    assert f"{name}.quantized" in model.graph.initializers


def test_a_shared_weight_is_refined_by_all_its_inputs(family) -> None:
    """The refined weight serves both layers better than plain rounding does, on the outputs of the layer."""
    one = family("albert")
    plan = one.plan("ort-cpu")
    feeds = feeds_of(one.rows, one.pad_id)
    float_states = states(opened("ort-cpu", one.captured), feeds)
    plain, refined = (
        relative_error(states(opened("ort-cpu", one.written(plan, n, c)), feeds), float_states)
        for n, c in (("plain", None), ("better", one.refined(plan)))
    )
    assert refined < plain


@pytest.mark.parametrize("length", [30, 63])
def test_a_window_hides_what_lies_outside(captured, length: int) -> None:
    """ModernBERT's second layer sees four tokens to either side: what lies beyond is masked like padding, by a bounded number."""
    result = captured("modernbert", "token-classification")
    layers = structure.find_layers(result.model.graph)
    masks = [layer.attention.softmax.inputs[0].producer().inputs[1] for layer in layers]
    feeds = batch([length, 5], seed=4)
    session = shapes.open_session(result.model, masks)
    names = [value.name for value in session.get_inputs()]
    full, local = session.run(None, {name: feeds[name] for name in names})
    near = np.abs(np.subtract.outer(np.arange(length), np.arange(length))) <= 4
    np.testing.assert_array_equal(local[0, 0] == 0, near)
    assert full[0].max() == 0
    assert min(full.min(), local.min()) == -1e4
    assert (full[1, 0][:, 5:] == -1e4).all()
    assert (local[1, 0][:, 5:] == -1e4).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
        (
            "deberta-v2",
            {
                "position_biased_input": True,
                "share_att_key": False,
                "pos_att_type": ["c2p"],
                "type_vocab_size": 2,
            },
        ),
        ("deberta-v2", {"relative_attention": False}),
        ("mobilebert", {"use_bottleneck": False, "num_feedforward_networks": 1}),
        ("mobilebert", {"normalization_type": "layer_norm", "use_bottleneck_attention": True}),
        (
            "mobilebert",
            {
                "key_query_shared_bottleneck": False,
                "intra_bottleneck_size": 32,
                "trigram_input": False,
            },
        ),
        (
            "modernbert",
            {
                "norm_bias": True,
                "attention_bias": True,
                "mlp_bias": True,
                "classifier_pooling": "mean",
            },
        ),
        ("albert", {"num_hidden_layers": 3, "hidden_act": "gelu"}),
        ("bert", {"hidden_act": "gelu_new"}),
    ],
)
def test_variants_of_a_family(tmp_path: Path, name: str, config: dict) -> None:
    """Captured, equal to PyTorch, and with every linear layer of the layers named."""
    settings = {"num_hidden_layers": 1, **config}
    folder = make_checkpoint(tmp_path / "model", name, "sequence-classification", **settings)
    result = capture.capture(
        resolve(folder), "sequence-classification", parity_feeds(pad_of(folder))
    )
    assert result.parity.largest_difference <= parity.TOLERANCE
    found = sites.find_sites(result.model.graph, result.family)
    layers = [result.family.layer.format(i) for i in range(result.sizes.layers)]
    assert not [
        s.module
        for s in found
        if s.part == "head" and any(s.module.startswith(f"{layer}.") for layer in layers)
    ]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("albert", {"num_hidden_groups": 2}),
        ("albert", {"inner_group_num": 2}),
        ("bert", {"is_decoder": True}),
        ("mobilebert", {"is_encoder_decoder": True}),
    ],
)
def test_variants_that_are_refused(
    golden, checkpoint, tmp_path: Path, name: str, change: dict
) -> None:
    folder = shutil.copytree(checkpoint(name, "sequence-classification"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    with golden.raises(ModelError):
        capture.capture(resolve(folder), "sequence-classification", parity_feeds())


def test_a_part_without_a_name_is_refused(golden, captured, checkpoint, tmp_path: Path) -> None:
    """A MobileBERT graph without its config is taken for a BERT, which has no bottlenecks."""
    operators.save(captured("mobilebert").model, tmp_path / "model.onnx")
    with golden.raises(ModelError):
        capture.capture(resolve(tmp_path / "model.onnx"), "sequence-classification", parity_feeds())


@pytest.mark.parametrize("name", NEW)
def test_a_captured_graph_can_be_captured_again(
    captured, checkpoint, tmp_path: Path, name: str
) -> None:
    """What octobert wrote is an ONNX file like any other, without the exporter's notes: all parts are found by shape."""
    first = captured(name)
    operators.save(first.model, tmp_path / "model.onnx")
    (tmp_path / "config.json").write_bytes(
        (checkpoint(name, "sequence-classification") / "config.json").read_bytes()
    )
    pad_id = pad_of(tmp_path)
    again = capture.capture(
        resolve(tmp_path / "model.onnx"), "sequence-classification", parity_feeds(pad_id)
    )
    assert sites.find_sites(again.model.graph, again.family) == sites.find_sites(
        first.model.graph, first.family
    )


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_in_both_forms_is_written_in_plain_operators(approximate: str, tmp_path: Path) -> None:
    import onnxruntime as ort
    import torch

    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["n"]))
    node = operators.make_node("Gelu", [x], "y", {"approximate": approximate})
    model = ir.Model(
        ir.Graph([x], [node.outputs[0]], nodes=[node], opset_imports={"": 18}, name="g"),
        ir_version=10,
    )
    lowering.lower_fused_(model.graph)
    model.graph.outputs[0].name = "y"
    operators.save(model, tmp_path / "gelu.onnx")
    values = np.linspace(-6, 6, 101, dtype=np.float32)
    ours = ort.InferenceSession(str(tmp_path / "gelu.onnx")).run(None, {"x": values})[0]
    theirs = torch.nn.functional.gelu(torch.from_numpy(values), approximate=approximate).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "head", [name for name, head in HEADS.items() if head.auto_class and not head.families]
)
def test_a_checkpoint_of_another_head_is_refused_or_missing_nothing(
    golden, checkpoint, head: str
) -> None:
    """ModernBERT's classification head is more than one layer; a base checkpoint lacks it, and says so."""
    folder = checkpoint("modernbert", "embedding")
    if not HEADS[head].architecture:
        load_torch(folder, head)
        return
    with golden.raises(ModelError):
        load_torch(folder, head)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "length", "config"),
    [
        ("mpnet", 512, {"max_position_embeddings": 514}),
        ("deberta-v2", 512, {"max_position_embeddings": 512, "position_buckets": 256}),
        (
            "modernbert",
            300,
            {"max_position_embeddings": 512, "local_attention": 128, "num_hidden_layers": 2},
        ),
    ],
)
def test_positions_of_long_texts_fall_into_the_same_buckets(
    tmp_path: Path, name: str, length: int, config: dict
) -> None:
    """Real sizes of buckets and windows, on a small model: a logarithm rounded the other way would move a whole diagonal."""
    folder = make_checkpoint(
        tmp_path / "model", name, "token-classification", **{"num_hidden_layers": 1, **config}
    )
    feeds = [
        batch([length, length // 2], pad_id=pad_of(folder)),
        batch([length - 3], pad_id=pad_of(folder), seed=1),
    ]
    result = capture.capture(resolve(folder), "token-classification", feeds)
    operators.save(result.model, tmp_path / "float.onnx")
    ours, theirs = (
        opened(target, tmp_path / "float.onnx").run(feeds[0])["logits"][0] for target in TARGETS
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=parity.TOLERANCE * np.abs(theirs).max())


@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_fixed_graph_is_static_and_computes_the_same(
    family, tmp_path, name: str, quantized: bool
) -> None:
    one = family(name)
    path = one.written(one.plan("ort-cpu"), "to-fix") if quantized else one.captured
    model = ir.load(path)
    before = sum(node.op_type == "DequantizeLinear" for node in model.graph)
    npu.make_static_(model, batch=2, sequence=16)
    operators.save(model, tmp_path / "fixed.onnx")
    assert_static(model)
    assert sum(node.op_type == "DequantizeLinear" for node in model.graph) == before
    feeds = batch([16, 9], pad_id=one.pad_id)
    assert (
        largest_error(outputs_of(tmp_path / "fixed.onnx", feeds), outputs_of(path, feeds)) <= SAME
    )
