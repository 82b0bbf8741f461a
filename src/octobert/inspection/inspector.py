"""Inspect a compiled model, together with its float model where there is one. Does not need torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octobert import targets
from octobert.core import environment
from octobert.core.errors import ModelError, TargetError
from octobert.core.measurements import Latency
from octobert.core.profile import Fallback, Inspection, Operator, Product, Profile
from octobert.core.session import SessionEntries, SessionOptions
from octobert.evaluation import candidates, latency
from octobert.inference.opened import Opened
from octobert.inspection import answers, profilers
from octobert.targets import runtimes

# Runs before the profiled ones: runtimes pack weights and choose kernels in them.
WARMUP = 2
# Token ids stay below this where the vocabulary is not known.
_FEW_IDS = 100
_DEFAULT_TOKENS = 128


def inspect(
    model: Opened,
    *,
    batch: int = 1,
    sequence: int | None = None,
    threads: int = 0,
    repeats: int = 20,
    on_progress: Callable[[str, int, int], None] | None = None,
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
    target = targets.load(model.target)
    profiler = _profiler(model)
    if model.longest is not None and sequence is not None and sequence > model.longest:
        expected = f"at most {model.longest}"
        raise ModelError(
            "the sequence is longer than the model allows", where="--sequence", got=str(sequence), expected=expected
        )
    tokens = sequence or min(_DEFAULT_TOKENS, model.longest or _DEFAULT_TOKENS)
    # The profilers run the file itself, without the session that pads to its fixed axes.
    batch, tokens = (fixed if fixed > 0 else asked for fixed, asked in zip(model.shape, (batch, tokens), strict=True))
    workload = latency.random_workload(batch, tokens, model.vocabulary or _FEW_IDS, seed=0)
    family = model.manifest.model.family if model.manifest is not None else None

    def profile(path: Path, entries: SessionEntries) -> Profile:
        options = SessionOptions(threads=threads, entries=entries)
        return profiler.profile(path, workload.rounds[0], options, warmup=WARMUP, runs=repeats, family=family)

    ours = profile(model.file, model.entries_on())
    theirs = profile(model.floating.path, model.entries) if model.floating else None
    here = environment.current()
    products = profiler.products(model.file)
    matched, fallbacks = fallen_back(products, ours.operators, lambda product: profiler.why(product, frozenset(here.features)))
    latencies, used = _timed(model, workload, threads, repeats, on_progress)
    inspection = Inspection(
        model=str(model.file),
        target=model.target,
        runtime=target.CAPABILITIES.runtime,
        version=target.probe().version or "unknown",
        batch=batch,
        sequence=tokens,
        threads=used,
        environment=here,
        profile=ours,
        floating=theirs,
        products=products,
        matched=matched,
        fallbacks=fallbacks,
        latencies=latencies,
    )
    return inspection.model_copy(
        update={"answers": answers.answers(inspection, fast_with=target.CAPABILITIES.saturates_without)}
    )


def _profiler(model: Opened) -> profilers.Profiler:
    """The profiler of a target's runtime."""
    model.check_runs()
    runtime = targets.load(model.target).CAPABILITIES.runtime
    # Kernels of other devices end after their operators, so their times would be missing.
    profiled = [name for name in profilers.names() if model.target == runtimes.load(name).CPU_TARGET]
    if not profiled:
        expected = " or ".join(runtimes.load(name).CPU_TARGET for name in profilers.names())
        problem = f"operators of the target {model.target} cannot be timed"
        raise TargetError(problem, where=str(model.path), expected=expected, fix="inspect the model with such a target")
    return profilers.load(runtime)


def fallen_back(
    products: tuple[Product, ...], operators: tuple[Operator, ...], why: Callable[[Product], str | None]
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
        operator = next((by_name[name] for name in (product.name, *product.readers) if name in by_name), None)
        if operator is not None:
            matched += 1
            if operator.precision not in ("int8", "mixed"):
                fallbacks.append(Fallback(name=product.name, operator=operator.type, why=why(product)))
    return matched, tuple(fallbacks)


def _timed(
    model: Opened, workload: latency.Workload, threads: int, repeats: int, on_progress: Callable[[str, int, int], None] | None
) -> tuple[tuple[Latency, ...], int]:
    """Time the model and its float model on the target's own sessions: (latencies, threads of one inference)."""
    floating = candidates.float_of(model, candidates.baseline_of(model.target).name)
    compared = [candidates.candidate_of(model), *([floating] if floating is not None else [])]
    timed = latency.measure(compared, [workload], repeats=repeats, threads=threads, on_progress=on_progress)
    return timed.latencies, timed.footprints[0].threads
