"""Inspect a compiled model, together with its float model where there is one. Does not need torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from octobert import targets
from octobert.core import environment
from octobert.core.errors import ModelError, TargetError
from octobert.core.evidence import Executed, Execution, OperatorType
from octobert.core.profile import Fallback, Inspection, Operator, Product, grouped, time_of
from octobert.core.session import SessionEntries, SessionOptions
from octobert.evaluation import candidates, latency
from octobert.evaluation.worker import OnProgress
from octobert.inference.opened import FinishedModel
from octobert.inspection import answers, profilers
from octobert.targets import runtimes

# Runs before the profiled ones: runtimes pack weights and choose kernels in them.
WARMUP = 2
# Token ids stay below this where the vocabulary is not known.
_FEW_IDS = 100
DEFAULT_TOKENS = 128


def inspect(
    model: FinishedModel,
    *,
    batch: int = 1,
    sequence: int | None = None,
    threads: int = 0,
    repeats: int = 20,
    on_progress: OnProgress = lambda *_: None,
) -> Inspection:
    """Compile a model, run it under its runtime's profiler, and explain how fast it is.

    Args:
        model: the model.
        batch: rows. A file with a fixed shape is run with its own.
        sequence: tokens of a row. Default: 128, or the model's limit.
        threads: threads of one inference; 0 lets the runtime choose.
        repeats: profiled runs, and rounds of the interleaved timing.
        on_progress: called with what is timed, the rounds done, and all rounds.

    Raises:
        TargetError: the target cannot run on this machine, or its runtime has no profiler.
        ModelError: the model does not take rows of this length.
    """
    model.check_runs()
    if model.target not in profilers.targets():
        raise TargetError(
            f"operators of the target {model.target} cannot be timed",
            where=str(model.path),
            expected=" or ".join(profilers.targets()),
            fix="inspect the model with such a target",
        )
    if model.longest is not None and sequence is not None and sequence > model.longest:
        raise ModelError(
            "the sequence is longer than the model allows",
            where="--sequence",
            got=str(sequence),
            expected=f"at most {model.longest}",
        )
    tokens = sequence or min(DEFAULT_TOKENS, model.longest or DEFAULT_TOKENS)
    # The profilers run the file itself, without the session that pads to its fixed axes.
    file, shape = model.fitting(tokens)
    batch, tokens = (
        fixed if fixed > 0 else asked for fixed, asked in zip(shape, (batch, tokens), strict=True)
    )
    workload = latency.random_workload(batch, tokens, model.vocabulary or _FEW_IDS, seed=0)
    family = model.manifest.model.family if model.manifest is not None else None

    def run(path: Path, entries: SessionEntries) -> Inspection:
        options = SessionOptions(threads=threads, entries=entries)
        return executed(model.target, path, options, workload, runs=repeats, family=family)

    ours = run(file, model.entries_on())
    theirs = run(model.floating.path, model.entries).profile if model.floating else None
    floating = candidates.float_of(model)
    timed = latency.measure(
        [candidates.candidate_of(model), *([floating] if floating is not None else [])],
        [workload],
        repeats=repeats,
        threads=threads,
        on_progress=on_progress,
    )
    inspection = ours.replaced(
        threads=timed.footprints[0].threads, floating=theirs, latencies=timed.latencies
    )
    return inspection.replaced(answers=answers.answers(inspection))


def executed(
    target: str,
    file: Path,
    options: SessionOptions,
    workload: latency.Workload,
    *,
    runs: int,
    family: str | None,
) -> Inspection:
    """Run a model file under its runtime's profiler, and find its products among the operators that ran.

    Args:
        target: one of `profilers.targets()`.
        file: the model file.
        options: how to open it.
        workload: its first batch is run.
        runs: profiled runs.
        family: a model type of the encoder family, or None if it is not known.

    Returns:
        The inspection, with no float model and no timing; its `answers` say what was executed.

    Raises:
        TargetError: the runtime cannot open or run the model.
    """
    runtime = targets.load(target).capabilities.runtime
    profiler, here = profilers.load(runtime), environment.current()
    profile = profiler.profile(
        file, workload.rounds[0], options, warmup=WARMUP, runs=runs, family=family
    )
    products = profiler.products(file)
    matched, fallbacks = fallen_back(
        products, profile.operators, lambda product: profiler.why(product, frozenset(here.features))
    )
    batch, sequence = workload.rounds[0]["input_ids"].shape
    inspection = Inspection(
        model=str(file),
        target=target,
        runtime=runtime,
        version=targets.load(target).probe().version or "unknown",
        batch=batch,
        sequence=sequence,
        threads=options.threads,
        environment=here,
        profile=profile,
        products=products,
        matched=matched,
        fallbacks=fallbacks,
    )
    return inspection.replaced(answers=answers.answers(inspection))


def fallen_back(
    products: tuple[Product, ...],
    operators: tuple[Operator, ...],
    why: Callable[[Product], str | None],
) -> tuple[int, tuple[Fallback, ...]]:
    """Find the products of a file that the runtime computed in float.

    Args:
        products: of the file.
        operators: that ran.
        why: returns the reason for a product, if it is known.

    Returns:
        (number of products that were found among the operators, those of them that ran in float).
    """
    computed = [operator for operator in operators if operator.kind == "product"]
    by_name = {name: operator for operator in computed for name in operator.covers}
    matched, fallbacks = 0, []
    for product in products:
        operator = next(
            (by_name[name] for name in (product.name, *product.readers) if name in by_name), None
        )
        if operator is not None:
            matched += 1
            if operator.precision not in ("int8", "mixed"):
                ran = {"operator": operator.type, "layer": operator.layer, "part": operator.part}
                fallbacks.append(
                    Fallback.model_validate({"name": product.name, **ran, "why": why(product)})
                )
    return matched, tuple(fallbacks)


def execution(inspection: Inspection) -> Execution:
    """Return what was executed, from an inspection of a target's model."""
    operators = inspection.profile.operators
    why: dict[tuple[int | None, str], list[str]] = {}
    for fallback in inspection.fallbacks:
        why.setdefault((fallback.layer, fallback.part), []).append(
            fallback.why or "neither the file nor the runtime shows why"
        )
    places = grouped(operators, lambda operator: (operator.layer, operator.part))
    types = grouped(
        operators, lambda operator: (operator.type, operator.precision, operator.integer)
    )
    return Execution(
        candidate=inspection.target,
        runtime=f"{runtimes.load(inspection.runtime).title} {inspection.version}",
        batch=inspection.batch,
        sequence=inspection.sequence,
        total_ms=inspection.profile.split.total_ms,
        products=len(inspection.products),
        integer_products=inspection.matched - len(inspection.fallbacks),
        sentences=inspection.answers,
        parts=tuple(
            Executed(
                layer=layer,
                part=part,
                ms=time_of(group),
                integer=time_of(o for o in group if o.integer) / (time_of(group) or 1.0),
                types=_counted(group),
                why="; ".join(dict.fromkeys(why.get((layer, part), ()))),
            )
            for (layer, part), group in places.items()
        ),
        types=tuple(
            sorted(
                (
                    OperatorType(
                        type=name,
                        precision=precision,
                        count=len(group),
                        ms=time_of(group),
                        integer=integer,
                    )
                    for (name, precision, integer), group in types.items()
                ),
                key=lambda operator_type: -operator_type.ms,
            )
        ),
    )


def _counted(operators: Iterable[Operator]) -> tuple[str, ...]:
    """`2 × MatMulIntegerToFloat int8`, `Softmax`."""
    names = Counter(
        f"{operator.type} {operator.precision}" if operator.kind == "product" else operator.type
        for operator in operators
    )
    return tuple(f"{count} × {name}" if count > 1 else name for name, count in names.items())
