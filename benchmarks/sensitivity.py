"""How near the expected error of each quantized value is to its measured error.

    python benchmarks/sensitivity.py RECIPE --out runs/sensitivity [--target ort-cpu] [--rows 32] [--set KEY=VALUE …]

The recipe is run without measurements. Then, for each quantized value, the float graph is written with this value alone in 8
bits, and read by onnxruntime on calibration rows, one at a time: mean squared error of the outputs, relative to their variance.
The estimate is that of octobert on its own 16 calibration rows. Weights are rounded to nearest, as in the estimate.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
from scipy.stats import spearmanr

from octobert.config import loading
from octobert.core import environment
from octobert.core.session import read_outputs
from octobert.data.encoded import Encoded, feeds_of
from octobert.engine.contract import A
from octobert.engine.store import Store
from octobert.graph import qdq
from octobert.graph.capture import shapes
from octobert.pipeline import runner
from octobert.pipeline.artifacts import CapturedModel, FloatGraph, Planned, Rows
from octobert.tasks import rebuild


def outputs_of(model: ir.Model, rows: list[Encoded], pad_id: int) -> np.ndarray:
    """The outputs of a graph for all rows, as one vector."""
    session = shapes.open_session(model)
    names = read_outputs([output.name for output in session.get_outputs()])
    fed = {port.name for port in session.get_inputs()}
    found = []
    for row in rows:
        feeds = {name: array for name, array in feeds_of([row], pad_id).items() if name in fed}
        found += [array.reshape(-1) for array in session.run(names, feeds)]
    return np.concatenate(found).astype(np.float64)


def main() -> None:
    """Run, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/sensitivity"))
    parser.add_argument("--target", default="ort-cpu")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    changes = [*options.set, f"targets=[{options.target}]", "measure=false", "sensitivity=true"]
    recipe = loading.load(options.recipe, changes)
    report = runner.run(recipe, options.out)
    expected = report.sensitivities[options.target]
    store = Store(options.out / ".octobert" / "store")

    def step(kind: type[A], stage: str, name: str = "") -> A:
        return kind(step=stage, folder=store.path(stage, report.stages[name or stage].key))

    task = rebuild(report.task)
    tokenizer, encoded = step(CapturedModel, "capture").calibration(step(Rows, "data"), task)
    chosen = np.random.default_rng(1).permutation(len(encoded.flat))[: options.rows]
    rows = [encoded.flat[i] for i in chosen]
    plan = step(Planned, "quantize", f"quantize/{options.target}").plan
    source = step(FloatGraph, "transform" if recipe.transforms else "capture").file
    floats = outputs_of(ir.load(source), rows, tokenizer.pad_id)
    values = [
        value for value in expected.values if any(s.value == value.value for s, _ in plan.quantized)
    ]
    measured, began = [], time.perf_counter()
    for value in values:
        model = ir.load(source)
        alone = tuple(d for d in plan.decisions if d.site.value == value.value)
        qdq.write(model, plan.replaced(decisions=alone))
        error = outputs_of(model, rows, tokenizer.pad_id) - floats
        measured.append(float(np.mean(error**2) / floats.var()))
    ours, theirs = np.array([value.output_error for value in values]), np.array(measured)
    far = np.log(ours / theirs)
    print(
        f"{len(values)} values, {options.rows} rows: rank correlation {spearmanr(ours, theirs).statistic:.3f}; "
        f"sum of expected ÷ sum of measured errors {ours.sum() / theirs.sum():.2f}; typical factor between the two "
        f"{np.exp(np.sqrt(np.mean(far**2))):.2f}, largest {np.exp(np.abs(far).max()):.2f}; "
        f"measured in {time.perf_counter() - began:.0f} s"
    )
    for value, error in sorted(zip(values, theirs, strict=True), key=lambda pair: -pair[1])[:5]:
        print(
            f"  {value.role} {value.value}: {value.output_error:.2e} expected, {error:.2e} measured"
        )
    here = environment.current()
    print(f"{here.cpu}, {here.cores} cores, {', '.join(here.features)}")


if __name__ == "__main__":
    main()
