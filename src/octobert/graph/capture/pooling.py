"""Append the pooling of sentence embeddings to a graph, with the modules that follow it in sentence-transformers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octobert.core.model_config import Dense, LayerNorm, Mode, Normalize
from octobert.core.session import STATES
from octobert.graph import operators
from octobert.graph.capture import lowering
from octobert.models.pooling import MIN_NORM, MIN_TOKENS, NORM_EPSILON, Pooler

# What vectors are made of stands beside them, for programs that do it themselves.
_BESIDE = (STATES, "logits")
_ACTIVATIONS = {"Tanh": "Tanh", "ReLU": "Relu", "Sigmoid": "Sigmoid"}


def append_pooling_(model: ir.Model, states: ir.Value, pooler: Pooler, name: str) -> bool:
    """Make the vector [B, E], or the vectors of all tokens [B, S, E], the last output of a graph.

    Args:
        model: changed in place.
        states: states [B, S, D] of the tokens, or their logits; or the vector of a file that pools by itself, under the name of
            the output. It is only truncated: sentence-transformers does that, and nothing else, outside of the files that it
            exports. Nothing tells how it is made of token states, so they are no output of such a graph.
        pooler: how they are pooled, and what follows.
        name: of the new output.

    Returns:
        Whether the vector is made of the states as the pooler says; False where the file makes it by itself.
    """
    builder, pools = _Builder(model.graph, pooler), states.name != name
    if not pools:
        x, states.name = states, "pooling.whole"
    else:
        # The maximum of what saturates is what the maximum becomes: so log is taken of one token's numbers, not of all.
        early = pooler.pooling.saturation if pooler.pooling.modes != ("max",) else 0
        vectors = [
            builder.pooled(mode, builder.saturated(states, early)) for mode in pooler.pooling.modes
        ]
        x = vectors[0] if vectors else states
        if len(vectors) > 1:
            x = builder.chain.Concat("pooling.concatenated", *vectors, axis=-1)
        x = builder.saturated(x, pooler.pooling.saturation - early)
        for step in pooler.pooling.steps:
            x = builder.normalized(x) if isinstance(step, Normalize) else builder.weighted(x, step)
    x = builder.truncated(x) if pooler.pooling.truncate_dim else x
    x.name = name
    model.graph.extend(builder.chain.nodes)
    model.graph.sort()
    beside = [value for value in model.graph.outputs if pools and value.name in _BESIDE]
    model.graph.outputs[:] = [*beside, x]
    return pools


def _norm_of_logits(logits: ir.Value) -> ir.Node | None:
    """The norm before the linear layer that logits come from; None where they come from something else."""
    node = logits.producer()
    for operator in ("Add", "MatMul"):
        if node is None or node.op_type != operator:
            return None
        node = operators.input_of(node, 0).producer()
    return node if node is not None and node.op_type == "LayerNormalization" else None


class _Builder:
    """The nodes of a pooling.

    Attributes:
        chain: writes them.
    """

    def __init__(self, graph: ir.Graph, pooler: Pooler) -> None:
        self._graph, self._pooler = graph, pooler
        self.chain = operators.Chain(graph, "")

    def pooled(self, mode: Mode, states: ir.Value) -> ir.Value:
        """The vector of one mode, [B, D]."""
        if mode == "cls":
            return self.chain.Gather("pooling.cls", states, self._constant("first", 0), axis=1)
        if mode == "max":
            real = self.chain.Greater(
                "pooling.real", self._mask(), self._constant("zero", 0.0), dtype=ir.DataType.BOOL
            )
            norm = _norm_of_logits(states)
            if norm is None:
                lowest = self._constant("lowest", np.finfo(np.float32).min)
                states = self.chain.Where("pooling.max.masked", real, states, lowest)
            else:
                # Logits of padding become those of the first token, which the maximum has anyway: what the head reads is
                # narrower than logits are.
                x = norm.inputs[0]
                first = self.chain.Gather("pooling.first", x, self._constant("at", [0]), axis=1)
                masked = self.chain.Where("pooling.max.masked", real, x, first)
                norm.replace_input_with(0, masked)
            return self.chain.ReduceMax("pooling.max", states, self._token_axis(), keepdims=0)
        if mode == "sum":
            return self._sums(states, self._mask(), "pooling")[0]
        if mode in ("mean", "mean_sqrt_len_tokens"):
            total, count = self._sums(states, self._mask(), "pooling")
            if mode == "mean":
                return self.chain.Div("pooling.mean", total, count)
            return self.chain.Div(
                "pooling.mean_sqrt_len", total, self.chain.Sqrt("pooling.root", count)
            )
        # The number of each token, from 1; 0 for padding.
        places = self.chain.CumSum("pooling.counted", self._mask(), self._constant("sequence", 1))
        places = self.chain.Mul("pooling.places", places, self._mask())
        if mode == "lasttoken":
            last = self.chain.ReduceMax(
                "pooling.last_place", places, self._token_axis(), keepdims=1
            )
            places = self.chain.Equal("pooling.is_last", places, last, dtype=ir.DataType.BOOL)
            places = self.chain.Cast("pooling.last", places, to=ir.DataType.FLOAT)
        total, count = self._sums(states, places, f"pooling.{mode}")
        return self.chain.Div(f"pooling.{mode}", total, count)

    def saturated(self, x: ir.Value, times: int) -> ir.Value:
        """log(1 + x) of the positive part, so many times."""
        if times:
            x = self.chain.Relu("pooling.positive", x)
        for number in range(times):
            more = self.chain.Add(f"pooling.more{number}", x, self._constant("one", 1.0))
            x = self.chain.Log(f"pooling.saturated{number}", more)
        return x

    def normalized(self, x: ir.Value) -> ir.Value:
        """Divided by its L2 norm."""
        stem = operators.free_name("pooling.norm", self.chain.values)
        norm = self.chain.ReduceL2(stem, x, self._constant("feature_axis", [-1]), keepdims=1)
        norm = self.chain.Max(f"{stem}.bounded", norm, self._constant("min_norm", MIN_NORM))
        return self.chain.Div(f"{stem}.normalized", x, norm)

    def weighted(self, x: ir.Value, step: Dense | LayerNorm) -> ir.Value:
        """A module with weights. Its parts are named by its folder, as `2_Dense.linear`."""
        folder = step.folder
        if isinstance(step, LayerNorm):
            weights = [self._weight(f"{folder}.norm.{name}") for name in ("weight", "bias")]
            return self.chain.LayerNormalization(
                f"{folder}.norm", x, *weights, axis=-1, epsilon=NORM_EPSILON
            )
        output = self._linear(x, f"{folder}.linear")
        if step.activation == "GELU":
            output = lowering.gelu(self.chain, output, f"{folder}.gelu.")
        elif step.activation != "Identity":
            output = getattr(self.chain, _ACTIVATIONS[step.activation])(
                f"{folder}.activation", output
            )
        if not step.residual:
            return output
        skip = self._linear(x, f"{folder}.residual") if step.in_features != step.out_features else x
        return self.chain.Add(f"{folder}.sum", output, skip)

    def truncated(self, x: ir.Value) -> ir.Value:
        """The first features."""
        bounds = {"start": 0, "end": self._pooler.pooling.truncate_dim or 0, "axis": -1}
        inputs = [self._constant(f"truncate.{name}", [number]) for name, number in bounds.items()]
        # A vector may have been truncated before.
        names = {str(node.name) for node in self._graph}
        return self.chain.Slice(operators.free_name("pooling.truncated", names), x, *inputs)

    def _linear(self, x: ir.Value, path: str) -> ir.Value:
        """A linear layer in the canonical form, over weights [in, out]."""
        weight = operators.initializer(
            self._graph, f"{path}.weight", self._pooler.weights[f"{path}.weight"].T.copy()
        )
        product = self.chain.MatMul(f"{path}.matmul", x, weight)
        if f"{path}.bias" not in self._pooler.weights:
            return product
        return self.chain.Add(path, product, self._weight(f"{path}.bias"))

    def _sums(self, states: ir.Value, weights: ir.Value, stem: str) -> tuple[ir.Value, ir.Value]:
        """(weighted sum of the states [B, D], sum of the weights [B, 1], bounded).

        ONNX Runtime's product with a transposed input adds the tokens of each row in one order, whatever the other rows are.
        Its ReduceSum does not, nor does a product of one plain row.
        """
        axis = self._token_axis()
        row = self.chain.Transpose(f"{stem}.row", weights, perm=[0, 2, 1])
        total = self.chain.MatMul(f"{stem}.product", row, states)
        total = self.chain.Squeeze(f"{stem}.sum", total, axis)
        count = self.chain.ReduceSum(f"{stem}.count", weights, axis, keepdims=0)
        least = self._constant("min_tokens", MIN_TOKENS)
        return total, self.chain.Max(f"{stem}.bounded_count", count, least)

    def _mask(self) -> ir.Value:
        """1 for tokens, 0 for padding: [B, S, 1]."""
        mask = next(v for v in self._graph.inputs if v.name == "attention_mask")
        cast = self.chain.Cast("pooling.mask", mask, to=ir.DataType.FLOAT)
        return self.chain.Unsqueeze("pooling.weights", cast, self._constant("new_axis", [-1]))

    def _token_axis(self) -> ir.Value:
        return self._constant("token_axis", [1])

    def _weight(self, name: str) -> ir.Value:
        return operators.initializer(self._graph, name, self._pooler.weights[name])

    def _constant(self, name: str, numbers: operators.Numbers) -> ir.Value:
        return operators.shared_initializer(self._graph, f"pooling.{name}", numbers)
