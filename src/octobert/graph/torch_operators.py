"""ONNX operators as PyTorch functions: inputs by position, attributes by name. `torch_graph` calls them. Needs torch.

Sizes are not tensors here but Python integers (0-d) and tuples of integers (1-d), as shapes of PyTorch are, also as results of
Shape, Gather, Concat and the like. A value is a tensor, an integer or a tuple; every operator that encoders use on sizes takes
all three.

Source of the semantics: https://onnx.ai/onnx/operators, opsets 13 to 25.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Size = int | tuple[int, ...]
Value = Tensor | Size


def _as_tensor(value: Value) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)


def _tuple(size: Size) -> tuple[int, ...]:
    return size if isinstance(size, tuple) else (size,)


def _pairwise(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Make an operator of two inputs work on tensors, and number by number on sizes."""

    def apply(a: Value, b: Value) -> Any:
        if isinstance(a, Tensor) or isinstance(b, Tensor):
            # A number takes the type of the tensor beside it; a tuple becomes a tensor.
            return function(*(_as_tensor(x) if isinstance(x, tuple) else x for x in (a, b)))
        if not isinstance(a, tuple) and not isinstance(b, tuple):
            return function(a, b)
        left, right = _tuple(a), _tuple(b)
        count = max(len(left), len(right))
        left, right = (
            numbers * count if len(numbers) == 1 else numbers for numbers in (left, right)
        )
        return tuple(function(x, y) for x, y in zip(left, right, strict=True))

    return apply


def _divide(a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        return a // b
    whole = not any(value.is_floating_point() for value in (a, b) if isinstance(value, Tensor))
    return torch.div(a, b, rounding_mode="trunc" if whole else None)


def _on_tensors(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make an operator work on sizes too, which become tensors."""

    def apply(*values: Value) -> Tensor:
        return function(*map(_as_tensor, values))

    return apply


def _most(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return _on_tensors(lambda *values: functools.reduce(function, values))


def _cast(x: Value, *, to: torch.dtype) -> Any:
    if isinstance(x, Tensor):
        return x.to(to)
    kind = float if to.is_floating_point else bool if to is torch.bool else int
    return tuple(kind(number) for number in x) if isinstance(x, tuple) else kind(x)


def _clip(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    if low is not None:
        x = torch.clamp_min(x, low) if not isinstance(low, Tensor) else torch.maximum(x, low)
    if high is not None:
        x = torch.clamp_max(x, high) if not isinstance(high, Tensor) else torch.minimum(x, high)
    return x


def _concat(*values: Value, axis: int) -> Any:
    if not any(isinstance(value, Tensor) for value in values):
        return tuple(number for value in values for number in _tuple(value))  # type: ignore[arg-type]
    return torch.cat([_as_tensor(value) for value in values], dim=axis)


def _cumsum(x: Tensor, axis: int, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    flipped = torch.flip(x, (axis,)) if reverse else x
    total = torch.cumsum(flipped, axis, dtype=x.dtype)
    total = total - flipped if exclusive else total
    return torch.flip(total, (axis,)) if reverse else total


def _expand(x: Value, shape: Size) -> Tensor:
    tensor = _as_tensor(x)
    return tensor.expand(torch.broadcast_shapes(tensor.shape, _tuple(shape)))  # type: ignore[no-untyped-call]


def _constant_of_shape(shape: Size, *, value: float = 0.0) -> Tensor:
    return torch.full(_tuple(shape), value)


def _gather(x: Value, index: Value, *, axis: int = 0) -> Any:
    if not isinstance(x, Tensor):
        numbers = _tuple(x)
        return tuple(numbers[i] for i in index) if isinstance(index, tuple) else numbers[index]
    if isinstance(index, int):
        return x.select(axis, index)
    index = _as_tensor(index)
    return x[index] if axis == 0 else x[(slice(None),) * (axis % x.ndim) + (index,)]


def _gather_elements(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    return torch.gather(x, axis, index)


def _gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    if batch_dims:
        fold = x.reshape(-1, *x.shape[batch_dims:])
        picked = index.reshape(-1, *index.shape[batch_dims:])
        rows = torch.arange(fold.shape[0]).reshape(-1, *[1] * (picked.ndim - 2))
        result = fold[(rows, *picked.unbind(-1))]
        return result.reshape(*x.shape[:batch_dims], *result.shape[1:])
    return x[tuple(index.unbind(-1))]


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return functional.gelu(x, approximate=approximate)


def _identity(x: Value) -> Value:
    return x


def _layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> Tensor:
    shape = x.shape[axis % x.ndim :]
    return functional.layer_norm(x, shape, scale, bias, epsilon)


def _pad(
    x: Tensor, pads: Size, value: Any = 0, axes: Size | None = None, *, mode: str = "constant"
) -> Tensor:
    numbers = _tuple(pads)
    count = len(numbers) // 2
    sides = [(0, 0)] * x.ndim
    for place, axis in enumerate(_tuple(axes) if axes is not None else range(count)):
        sides[axis] = (numbers[place], numbers[place + count])
    flat = [number for side in reversed(sides) for number in side]
    return functional.pad(
        x, flat, mode=mode, **({"value": float(value)} if mode == "constant" else {})
    )


def _range(start: Any, limit: Any, delta: Any) -> Tensor:
    return torch.arange(start, limit, delta)


def _reduce(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(
        x: Tensor, axes: Size | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        if axes is None and noop_with_empty_axes:
            return x
        chosen = _tuple(axes) if axes is not None else tuple(range(x.ndim))
        return function(x, dim=chosen, keepdim=bool(keepdims))

    return apply


def _reshape(x: Value, shape: Size, *, allowzero: int = 0) -> Any:
    sizes = _tuple(shape)
    if not isinstance(x, Tensor):
        return _tuple(x) if sizes else _tuple(x)[0]
    if not allowzero:
        sizes = tuple(
            x.shape[i] if isinstance(size, int) and size == 0 else size
            for i, size in enumerate(sizes)
        )
    return x.reshape(sizes)


def _shape(x: Value, *, start: int = 0, end: int | None = None) -> tuple[int, ...]:
    sizes = x.shape if isinstance(x, Tensor) else (len(x),) if isinstance(x, tuple) else ()
    return tuple(sizes)[start:end]


def _slice(
    x: Value, starts: Size, ends: Size, axes: Size | None = None, steps: Size | None = None
) -> Any:
    starts, ends = _tuple(starts), _tuple(ends)
    chosen = _tuple(axes) if axes is not None else tuple(range(len(starts)))
    strides = _tuple(steps) if steps is not None else (1,) * len(starts)
    if not isinstance(x, Tensor):
        return _tuple(x)[starts[0] : ends[0] : strides[0]]
    where = [slice(None)] * x.ndim
    for start, end, axis, stride in zip(starts, ends, chosen, strides, strict=True):
        where[axis] = slice(start, end, stride)
    return x[tuple(where)]


def _softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    return torch.softmax(x, axis)


def _split(
    x: Tensor, sizes: Size | None = None, *, axis: int = 0, num_outputs: int = 0
) -> Sequence[Tensor]:
    return torch.split(
        x, list(_tuple(sizes)) if sizes is not None else -(-x.shape[axis] // num_outputs), axis
    )


def _squeeze(x: Value, axes: Size | None = None) -> Any:
    if not isinstance(x, Tensor):
        return x[0] if isinstance(x, tuple) else x
    return x.squeeze() if axes is None else x.squeeze(_tuple(axes))


def _unsqueeze(x: Value, axes: Size) -> Any:
    if not isinstance(x, Tensor):
        return _tuple(x)
    rank = x.ndim + len(_tuple(axes))
    for axis in sorted(number % rank for number in _tuple(axes)):
        x = x.unsqueeze(axis)
    return x


def _tile(x: Tensor, repeats: Size) -> Tensor:
    return x.repeat(_tuple(repeats))


def _transpose(x: Tensor, *, perm: tuple[int, ...] | None = None) -> Tensor:
    return x.permute(perm if perm is not None else tuple(reversed(range(x.ndim))))


# Operators of one input that PyTorch calls the same, in lower case.
_SAME_NAMES = (
    "Abs Ceil Cos Erf Exp Floor IsNaN Log Reciprocal Relu Round Sigmoid Sign Sin Sqrt Tanh"
)
OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: _on_tensors(getattr(torch, name.lower())) for name in _SAME_NAMES.split()},
    "Add": _pairwise(operator.add),
    "And": _pairwise(torch.logical_and),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "CumSum": _cumsum,
    "Div": _pairwise(_divide),
    "Equal": _pairwise(operator.eq),
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gelu": _gelu,
    "Greater": _pairwise(operator.gt),
    "GreaterOrEqual": _pairwise(operator.ge),
    "Identity": _identity,
    "LayerNormalization": _layer_norm,
    "Less": _pairwise(operator.lt),
    "LessOrEqual": _pairwise(operator.le),
    "MatMul": operator.matmul,
    "Max": _most(torch.maximum),
    "Min": _most(torch.minimum),
    "Mul": _pairwise(operator.mul),
    "Neg": operator.neg,
    "Not": _on_tensors(torch.logical_not),
    "Or": _pairwise(torch.logical_or),
    "Pad": _pad,
    "Pow": operator.pow,
    "Range": _range,
    "ReduceL2": _reduce(torch.linalg.vector_norm),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": _pairwise(operator.sub),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _on_tensors(torch.where),
}
