"""Inputs and outputs of a model file of any origin, and which of an encoder's inputs a name stands for.

Exporters name inputs differently: `input_mask`, `segment_ids:0`, `input_ids.1`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from octobert.core.errors import ModelError
from octobert.core.frozen import FrozenModel

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# The number of each row. Exports of TensorFlow's SQuAD script read it, and write it as an output.
ROW_NUMBERS = "unique_ids"
_ALIASES = {
    "ids": "input_ids",
    "input": "input_ids",
    "input_word_ids": "input_ids",
    "input_mask": "attention_mask",
    "mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "input_type_ids": "token_type_ids",
}
_ENDING = re.compile(r"(_raw_output)?(___\d+)?([.:]\d+)?$")
_INTEGERS, _FLOATS = ("int64", "int32"), ("float32", "float16")


class Port(FrozenModel):
    """An input or an output.

    Args:
        name: in the file.
        dtype: as NumPy names it.
        shape: sizes of the axes, -1 where they are free; None if the file does not say.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        axes = (
            ""
            if self.shape is None
            else f" [{', '.join('?' if size < 0 else str(size) for size in self.shape)}]"
        )
        return f"{self.name} {self.dtype}{axes}"


class Ports(NamedTuple):
    """The inputs and outputs of a model file."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def input_named(name: str) -> str:
    """The usual name of an input.

    Example:
        >>> input_named("segment_ids:0"), input_named("input_ids.1"), input_named("unique_ids_raw_output___9:0")
        ('token_type_ids', 'input_ids', 'unique_ids')
    """
    plain = _ENDING.sub("", name)
    return _ALIASES.get(plain, plain)


def check_inputs(ports: Sequence[Port], *, where: str) -> None:
    """Check that a model reads what octobert feeds: token ids, a padding mask and segments, each [batch, sequence].

    Raises:
        ModelError: it reads something else, or reads it in another form.
    """
    named = {input_named(port.name): port for port in ports}
    others = [port for name, port in named.items() if name not in (*INPUTS, ROW_NUMBERS)]
    if others or not {*INPUTS[:2]} <= set(named) or len(named) < len(ports):
        raise ModelError(
            "the model has other inputs than an encoder",
            where=where,
            got=", ".join(map(str, others or ports)),
            expected=f"{', '.join(INPUTS)}, or other usual names of these",
            fix="export it with these inputs",
        )
    for name, port in named.items():
        axes = 1 if name == ROW_NUMBERS else 2
        kinds = (*_INTEGERS, *_FLOATS, "bool") if name == "attention_mask" else _INTEGERS
        if port.shape is not None and len(port.shape) != axes:
            what = f"the model reads its {name} with {len(port.shape)} axes"
            fix = "export it with the tokenizer's two-dimensional inputs"
            raise ModelError(what, where=where, got=str(port), expected="batch, sequence", fix=fix)
        if port.dtype not in kinds:
            raise ModelError(
                f"the model reads its {name} in another type",
                where=where,
                got=str(port),
                expected=", ".join(kinds),
            )
