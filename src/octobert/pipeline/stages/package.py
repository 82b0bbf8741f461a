"""Everything that belongs to one target → the directory that predicts, in the layout that other tools know.

config.json  tokenizer.json  octobert.json
onnx/model.onnx             the float graph, unless the recipe leaves it out
onnx/model_quantized.onnx   the quantized graph as written for this target
openvino_model.xml, .bin    for OpenVINO targets
modules.json  1_Pooling/…   for embeddings: the files of sentence-transformers
"""

from __future__ import annotations

from octobert.core import environment
from octobert.core.files import digests_of, files_in, link_or_copy
from octobert.core.heads import head_of
from octobert.core.origin import copy_files
from octobert.core.results import PACKAGE_FILE, PackageManifest, Report
from octobert.core.session import SessionEntries
from octobert.data.tokenization import Tokenizer, state_length
from octobert.engine.contract import Context, StepResult, Summary, stage
from octobert.engine.executors.local import PRIVATE
from octobert.engine.store import manifest_of
from octobert.evaluation import candidates
from octobert.models import sentence_transformers
from octobert.pipeline.artifacts import Calibrated, CapturedModel, TargetFiles
from octobert.pipeline.stages.report import REPORT
from octobert.tasks import rebuild, state

_CAPTURED = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_IR, _QUANTIZED = "openvino_model.xml", "model_quantized.onnx"


@stage(StepResult)
def run(
    context: Context,
    capture: CapturedModel,
    ranges: Calibrated,
    export: TargetFiles,
    report: StepResult,
    *,
    target: str,
    entries: SessionEntries,
    float_model: bool,
) -> Summary:
    """Package.

    Args:
        export: the target's files.
        entries: what the recipe sets for the target's sessions.
        float_model: whether the float graph is packaged too.
    """
    work = context.work
    copy_files(capture.path(""), _CAPTURED, work)
    for file in capture.path("").glob("model.onnx*") if float_model else ():
        link_or_copy(file, work / "onnx" / file.name)
    exported = manifest_of(export)
    for name in exported.files:
        link_or_copy(export.path(name), work / name)
    measured = report.read(REPORT, Report)
    task, pooling = measured.task, measured.model.pooling
    head = head_of(task.head)
    longest = 0
    if head.reads_texts:
        # Windows of long texts are made by each program in its own way; what they may hold is the model's limit.
        longest = Tokenizer(work, None if head.windowed else rebuild(task).max_length).max_length
        state_length(work, longest, segments="token_type_ids" in exported.summary["inputs"])
    state(task, work)
    if pooling is not None and head.pools in exported.summary["outputs"]:
        source, hidden = capture.path(""), measured.model.sizes.hidden
        # The name would stand in the way of an IR.
        onnx_file = None if _IR in exported.files else _QUANTIZED
        sentence_transformers.write(
            work, source, head, pooling, hidden=hidden, max_length=longest, onnx_file=onnx_file
        )
    shown = (
        target,
        candidates.baseline_of(
            target, [each.model for each in measured.models if each.scores]
        ).name,
    )
    files = {name: digest for name, digest in digests_of(work).items() if name not in PRIVATE}
    manifest = PackageManifest(
        octobert=environment.versions(("octobert",)).get("octobert"),
        target=target,
        task=task,
        recipe=measured.recipe,
        model=measured.model,
        model_digest=measured.model_digest,
        plan=measured.plans[target],
        session=entries.portable(),
        ranges=ranges.ranges,
        sensitivity=measured.sensitivities.get(target),
        search=measured.searches.get(target),
        scores={each.model: each.scores for each in measured.models if each.model in shown},
        comparison=measured.of(target).against_float,
        environment=measured.environment,
        files=files,
        sizes={name: (work / name).stat().st_size for name in files},
        chosen=None if measured.choice is None else measured.choice.sentence,
    )
    context.write(PACKAGE_FILE, manifest)
    return {
        "target": target,
        "size_bytes": sum(p.stat().st_size for p in files_in(work)),
    }
