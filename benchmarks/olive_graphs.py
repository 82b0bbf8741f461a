"""What Olive's own quantization makes of a model, beside the plan of the imported config: operators, types and answers.

    python benchmarks/olive_graphs.py CONFIG.json … --model CHECKPOINT --data FOLDER

Needs Olive in the same environment: `pip install --no-deps olive-ai==0.9.2 torchmetrics lightning-utilities`. Of each config
the first pass with ONNX Runtime's quantizer is run by Olive on octobert's float graph, calibrated on as many rows as the import
names, and the config is imported and planned for its first target. Compared are the inputs of all operators (quantized or not,
integer type, one scale or one per channel), and the answers of both graphs on the evaluation rows, one by one, computed by ONNX
Runtime without its optimizer. A field that Olive searches has its default on both sides.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import transformers.utils

import octobert
from octobert.config import loading
from octobert.core.session import SessionOptions
from octobert.data import readers
from octobert.data.encoded import Encoded, feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.engine.executors import inline
from octobert.inference.batching import run_rows
from octobert.pipeline import runner
from octobert.targets.runtimes import ort

PASSES = ("OnnxStaticQuantization", "OnnxQuantization", "OnnxDynamicQuantization")
# Fields that say nothing about the graph: rows, scripts, and how Olive runs.
_LEFT_OUT = (
    *("data_config", "calibration_data_config", "user_script", "dataloader_func", "data_dir"),
    *("batch_size", "disable_search", "evaluator", "clean_run_cache", "type", "config"),
)
_SEARCHED = ("SEARCHABLE_VALUES", "DEFAULT_VALUE")
_TEXTS = ("#1 String", "#2 String")
_TOKENS = 128
# What the models, data and searches of a config are replaced by.
_CHANGES = (
    *("search=null", "accuracy=null", "speed=null", "tune=[]", "measure=false", "metric=[]"),
    *("preprocess=null", "postprocess=null", "session={}", "task={mrpc: {max_length: 128}}"),
)
# (operator, number of its input) → integer type and granularity
Quantized = dict[tuple[str, int], str]


def quantized(path: Path) -> tuple[Quantized, dict[str, str]]:
    """The quantized inputs of a graph's float operators, and the kind of each operator."""
    graph = onnx.load(path).graph
    producers = {name: node for node in graph.node for name in node.output}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    found: Quantized = {}
    for node in graph.node:
        for index, name in enumerate(node.input):
            pair = producers.get(name)
            if pair is None or pair.op_type != "DequantizeLinear" or node.op_type in producers:
                continue
            stored = tensors.get(pair.input[2] if len(pair.input) > 2 else pair.input[0])
            kind = "?" if stored is None else onnx.TensorProto.DataType.Name(stored.data_type)
            scale = tensors.get(pair.input[1])
            several = scale is not None and len(scale.dims) > 0 and scale.dims[0] > 1
            found[node.name, index] = f"{kind} per {'channel' if several else 'tensor'}"
    kinds = {node.name: node.op_type for node in graph.node}
    pairs = ("QuantizeLinear", "DequantizeLinear")
    return {key: how for key, how in found.items() if kinds[key[0]] not in pairs}, kinds


def encoded(file: Path, tokenizer: Tokenizer, most: int | None = None) -> list[Encoded]:
    """The pairs of a file of MRPC."""
    _, rows = readers.read(str(file), hub=None, revision=None, columns=())
    return tokenizer.encode([tuple(str(row[name]) for name in _TEXTS) for row in rows[:most]])


def of_olive(fields: dict[str, Any], graph: Path, rows: list[Any], folder: Path) -> Path:
    """The graph that a pass of Olive writes, calibrated on feeds."""
    from olive.data.registry import Registry
    from olive.hardware.accelerator import DEFAULT_CPU_ACCELERATOR
    from olive.model import ONNXModelHandler
    from olive.passes.olive_pass import create_pass_from_dict
    from olive.passes.onnx import quantization

    kept = {
        name: value
        for name, value in {**fields.get("config", {}), **fields}.items()
        if name not in _LEFT_OUT and value not in _SEARCHED and not isinstance(value, list)
    }
    # Names of earlier releases.
    if "weight_type" in kept:
        kept["precision"] = kept.pop("weight_type")
    for name in ("precision", "activation_type"):
        if name in kept:
            kept[name] = str(kept[name]).removeprefix("Q").lower()
    Registry.register_dataset("rows")(lambda **_: rows)
    data = {
        "name": "rows",
        "type": "DataContainer",
        "load_dataset_config": {"type": "rows"},
        "pre_process_data_config": {"type": "skip_pre_process"},
        "post_process_data_config": {"type": "skip_post_process"},
        "dataloader_config": {"type": "default_dataloader", "batch_size": 1},
    }
    if fields["type"] != "OnnxDynamicQuantization":
        kept["data_config"] = data
    kind, here = getattr(quantization, fields["type"]), DEFAULT_CPU_ACCELERATOR
    made = create_pass_from_dict(kind, kept, disable_search=True, accelerator_spec=here)
    return Path(made.run(ONNXModelHandler(model_path=str(graph)), str(folder)).model_path)


def _answers(file: Path, rows: list[Encoded], pad_id: int) -> np.ndarray:
    """Logits, one row at a time: where masks are rounded, padding is no longer hidden if calibration had none."""
    session = ort.OrtSession(file, SessionOptions(), ort.CPU, optimize=False)
    return np.concatenate([run_rows(session, [row], pad_id)["logits"] for row in rows])


def compare(path: Path, model: Path, data: Path, out: Path) -> str | None:
    """A row of the table for a config; None where it has no such pass."""
    passes = [
        fields
        for fields in json.loads(path.read_text()).get("passes", {}).values()
        if isinstance(fields, dict) and fields.get("type") in PASSES
    ]
    if not passes:
        return None
    changes = [f"model={model}", f"data.source={data}", "data.config=null", *_CHANGES]
    recipe = octobert.load_recipe(path, changes)
    recipe = recipe.replaced(targets=recipe.targets[:1], opset=None)
    target = recipe.targets[0]
    report = runner.run(recipe, out, executor=inline.run)
    key = report.stages[f"quantize/{target}"].key[:16]
    made = out / ".octobert" / "store" / f"quantize-{key}"
    ours, kinds = quantized(made / "model_quantized.onnx")
    graph, tokenizer = out / target / "onnx" / "model.onnx", Tokenizer(out / target, _TOKENS)
    feeds = [
        ({name: array[0] for name, array in feeds_of([row], tokenizer.pad_id).items()}, 0)
        for row in encoded(data / "train.tsv", tokenizer, recipe.data.calibrate.samples)
    ]
    rows, plan = encoded(data / "validation.tsv", tokenizer), made / "model_quantized.onnx"
    with tempfile.TemporaryDirectory() as folder:
        written = of_olive(passes[0], graph, feeds, Path(folder))
        theirs, others = quantized(written)
        answers = [_answers(file, rows, tokenizer.pad_id) for file in (graph, written, plan)]
    shared = kinds.keys() & others.keys()
    ours, theirs = (
        {key: how for key, how in found.items() if key[0] in shared} for found in (ours, theirs)
    )
    differing = [key for key in ours if theirs.get(key, ours[key]) != ours[key]]
    lists = (
        Counter(f"{kinds[k[0]]}.{k[1]}: {theirs[k]}, here {ours[k]}" for k in differing),
        Counter(f"{kinds[k[0]]}.{k[1]}" for k in theirs if k not in ours),
        Counter(f"{kinds[k[0]]}.{k[1]}" for k in ours if k not in theirs),
    )
    cells = ["; ".join(f"{n} × {what}" for what, n in found.items()) for found in lists]
    same = len(ours.keys() & theirs.keys()) - len(differing)
    agreement = np.mean(answers[1].argmax(-1) == answers[2].argmax(-1))
    pairs = ((1, 2), (1, 0), (2, 0))
    errors = [f"{np.sqrt(np.mean((answers[a] - answers[b]) ** 2)):.3f}" for a, b in pairs]
    release = next((part for part in path.parts if part[:1] == "v" and "." in part), "")
    return (
        f"| {release} {path.name} | {target} | {loading.in_recipe(recipe.quantize)} | {len(theirs)}, {same} | "
        f"{' | '.join(cells)} | {100 * agreement:.2f} % | {' | '.join(errors)} |"
    )


def main() -> None:
    """Print the table."""
    # Olive imports this name, and transformers 5 has it no longer.
    vars(transformers.utils)["TRANSFORMERS_CACHE"] = ""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("configs", type=Path, nargs="+")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/olive-graphs"))
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    print(
        "| config | target | plan | Olive quantizes, the same here | other type | Olive only | octobert only | same class "
        "| RMSE Olive, octobert | Olive, float | octobert, float |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    model, data = arguments.model.absolute(), arguments.data.absolute()
    for path in arguments.configs:
        row = compare(path.absolute(), model, data, arguments.out)
        if row is not None:
            print(row, flush=True)


if __name__ == "__main__":
    main()
