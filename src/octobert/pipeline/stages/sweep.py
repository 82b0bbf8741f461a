"""Statistics and several calibrators → how good each one's ranges are, value by value and end to end.

End to end is judged on rows that calibration did not see, without their gold: how closely the quantized model follows the float
model. Writes `sweep.json`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from octobert.core import plugins
from octobert.core.errors import DataError
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Provenance, Ranges, TensorStatistics
from octobert.core.results import Sweep, Swept
from octobert.core.session import SessionOptions
from octobert.evaluation import candidates
from octobert.inference.batching import run_rows
from octobert.pipeline.stages import Context, ask, encoder_of, observe, quantize, task_of
from octobert.pipeline.stages.calibrate import interval_of
from octobert.quantization import sensitivity
from octobert.tasks._task import Fidelity

VERSION = 2
JUDGED_ROWS = 256


def run(context: Context) -> dict[str, Any]:
    """Sweep."""
    options, task = context.options, task_of(context.options)
    target = plugins.load("targets", options["target"])
    encoder = encoder_of(context)
    # The parts of the tuning rows grow; the first that is large enough will do.
    parts = [part["inputs"] for part in context.read_json("data", "tuning.json")]
    asked = ask(context, encoder, next((p for p in parts if len(p) >= JUDGED_ROWS), parts[-1]))
    floating = candidates.open_float(options["target"], context.inputs["capture"] / "model.onnx", task.head)
    reference = run_rows(floating, asked.flat, encoder.pad_id, per_token=task.per_token)
    statistics = observe.load(context.inputs["observe"] / "statistics.npz")
    fidelity = ""
    swept = []
    for number, choice in enumerate(options["calibrators"]):
        label = choice["name"] + "".join(f" {v}" for v in choice["options"].values())
        context.progress(f"sweeping: {label}", number, len(options["calibrators"]))
        try:
            plan = _plan(context, choice, statistics)
        except DataError as error:
            swept.append(Swept(calibrator=label, problem=str(error)))
            continue
        with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
            path = Path(folder) / quantize.FILE
            quantize.write(context.inputs["float"] / "model.onnx", plan, {}, path)
            session = target.open_session(path, SessionOptions())
            outputs = run_rows(session, asked.flat, encoder.pad_id, per_token=task.per_token)
        followed: Fidelity = task.fidelity(outputs, reference, asked)
        fidelity = followed.name
        quantizers = {site.value: quantizer for site, quantizer in plan.quantized if site.value in statistics}
        noise = {value: sensitivity.activation_snr(statistics[value], quantizer) for value, quantizer in quantizers.items()}
        swept.append(
            Swept(calibrator=label, agreement=followed.agreement, output_error=followed.error, signal_to_noise_db=noise)
        )
    seen = {value: (one.minimum, one.maximum) for value, one in statistics.items()}
    found = Sweep(
        target=options["target"],
        fidelity=fidelity,
        calibration_rows=int(context.read_json("observe", "observed.json")["samples"]),
        judged_rows=len(asked.texts),
        ranges=seen,
        swept=tuple(swept),
    )
    context.write("sweep.json", found)
    return {"calibrators": len(swept)}


def _plan(context: Context, choice: dict[str, Any], statistics: dict[str, TensorStatistics]) -> QuantPlan:
    """The plan that a calibrator's ranges give."""
    calibrator = plugins.load("calibrators", choice["name"])
    chosen = calibrator.Options.model_validate(choice["options"])
    intervals = {value: interval_of(calibrator, chosen, value, one) for value, one in statistics.items()}
    provenance = Provenance(samples=0, tokens=0, data_digest="", model_digest="", source="sweep")
    ranges = Ranges(calibrator=choice["name"], options=choice["options"], intervals=intervals, provenance=provenance)
    return quantize.planned(context, ranges, context.options["target"], context.options["method"])
