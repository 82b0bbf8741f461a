"""The captured graph → one that computes the same and quantizes better, by every preparer in turn; and the proof that it does.

Writes `model.onnx` and `prepared.json`.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from octobert.core import plugins
from octobert.core.results import AppliedTransform, CaptureFacts, TransformFacts
from octobert.graph import operators, parity
from octobert.pipeline.stages import Context, calibration
from octobert.pipeline.stages.capture import parity_batches
from octobert.quantization import observer

VERSION = 2
# Tokens on which alternatives are tried; more change no choice that matters and cost time in proportion.
SAMPLED_TOKENS = 512


def run(context: Context) -> dict[str, Any]:
    """Prepare."""
    facts = context.read("capture", "capture.json", CaptureFacts)
    source = context.inputs["capture"] / "model.onnx"
    encoder, asked = calibration(context)
    family = plugins.load("families", facts.family).FAMILY
    path = context.work / "model.onnx"
    model, before = ir.load(source), source
    done: list[AppliedTransform] = []
    for choice in context.options["prepare"]:
        name = choice["name"]
        preparer = plugins.load("transforms", name)
        options = preparer.Options.model_validate(choice["options"])
        samples = observer.sample(
            before,
            asked.flat,
            encoder.pad_id,
            preparer.values(model.graph, family, options),
            tokens=SAMPLED_TOKENS,
            seed=int(context.options["seed"]),
            on_rows=lambda n: context.progress("sampling", n, len(asked.flat)),
        )
        steps = preparer.transform_(model, family, samples, options, lambda n, of, name=name: context.progress(name, n, of))
        done.append(AppliedTransform(name=name, options=options.model_dump(), groups=tuple(steps)))
        operators.save(model, path)
        before = path
    batches = [parity.only(batch, model) for batch in parity_batches(encoder)]
    reference = parity.onnx_outputs(ir.load(source), batches, [str(v.name) for v in model.graph.outputs])
    proof = parity.compare(model, batches, reference, "the captured graph")
    context.write("prepared.json", TransformFacts(transforms=tuple(done), parity=proof))
    return {"preparers": [one.name for one in done], "largest_difference": proof.largest_difference}
