"""Compute only the first token in the last layer, if the head reads no other.

A classification head, or an embedding taken from the first token, reads one row of the last hidden state. The last layer then
needs one query, one row of scores, and one row of every linear layer except keys and values. The result is exact.

The graph is read backwards from where the first token is taken. An operator is *thin* if all its readers need only its first
row; where a thin operator reads a value that others need in full, a Slice is inserted. The rules per operator are in `_RULES`;
an operator without a rule is computed in full. Input: a canonical graph with dynamic shapes, float or quantized, before any
fusion. With DynamicQuantizeLinear, scales become those of the one row.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable

import onnx_ir as ir

from octobert.graph import operators
from octobert.graph.capture import shapes

# Per input: the axis on which one row is enough; None if the whole input is needed.
Needs = list[int | None]
Layout = tuple[int | str, ...]

_PRODUCTS = ("MatMul", "MatMulInteger")
_UNARY = ("Abs", "Cast", "Clip", "Erf", "Neg", "Relu", "Sigmoid", "Sqrt", "Tanh")
_ELEMENTWISE = (*_UNARY, "Add", "And", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Where")


def slice_first_token_(model: ir.Model) -> int:
    """Remove the rows that no head reads, in place.

    Returns:
        The number of matrix products that now compute one row per text; 0 if the head reads all tokens.
    """
    graph = model.graph
    starts = [node for node in graph if _takes_first(node)]
    if not starts:
        return 0
    region = _Region(model)
    products = [node for node in region.thin if node.op_type in _PRODUCTS]
    if products:
        region.cut_()
        operators.clean_(model)
    return len(products)


def _takes_first(node: ir.Node) -> bool:
    """Return whether a node is `x[:, 0]`."""
    if node.op_type == "Gather":
        return (
            node.attributes.get_int("axis", 0) == 1 and operators.const_scalar(node.inputs[1]) == 0
        )
    if node.op_type == "Slice":
        bounds = [operators.const_array(v) for v in node.inputs[1:]]
        # Start, end, axis and, optionally, step.
        expected = ([0], [1], [1], [1])
        return len(bounds) >= 3 and all(
            b is not None and b.reshape(-1).tolist() == e
            for b, e in zip(bounds, expected, strict=False)
        )
    return False


class _Region:
    """The part of a graph of which only first rows are read.

    Attributes:
        thin: its operators, each with the axes of its inputs.
        rows: its operators, each with the axis of its outputs that gets one row.
    """

    def __init__(self, model: ir.Model) -> None:
        self._graph = model.graph
        moving = _moving(model.graph)
        self._layouts = shapes.measure(model, moving)
        self.thin: dict[ir.Node, Needs] = {}
        self.rows: dict[ir.Node, int] = {}
        needed: dict[ir.Value, list[int | None]] = defaultdict(list)
        for value in model.graph.outputs:
            needed[value].append(None)
        for node in reversed(list(model.graph)):
            needs: Needs | None = None
            # The scale of a DynamicQuantizeLinear has no rows.
            outputs = node.outputs[:1] if node.op_type == "DynamicQuantizeLinear" else node.outputs
            axes = {axis for value in outputs for axis in needed[value]}
            axis = axes.pop() if len(axes) == 1 else None
            if _takes_first(node) and self.layout(node.inputs[0])[1:2] == ("sequence",):
                needs = self._first_input(node, 1)
            elif axis is not None and self.layout(node.outputs[0])[axis] == "sequence":
                needs = self._needs(node, axis)
                if needs is not None:
                    self.thin[node], self.rows[node] = needs, axis
            for read, need in zip(node.inputs, needs or [None] * len(node.inputs), strict=True):
                if read is not None:
                    needed[read].append(need)

    def layout(self, value: ir.Value | None) -> Layout:
        """Return the measured shape of a value, or the shape of a constant."""
        if value is None:
            return ()
        if str(value.name) in self._layouts:
            return self._layouts[str(value.name)]
        array = operators.const_array(value)
        if array is not None:
            return tuple(array.shape)
        return (
            tuple(s if isinstance(s, int) else "unknown" for s in value.shape)
            if value.shape is not None
            else ()
        )

    def cut_(self) -> None:
        """Insert a Slice where a thin operator reads a value that others need in full; adapt shapes and targets of Reshape."""
        cuts: dict[tuple[ir.Value, int], ir.Value] = {}
        for node, needs in reversed(self.thin.items()):
            if node.op_type == "Reshape":
                self._resize_(node, needs[0])
            for index, axis in enumerate(needs):
                value = node.inputs[index]
                if axis is not None and value is not None and value.producer() not in self.thin:
                    node.replace_input_with(index, self._first_row(value, axis, cuts))
        for node, row in self.rows.items():
            for value in node.outputs:
                value.shape = self._with_one_row(value, row)

    def _first_row(
        self, value: ir.Value, axis: int, cuts: dict[tuple[ir.Value, int], ir.Value]
    ) -> ir.Value:
        """Return the first row of a value. The Slice goes before a Q/DQ pair, which stays next to the operator."""
        if (value, axis) in cuts:
            return cuts[value, axis]
        producer = value.producer()
        name = f"{value.name}.first"
        if (
            producer is not None
            and producer.op_type in operators.PAIR
            and operators.const_array(producer.inputs[0]) is None
        ):
            inputs = [
                self._first_row(operators.input_of(producer, 0), axis, cuts),
                *producer.inputs[1:],
            ]
            new = operators.make_node(producer.op_type, inputs, name, producer.attributes)
            new.domain = producer.domain
        else:
            bounds = [
                operators.shared_initializer(self._graph, f"first.{what}", [n])
                for what, n in (("start", 0), ("end", 1), (f"axis_{axis}", axis))
            ]
            new = operators.make_node("Slice", [value, *bounds], name)
        first = new.outputs[0]
        first.type, first.shape = value.type, self._with_one_row(value, axis)
        before = producer if new.op_type == "Slice" else operators.producer(new.inputs[0])
        if before is None:
            self._graph.insert_before(self._graph[0], new)
        else:
            self._graph.insert_after(before, new)
        cuts[value, axis] = first
        return first

    def _with_one_row(self, value: ir.Value, axis: int) -> ir.Shape:
        return ir.Shape([1 if i == axis else size for i, size in enumerate(self.layout(value))])

    def _resize_(self, node: ir.Node, axis: int | None) -> None:
        """Set the number of rows to one in the target of a Reshape."""
        before, after = self.layout(node.inputs[0]), self.layout(node.outputs[0])
        row = next(
            i for i in range(len(after)) if axis is not None and _same_axis(before, axis, after, i)
        )
        sizes = operators.const_array(node.inputs[1])
        if sizes is None:
            concat = operators.producer(node.inputs[1])
            assert concat is not None
            single = operators.shared_initializer(self._graph, "first.end", [1])
            inputs = [single if i == row else value for i, value in enumerate(concat.inputs)]
            new = operators.make_node(
                "Concat", inputs, f"{node.name}.first_sizes", {"axis": 0}, dtype=ir.DataType.INT64
            )
            self._graph.insert_before(node, new)
            node.replace_input_with(1, new.outputs[0])
        elif sizes[row] not in (0, 1):
            target = [1 if i == row else int(size) for i, size in enumerate(sizes)]
            node.replace_input_with(1, operators.reshape_target(self._graph, target))

    def _needs(self, node: ir.Node, axis: int) -> Needs | None:
        """Return what one row of a node's output needs of its inputs, or None if that is unknown."""
        if node.op_type in _ELEMENTWISE:
            rank = len(self.layout(node.outputs[0]))
            return [self._aligned(value, axis, rank) for value in node.inputs]
        rule = _RULES.get(node.op_type)
        return rule(self, node, axis) if rule is not None else None

    def _aligned(self, value: ir.Value | None, axis: int, rank: int) -> int | None:
        """Return the axis of an input that broadcasting maps to `axis` of an output of that rank, or None."""
        layout = self.layout(value)
        input_axis = axis - (rank - len(layout))
        return input_axis if input_axis >= 0 and layout[input_axis] != 1 else None

    def _product(self, node: ir.Node, axis: int) -> Needs | None:
        rank, rest = len(self.layout(node.outputs[0])), [None] * (len(node.inputs) - 2)
        first, second = (self._aligned(value, axis, rank) for value in node.inputs[:2])
        if axis == rank - 1:
            return [None, second, *rest]
        return [first, None if axis == rank - 2 else second, *rest]

    def _along_last(self, node: ir.Node, axis: int) -> Needs | None:
        """Rule of operators along the last axis, which must not be the axis of rows."""
        rank = len(self.layout(node.outputs[0]))
        if node.attributes.get_int("axis", -1) % rank != rank - 1 or axis == rank - 1:
            return None
        return self._first_input(node, axis)

    def _reduced(self, node: ir.Node, axis: int) -> Needs | None:
        """Rule of operators that reduce other axes than that of rows, and keep them."""
        axes = operators.const_array(node.inputs[1]) if len(node.inputs) > 1 else None
        rank = len(self.layout(node.outputs[0]))
        kept = node.attributes.get_int("keepdims", 1) == 1
        if axes is None or not kept or axis in {int(reduced) % rank for reduced in axes}:
            return None
        return self._first_input(node, axis)

    def _first_input(self, node: ir.Node, axis: int) -> Needs:
        """Rule of operators whose other inputs have no rows."""
        return [axis, *[None] * (len(node.inputs) - 1)]

    def _transposed(self, node: ir.Node, axis: int) -> Needs | None:
        return [node.attributes.get_ints("perm")[axis]] if "perm" in node.attributes else None

    def _reshaped(self, node: ir.Node, axis: int) -> Needs | None:
        sizes = operators.const_array(node.inputs[1])
        concat = operators.producer(node.inputs[1], "Concat")
        if sizes is not None:
            is_known = 0 not in sizes or not node.attributes.get_int("allowzero", 0)
        else:
            is_known = concat is not None and len(concat.inputs) == len(
                self.layout(node.outputs[0])
            )
        before, after = self.layout(node.inputs[0]), self.layout(node.outputs[0])
        row = next((i for i in range(len(before)) if _same_axis(before, i, after, axis)), None)
        return [row, None] if row is not None and is_known else None

    def _sliced(self, node: ir.Node, axis: int) -> Needs | None:
        axes = operators.const_array(node.inputs[3]) if len(node.inputs) > 3 else None
        rank = len(self.layout(node.outputs[0]))
        if axes is None or axis in {int(sliced) % rank for sliced in axes}:
            return None
        return self._first_input(node, axis)

    def _along_another(self, node: ir.Node, axis: int) -> Needs | None:
        """Rule of Concat, GatherElements and Split along another axis than that of rows."""
        along = node.attributes.get_int("axis", 0) % len(self.layout(node.outputs[0]))
        if along == axis:
            return None
        return (
            self._first_input(node, axis) if node.op_type == "Split" else [axis] * len(node.inputs)
        )


_RULES: dict[str, Callable[[_Region, ir.Node, int], Needs | None]] = {
    **dict.fromkeys(_PRODUCTS, _Region._product),
    **dict.fromkeys(("Softmax", "LayerNormalization"), _Region._along_last),
    **dict.fromkeys((*operators.PAIR, "DynamicQuantizeLinear"), _Region._first_input),
    "Transpose": _Region._transposed,
    "Reshape": _Region._reshaped,
    "Slice": _Region._sliced,
    **dict.fromkeys(("ReduceMax", "ReduceMean"), _Region._reduced),
    **dict.fromkeys(("Concat", "GatherElements", "Split"), _Region._along_another),
}


def _moving(graph: ir.Graph) -> list[ir.Value]:
    """Return the values that depend on an input of the graph."""
    moving = set(graph.inputs)
    for node in graph:
        if any(v in moving for v in node.inputs):
            moving.update(node.outputs)
    return [
        v
        for node in graph
        for v in node.outputs
        if v in moving and (v.uses() or v.is_graph_output())
    ]


def _same_axis(before: Layout, i: int, after: Layout, j: int) -> bool:
    """Return whether a Reshape maps axis `i` to axis `j`: the sizes before both are equal, or the sizes after both."""
    if before[i] != "sequence" or after[j] != "sequence":
        return False
    return _size(before[:i]) == _size(after[:j]) or _size(before[i + 1 :]) == _size(after[j + 1 :])


def _size(part: Layout) -> tuple[int, list[str]]:
    names = sorted(size for size in part if isinstance(size, str))
    return (math.prod(size for size in part if isinstance(size, int)), names)
