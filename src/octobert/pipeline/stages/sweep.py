"""Statistics and several calibrators → how good the ranges of each are, value by value and end to end.

End to end, each quantized model is compared with the float model, on rows that calibration did not see and without their gold.
Writes `sweep.json`.
"""

from __future__ import annotations

from collections.abc import Mapping

from octobert.config.loading import in_recipe
from octobert.config.recipe import Choice, Recipe
from octobert.core.errors import DataError
from octobert.core.ranges import Provenance, Ranges, Sweep, Swept, TensorStatistics, recommendation
from octobert.core.session import SessionEntries
from octobert.engine.contract import Context, StepResult, Summary, stage
from octobert.evaluation import candidates
from octobert.inference.batching import run_rows
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel, FloatGraph, Rows, Statistics
from octobert.pipeline.stages import _plans
from octobert.pipeline.task import TaskSpec
from octobert.quantization import sensitivity
from octobert.quantization.calibrators import PLUGINS, Calibrator, CalibratorField
from octobert.quantization.methods import MethodField
from octobert.targets import TargetField
from octobert.tasks import Result

FACTS = "sweep.json"
JUDGED_ROWS = 256


@stage(StepResult, anywhere=True)
def run(
    context: Context,
    capture: CapturedModel,
    data: Rows,
    float_graph: FloatGraph,
    observed: Statistics,
    *,
    target: TargetField,
    session: SessionEntries,
    method: MethodField,
    calibrators: tuple[CalibratorField, ...],
    spec: TaskSpec,
) -> Summary:
    """Sweep.

    Args:
        float_graph: the graph to quantize.
        session: what the recipe sets for sessions of the target.
        calibrators: to be compared.
    """
    task = spec.build()
    tokenizer = capture.tokenizer(task)
    # The parts of the tuning rows grow; the first that is large enough will do.
    parts = [part["inputs"] for part in data.read_json("tuning.json")]
    encoded = artifacts.encoded(
        next((p for p in parts if len(p) >= JUDGED_ROWS), parts[-1]), task, tokenizer
    )
    float_session = candidates.open_float(target.name, capture.file, task.head, session)
    reference = run_rows(float_session, encoded.flat, tokenizer.pad_id, per_token=task.per_token)
    statistics = observed.tensors()
    graph, model = float_graph.file, float_graph.load()
    fidelity_name = ""
    swept = []
    for number, calibrator in enumerate(calibrators):
        choice = Choice.model_validate(PLUGINS.written(calibrator))
        label = choice.name + "".join(f" {value}" for value in choice.options.values())
        setting = in_recipe(choice)
        context.progress(f"sweeping: {label}", number, len(calibrators))
        try:
            ranges = _ranges(choice, calibrator, statistics)
            plan = _plans.plan_of(capture, model, ranges, target, method)
        except DataError as error:
            swept.append(Swept(calibrator=label, setting=setting, problem=str(error)))
            continue
        quantized = _plans.opened(graph, plan, {}, target, session)
        outputs = run_rows(quantized, encoded.flat, tokenizer.pad_id, per_token=task.per_token)
        fidelity = task.fidelity(Result(outputs, encoded), Result(reference, encoded))
        fidelity_name = fidelity.name
        quantizers = {
            site.value: quantizer for site, quantizer in plan.quantized if site.value in statistics
        }
        noise = {
            value: sensitivity.activation_snr(statistics[value], quantizer)
            for value, quantizer in quantizers.items()
        }
        swept.append(
            Swept(
                calibrator=label,
                setting=setting,
                agreement=fidelity.agreement,
                output_error=fidelity.error,
                signal_to_noise_db=noise,
            )
        )
    recommended, reason = recommendation(swept, Recipe.model_fields["calibrate"].default.name)
    result = Sweep(
        target=target.name,
        fidelity=fidelity_name,
        calibration_rows=int(observed.read_json(artifacts.OBSERVED)["samples"]),
        judged_rows=len(encoded.texts),
        ranges={value: (seen.minimum, seen.maximum) for value, seen in statistics.items()},
        swept=tuple(swept),
        recommended=recommended,
        reason=reason,
    )
    context.write(FACTS, result)
    return {"calibrators": len(swept)}


def _ranges(
    choice: Choice, calibrator: Calibrator, statistics: Mapping[str, TensorStatistics]
) -> Ranges:
    """The ranges that a calibrator finds."""
    intervals = {value: calibrator.interval_of(value, seen) for value, seen in statistics.items()}
    provenance = Provenance(samples=0, tokens=0, data_digest="", model_digest="", source="sweep")
    return Ranges(
        calibrator=choice.name, options=choice.options, intervals=intervals, provenance=provenance
    )
