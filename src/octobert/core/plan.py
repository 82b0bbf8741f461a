"""Quantization plans: for each value of a graph, how it is quantized or that it stays float, and the reason.

Methods make plans from a `Placement`, `capability.check` compares a plan with a target, the accuracy search edits plans, and
`graph.qdq` writes them into graphs. Plans are data: nothing here edits a graph.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Literal

from pydantic import Field, model_validator

from octobert.core.frozen import FrozenModel, both_ends

DType = Literal["int4", "int8", "uint8", "int16", "uint16", "float8e4m3"]
FloatType = Literal["float32", "float16", "bfloat16"]
# Their short names in reports, and as precisions of sessions.
SHORT: dict[FloatType, str] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Lowest and highest number of each type. The numbers of float8e4m3 are not equally spaced.
LIMITS: dict[str, tuple[int, int]] = {
    "int4": (-8, 7),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "float8e4m3": (-448, 448),
}


def middle_of(dtype: str) -> int:
    """Return the zero point in the middle of a type; 0 for types without limits here.

    Example:
        >>> middle_of("uint8"), middle_of("int8")
        (128, 0)
    """
    return (sum(LIMITS.get(dtype, (0, 0))) + 1) // 2


# Entry in the metadata of ONNX files: `QuantPlan.group`.
GROUP_METADATA = "dynamic_quantization_group"
# Name of the method that quantizes nothing.
FLOAT = "float"
# `Site.input` of an operator's output: all readers of the value read it quantized.
OUTPUT = -1

# Roles of values; `graph.sites` describes where each occurs.
LINEAR = ("linear.input", "linear.weight")
ATTENTION = ("scores.query", "scores.key", "context.probs", "context.value")
RESIDUAL = ("residual.branch", "residual.skip")
HEAD = ("head.input", "head.weight")
# As kinds: the last layer of a masked language model, the largest of all.
DECODER = ("head.*@decoder",)
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
# All roles but the word embedding table.
WHOLE = (*LINEAR, *ATTENTION, *RESIDUAL, *HEAD, *OUTPUTS)
ROLES = (*LINEAR, *ATTENTION, *RESIDUAL, *HEAD, *EMBEDDING, *OUTPUTS)


class Site(FrozenModel):
    """A value at an operator, where it can be quantized.

    Args:
        role: role of the value, such as `linear.input` or `scores.key`.
        part: part of the encoder, such as `ffn_up` (see `family.LAYER_PARTS`), `head` or `embeddings`.
        module: module path of the operator.
        layer: index of the encoder layer; None outside the layers.
        node: name of the operator.
        input: index of the input; `OUTPUT` for the output of the operator.
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
        """Role and part, such as `linear.input@ffn_up`; placements match it."""
        return f"{self.role}@{self.part}"

    @property
    def is_weight(self) -> bool:
        """Return whether the value is a weight."""
        return self.role.endswith(".weight")


class Quantizer(FrozenModel):
    """How a value is quantized: `q = round(x / scale) + zero_point`, clipped to the type (ONNX QuantizeLinear).

    Args:
        dtype: integer type, or 8-bit float type.
        symmetric: the zero point is in the middle of the type: 0, or 128 for uint8.
        axis: one scale per index of this axis; None for one scale per tensor.
        low: lower end of the interval; None for weights, whose values define it, and for dynamic activations.
        high: upper end of the interval; None as for `low`.
        dynamic: the interval is computed at run time.
        group: input channels that share an interval. Of dynamic activations: of one token; None for one interval per batch.
            With it the runtime quantizes the values itself: files hold the weights only, and say the group. Of weights: of each
            output channel; None for all.
        reduce_range: 8-bit weights whose products with uint8 cannot saturate: without VNNI, CPUs add two products of
            neighbouring input channels in 16 bits, so the sum of two neighbours is at most 128 (`graph.qdq.pair_sums`).
        weight_ranges: range of a weight: its largest magnitude (`max`), or the range with the smallest squared error (`mse`).
        shared: values, or weights, with the same string share one interval.
        ceiling: upper limit of the interval, also when it is observed or learned during training.
        weight_form: a weight is stored as `integers`, or as floats behind a Quantize/Dequantize `pair` that the runtime folds.
            Both give the same integers.
    """

    dtype: DType
    symmetric: bool
    axis: int | None = None
    low: float | None = None
    high: float | None = None
    dynamic: bool = False
    group: int | None = None
    reduce_range: bool = False
    weight_ranges: Literal["max", "mse"] = "max"
    shared: str | None = None
    ceiling: float | None = None
    weight_form: Literal["integers", "pair"] = "integers"

    _both = model_validator(mode="after")(both_ends)

    @property
    def when(self) -> str:
        """When the interval is computed, and for what, in words that follow the type; empty where it is fixed for all."""
        if self.group is None:
            return " dynamic" * self.dynamic
        return f" per {'token and ' * self.dynamic}{self.group} channels"

    @property
    def limits_pairs(self) -> bool:
        """Return whether sums of neighbouring weights are limited. Asymmetric weights are uint8, with exact products."""
        return self.reduce_range and self.symmetric and self.dtype in ("int8", "uint8")

    @property
    def weight_limits(self) -> tuple[int, int]:
        """Lowest and highest integer of a weight, around zero. uint8 weights are stored with 128 added."""
        return self._limits("int8" if self.dtype == "uint8" else self.dtype)

    @property
    def limits(self) -> tuple[int, int]:
        """Lowest and highest number. Symmetric signed types leave out the lowest, so that their range is symmetric.

        Example:
            >>> Quantizer(dtype="int8", symmetric=True).limits
            (-127, 127)
        """
        return self._limits(self.dtype)

    def _limits(self, dtype: DType) -> tuple[int, int]:
        low, high = LIMITS[dtype]
        return (-high, high) if self.symmetric and low < 0 else (low, high)


class Decision(FrozenModel):
    """The decision for one site.

    Args:
        site: the site.
        quantizer: how the value is quantized; None for float.
        reason: in words, for the report.
    """

    site: Site
    quantizer: Quantizer | None
    reason: str


def _width(quantizer: Quantizer) -> int:
    """Bits of its numbers."""
    low, high = LIMITS[quantizer.dtype]
    return 8 if quantizer.dtype == "float8e4m3" else (high - low).bit_length()


class QuantPlan(FrozenModel):
    """All decisions for one graph and one target.

    Args:
        method: name of the method that made the plan.
        placement: name of the placement.
        target: name of the target.
        decisions: one per site.
        float_parts: type of the operators that are not quantized.
        unfit: values that float16 cannot hold → why: what makes or reads one stays float32 where `float_parts` are float16.
    """

    method: str
    placement: str
    target: str
    decisions: tuple[Decision, ...]
    float_parts: FloatType = "float32"
    unfit: dict[str, str] = Field(default_factory=dict)

    @property
    def quantized(self) -> tuple[tuple[Site, Quantizer], ...]:
        """(site, quantizer) of all quantized sites."""
        return tuple((d.site, d.quantizer) for d in self.decisions if d.quantizer is not None)

    @property
    def group(self) -> int | None:
        """Channels that share an interval of activations quantized per token; None where there are none."""
        return next((q.group for _, q in self.quantized if q.dynamic and q.group), None)

    def precision(self, reported: str) -> str:
        """The arithmetic of a model with this plan: the widest activations and narrowest weights of its products, and that of
        its float operators. `int8 + f32`; `int16 × int8 + f32`; `f32` where it quantizes nothing.

        Args:
            reported: precision of the float operators, as the runtime reports it.
        """
        parts = "f16" if self.float_parts == "float16" else reported
        if not self.quantized:
            return parts
        activations = [_width(q) for site, q in self.quantized if not site.is_weight]
        weights = [_width(q) for site, q in self.quantized if site.is_weight]
        widths = dict.fromkeys([*sorted(activations)[-1:], *sorted(weights)[:1]])
        kind = "float" if any(q.dtype == "float8e4m3" for _, q in self.quantized) else "int"
        return f"{' × '.join(f'{kind}{width}' for width in widths)} + {parts}"

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return role → (quantized sites, sites in all)."""
        table: dict[str, tuple[int, int]] = {}
        for decision in self.decisions:
            done, total = table.get(decision.site.role, (0, 0))
            table[decision.site.role] = (done + (decision.quantizer is not None), total + 1)
        return table


class Placement(FrozenModel):
    """The kinds of sites to quantize.

    Args:
        description: one line for people.
        kinds: patterns of `role` or `role@part` (`plan.ROLES`, `family.LAYER_PARTS`), such as `linear.*@ffn_*`.
        because: role that stays float → reason, for the plan and the report.
    """

    description: str
    kinds: tuple[str, ...]
    because: dict[str, str] = Field(default_factory=dict)

    def takes(self, site: Site) -> bool:
        """Return whether the placement quantizes a site."""
        return any(
            fnmatchcase(site.kind if "@" in kind else site.role, kind) for kind in self.kinds
        )

    def why_not(self, site: Site, name: str) -> str:
        """Return the reason why a site stays float.

        Args:
            name: of the placement.
        """
        return self.because.get(site.role, f"not in placement {name}")


HEAD_FLOAT = dict.fromkeys(HEAD, "heads and poolers are small, and their output is the answer")
RESIDUAL_FLOAT = dict.fromkeys(
    RESIDUAL, "residual adds carry outliers, and run fused with LayerNorm in float"
)
ATTENTION_FLOAT = dict.fromkeys(
    ATTENTION, "attention products are a small share of the work, and 8 bits save no time on CPUs"
)
OUTPUTS_FLOAT = dict.fromkeys(OUTPUTS, "outputs stay float; their readers quantize them")
