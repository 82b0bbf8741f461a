"""What a runtime made of a model: its operators as they ran, where the time went, and why 8 bits are not faster than they are.

A plan says what was asked for; this says what happened. Times of operators come from the runtime's own profile, whose clock
costs time itself, so that they say where time goes; how fast a model is, `latencies` say, timed without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from octobert.core.environment import Environment
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Latency
from octobert.core.tabular import Row, Tabular

Kind = Literal["product", "conversion", "other"]


class Operator(FrozenModel):
    """One operator as it ran.

    Args:
        name: as the runtime calls it.
        type: likewise, such as `MatMulIntegerToFloat` or `FullyConnected`.
        kernel: the implementation, where the runtime names it.
        kind: a matrix product, with what is fused into it; a conversion between 8 bits and float on its own; or another.
        precision: `int8`, `f32`, `bf16`, `f16`, `mixed` where it takes and gives several, or the runtime's word.
        integer: it computes in integers, rather than only moving them.
        ms: the least of its times, since whatever else runs on a machine only adds to them.
        layer: index of the encoder layer, None outside the layers.
        part: of the layer, as in plans; outside the layers, the module.
        covers: names of the model's nodes that it stands for.
    """

    name: str
    type: str
    kernel: str = ""
    kind: Kind
    precision: str
    integer: bool
    ms: float
    layer: int | None
    part: str
    covers: tuple[str, ...] = ()


class Operand(FrozenModel):
    """How one input of a matrix product is written in the file: its type, and whether zero is in the middle of it."""

    dtype: str
    symmetric: bool


class Product(FrozenModel):
    """A matrix product of the file that has an input in less than 32 bits.

    Args:
        name: of the node.
        readers: nodes that read it, which may be all that is left of its name.
        inputs: the two; None for one that is float.
        dynamic: ranges of the first are taken at each run.
        weight: the second is a constant.
        siblings: other products that read the same integers as their first input, where the file shows it.
    """

    name: str
    readers: tuple[str, ...] = ()
    inputs: tuple[Operand | None, Operand | None]
    dynamic: bool = False
    weight: bool = True
    siblings: int = 0


class Fallback(FrozenModel):
    """A product that the file has in 8 bits and the runtime computed in float.

    Args:
        name: of the node in the file.
        operator: that computed it.
        why: a clause that continues "because", or None where the file and the runtime do not show it.
    """

    name: str
    operator: str
    why: str | None


class Split(FrozenModel):
    """Where the time of one run goes.

    Args:
        between_ms: the least of what passes of a run outside of operators.
        total_ms: of all operators together.
        products_ms, integer_ms, conversions_ms: of matrix products, of operators that compute in integers, of conversions.
        conversions: how many there are: quantize and dequantize operators that the runtime left standing alone.
    """

    between_ms: float
    total_ms: float
    products_ms: float
    integer_ms: float
    conversions_ms: float
    conversions: int

    @property
    def others_ms(self) -> float:
        """Time of what is neither product nor conversion."""
        return self.total_ms - self.products_ms - self.conversions_ms

    def share(self, ms: float) -> float:
        """A part of the operators' time."""
        return ms / self.total_ms if self.total_ms else 0.0


class Profile(FrozenModel):
    """One model on one runtime.

    Args:
        precision: of the float parts, as the runtime reports it.
        runs: that times are the least of.
        operators: in the order in which they ran.
    """

    precision: str
    runs: int
    split: Split
    operators: tuple[Operator, ...]


class Inspection(Tabular):
    """A model after compiling, and the float model beside it where there is one.

    Args:
        model: the file that was opened.
        runtime, version: that opened it.
        batch, sequence: the shape of every run.
        threads: of one inference.
        products: those of the file that are 8-bit there.
        matched: how many of them were found among the operators.
        fallbacks: those of them that were computed in float.
        latencies: of the model and of its float model, interleaved, without profiling.
        answers: why 8 bits are as fast as they are; sentences.
    """

    model: str
    target: str
    runtime: str
    version: str
    batch: int
    sequence: int
    threads: int
    environment: Environment
    profile: Profile
    floating: Profile | None = None
    products: tuple[Product, ...]
    matched: int
    fallbacks: tuple[Fallback, ...]
    latencies: tuple[Latency, ...] = ()
    answers: tuple[str, ...] = ()

    def to_rows(self) -> list[Row]:
        """One row per operator of the model, in the order in which they ran."""
        names = ("name", "type", "kind", "precision", "ms", "layer", "part")
        return [{name: getattr(operator, name) for name in names} for operator in self.profile.operators]


def split(operators: Iterable[Operator], between_ms: float) -> Split:
    """Add up where the time goes."""
    found = tuple(operators)
    conversions = [one.ms for one in found if one.kind == "conversion"]
    return Split(
        between_ms=between_ms,
        total_ms=sum(one.ms for one in found),
        products_ms=sum(one.ms for one in found if one.kind == "product"),
        integer_ms=sum(one.ms for one in found if one.integer),
        conversions_ms=sum(conversions),
        conversions=len(conversions),
    )


Severity = Literal["refused", "float", "note"]


class Finding(FrozenModel):
    """One rule that a file breaks.

    Args:
        severity: the target refuses the file, runs these operators in float, or the user should know.
        rule: a word for it, the same in every file.
        text: what is wrong, as a sentence without a final stop.
        nodes: operators or values it is about; the first few.
        count: how many there are.
        fix: what to change.
    """

    severity: Severity
    rule: str
    text: str
    nodes: tuple[str, ...] = ()
    count: int = 1
    fix: str | None = None


class Lint(Tabular):
    """All findings about one file for one target.

    Args:
        products: matrix products in the file.
        integer: those of them that the target computes in integers.
    """

    file: str
    target: str
    products: int
    integer: int
    findings: tuple[Finding, ...]

    @property
    def passes(self) -> bool:
        """Whether the target takes the file."""
        return all(finding.severity != "refused" for finding in self.findings)

    def to_rows(self) -> list[Row]:
        """One row per finding."""
        return [finding.model_dump() for finding in self.findings]
