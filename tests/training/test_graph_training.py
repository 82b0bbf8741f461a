"""A cut graph is trained towards the whole one: the graph in PyTorch, what is trained, what comes of it, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch

import octobert
from octobert.config.training import Recover
from octobert.core.errors import DataError, ModelError, OctobertError
from octobert.core.evidence import Curve
from octobert.core.files import canonical_digest
from octobert.core.pruning import Recovery
from octobert.data.tokenization import feeds_of
from octobert.graph import cutting, parity
from octobert.training import graph_training
from octobert.training.job import TrainingRows
from tests.support.graphs import encoded

# float32 sums in another order.
SAME = 1e-5
ROWS = encoded(tuple(5 + i % 9 for i in range(80)))


def cut_of(captured, heads: int = 2, neurons: int = 16) -> ir.Model:
    """The graph with some heads and neurons in its first layer, and only the bias of the feed-forward of its last."""
    model = ir.from_proto(ir.to_proto(captured.model))
    found, _ = cutting.find(model.graph, captured.family)
    first = {each.kind: each.module for each in found if each.layer == 0}
    last = [each.module for each in found if each.kind == "ffn"][-1]
    kept = {
        first["attention"]: np.arange(heads),
        first["ffn"]: np.arange(neurons),
        last: np.arange(0),
    }
    cutting.cut_(model, captured.family, kept)
    return model


def onnx_outputs(model: ir.Model) -> dict[str, np.ndarray]:
    """What ONNX Runtime computes for the first rows."""
    names = [str(value.name) for value in model.graph.outputs]
    feeds = feeds_of(ROWS[:6], 0)
    (outputs,) = parity.onnx_outputs(model, [parity.only(feeds, model)], names)
    return dict(zip(names, outputs, strict=True))


def torch_outputs(graph: graph_training.Graph) -> dict[str, torch.Tensor]:
    feeds = feeds_of(ROWS[:6], 0)
    return graph(**{name: torch.from_numpy(feeds[name]) for name in graph.input_names})


@pytest.fixture
def train(tmp_path):
    def run(
        cut: ir.Model, of, head: str = "sequence-classification", **settings: object
    ) -> tuple[Recovery, Curve]:
        return graph_training.train_(
            cut,
            of.model,
            TrainingRows(ROWS, [], 0),
            Recover(**{"epochs": 4, "learning_rate": 3e-3, "batch": 8, **settings}),
            head=head,
            family=of.family,
            seed=0,
            scratch=tmp_path / "scratch",
            # Of another cut, or with other settings, checkpoints are not read.
            identity=canonical_digest([str(cut), settings]),
        )

    return run


def test_the_graph_in_pytorch_computes_what_onnx_runtime_computes(bert) -> None:
    for model in (bert.model, cut_of(bert)):
        states = graph_training._last_states(bert.model, bert.family)
        ours = torch_outputs(graph_training.Graph(model, states))
        for name, expected in onnx_outputs(model).items():
            np.testing.assert_allclose(ours[name].detach().numpy(), expected, atol=SAME)


def test_every_weight_of_the_layers_gets_a_gradient_and_no_table_does(bert) -> None:
    graph = graph_training.Graph(cut_of(bert), graph_training._last_states(bert.model, bert.family))
    graph.make_parameters_()
    torch_outputs(graph)["logits"].square().sum().backward()
    trained = {
        graph._initializers[name]
        for name, p in graph.module.named_parameters()
        if bool(p.grad.abs().sum() > 0)
    }
    weights = {
        name for name in graph._source.graph.initializers if name.endswith((".weight", ".bias"))
    }
    tables = {f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")}
    # A constant added to all keys moves all scores of a query alike, which softmax does not see.
    keys = {name for name in weights if name.endswith("key.bias")}
    assert trained - keys == weights - tables - keys
    assert tables < weights


def test_the_loss_on_rows_that_were_held_out_falls_and_the_graph_has_the_trained_weights(
    bert, train, monkeypatch
) -> None:
    cut, seen = cut_of(bert), []
    monkeypatch.setattr(
        graph_training.Graph, "write_", lambda self, model: (seen.append(self), WRITE(self, model))
    )
    before = {
        name: value.const_value.numpy().copy() for name, value in cut.graph.initializers.items()
    }
    far = _distance(cut, bert.model)
    result, curve = train(cut, bert)
    assert result.kept
    assert result.after < 0.5 * result.before
    assert result.rows == 72
    assert curve.name == "prune.recover"
    assert len(curve.steps) == 36
    # Judged by what the files compute.
    assert _distance(cut, bert.model) < far
    (trained,) = seen
    for name, expected in onnx_outputs(cut).items():
        np.testing.assert_allclose(
            torch_outputs(trained)[name].detach().numpy(), expected, atol=SAME
        )
    for name, value in cut.graph.initializers.items():
        same = np.array_equal(value.const_value.numpy(), before[name])
        assert same == (name not in graph_training._trainable(cut.graph)), name


WRITE = graph_training.Graph.write_


def _distance(model: ir.Model, other: ir.Model) -> float:
    """Between the probabilities that two graphs give."""
    odds = [np.exp(onnx_outputs(each)["logits"].astype(float)) for each in (model, other)]
    return float(
        np.abs(np.subtract(*(each / each.sum(axis=1, keepdims=True) for each in odds))).mean()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("bert", "embedding"),
        ("albert", "token-classification"),
        ("mpnet", "question-answering"),
        ("distilbert", "masked-lm"),
        ("modernbert", "sequence-classification"),
    ],
)
def test_other_heads_and_families_are_trained(captured, train, family: str, head: str) -> None:
    of = captured(family, head)
    cut = cut_of(of)
    result, _ = train(cut, of, head, epochs=1)
    assert result.after < result.before
    tables = [
        node.inputs[0]
        for node in of.model.graph
        if node.op_type == "Gather" and node.inputs[0].name in of.model.graph.initializers
    ]
    for table in tables:
        np.testing.assert_array_equal(
            cut.graph.initializers[table.name].const_value.numpy(), table.const_value.numpy()
        )


def test_a_training_that_makes_it_worse_leaves_the_graph_as_it_was(bert, train) -> None:
    cut = cut_of(bert)
    before = {
        name: value.const_value.numpy().copy() for name, value in cut.graph.initializers.items()
    }
    result, _ = train(cut, bert, learning_rate=3.0, epochs=1)
    assert not result.kept
    for name, array in before.items():
        np.testing.assert_array_equal(cut.graph.initializers[name].const_value.numpy(), array)


def test_a_loss_that_is_no_number_names_the_step_and_the_key(golden, bert, train) -> None:
    with golden.raises(ModelError):
        train(cut_of(bert), bert, learning_rate=1e30)


def test_rows_are_limited_and_a_single_one_is_refused(golden, bert, train) -> None:
    assert train(cut_of(bert), bert, samples=20, epochs=0.5)[0].rows == 18
    with golden.raises(DataError):
        train(cut_of(bert), bert, samples=1)


@pytest.mark.parametrize(
    "settings",
    [{}, {"epochs": 0}, {"temperature": 0}, {"hidden": -1}, {"lr": 1e-4}, {"samples": 0}],
    ids=str,
)
def test_recipes_that_cannot_recover_are_refused(
    golden, checkpoint, pairs, tmp_path, monkeypatch, settings: dict
) -> None:
    monkeypatch.setattr("octobert.pipeline.preflight.train_installed", lambda: False)
    plain = {"model": str(checkpoint("bert")), "task": "text-classification", "data": str(pairs)}
    with golden.raises(OctobertError):
        octobert.run({**plain, "prune": {"speedup": 1.2, "recover": settings}}, tmp_path / "out")
    assert not (tmp_path / "out").exists()
