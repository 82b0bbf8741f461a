"""All that belongs to one target → the directory that predicts, in the layout that other tools know.

config.json  tokenizer.json  octobert.json
onnx/model.onnx             the float graph
onnx/model_quantized.onnx   the QDQ graph as written for this target
openvino/openvino_model.*   for OpenVINO targets
"""

from __future__ import annotations

from typing import Any

from octobert.core import environment
from octobert.core.files import digests_of, link_or_copy
from octobert.core.ranges import Ranges
from octobert.core.results import PACKAGE_FILE, PackageManifest, Report
from octobert.evaluation import candidates
from octobert.pipeline.executors import local
from octobert.pipeline.stages import Context

VERSION = 2
_CAPTURED = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "sentence_bert_config.json")


def run(context: Context) -> dict[str, Any]:
    """Package."""
    target = context.options["target"]
    capture = context.inputs["capture"]
    for name in _CAPTURED:
        if (capture / name).is_file():
            (context.work / name).write_bytes((capture / name).read_bytes())
    for file in capture.glob("model.onnx*"):
        link_or_copy(file, context.work / "onnx" / file.name)
    export = context.inputs["export"]
    for file in sorted(p for p in export.rglob("*") if p.is_file() and p.name != "artifact.json"):
        link_or_copy(file, context.work / file.relative_to(export))
    report = context.read("report", "report.json", Report)
    skipped = (local.REQUEST, local.LOG)
    manifest = PackageManifest(
        octobert=environment.versions(("octobert",)).get("octobert"),
        target=target,
        task=report.task,
        recipe=report.recipe,
        model=report.model,
        model_digest=report.model_digest,
        plan=report.plans[target],
        ranges=context.read("calibrate", "ranges.json", Ranges),
        sensitivity=report.sensitivities.get(target),
        search=report.searches.get(target),
        scores={k: v for k, v in report.scores.items() if k in (target, candidates.float_baseline(target, report.scores))},
        comparison=next((c for c in report.comparisons if c.candidate == target), None),
        environment=report.environment,
        files={k: v for k, v in digests_of(context.work).items() if k not in skipped},
    )
    context.write(PACKAGE_FILE, manifest)
    return {"target": target, "size_bytes": sum(p.stat().st_size for p in context.work.rglob("*") if p.is_file())}
