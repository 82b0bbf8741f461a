"""Look into a compiled model: a packaged directory beside its float model, or a file alone. Needs no torch."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from octobert.core import environment, plugins
from octobert.core.errors import ModelError, TargetError, did_you_mean
from octobert.core.frozen import FrozenModel
from octobert.core.measurements import Latency
from octobert.core.profile import Fallback, Inspection, Operator, Product, Profile
from octobert.data.tokenization import longest
from octobert.evaluation import candidates, latency
from octobert.evaluation.candidates import Candidate
from octobert.inference.predictor import read_manifest
from octobert.inspection import answers

# Runs that are not profiled, because runtimes pack weights and choose kernels in them.
WARMUP = 2
# Token ids of models that nothing is known of stay below this.
_FEW_IDS = 100
_DEFAULT_TOKENS = 128
_SUFFIXES = {"ort": (".onnx",), "openvino": (".xml", ".onnx")}


class Opened(FrozenModel):
    """What is looked into.

    Args:
        path: the file that the target opens.
        target: plugin name.
        floating: the float model's file, where there is one.
        family: plugin name of its family, where it is known.
        head: of the model.
        vocabulary: ids are below it.
        longest: the most tokens it takes, where that is known.
    """

    path: str
    target: str
    floating: str | None = None
    family: str | None = None
    head: str = ""
    vocabulary: int = _FEW_IDS
    longest: int | None = None


def opened(path: Path, target: str | None = None) -> Opened:
    """Find out what lies at a path.

    Args:
        path: a packaged directory, or an `.onnx` or `.xml` file.
        target: which runtime to open a file with; a directory has its own.

    Raises:
        ModelError: it is neither.
        TargetError: unknown, not the directory's own, or it does not open such a file.
    """
    if target is not None and target not in plugins.names("targets"):
        raise TargetError(
            f'there is no target "{target}"', where="--target", fix=did_you_mean(target, plugins.names("targets"))
        )
    if path.suffix in (".onnx", ".xml") and not path.is_dir():
        return _file(path, target)
    manifest = read_manifest(path)
    if target not in (None, manifest.target):
        fix = f"leave --target out, or give the file inside it: {path / 'onnx' / 'model_quantized.onnx'}"
        raise TargetError(
            "the directory was made for another target", where=str(path), got=str(target), expected=manifest.target, fix=fix
        )
    floating = path / "onnx" / "model.onnx"
    return Opened(
        path=str(plugins.load("targets", manifest.target).model_file(path)),
        target=manifest.target,
        floating=str(floating) if floating.is_file() else None,
        family=manifest.model.family,
        head=manifest.task.head,
        vocabulary=json.loads((path / "config.json").read_text(encoding="utf-8")).get("vocab_size", _FEW_IDS),
        longest=longest(path),
    )


def _file(path: Path, target: str | None) -> Opened:
    if not path.is_file():
        raise ModelError("there is no such file", where=str(path), fix="check the path")
    if target is None:
        fix = f"add --target, one of: {', '.join(plugins.names('targets'))}"
        raise TargetError("a file does not say which runtime it is for", where=str(path), fix=fix)
    accepted = _SUFFIXES.get(plugins.load("targets", target).CAPABILITIES.runtime, ())
    if accepted and path.suffix not in accepted:
        raise TargetError(
            f"the target {target} does not open such a file", where=str(path), got=path.suffix, expected=" or ".join(accepted)
        )
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
    """Compile a model, run it under its runtime's profiler, and say why it is as fast as it is.

    Args:
        sequence: tokens of a row; by default 128, or the model's limit.
        threads: of one inference; 0 lets the runtime choose.
        repeats: profiled runs, and rounds of the interleaved timing.

    Raises:
        TargetError: the target cannot run here, or is not one that can be looked into.
        ModelError: the model does not take such rows.
    """
    target = plugins.load("targets", model.target)
    runtime = _runtime(model)
    if model.longest is not None and sequence is not None and sequence > model.longest:
        expected = f"at most {model.longest}"
        raise ModelError(
            "the sequence is longer than the model allows", where="--sequence", got=str(sequence), expected=expected
        )
    tokens = sequence or min(_DEFAULT_TOKENS, model.longest or _DEFAULT_TOKENS)
    shape = latency.random_workload(batch, tokens, model.vocabulary, seed=0)

    def profile(path: str) -> Profile:
        feeds = shape.rounds[0]
        return runtime.profile(Path(path), feeds, threads=threads, warmup=WARMUP, runs=repeats, family=model.family)

    ours = profile(model.path)
    theirs = profile(model.floating) if model.floating else None
    here = environment.current()
    products = runtime.products(Path(model.path))
    matched, fallbacks = fallen_back(products, ours.operators, lambda one: runtime.why(one, frozenset(here.features)))
    latencies, used = _timed(model, shape, threads, repeats, on_progress)
    found = Inspection(
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
    return found.model_copy(update={"answers": answers.answers(found, fast_with=target.CAPABILITIES.saturates_without)})


def _runtime(model: Opened) -> ModuleType:
    """The module that looks into a target's runtime."""
    target = plugins.load("targets", model.target)
    probe = target.probe()
    if not probe.available:
        raise TargetError(f"the target {model.target} cannot run here", where=model.path, got=probe.missing, fix=probe.install)
    name = f"octobert.inspection.profilers.{target.CAPABILITIES.runtime}"
    # Kernels of other devices end after their operators, so that a profile would not hold their time.
    if not model.target.endswith("-cpu") or importlib.util.find_spec(name) is None:
        raise TargetError(
            f"operators of the target {model.target} cannot be timed", where=model.path, expected="ort-cpu or openvino-cpu"
        )
    return importlib.import_module(name)


def fallen_back(
    products: tuple[Product, ...], operators: tuple[Operator, ...], why: Callable[[Product], str | None]
) -> tuple[int, tuple[Fallback, ...]]:
    """(how many products were found among the operators, those that were computed in float)."""
    computed = [one for one in operators if one.kind == "product"]
    by_name = {name: one for one in computed for name in one.covers}
    matched, fallbacks = 0, []
    for product in products:
        operator = next((by_name[name] for name in (product.name, *product.readers) if name in by_name), None)
        if operator is not None:
            matched += 1
            if operator.precision not in ("int8", "mixed"):
                fallbacks.append(Fallback(name=product.name, operator=operator.type, why=why(product)))
    return matched, tuple(fallbacks)


def _timed(
    model: Opened, shape: latency.Workload, threads: int, repeats: int, on_progress: Callable[[str, int, int], None] | None
) -> tuple[tuple[Latency, ...], int]:
    """Latencies of the model and of its float model, on the target's own sessions; and the threads they used."""
    both = [Candidate(name=model.target, path=model.path, head=model.head)]
    if model.floating:
        both.append(Candidate(name=candidates.baseline_of(model.target).name, path=model.floating, head=model.head))
    latencies, footprints = latency.measure(both, [shape], repeats=repeats, threads=threads, on_progress=on_progress)
    return tuple(latencies), footprints[0].threads
