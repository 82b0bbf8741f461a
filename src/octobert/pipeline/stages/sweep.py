"""Statistics and several calibrators → how good the ranges of each are, value by value and end to end.

End to end, each quantized model is compared with the float model, on rows that calibration did not see and without their gold.
Writes `sweep.json`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from octobert import targets
from octobert.config.loading import in_recipe
from octobert.config.recipe import Choice, Recipe
from octobert.core.errors import DataError
from octobert.core.frozen import FrozenModel
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Provenance, Ranges, TensorStatistics
from octobert.core.session import SessionEntries, SessionOptions
from octobert.core.sweep import Sweep, Swept, recommendation
from octobert.evaluation import candidates
from octobert.inference.batching import run_rows
from octobert.pipeline.contract import Context, StepResult, Summary, TaskSpec
from octobert.pipeline.stages import _artifacts, _plans, _rows, observe
from octobert.quantization import calibrators, observer, sensitivity
from octobert.targets import runtimes

FACTS = "sweep.json"
JUDGED_ROWS = 256


class Inputs(FrozenModel):
    """The captured graph, the graph to quantize, the rows, and the statistics."""

    capture: StepResult
    data: StepResult
    float_graph: StepResult
    observe: StepResult


class Options(FrozenModel):
    """The calibrators to compare, for one target and method."""

    target: str
    entries: SessionEntries
    method: Choice
    calibrators: tuple[Choice, ...]
    task: TaskSpec
    seed: int


def run(context: Context[Inputs, Options]) -> Summary:
    """Sweep."""
    inputs, options = context.inputs, context.options
    task, target = options.task.build(), targets.load(options.target)
    tokenizer = _rows.tokenizer_of(inputs.capture, task)
    # The parts of the tuning rows grow; the first that is large enough will do.
    parts = [part["inputs"] for part in inputs.data.read_json("tuning.json")]
    encoded = _rows.encoded(next((p for p in parts if len(p) >= JUDGED_ROWS), parts[-1]), task, tokenizer)
    float_session = candidates.open_float(options.target, inputs.capture.path(_artifacts.FLOAT), task.head, options.entries)
    reference = run_rows(float_session, encoded.flat, tokenizer.pad_id, per_token=task.per_token)
    statistics = observer.load(inputs.observe.path(observe.STATISTICS))
    graph = inputs.float_graph.path(_artifacts.FLOAT)
    fidelity_name = ""
    swept = []
    for number, choice in enumerate(options.calibrators):
        label = choice.name + "".join(f" {value}" for value in choice.options.values())
        setting = in_recipe(choice)
        context.progress(f"sweeping: {label}", number, len(options.calibrators))
        try:
            plan = _plan(context, choice, statistics)
        except DataError as error:
            swept.append(Swept(calibrator=label, setting=setting, problem=str(error)))
            continue
        with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
            path = Path(folder) / _artifacts.QUANTIZED
            _plans.write_quantized(graph, plan, {}, path)
            entries = runtimes.entries_in(options.entries, target.CAPABILITIES, plan.float_parts)
            session = target.open_session(path, SessionOptions(entries=entries))
            outputs = run_rows(session, encoded.flat, tokenizer.pad_id, per_token=task.per_token)
        fidelity = task.fidelity(outputs, reference, encoded)
        fidelity_name = fidelity.name
        quantizers = {site.value: quantizer for site, quantizer in plan.quantized if site.value in statistics}
        noise = {value: sensitivity.activation_snr(statistics[value], quantizer) for value, quantizer in quantizers.items()}
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
        target=options.target,
        fidelity=fidelity_name,
        calibration_rows=int(inputs.observe.read_json(observe.FACTS)["samples"]),
        judged_rows=len(encoded.texts),
        ranges={value: (seen.minimum, seen.maximum) for value, seen in statistics.items()},
        swept=tuple(swept),
        recommended=recommended,
        reason=reason,
    )
    context.write(FACTS, result)
    return {"calibrators": len(swept)}


def _plan(context: Context[Inputs, Options], choice: Choice, statistics: Mapping[str, TensorStatistics]) -> QuantPlan:
    """The plan that a calibrator's ranges give."""
    inputs, options = context.inputs, context.options
    calibrator = calibrators.load(choice.name)
    settings = calibrator.Options.model_validate(choice.options)
    intervals = {value: calibrators.interval_of(calibrator, settings, value, seen) for value, seen in statistics.items()}
    provenance = Provenance(samples=0, tokens=0, data_digest="", model_digest="", source="sweep")
    ranges = Ranges(calibrator=choice.name, options=choice.options, intervals=intervals, provenance=provenance)
    return _plans.plan_of(inputs.capture, inputs.float_graph.path(_artifacts.FLOAT), ranges, options.target, options.method)
