"""Append the pooling of sentence embeddings to a graph, with the modules that follow it in sentence-transformers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.core.pooling import Dense, LayerNorm, Mode, Normalize
from octobert.core.session import STATES
from octobert.graph import operators
from octobert.models.pooling import MIN_NORM, MIN_TOKENS, NORM_EPSILON, Pooler

_ACTIVATIONS = {"Tanh": "Tanh", "ReLU": "Relu", "Sigmoid": "Sigmoid"}


def append_pooling_(model: ir.Model, states: ir.Value, pooler: Pooler, name: str) -> None:
    """Make the vector [B, E] an output of a graph, behind the token states where these are one.

    Args:
        model: changed in place.
        states: the token states [B, S, D]; or the vector of a file that pools by itself, under the name of the output. It is
            only truncated: sentence-transformers does that, and nothing else, outside of the files that it exports.
        pooler: how they are pooled, and what follows.
        name: of the new output.
    """
    builder = _Builder(model.graph, pooler)
    if states.name == name:
        x, states.name = states, "pooling.whole"
    else:
        vectors = [builder.pooled(mode, states) for mode in pooler.pooling.modes]
        x = vectors[0] if len(vectors) == 1 else builder.add("Concat", vectors, "pooling.concatenated", axis=-1)
        for step in pooler.pooling.steps:
            x = builder.normalized(x) if isinstance(step, Normalize) else builder.weighted(x, step)
    x = builder.truncated(x) if pooler.pooling.truncate_dim else x
    x.name = name
    model.graph.extend(builder.nodes)
    model.graph.outputs[:] = [*(v for v in model.graph.outputs if v.name == STATES), x]


class _Builder:
    """The nodes of a pooling, and what several of them read.

    Attributes:
        nodes: in order.
    """

    def __init__(self, graph: ir.Graph, pooler: Pooler) -> None:
        self._graph, self._pooler = graph, pooler
        self._made: dict[str, ir.Value] = {}
        self.nodes: list[ir.Node] = []

    def add(self, op_type: str, inputs: list[ir.Value], output: str, **attributes: object) -> ir.Value:
        """A node of that name, made once."""
        if output not in self._made:
            dtype = ir.DataType.BOOL if op_type in ("Equal", "Greater") else ir.DataType.FLOAT
            self.nodes.append(operators.make_node(op_type, inputs, output, attributes, dtype=dtype))
            self._made[output] = self.nodes[-1].outputs[0]
        return self._made[output]

    def pooled(self, mode: Mode, states: ir.Value) -> ir.Value:
        """The vector of one mode, [B, D]."""
        if mode == "cls":
            return self.add("Gather", [states, self._constant("first", 0)], "pooling.cls", axis=1)
        if mode == "max":
            lowest = self._constant("lowest", np.finfo(np.float32).min)
            real = self.add("Greater", [self._mask(), self._constant("zero", 0.0)], "pooling.real")
            masked = self.add("Where", [real, states, lowest], "pooling.max.masked")
            return self.add("ReduceMax", [masked, self._token_axis()], "pooling.max", keepdims=0)
        if mode in ("mean", "mean_sqrt_len_tokens"):
            total, count = self._sums(states, self._mask(), "pooling")
            if mode == "mean":
                return self.add("Div", [total, count], "pooling.mean")
            return self.add("Div", [total, self.add("Sqrt", [count], "pooling.root")], "pooling.mean_sqrt_len")
        # The number of each token, from 1; 0 for padding.
        places = self.add("CumSum", [self._mask(), self._constant("sequence", 1)], "pooling.counted")
        places = self.add("Mul", [places, self._mask()], "pooling.places")
        if mode == "lasttoken":
            last = self.add("ReduceMax", [places, self._token_axis()], "pooling.last_place", keepdims=1)
            places = self.add("Equal", [places, last], "pooling.is_last")
            places = self.add("Cast", [places], "pooling.last", to=ir.DataType.FLOAT)
        total, count = self._sums(states, places, f"pooling.{mode}")
        return self.add("Div", [total, count], f"pooling.{mode}")

    def normalized(self, x: ir.Value) -> ir.Value:
        """Divided by its L2 norm."""
        stem = operators.free_name("pooling.norm", self._made)
        norm = self.add("ReduceL2", [x, self._constant("feature_axis", [-1])], stem, keepdims=1)
        norm = self.add("Max", [norm, self._constant("min_norm", MIN_NORM)], f"{stem}.bounded")
        return self.add("Div", [x, norm], f"{stem}.normalized")

    def weighted(self, x: ir.Value, step: Dense | LayerNorm) -> ir.Value:
        """A module with weights. Its parts are named by its folder, as `2_Dense.linear`."""
        folder = step.folder
        if isinstance(step, LayerNorm):
            weights = [self._weight(f"{folder}.norm.{name}") for name in ("weight", "bias")]
            return self.add("LayerNormalization", [x, *weights], f"{folder}.norm", axis=-1, epsilon=NORM_EPSILON)
        made = self._linear(x, f"{folder}.linear")
        if step.activation == "GELU":
            half, one, root = (self._constant(n, v) for n, v in (("half", 0.5), ("one", 1.0), ("root", 2**-0.5)))
            error = self.add("Erf", [self.add("Mul", [made, root], f"{folder}.gelu.scaled")], f"{folder}.gelu.erf")
            shifted = self.add("Add", [error, one], f"{folder}.gelu.shifted")
            made = self.add("Mul", [self.add("Mul", [made, half], f"{folder}.gelu.half"), shifted], f"{folder}.gelu")
        elif step.activation != "Identity":
            made = self.add(_ACTIVATIONS[step.activation], [made], f"{folder}.activation")
        if not step.residual:
            return made
        skip = self._linear(x, f"{folder}.residual") if step.in_features != step.out_features else x
        return self.add("Add", [made, skip], f"{folder}.sum")

    def truncated(self, x: ir.Value) -> ir.Value:
        """The first features."""
        bounds = {"start": 0, "end": self._pooler.pooling.truncate_dim or 0, "axis": -1}
        inputs = [self._constant(f"truncate.{name}", [number]) for name, number in bounds.items()]
        return self.add("Slice", [x, *inputs], "pooling.truncated")

    def _linear(self, x: ir.Value, path: str) -> ir.Value:
        """A linear layer in the canonical form, over weights [in, out]."""
        weight = operators.initializer(self._graph, f"{path}.weight", self._pooler.weights[f"{path}.weight"].T.copy())
        product = self.add("MatMul", [x, weight], f"{path}.matmul")
        if f"{path}.bias" not in self._pooler.weights:
            return product
        return self.add("Add", [product, self._weight(f"{path}.bias")], path)

    def _sums(self, states: ir.Value, weights: ir.Value, stem: str) -> tuple[ir.Value, ir.Value]:
        """(weighted sum of the states [B, D], sum of the weights [B, 1], bounded)."""
        axis = self._token_axis()
        total = self.add("ReduceSum", [self.add("Mul", [states, weights], f"{stem}.masked"), axis], f"{stem}.sum", keepdims=0)
        count = self.add("ReduceSum", [weights, axis], f"{stem}.count", keepdims=0)
        least = self._constant("min_tokens", MIN_TOKENS)
        return total, self.add("Max", [count, least], f"{stem}.bounded_count")

    def _mask(self) -> ir.Value:
        """1 for tokens, 0 for padding: [B, S, 1]."""
        mask = next(v for v in self._graph.inputs if v.name == "attention_mask")
        cast = self.add("Cast", [mask], "pooling.mask", to=ir.DataType.FLOAT)
        return self.add("Unsqueeze", [cast, self._constant("new_axis", [-1])], "pooling.weights")

    def _token_axis(self) -> ir.Value:
        return self._constant("token_axis", [1])

    def _weight(self, name: str) -> ir.Value:
        return operators.initializer(self._graph, name, self._pooler.weights[name])

    def _constant(self, name: str, numbers: operators.Numbers) -> ir.Value:
        return operators.shared_initializer(self._graph, f"pooling.{name}", numbers)
