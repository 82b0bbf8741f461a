"""Train a canonical float graph that was cut towards the outputs of the whole graph. Needs torch, transformers and accelerate.

No config of transformers describes layers with different numbers of heads and neurons. So the graph itself is run in PyTorch
(`torch_graph`), with weights and biases of linear layers and norms as parameters, by the same Trainer as any training. Tables
of embeddings stay as they are, and so does a decoder that shares one. No labels are needed: the loss compares the outputs with
those of the whole graph, and the hidden states behind the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from octobert.config.training import Distill, Recover, Training, TrainingSettings
from octobert.core.errors import DataError, ModelError
from octobert.core.evidence import Curve
from octobert.core.family import EncoderFamily
from octobert.core.pruning import Recovery
from octobert.data.tokenization import Encoded, batches
from octobert.graph import operators, parts, sites, torch_graph
from octobert.training import trainer
from octobert.training.distillation import Teacher
from octobert.training.job import Job, TrainingRows, collate

# Rows that are not trained on; the loss on them says whether the training is kept.
_HELD_OUT, _MOST_HELD_OUT = 0.1, 256
# Tokens of a batch in which these rows are computed.
_BATCH_TOKENS = 4096


def train_(
    pruned: ir.Model,
    whole: ir.Model,
    rows: TrainingRows,
    settings: Recover,
    *,
    head: str,
    family: EncoderFamily,
    seed: int,
    scratch: Path,
    identity: str = "",
    on_step: Callable[[int, int], None] | None = None,
) -> tuple[Recovery, Curve | None]:
    """Train a cut graph in place; where the loss on the rows that are held out does not fall, leave it as it was.

    Args:
        pruned: the cut graph, float and canonical; its initializers change.
        whole: the graph that it was cut from.
        rows: tokenized rows; targets are not read.
        settings: of the recipe.
        head: a key of `heads.HEADS`.
        family: of the encoder.
        seed: for the choice and the order of rows.
        scratch: folder for checkpoints, in one of its own for each `identity`. An interrupted training resumes from them.
        identity: digest of everything that the training depends on; another cut is another training.
        on_step: called with (step, number of steps).

    Returns:
        How it went; loss and learning rate of every step.

    Raises:
        DataError: there are fewer than two rows.
        ModelError: accelerate is missing, the loss is not a number, or the graphs cannot run in PyTorch.
    """
    trained, held_out = _shares(rows.encoded, settings.samples, seed)
    states = _last_states(whole, family)
    follower, guide = Graph(pruned, states), Graph(whole, states)
    follower.make_parameters_()
    distill = Distill(share=1.0, temperature=settings.temperature, hidden=settings.hidden)
    teacher = Teacher(guide, head, distill, guide.input_names)
    parts_held = [
        [held_out[i] for i in indices] for indices in batches(held_out, max_tokens=_BATCH_TOKENS)
    ]
    before = _loss(follower, teacher, parts_held, rows.pad_id)
    job = Job(
        model=follower,
        rows=TrainingRows(trained, [{} for _ in trained], rows.pad_id),
        settings=TrainingSettings(
            epochs=settings.epochs,
            learning_rate=settings.learning_rate,
            batch=settings.batch,
            distill=distill,
        ),
        how=Training(),
        seed=seed,
        scratch=scratch / identity,
        teacher=teacher,
        identity=identity,
        key="prune.recover",
        on_step=on_step,
    )
    curve = trainer.train(job).curve
    after = _loss(follower, teacher, parts_held, rows.pad_id)
    is_better = after < before
    if is_better:
        follower.write_(pruned)
    return Recovery(rows=len(trained), before=before, after=after, kept=is_better), curve


def _shares(
    rows: Sequence[Encoded], samples: int | None, seed: int
) -> tuple[list[Encoded], list[Encoded]]:
    """Rows to train on, and rows to hold out."""
    order = np.random.default_rng(seed).permutation(len(rows))[:samples]
    count = min(_MOST_HELD_OUT, max(1, round(_HELD_OUT * len(order))))
    if len(order) < 2:
        raise DataError(
            "there are too few rows to train on",
            where="prune.recover",
            got=str(len(order)),
            expected="2",
            fix="give more training rows, or leave prune.recover out",
        )
    return [rows[i] for i in order[count:]], [rows[i] for i in order[:count]]


def _last_states(whole: ir.Model, family: EncoderFamily) -> str:
    """The name of the norm whose output the head reads: the last one of the last layer, or the one behind it."""
    nodes = operators.nodes_of(whole.graph)
    if family.final_norm:
        return str(sites.node_named(nodes, family.final_norm).name)
    norms = sites.layer_norms(nodes, family, sites.layer_count(whole.graph, family) - 1)
    return next(name for name in reversed(list(nodes)) if name in norms.values())


class Graph(torch.nn.Module):
    """A float graph in PyTorch that takes inputs by name and returns outputs by name, and the last hidden states.

    Args:
        model: the graph.
        states: name of the node that computes the last hidden states.

    Attributes:
        input_names: of the graph's inputs, in order.
    """

    def __init__(self, model: ir.Model, states: str) -> None:
        super().__init__()
        self._source = model
        self.input_names = tuple(str(value.name) for value in model.graph.inputs)
        self._outputs = tuple(str(value.name) for value in model.graph.outputs)
        node = sites.node_named(operators.nodes_of(model.graph), states)
        self.module = torch_graph.to_torch(model, also=(node.outputs[0],))
        self._initializers: dict[str, str] = self.module.meta["initializers"]

    def forward(self, output_hidden_states: bool = False, **inputs: Any) -> dict[str, Any]:
        """Return the outputs of a batch, with hidden states where they are asked for.

        Args:
            output_hidden_states: whether.
            **inputs: int64 [B, S] each.
        """
        *outputs, states = self.module(*(inputs[name] for name in self.input_names))
        named = dict(zip(self._outputs, outputs, strict=True))
        return {**named, "hidden_states": (states,)} if output_hidden_states else named

    def make_parameters_(self) -> None:
        """Make parameters of the weights and biases of linear layers and norms."""
        chosen = _trainable(self._source.graph)
        for buffer, name in self._initializers.items():
            if name in chosen:
                tensor = getattr(self.module, buffer)
                delattr(self.module, buffer)
                self.module.register_parameter(buffer, torch.nn.Parameter(tensor))

    def write_(self, model: ir.Model) -> None:
        """Write the parameters to the initializers of the graph that they come from."""
        for buffer, parameter in self.module.named_parameters():
            name = self._initializers[buffer]
            array = parameter.detach().cpu().numpy()
            model.graph.initializers[name].const_value = ir.tensor(array, name=name)


def _trainable(graph: ir.Graph) -> set[str]:
    """Names of the initializers that are trained: weights and biases of linear layers and norms, where no table shares them."""
    words = {
        len(operators.constant_of(node.inputs[0])) for node in graph if sites.looks_words_up(node)
    }
    values: list[ir.Value | None] = []
    for linear in parts.all_linears(graph):
        if linear.sizes[1] not in words:
            values += [linear.weight, linear.bias]
    for node in graph:
        norm = parts.norm_of(node.outputs[0])
        if norm is not None:
            values += [
                *norm.node.inputs[1:],
                *(norm.mul.inputs[1:] if norm.mul is not None else ()),
            ]
        # A sublayer that is gone leaves a bias on the residual path.
        elif node.op_type == "Add":
            values += [value for value in node.inputs if parts.is_vector(value)]
    return {
        str(value.name)
        for value in values
        if value is not None and value.name in graph.initializers
    }


def _loss(
    follower: Graph, teacher: Teacher, parts_held: Sequence[Sequence[Encoded]], pad_id: int
) -> float:
    """The mean loss over rows.

    Raises:
        ModelError: it is not a number.
    """
    total, count = 0.0, 0
    device = next(follower.parameters()).device
    for part in parts_held:
        batch = collate([{"row": row, "targets": {}} for row in part], pad_id, follower.input_names)
        inputs = {name: tensor.to(device) for name, tensor in batch.items()}
        with torch.no_grad():
            outputs = follower(output_hidden_states=teacher.settings.hidden > 0, **inputs)
            total += float(teacher.loss(outputs, inputs)) * len(part)
        count += len(part)
    if not np.isfinite(total):
        raise ModelError(
            "the loss of the pruned model is not a number",
            where="prune.recover",
            got=str(total),
            fix="lower prune.recover.learning_rate, or leave prune.recover out",
        )
    return total / count
