"""Records of an inspection: the operators that a runtime executed, their times, and the rules that a model file breaks.

Times of operators come from the profiler of the runtime, which costs time itself. They show where the time goes. `latencies`
are measured without the profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from octobert.core.environment import Environment
from octobert.core.frozen import FrozenModel, Row, Tabular
from octobert.core.measurements import Latency

K = TypeVar("K")
Kind = Literal["product", "conversion", "other"]


class Operator(FrozenModel):
    """An operator that the runtime executed.

    Args:
        name: the runtime's name for it.
        type: the runtime's type, such as `MatMulIntegerToFloat` or `FullyConnected`.
        kernel: the implementation, where the runtime names it.
        kind: a matrix product with everything fused into it, a separate conversion between 8 bits and float, or another
            operator.
        precision: `int8`, `f32`, `bf16`, `f16`, `mixed` for several, or the runtime's name.
        integer: the operator computes in integers.
        ms: smallest time over all runs, because other load can only add time.
        layer: index of the encoder layer; None outside the layers.
        part: part of the layer, as in plans; outside the layers, the module.
        covers: names of the nodes of the model that it executes.
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


def grouped(operators: Iterable[Operator], key: Callable[[Operator], K]) -> dict[K, list[Operator]]:
    """Return operators by a key, such as their type, in the order of execution."""
    groups: dict[K, list[Operator]] = {}
    for operator in operators:
        groups.setdefault(key(operator), []).append(operator)
    return groups


def time_of(operators: Iterable[Operator]) -> float:
    """Return the time of operators together, in ms."""
    return sum(operator.ms for operator in operators)


class Operand(FrozenModel):
    """A quantized input of a matrix product in a model file.

    Args:
        dtype: its type.
        symmetric: the zero point is in the middle of the type.
    """

    dtype: str
    symmetric: bool


class Product(FrozenModel):
    """A matrix product of a model file with a quantized input.

    Args:
        name: of the node.
        readers: nodes that read the product; a runtime may keep only their names.
        inputs: both inputs; None for a float input.
        dynamic: the first input is quantized dynamically.
        weight: the second input is a constant.
        siblings: other products with the same quantized first input.
    """

    name: str
    readers: tuple[str, ...] = ()
    inputs: tuple[Operand | None, Operand | None]
    dynamic: bool = False
    weight: bool = True
    siblings: int = 0


class Fallback(FrozenModel):
    """A product that is quantized in the file and that the runtime computed in float.

    Args:
        name: of the node in the file.
        operator: type of the operator that computed it.
        layer, part: of this operator.
        why: the reason, as a clause after "because"; None if it is unknown.
    """

    name: str
    operator: str
    layer: int | None = None
    part: str = ""
    why: str | None


class Split(FrozenModel):
    """The time of one run by kinds of operators.

    Args:
        between_ms: smallest time outside of operators.
        total_ms: time of all operators.
        products_ms: time of matrix products.
        integer_ms: time of operators that compute in integers.
        conversions_ms: time of conversions.
        conversions: number of quantize and dequantize operators that are not fused.
    """

    between_ms: float
    total_ms: float
    products_ms: float
    integer_ms: float
    conversions_ms: float
    conversions: int

    @property
    def others_ms(self) -> float:
        """Time of operators that are neither products nor conversions."""
        return self.total_ms - self.products_ms - self.conversions_ms

    def share(self, ms: float) -> float:
        """Return a time as a fraction of the time of all operators."""
        return ms / self.total_ms if self.total_ms else 0.0


class Profile(FrozenModel):
    """A profile of one model on one runtime.

    Args:
        precision: of the float operators, as the runtime reports it.
        runs: profiled runs.
        split: the time by kinds of operators.
        operators: in the order of execution.
    """

    precision: str
    runs: int
    split: Split
    operators: tuple[Operator, ...]


class Inspection(Tabular):
    """The inspection of a model on its runtime, with its float model where there is one.

    Args:
        model: the model file.
        target: name of the target.
        runtime: name of the runtime.
        version: of the runtime.
        batch: rows of a batch.
        sequence: tokens of a row.
        threads: threads of one inference.
        environment: machine and software.
        profile: of the model.
        floating: profile of the float model.
        products: quantized products of the file.
        matched: number of these products that were matched with operators.
        fallbacks: products that were computed in float.
        latencies: of the model and the float model, interleaved and without profiling.
        answers: explanations of the speed, as sentences.
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
        return [
            {name: getattr(operator, name) for name in names} for operator in self.profile.operators
        ]


def split(operators: Iterable[Operator], between_ms: float) -> Split:
    """Add up the times of operators by kind."""
    executed = tuple(operators)
    conversions = [operator for operator in executed if operator.kind == "conversion"]
    return Split(
        between_ms=between_ms,
        total_ms=time_of(executed),
        products_ms=time_of(operator for operator in executed if operator.kind == "product"),
        integer_ms=time_of(operator for operator in executed if operator.integer),
        conversions_ms=time_of(conversions),
        conversions=len(conversions),
    )


Severity = Literal["refused", "float", "note"]


class Finding(FrozenModel):
    """A rule of a target that a model file breaks.

    Args:
        severity: the target refuses the file (`refused`), runs the operators in float (`float`), or works (`note`).
        rule: short name of the rule.
        text: the problem, as a sentence without a full stop.
        nodes: names of the first few operators or values.
        count: number of operators or values.
        fix: how to fix it.
    """

    severity: Severity
    rule: str
    text: str
    nodes: tuple[str, ...] = ()
    count: int = 1
    fix: str | None = None


class Lint(Tabular):
    """All findings about a model file for one target.

    Args:
        file: the model file.
        target: name of the target.
        products: number of matrix products of the file.
        integer: number of products that the target computes in integers.
        findings: broken rules.
    """

    file: str
    target: str
    products: int
    integer: int
    findings: tuple[Finding, ...]

    @property
    def passes(self) -> bool:
        """Return whether the target accepts the file."""
        return all(finding.severity != "refused" for finding in self.findings)

    def to_rows(self) -> list[Row]:
        """One row per finding."""
        return [finding.model_dump() for finding in self.findings]
