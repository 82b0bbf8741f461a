"""Inspect a compiled model: a package together with its float model, or a single file. Does not need torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octobert import targets
from octobert.core import environment
from octobert.core.errors import ModelError, TargetError, did_you_mean
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Latency
from octobert.core.model_config import read_config
from octobert.core.profile import Fallback, Inspection, Operator, Product, Profile
from octobert.core.session import SessionEntries, SessionOptions
from octobert.data.tokenization import longest
from octobert.evaluation import candidates, latency
from octobert.evaluation.candidates import Candidate
from octobert.inference.package_files import read_manifest
from octobert.inspection import answers, profilers
from octobert.targets import runtimes

# Runs before the profiled ones: runtimes pack weights and choose kernels in them.
WARMUP = 2
# Token ids stay below this where the vocabulary is not known.
_FEW_IDS = 100
_DEFAULT_TOKENS = 128


class Opened(FrozenModel):
    """A model to inspect.

    Args:
        path: the file that the target opens.
        target: plugin name.
        floating: the file of the float model, if there is one.
        family: plugin name of the encoder family, if it is known.
        head: of the model.
        vocabulary: token ids are below it.
        longest: the model's limit in tokens, if it is known.
        entries: what its recipe sets for sessions.
    """

    path: str
    target: str
    floating: str | None = None
    family: str | None = None
    head: str = ""
    vocabulary: int = _FEW_IDS
    longest: int | None = None
    entries: SessionEntries = SessionEntries()


def opened(path: Path, target: str | None = None) -> Opened:
    """Return the model at a path.

    Args:
        path: a package, or an `.onnx` or `.xml` file.
        target: the target that opens a file. A package has its own.

    Raises:
        ModelError: the path is not a package and not a model file.
        TargetError: the target does not exist, is not the package's own, or does not open such files.
    """
    if target is not None and target not in targets.names():
        raise TargetError(f'there is no target "{target}"', where="--target", fix=did_you_mean(target, targets.names()))
    if path.suffix in (".onnx", ".xml") and not path.is_dir():
        return _file(path, target)
    manifest = read_manifest(path)
    if target not in (None, manifest.target):
        fix = f"omit --target, or name the file in it: {path / 'onnx' / 'model_quantized.onnx'}"
        raise TargetError(
            "the package was made for another target", where=str(path), got=str(target), expected=manifest.target, fix=fix
        )
    floating = path / "onnx" / "model.onnx"
    return Opened(
        path=str(targets.load(manifest.target).model_file(path)),
        target=manifest.target,
        floating=str(floating) if floating.is_file() else None,
        family=manifest.model.family,
        head=manifest.task.head,
        vocabulary=read_config(path).get("vocab_size") or _FEW_IDS,
        longest=longest(path),
        entries=manifest.session,
    )


def _file(path: Path, target: str | None) -> Opened:
    if not path.is_file():
        raise ModelError("there is no such file", where=str(path), fix="check the path")
    if target is None:
        fix = f"add --target, one of: {', '.join(targets.names())}"
        raise TargetError("a file does not name its target", where=str(path), fix=fix)
    accepted = runtimes.load(targets.load(target).CAPABILITIES.runtime).SUFFIXES
    if path.suffix not in accepted:
        expected = " or ".join(accepted)
        raise TargetError(f"the target {target} does not open such files", where=str(path), got=path.suffix, expected=expected)
    return Opened(path=str(path), target=target)


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
        model: from `opened`.
        batch: rows.
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
    workload = latency.random_workload(batch, tokens, model.vocabulary, seed=0)

    def profile(path: str) -> Profile:
        options = SessionOptions(threads=threads, entries=model.entries)
        return profiler.profile(Path(path), workload.rounds[0], options, warmup=WARMUP, runs=repeats, family=model.family)

    ours = profile(model.path)
    theirs = profile(model.floating) if model.floating else None
    here = environment.current()
    products = profiler.products(Path(model.path))
    matched, fallbacks = fallen_back(products, ours.operators, lambda product: profiler.why(product, frozenset(here.features)))
    latencies, used = _timed(model, workload, threads, repeats, on_progress)
    inspection = Inspection(
        model=model.path,
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
    target = targets.load(model.target)
    probe = target.probe()
    if not probe.available:
        raise TargetError(f"the target {model.target} cannot run here", where=model.path, got=probe.missing, fix=probe.install)
    runtime = target.CAPABILITIES.runtime
    # Kernels of other devices end after their operators, so their times would be missing.
    profiled = [name for name in profilers.names() if model.target == runtimes.load(name).CPU_TARGET]
    if not profiled:
        expected = " or ".join(runtimes.load(name).CPU_TARGET for name in profilers.names())
        problem = f"operators of the target {model.target} cannot be timed"
        raise TargetError(problem, where=model.path, expected=expected, fix="inspect the model with such a target")
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
    compared = [Candidate(name=model.target, path=model.path, head=model.head, entries=model.entries)]
    if model.floating:
        name = candidates.baseline_of(model.target).name
        compared.append(Candidate(name=name, path=model.floating, head=model.head, entries=model.entries))
    timed = latency.measure(compared, [workload], repeats=repeats, threads=threads, on_progress=on_progress)
    return timed.latencies, timed.footprints[0].threads
