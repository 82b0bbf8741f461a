"""A recipe becomes steps; steps become artifacts; artifacts become the output directory.

    data ─┐
          ├─ observe ─ calibrate ─ quantize/T ─ export/T ─┬─ evaluate/C ─┬─ report ─ package/T
    capture ──────────────────────────────────────────────┴─ benchmark ──┘

T runs over targets, C over candidates (baselines and targets). Each step has a key; a step whose artifact is in the store is
reused, so running again is how a run resumes. A failure ends the run and is written to `events.jsonl`, never to the store.
"""

from __future__ import annotations

import importlib
import json
import shutil
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from octobert import candidates, data, environment, plugins
from octobert.artifact import MANIFEST, Artifact, Store, canonical_digest, digests_of, link_or_copy, locked, storage_errors
from octobert.errors import OctobertError, StorageError, TargetError
from octobert.executors import local
from octobert.graph import checkpoint
from octobert.recipe import Benchmark, Recipe, as_yaml, options_of
from octobert.results import CARD, Report
from octobert.task import Task, build
from octobert.texts import check_length, longest
from octobert.timing import check_lengths, within

HIDDEN = ".octobert"


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
    """The steps of a recipe, in order; whatever can be known to be wrong without running anything is refused here.

    Raises:
        OctobertError: the model or the data cannot be found, a target is not installed, or a length is beyond the model.
    """
    source = checkpoint.locate(recipe.model, revision=recipe.revision, allow_pickle=recipe.allow_pickle)
    folder = checkpoint.side_folder(source)
    labels = _labels(folder)
    task = build(recipe.task.name, recipe.task.options, labels)
    benchmark = within(recipe.benchmark, longest(folder))
    _check(recipe, source, task, benchmark)
    places = data.places(recipe.data)
    absent = {b: candidates.why_not(b, is_checkpoint=source.is_dir()) for b in _baselines(recipe)}
    named = [b for b, why in absent.items() if why is None] + list(recipe.targets)
    facts = _Facts(
        recipe=recipe,
        model=str(source),
        model_digest=checkpoint.digest(source),
        task={"task": recipe.task.model_dump(), "labels": list(labels), "seed": recipe.seed},
        head=task.head,
        max_length=task.max_length,
        benchmark=benchmark,
        candidates=named,
        absent={b: why for b, why in absent.items() if why is not None},
    )
    return [_data_step(facts, places), *_model_steps(facts, places.how), *_measure_steps(facts), *_result_steps(facts)]


@dataclass(frozen=True)
class _Facts:
    """What the steps of one recipe have in common."""

    recipe: Recipe
    model: str
    model_digest: str
    task: dict[str, Any]
    head: str
    max_length: int | None
    benchmark: Benchmark
    candidates: list[str]
    absent: dict[str, str]


def _data_step(facts: _Facts, places: data.Places) -> Step:
    settings = facts.recipe.data
    options = {
        **facts.task,
        "content": places.content(settings.revision),
        "alone": places.alone,
        "how": places.how,
        "hub": places.hub,
        "config": settings.config,
        "revision": settings.revision,
        "columns": list(settings.columns),
        "calibrate": {**settings.calibrate.model_dump(by_alias=True), "from": ""},
        "evaluate": {**settings.evaluate.model_dump(by_alias=True), "from": ""},
        "allow_leakage": settings.allow_leakage,
    }
    return Step("data", "data", {}, options, {"calibrate": places.calibrate, "evaluate": places.evaluate})


def _model_steps(facts: _Facts, how: str) -> list[Step]:
    """Capture, observation, calibration; then a quantized model for every target."""
    recipe = facts.recipe
    method = plugins.load("methods", recipe.quantize.name)
    targets = [plugins.load("targets", name).CAPABILITIES for name in recipe.targets]
    roles = method.observed_roles(options_of(recipe.quantize, "methods"), targets)
    captured = {"head": facts.head, "model_digest": facts.model_digest, "allow_pickle": recipe.allow_pickle}
    ranged = {
        "calibrator": recipe.calibrate.model_dump(),
        "model_digest": facts.model_digest,
        "source": how,
        "allow_leakage": recipe.data.allow_leakage,
    }
    observed = {"roles": list(roles), "max_length": facts.max_length}
    steps = [
        Step("capture", "capture", {}, captured, {"model": facts.model}),
        Step("observe", "observe", {"capture": "capture", "data": "data"}, observed),
        Step("calibrate", "calibrate", {"observe": "observe"}, ranged),
    ]
    for target in recipe.targets:
        given = {"method": recipe.quantize.model_dump(), "target": target}
        steps.append(Step(f"quantize/{target}", "quantize", {"capture": "capture", "calibrate": "calibrate"}, given))
        steps.append(Step(f"export/{target}", "export", {"quantize": f"quantize/{target}"}, {"target": target}))
    return steps


def _measure_steps(facts: _Facts) -> list[Step]:
    """Evaluation of every candidate, and one benchmark of all."""
    # Figures belong to a machine and its runtimes; on another one they are measured again.
    machine = canonical_digest(environment.current().model_dump(mode="json"))
    common = {**facts.task, "machine": machine, "allow_pickle": facts.recipe.allow_pickle}
    place, steps = {"model": facts.model}, []
    for name in facts.candidates:
        inputs = {"capture": "capture", "data": "data"}
        if name in facts.recipe.targets:
            inputs[f"export/{name}"] = f"export/{name}"
        steps.append(Step(f"evaluate/{name}", "evaluate", inputs, {**common, "candidate": name}, place))
    inputs = {"capture": "capture", "data": "data", **{f"export/{t}": f"export/{t}" for t in facts.recipe.targets}}
    options = {**common, "benchmark": facts.benchmark.model_dump(), "candidates": facts.candidates}
    return [*steps, Step("benchmark", "benchmark", inputs, options, place)]


def _result_steps(facts: _Facts) -> list[Step]:
    """The report of all, and a package for every target."""
    targets = facts.recipe.targets
    names = ["capture", "data", "calibrate", "benchmark"]
    names += [f"quantize/{t}" for t in targets] + [f"evaluate/{c}" for c in facts.candidates]
    gathered = {
        **facts.task,
        "recipe": facts.recipe.model_dump(mode="json", by_alias=True),
        "candidates": facts.candidates,
        "targets": list(targets),
        "model_digest": facts.model_digest,
        "absent": facts.absent,
    }
    steps = [Step("report", "report", {name: name for name in names}, gathered)]
    for target in targets:
        inputs = {"capture": "capture", "calibrate": "calibrate", "export": f"export/{target}", "report": "report"}
        steps.append(Step(f"package/{target}", "package", inputs, {"target": target}))
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


def run(recipe: Recipe, out: Path, listener: Listener | None = None) -> Report:
    """Carry out a recipe.

    Args:
        out: the output directory: report, one package a target, and the store.

    Raises:
        OctobertError: whatever went wrong; the same command resumes once it is mended.
    """
    listener = listener or Silent()
    steps = steps_of(recipe)
    _check_output(recipe, out)
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
            report = Report.model_validate_json((folders["report"] / "report.json").read_text(encoding="utf-8"))
            with storage_errors(out):
                _publish(recipe, out, folders, report)
        except Exception as error:
            details = (
                error.to_json() if isinstance(error, OctobertError) else {"type": type(error).__name__, "what": str(error)}
            )
            events.write("failure", error=details, traceback=getattr(error, "traceback", traceback.format_exc()))
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
    rows = made["data"]
    summary = rows.summary if rows is not None else {}
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


def _publish(recipe: Recipe, out: Path, folders: dict[str, Path], report: Report) -> None:
    """Put the packages and the report where the user looks, each at once and whole.

    Everything that can fail is made first, in the hidden folder; what follows are renames.
    """
    from octobert.report import html

    hidden = out / HIDDEN
    pages = {"report.json": report.model_dump_json(indent=1), "report.html": html.page(report)}
    for name, text in pages.items():
        (hidden / f"{name}.partial").write_text(text, encoding="utf-8")
    for target in recipe.targets:
        shutil.rmtree(hidden / f"publish-{target}", ignore_errors=True)
        package = folders[f"package/{target}"]
        for file in sorted(p for p in package.rglob("*") if p.is_file() and p.name != MANIFEST):
            link_or_copy(file, hidden / f"publish-{target}" / file.relative_to(package))
    for target in recipe.targets:
        old = hidden / f"replaced-{target}"
        shutil.rmtree(old, ignore_errors=True)
        if (out / target).exists():
            (out / target).rename(old)
        (hidden / f"publish-{target}").rename(out / target)
        shutil.rmtree(old, ignore_errors=True)
    for name in pages:
        (hidden / f"{name}.partial").rename(out / name)


def _check_output(recipe: Recipe, out: Path) -> None:
    """Refuse an output directory that is something else."""
    if out.exists() and not out.is_dir():
        raise StorageError("the output directory is a file", where=str(out), fix="choose another --out")
    for target in recipe.targets:
        foreign = (out / target).exists() and not (out / target / CARD).is_file()
        if foreign:
            raise StorageError(
                "something that is not octobert's lies where a package will be written",
                where=str(out / target),
                fix="move it away, or choose another --out",
            )


def _check(recipe: Recipe, source: Path, task: Task, benchmark: Benchmark) -> None:
    """Everything about the model and the targets that can be refused before anything runs."""
    folder = checkpoint.side_folder(source)
    for name in recipe.targets:
        probe = plugins.load("targets", name).probe()
        if not probe.available:
            fix = probe.install or "choose another target (octobert targets)"
            raise TargetError(f"the target {name} cannot run here", where="targets", got=probe.missing, fix=fix)
    if source.is_dir():
        checkpoint.encoder_of(checkpoint.read_config(source), where=str(source / "config.json"))
        checkpoint.weight_files(source, allow_pickle=recipe.allow_pickle)
        checkpoint.check_head(source, task.head)
    check_length(task.max_length, folder)
    check_lengths(benchmark, longest(folder))


def _labels(folder: Path) -> tuple[str, ...]:
    """Class names as the model's config states them; none where it states none."""
    if not (folder / "config.json").is_file():
        return ()
    names = checkpoint.read_config(folder).get("id2label") or {}
    return tuple(str(names[k]) for k in sorted(names, key=int))


def _baselines(recipe: Recipe) -> list[str]:
    """What the recipe asks for, and the float model of every target's own runtime, without which nothing can be compared."""
    needed = {candidates.float_baseline(t) for t in recipe.targets} | {"ort-f32"}
    return [b for b in candidates.BASELINES if b in needed or b in recipe.baselines]
