"""Memory and time of one long text: ONNX Runtime and OpenVINO in 8 bits, ONNX Runtime and PyTorch in float.

    python benchmarks/long_texts.py OUT [--layers 6] [--tokens 128 512 2048 8192]

OUT gets a model of ModernBERT-base's shapes with random weights (768 channels, 12 heads, windows of 128 tokens in two of three
layers), and its packages. Each system reads each text in a process of its own, after one of 128 tokens. The memory is the
highest of that process. The time is that of one thread on the CPU, so that other programs do not count: the least of three
runs, or of as many as take ten seconds. "in blocks" is the float file with the attention of `ort-cpu`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WORDS = [f"w{i}" for i in range(100)]
RUNS, SECONDS = 3, 10
SYSTEMS = {
    "ort-cpu, 8 bits": "ort-cpu",
    "openvino-cpu, 8 bits": "openvino-cpu",
    "ONNX Runtime, float": "float",
    "ONNX Runtime, float, in blocks": "blocks",
    "PyTorch, float, SDPA": "torch",
}


def make(out: Path, layers: int) -> None:
    """Write the checkpoint and its packages."""
    import onnx_ir as ir
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    from octobert.config.loading import parse
    from octobert.graph import operators
    from octobert.graph.passes import long_texts
    from octobert.pipeline import runner

    torch.manual_seed(0)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    config = transformers.AutoConfig.for_model(
        "modernbert",
        vocab_size=len(names),
        num_hidden_layers=layers,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        cls_token_id=2,
        sep_token_id=3,
    )
    auto: Any = transformers.AutoModelForSequenceClassification
    auto.from_config(config).save_pretrained(out / "model")
    tokenizer = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(out / "model" / "tokenizer.json"))
    generator = np.random.default_rng(0)
    rows = [f"{' '.join(generator.choice(WORDS, 100))}\t{i % 2}" for i in range(64)]
    for part in ("train", "validation"):
        (out / f"{part}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    recipe = {
        "model": str(out / "model"),
        "task": {"text-classification": {"text": "text"}},
        "data": {"source": str(out), "calibrate": {"from": "train", "samples": 16}},
        "targets": ["ort-cpu", "openvino-cpu"],
        "measure": False,
    }
    runner.run(parse(recipe), out / "run")
    graph = ir.load(out / "run" / "ort-cpu" / "onnx" / "model.onnx")
    operators.save(graph, out / "float.onnx")
    long_texts.bound_memory_(graph)
    operators.save(graph, out / "blocks.onnx")


def opened(out: Path, system: str) -> Callable[[dict[str, np.ndarray]], object]:
    """Return what runs a batch."""
    if system == "torch":
        import torch
        import transformers

        torch.set_num_threads(1)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            out / "model", attn_implementation="sdpa"
        ).eval()

        def run(feeds: dict[str, np.ndarray]) -> object:
            with torch.inference_mode():
                return model(**{name: torch.from_numpy(array) for name, array in feeds.items()})

        return run
    from octobert import targets
    from octobert.core.session import SessionOptions
    from octobert.inference.opened import open_model

    options = SessionOptions(threads=1)
    if system in ("float", "blocks"):
        return targets.load("ort-cpu").open_session(out / f"{system}.onnx", options).run
    return open_model(out / "run" / system).session(options).run


def measure(out: Path, system: str, tokens: int) -> None:
    """Print the highest memory of this process in MB and the least time of a text in ms."""
    generator = np.random.default_rng(0)

    def feeds(length: int) -> dict[str, np.ndarray]:
        ids = generator.integers(5, len(WORDS), (1, length))
        return {"input_ids": ids, "attention_mask": np.ones_like(ids)}

    run = opened(out, system)
    run(feeds(128))
    times: list[float] = []
    while len(times) < RUNS and sum(times) < SECONDS:
        text = feeds(tokens)
        started = time.process_time()
        run(text)
        times.append(time.process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([round(peak), min(times) * 1e3]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 512, 2048, 8192])
    parser.add_argument("--system", choices=SYSTEMS.values(), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.system:
        measure(asked.out, asked.system, asked.tokens[0])
        return
    if not (asked.out / "blocks.onnx").exists():
        make(asked.out, asked.layers)
    print("| MB, ms | " + " | ".join(f"{tokens:,} tokens" for tokens in asked.tokens) + " |")
    print("| --- |" + " --- |" * len(asked.tokens))
    for title, system in SYSTEMS.items():
        cells = []
        for tokens in asked.tokens:
            options = ["--system", system, "--tokens", str(tokens)]
            done = subprocess.run(
                [sys.executable, __file__, str(asked.out), *options],
                check=True,
                capture_output=True,
                text=True,
            )
            memory, ms = json.loads(done.stdout.splitlines()[-1])
            cells.append(f"{memory:,} MB, {ms:,.0f} ms")
        print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
