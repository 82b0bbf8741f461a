"""Linear layers and norms in a graph of the form that `lowering.prepare_` produces."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octobert.graph import operators

# Ends the names of neurons that are computed apart, and of the sum with them (`cutting.split_`).
APART, WITH_APART = ".apart", ".with_apart"
# Ends the name of a linear layer's output that is multiplied by what its tokens were divided by (`smoothing.divide_tokens_`).
RESCALED = ".rescaled"


def is_apart(node: ir.Node) -> bool:
    """Whether a node computes neurons that stay in float beside those in 8 bits."""
    return str(node.name).endswith(APART)


@dataclass(frozen=True)
class Linear:
    """A linear layer `y = x @ weight + bias`; `weight` is [in, out]. Without a bias, `y` is the output of the MatMul."""

    matmul: ir.Node
    add: ir.Node | None

    @property
    def x(self) -> ir.Value:
        return operators.input_of(self.matmul, 0)

    @property
    def weight(self) -> ir.Value:
        return operators.input_of(self.matmul, 1)

    @property
    def bias(self) -> ir.Value | None:
        return self.add.inputs[1] if self.add is not None else None

    @property
    def y(self) -> ir.Value:
        return (self.add or self.matmul).outputs[0]

    @property
    def sizes(self) -> tuple[int, int]:
        """Channels of `x` and of `y`."""
        channels_in, channels_out = operators.constant_of(self.weight).shape
        return channels_in, channels_out


@dataclass(frozen=True)
class Norm:
    """A norm: its last node, its input, and where it is only `x * weight + bias` (MobileBERT), the Mul.

    The last node is a LayerNormalization, the Add of that form, or the Mul of an RMS norm, `x / sqrt(mean(x²) + ε) * weight`.
    """

    node: ir.Node
    x: ir.Value
    mul: ir.Node | None = None

    @property
    def y(self) -> ir.Value:
        return self.node.outputs[0]

    @property
    def residual(self) -> ir.Node | None:
        """The residual Add that the norm reads, or None; sums of embeddings are none."""
        add = operators.producer(self.x, "Add") if linear_of(self.x) is None else None
        return add if add is not None and any(map(branch_of, add.inputs)) else None


def linear_of(value: ir.Value | None) -> Linear | None:
    """Return the linear layer whose output is `value`, or None."""
    node = operators.producer(value, "MatMul", "Add")
    if node is None:
        return None
    if node.op_type == "MatMul":
        return Linear(node, None) if is_weight(node.inputs[1]) else None
    matmul = operators.producer(node.inputs[0], "MatMul")
    if matmul is None or not is_vector(node.inputs[1]) or not is_weight(matmul.inputs[1]):
        return None
    return Linear(matmul, node)


def branch_of(value: ir.Value | None) -> Linear | None:
    """Return the linear layer that ends a branch whose result is `value`, be there a norm behind it or not; else None."""
    norm = norm_of(value)
    return linear_of(value) if norm is None else linear_of(norm.x)


def norm_of(value: ir.Value | None) -> Norm | None:
    """Return the norm whose output is `value`, or None."""
    node = operators.producer(value, "LayerNormalization", "Add", "Mul")
    if node is None or node.op_type == "LayerNormalization":
        return None if node is None else Norm(node, operators.input_of(node, 0))
    if node.op_type == "Mul":
        nodes = rms_nodes(node)
        return Norm(node, operators.input_of(nodes[0], 0)) if nodes else None
    mul = operators.producer(node.inputs[0], "Mul")
    scaled = (
        mul is not None
        and operators.const_array(mul.inputs[0]) is None
        and is_vector(mul.inputs[1])
    )
    if mul is None or not scaled or not is_vector(node.inputs[1]):
        return None
    return Norm(node, operators.input_of(mul, 0), mul)


def rms_nodes(mul: ir.Node) -> list[ir.Node]:
    """Return the nodes of the RMS norm that a Mul ends, in order; an empty list if it ends none."""
    div = operators.producer(mul.inputs[0], "Div") if mul.op_type == "Mul" else None
    if div is None or not is_vector(mul.inputs[1]):
        return []
    root = operators.above(div.inputs[1], "Sqrt", "Add", "ReduceMean", "Pow")
    whole = bool(root) and root[-1].inputs[0] is div.inputs[0]
    return [*reversed(root), div, mul] if whole else []


# What reads the input of a norm → the node that ends it.
_NORM_ENDS = {"LayerNormalization": None, "Mul": "Add", "Div": "Mul"}


def norm_behind(value: ir.Value) -> Norm | None:
    """Return the norm that reads `value`, or None."""
    for node in operators.consumers(value, *_NORM_ENDS):
        end_type = _NORM_ENDS[node.op_type]
        for end in operators.consumers(node.outputs[0], end_type) if end_type else [node]:
            norm = norm_of(end.outputs[0])
            if norm is not None and norm.x is value:
                return norm
    return None


def all_linears(graph: ir.Graph) -> list[Linear]:
    """Return every product with a constant matrix, in graph order."""
    return [
        linear_at(node) for node in graph if node.op_type == "MatMul" and is_weight(node.inputs[1])
    ]


def linear_at(matmul: ir.Node) -> Linear:
    """Return the linear layer of a MatMul, with its bias if nothing else reads the product."""
    adds = [n for n in operators.consumers(matmul.outputs[0], "Add") if linear_of(n.outputs[0])]
    only = len(matmul.outputs[0].uses()) == 1 and len(adds) == 1
    return Linear(matmul, adds[0] if only else None)


def is_weight(value: ir.Value | None) -> bool:
    """Return whether a value is a constant matrix."""
    return value is not None and value.const_value is not None and len(value.const_value.shape) == 2


def is_vector(value: ir.Value | None) -> bool:
    """Return whether a value is a constant with one axis."""
    constant = operators.const_array(value)
    return constant is not None and constant.ndim == 1
