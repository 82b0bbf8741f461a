"""Everything that belongs to one target → the directory that predicts, in the layout that other tools know.

config.json  tokenizer.json  octobert.json
onnx/model.onnx             the float graph
onnx/model_quantized.onnx   the quantized graph as written for this target
openvino_model.xml, .bin    for OpenVINO targets
modules.json  1_Pooling/…   for embeddings: the files of sentence-transformers
"""

from __future__ import annotations

from octobert.core import environment
from octobert.core.files import digests_of, link_or_copy
from octobert.core.frozen import FrozenModel
from octobert.core.model_config import SENTENCE_CONFIG
from octobert.core.ranges import Ranges
from octobert.core.results import PACKAGE_FILE, PackageManifest, Report
from octobert.core.session import STATES, SessionEntries
from octobert.data.tokenization import Tokenizer
from octobert.evaluation import candidates
from octobert.models import sentence_transformers
from octobert.pipeline.contract import Context, StepResult, Summary
from octobert.pipeline.executors.local import PRIVATE
from octobert.pipeline.stages import _artifacts, report
from octobert.pipeline.store import manifest_of

_CAPTURED = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", SENTENCE_CONFIG)


class Inputs(FrozenModel):
    """The float graph with its tokenizer, the ranges, the target's files, and the report."""

    capture: StepResult
    ranges: StepResult
    export: StepResult
    report: StepResult


class Options(FrozenModel):
    """The target, what the recipe sets for its sessions, and why the model was chosen, where a search has chosen it."""

    target: str
    entries: SessionEntries
    chosen: str | None = None


def run(context: Context[Inputs, Options]) -> Summary:
    """Package."""
    inputs, target, work = context.inputs, context.options.target, context.work
    for name in _CAPTURED:
        if inputs.capture.path(name).is_file():
            (work / name).write_bytes(inputs.capture.path(name).read_bytes())
    for file in inputs.capture.path("").glob("model.onnx*"):
        link_or_copy(file, work / "onnx" / file.name)
    exported = manifest_of(inputs.export)
    for name in exported.files:
        link_or_copy(inputs.export.path(name), work / name)
    measured = inputs.report.read(report.REPORT, Report)
    pooling = measured.model.pooling
    if pooling is not None and STATES in exported.summary["outputs"]:
        longest = Tokenizer(work, measured.task.options.get("max_length")).max_length
        source, hidden = inputs.capture.path(""), measured.model.sizes.hidden
        sentence_transformers.write(work, source, pooling, hidden=hidden, max_length=longest)
    shown = (target, candidates.baseline_of(target, measured.scores).name)
    files = {name: digest for name, digest in digests_of(work).items() if name not in PRIVATE}
    manifest = PackageManifest(
        octobert=environment.versions(("octobert",)).get("octobert"),
        target=target,
        task=measured.task,
        recipe=measured.recipe,
        model=measured.model,
        model_digest=measured.model_digest,
        plan=measured.plans[target],
        session=context.options.entries.portable(),
        ranges=inputs.ranges.read(_artifacts.RANGES, Ranges),
        sensitivity=measured.sensitivities.get(target),
        search=measured.searches.get(target),
        pruned=measured.pruning.taken if measured.pruning is not None else None,
        scores={name: scores for name, scores in measured.scores.items() if name in shown},
        comparison=next((c for c in measured.comparisons if c.candidate == target), None),
        environment=measured.environment,
        files=files,
        sizes={name: (work / name).stat().st_size for name in files},
        chosen=context.options.chosen,
    )
    context.write(PACKAGE_FILE, manifest)
    return {"target": target, "size_bytes": sum(p.stat().st_size for p in work.rglob("*") if p.is_file())}
