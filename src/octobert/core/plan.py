"""The plan is the contract: per value, how it is quantized, or that it stays float, and why.

Methods make plans and edit nothing; `capability.check` holds a plan against a target; `graph.qdq` writes it. Search edits
plans, never graphs. Everything here is frozen and has a JSON form (`model_dump_json` / `model_validate_json`).
"""

from __future__ import annotations

from typing import Literal

from octobert.core.frozen import FrozenModel

DType = Literal["int8", "uint8", "int16", "uint16", "float8e4m3"]
FloatType = Literal["float32", "float16", "bfloat16"]
# The least and the greatest number of each type; those of float8e4m3 lie unevenly between.
LIMITS: dict[str, tuple[int, int]] = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "float8e4m3": (-448, 448),
}


def middle_of(dtype: str) -> int:
    """The zero point in the middle of a type; 0 for types that are not here."""
    return (sum(LIMITS.get(dtype, (0, 0))) + 1) // 2


# The method that quantizes nothing, and leaves it at the type of the float parts.
FLOAT = "float"
# What an input index says when the site is the operator's output: every reader of the value reads it quantized.
OUTPUT = -1

# What a value can be at a site; `graph.sites` says where each is found.
LINEAR = ("linear.input", "linear.weight")
ATTENTION = ("scores.query", "scores.key", "context.probs", "context.value")
RESIDUAL = ("residual.branch", "residual.skip")
HEAD = ("head.input", "head.weight")
EMBEDDING = ("embedding.weight",)
OUTPUTS = (
    "linear.output",
    "scores.output",
    "probs.output",
    "context.output",
    "activation.output",
    "residual.output",
    "norm.output",
)
# What can be quantized by the ranges of activations, without the word embedding table.
WHOLE = (*LINEAR, *ATTENTION, *RESIDUAL, *HEAD, *OUTPUTS)
ROLES = (*LINEAR, *ATTENTION, *RESIDUAL, *HEAD, *EMBEDDING, *OUTPUTS)


class Site(FrozenModel):
    """A place where a value enters an operator, and could enter it as 8-bit integers.

    Args:
        role: what the value is there, such as `linear.input` or `scores.key` (see `graph.sites`).
        part: the part of the encoder it belongs to, such as `ffn_up` (see `encoder.LAYER_PARTS`), or `head`, `embeddings`.
        module: the module path of the operator, without the operator's own suffix.
        layer: index of the encoder layer, None outside the layers.
        node: name of the operator.
        input: index of the input; `OUTPUT` for the operator's output.
        value: name of the value.
    """

    role: str
    part: str
    module: str
    layer: int | None
    node: str
    input: int
    value: str

    @property
    def kind(self) -> str:
        """`linear.input@ffn_up`: what placements name."""
        return f"{self.role}@{self.part}"

    @property
    def is_weight(self) -> bool:
        """Whether the value is a constant."""
        return self.role.endswith(".weight")


class Quantizer(FrozenModel):
    """How floats become integers: `q = round(x / scale) + zero_point`, clipped to the type.

    Args:
        dtype: the integer type, or the 8-bit float type.
        symmetric: zero point in the middle of the type: 0, or 128 for uint8.
        axis: one scale per index of this axis; None for one scale.
        low, high: the interval that is represented. None for weights, whose own values give it, and for dynamic activations.
        dynamic: the interval is taken from each batch as it comes.
        reduced: one bit less, for products that would saturate.
        least: how a weight's interval is chosen: all of it fits (`max`), or the least squared error (`mse`).
        shared: values, or weights, with the same word here have one interval in common.
        ceiling: no interval reaches above it, however it is observed or learned.
        pair: the weight stays float in the file and passes through a Quantize/Dequantize pair, for runtimes that fold it
            themselves. Its integers are the same.
    """

    dtype: DType
    symmetric: bool
    axis: int | None = None
    low: float | None = None
    high: float | None = None
    dynamic: bool = False
    reduce_range: bool = False
    weight_ranges: Literal["max", "mse"] = "max"
    shared: str | None = None
    ceiling: float | None = None
    weight_form: Literal["integers", "pair"] = "integers"

    @property
    def weight_limits(self) -> tuple[int, int]:
        """The limits of a weight's numbers around zero; uint8 ones are stored with 128 added."""
        return self._limits("int8" if self.dtype == "uint8" else self.dtype)

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest number. Symmetric signed types leave out the least one, so that negation is exact."""
        return self._limits(self.dtype)

    def _limits(self, dtype: DType) -> tuple[int, int]:
        low, high = LIMITS[dtype]
        if dtype == "float8e4m3":
            return low, high
        if self.reduce_range:
            low, high = low // 2, high // 2
        return (-high, high) if self.symmetric and low < 0 else (low, high)


class Decision(FrozenModel):
    """What happens to one site: a quantizer, or None, which means float; and the reason in words."""

    site: Site
    quantizer: Quantizer | None
    reason: str


class QuantPlan(FrozenModel):
    """Every decision about one graph, for one target.

    Args:
        float_parts: the type of everything that is not quantized (see `graph.half`).
    """

    method: str
    placement: str
    target: str
    decisions: tuple[Decision, ...]
    float_parts: FloatType = "float32"

    @property
    def quantized(self) -> tuple[tuple[Site, Quantizer], ...]:
        """The sites that are quantized, and how."""
        return tuple((d.site, d.quantizer) for d in self.decisions if d.quantizer is not None)

    def counts(self) -> dict[str, tuple[int, int]]:
        """role → (sites in 8 bits, sites in all)."""
        table: dict[str, tuple[int, int]] = {}
        for decision in self.decisions:
            done, total = table.get(decision.site.role, (0, 0))
            table[decision.site.role] = (done + (decision.quantizer is not None), total + 1)
        return table
