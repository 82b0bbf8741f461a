"""A recipe becomes steps; steps become artifacts; artifacts become the output directory.

    data ─┐
          ├─ observe ─ calibrate ─ quantize/T ─ export/T ─┬─ evaluate/C ─┬─ report ─ package/T
    capture ──────────────────────────────────────────────┴─ benchmark ──┘

T runs over targets, C over candidates (baselines and targets). Each step has a key; a step whose artifact is in the store is
reused, so running again is how a run resumes. A failure ends the run and is written to `events.jsonl`, never to the store.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from octobert import candidates, environment, plugins
from octobert.artifact import Artifact, Store, canonical_digest, digests_of, link_or_copy, locked, storage_errors
from octobert.errors import OctobertError, TargetError
from octobert.executors import local
from octobert.graph import checkpoint
from octobert.recipe import Recipe, as_yaml, options_of

HIDDEN = ".octobert"
# Stages whose result depends on the CPU and the runtimes, not only on their inputs.
_DEVICE_BOUND = ("evaluate", "benchmark")


@dataclass(frozen=True)
class Step:
    """One stage with what it is given.

    Args:
        name: unique in the run, `export/ort-cpu`.
        stage: module in `stages`.
        inputs: name inside the stage → name of the step that makes it.
        options: part of the key.
        locations: not part of the key.
    """

    name: str
    stage: str
    inputs: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    locations: dict[str, str] = field(default_factory=dict)


class Listener(Protocol):
    """Told what a run does; the command line draws it."""

    def started(self, step: Step) -> None: ...
    def progressed(self, step: Step, what: str, done: int, total: int) -> None: ...
    def finished(self, step: Step, artifact: Artifact, reused: bool) -> None: ...


class Silent:
    """A listener that says nothing."""

    def started(self, step: Step) -> None: ...
    def progressed(self, step: Step, what: str, done: int, total: int) -> None: ...
    def finished(self, step: Step, artifact: Artifact, reused: bool) -> None: ...


@dataclass(frozen=True)
class Verdict:
    """Whether a step would be reused or run, and why."""

    step: str
    action: str
    reason: str


def steps_of(recipe: Recipe) -> list[Step]:
    """The steps of a recipe, in order.

    Raises:
        OctobertError: the model or the data cannot be found, or a target is not installed.
    """
    source = checkpoint.locate(recipe.model, revision=recipe.revision, allow_pickle=recipe.allow_pickle)
    labels = _labels(source)
    _check_targets(recipe)
    if source.is_dir():
        checkpoint.encoder_of(checkpoint.read_config(source), where=str(source / "config.json"))
        checkpoint.weight_files(source, allow_pickle=recipe.allow_pickle)
    task_module = plugins.load("tasks", recipe.task.name)
    task = task_module.build(options_of(recipe.task, "tasks"), labels)
    absent = {b: candidates.why_not(b, is_checkpoint=source.is_dir()) for b in _baselines(recipe)}
    named = [b for b, why in absent.items() if why is None] + list(recipe.targets)
    model_digest = checkpoint.digest(source)
    data = json.loads(recipe.data.model_dump_json(by_alias=True))
    places = {k: data.pop(k) for k in ("source", "train", "validation", "test")}
    paths = {k: v for k, v in places.items() if v is not None}
    method = plugins.load("methods", recipe.quantize.name)
    targets = [plugins.load("targets", name).CAPABILITIES for name in recipe.targets]
    roles = method.observed_roles(options_of(recipe.quantize, "methods"), targets)
    common = {"task": recipe.task.model_dump(), "labels": list(labels), "seed": recipe.seed}
    machine = {"machine": canonical_digest(json.loads(environment.current().model_dump_json()))}
    model = {"model": str(source)}
    steps = [
        Step("data", "data", options={**common, "data": data, "content": _content(paths)}, locations=paths),
        Step(
            "capture",
            "capture",
            options={"head": task.head, "model_digest": model_digest, "allow_pickle": recipe.allow_pickle},
            locations=model,
        ),
        Step(
            "observe",
            "observe",
            {"capture": "capture", "data": "data"},
            {"roles": list(roles), "max_length": task.max_length},
        ),
        Step(
            "calibrate",
            "calibrate",
            {"observe": "observe"},
            {
                "calibrator": recipe.calibrate.model_dump(),
                "model_digest": model_digest,
                "source": recipe.data.calibrate.from_,
                "allow_leakage": recipe.data.allow_leakage,
            },
        ),
    ]
    exports = {f"export/{t}": f"export/{t}" for t in recipe.targets}
    for target in recipe.targets:
        given = {"method": recipe.quantize.model_dump(), "target": target}
        steps.append(Step(f"quantize/{target}", "quantize", {"capture": "capture", "calibrate": "calibrate"}, given))
        steps.append(Step(f"export/{target}", "export", {"quantize": f"quantize/{target}"}, {"target": target}))
    for name in named:
        inputs = {"capture": "capture", "data": "data"}
        if name in recipe.targets:
            inputs[f"export/{name}"] = f"export/{name}"
        steps.append(Step(f"evaluate/{name}", "evaluate", inputs, {**common, **machine, "candidate": name}, model))
    benchmark = {"benchmark": recipe.benchmark.model_dump(), "candidates": named}
    inputs = {"capture": "capture", "data": "data", **exports}
    steps.append(Step("benchmark", "benchmark", inputs, {**common, **machine, **benchmark}, model))
    inputs = {s.name: s.name for s in steps if s.stage in ("evaluate", "benchmark", "capture", "data", "calibrate", "quantize")}
    gathered = {
        **common,
        "recipe": json.loads(recipe.model_dump_json(by_alias=True)),
        "candidates": named,
        "targets": list(recipe.targets),
        "model_digest": model_digest,
        "absent": {b: why for b, why in absent.items() if why is not None},
    }
    steps.append(Step("report", "report", inputs, gathered))
    for target in recipe.targets:
        inputs = {"capture": "capture", "calibrate": "calibrate", "export": f"export/{target}", "report": "report"}
        steps.append(Step(f"package/{target}", "package", inputs, {**common, "target": target}))
    return steps


def dry_run(recipe: Recipe, out: Path) -> list[Verdict]:
    """What a run would reuse and what it would do, without doing it."""
    store = Store(out / HIDDEN / "store")
    known: dict[str, Artifact | None] = {}
    verdicts = []
    for step in steps_of(recipe):
        waiting = [name for name in step.inputs.values() if known.get(name) is None]
        if waiting:
            known[step.name] = None
            verdicts.append(Verdict(step.name, "run", f"{waiting[0]} has to run first"))
            continue
        artifact = store.find(step.stage, key_of(_completed(step, known), known))
        known[step.name] = artifact
        reason = f"stored as {store.path(step.stage, artifact.key).name}" if artifact else "not in the store"
        verdicts.append(Verdict(step.name, "reuse" if artifact else "run", reason))
    return verdicts


def run(recipe: Recipe, out: Path, listener: Listener | None = None) -> dict[str, Any]:
    """Carry out a recipe; the report as plain data.

    Args:
        out: the output directory: report, one package a target, and the store.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    listener = listener or Silent()
    steps = steps_of(recipe)
    with locked(out / HIDDEN):
        store = Store(out / HIDDEN / "store")
        events = _Events(out / HIDDEN / "events.jsonl")
        interrupted = store.sweep()
        events.write("run", recipe=as_yaml(recipe), interrupted=interrupted)
        made: dict[str, Artifact | None] = {}
        try:
            for step in steps:
                made[step.name] = _carry_out(_completed(step, made), made, store, events, listener)
            folders = {name: store.path(a.stage, a.key) for name, a in made.items() if a is not None}
            report = json.loads((folders["report"] / "report.json").read_text(encoding="utf-8"))
            with storage_errors(out):
                _publish(recipe, out, folders, report)
        except OctobertError as error:
            events.write("failure", error=error.to_json(), traceback=getattr(error, "traceback", traceback.format_exc()))
            raise
        events.write("done")
    return report


def key_of(step: Step, made: dict[str, Artifact | None]) -> str:
    """The key of a step whose inputs are all made."""
    version = importlib.import_module(f"octobert.stages.{step.stage}").VERSION
    inputs = {name: made[source].digest for name, source in step.inputs.items()}  # type: ignore[union-attr]
    return canonical_digest({"stage": step.stage, "version": version, "options": step.options, "inputs": inputs})


def _completed(step: Step, made: dict[str, Artifact | None]) -> Step:
    """The report also shows how every step before it went; that is known only when they are done."""
    if step.stage != "report":
        return step
    stages = {
        name: {"summary": a.summary, "seconds": a.seconds, "peak_memory_bytes": a.peak_memory_bytes, "key": a.key}
        for name, a in made.items()
        if a is not None
    }
    data = made["data"]
    summary = data.summary if data is not None else {}
    return Step(step.name, step.stage, step.inputs, {**step.options, "stages": stages, "data_summary": summary}, step.locations)


def _carry_out(step: Step, made: dict[str, Artifact | None], store: Store, events: _Events, listener: Listener) -> Artifact:
    key = key_of(step, made)
    stored = store.find(step.stage, key)
    if stored is not None:
        events.write("reused", step=step.name, key=key)
        listener.finished(step, stored, True)
        return stored
    listener.started(step)
    events.write("started", step=step.name, key=key)
    work = store.begin(step.stage, key)
    try:
        with storage_errors(work):
            inputs = {n: str(store.path(made[s].stage, made[s].key)) for n, s in step.inputs.items()}  # type: ignore[union-attr]
            request = {"stage": step.stage, "inputs": inputs, "options": step.options, "locations": step.locations}
            response = local.run(request, work, lambda what, done, total: listener.progressed(step, what, done, total))
        artifact = Artifact(
            stage=step.stage,
            key=key,
            files=digests_of(work),
            inputs={n: made[s].digest for n, s in step.inputs.items()},  # type: ignore[union-attr]
            options=step.options,
            versions=environment.versions(environment.PACKAGES),
            **response,
        )
        store.commit(work, artifact)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    events.write("finished", step=step.name, key=key, summary=artifact.summary, seconds=round(artifact.seconds, 3))
    listener.finished(step, artifact, False)
    return artifact


class _Events:
    """`events.jsonl`: one JSON object a line, appended."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, event: str, **details: Any) -> None:
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **details}
        with storage_errors(self._path), self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def _publish(recipe: Recipe, out: Path, folders: dict[str, Path], report: dict[str, Any]) -> None:
    """Put the packages and the report where the user looks, each at once and whole."""
    from octobert.report import html

    hidden = out / HIDDEN
    for target in recipe.targets:
        fresh, old = hidden / f"publish-{target}", hidden / f"replaced-{target}"
        for folder in (fresh, old):
            shutil.rmtree(folder, ignore_errors=True)
        package = folders[f"package/{target}"]
        for file in sorted(p for p in package.rglob("*") if p.is_file() and p.name != "artifact.json"):
            link_or_copy(file, fresh / file.relative_to(package))
        if (out / target).exists():
            (out / target).rename(old)
        fresh.rename(out / target)
        shutil.rmtree(old, ignore_errors=True)
    for name, text in (("report.json", json.dumps(report, indent=1, ensure_ascii=False)), ("report.html", html.page(report))):
        partial = hidden / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.rename(out / name)


def _labels(source: Path) -> tuple[str, ...]:
    """Class names as the checkpoint states them; generic ones (LABEL_0) count as none stated beyond their number."""
    folder = source.parent if source.suffix == ".onnx" else source
    if source.suffix == ".onnx" and not (folder / "config.json").is_file():
        return ()
    names = checkpoint.read_config(folder).get("id2label") or {}
    return tuple(str(names[k]) for k in sorted(names, key=int))


def _check_targets(recipe: Recipe) -> None:
    for name in recipe.targets:
        probe = plugins.load("targets", name).probe()
        if not probe.available:
            fix = probe.install or "choose another target (octobert targets)"
            raise TargetError(f"the target {name} cannot run here", where="targets", got=probe.missing, fix=fix)


def _baselines(recipe: Recipe) -> list[str]:
    """What the recipe asks for, and the float model of every target's own runtime, without which nothing can be compared."""
    needed = {candidates.float_baseline(t) for t in recipe.targets} | {"ort-f32"}
    return [b for b in candidates.BASELINES if b in needed or b in recipe.baselines]


def _content(paths: dict[str, str]) -> dict[str, str]:
    """Digest of each local source; a hub id stands for itself, with its revision."""
    found = {}
    for name, value in paths.items():
        path = Path(value)
        files = [path] if path.is_file() else sorted(p for p in path.glob("*") if p.is_file()) if path.is_dir() else []
        total = hashlib.sha256()
        for file in files:
            total.update(file.name.encode() + file.read_bytes())
        found[name] = total.hexdigest() if files else value
    return found
