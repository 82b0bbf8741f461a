"""Speed and calibration memory for the shapes of BERT-base with random weights. Nothing is downloaded.

    python benchmarks/foundation.py [--out runs/foundation] [--rounds 40]

Prints medians of one interleaved run at batch 1 × 128 tokens, and the peak memory of the process that calibrates with
percentiles on 64 and on 256 rows of 128 tokens. Random weights are as fast as trained ones. Accuracy is not measured here.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core.measurements import shapes
from octobert.core.results import Report
from octobert.pipeline import runner
from octobert.report import summary

VOCABULARY, TOKENS = 30522, 128


def make_model(folder: Path) -> None:
    """Write BERT-base with random weights, a head of two classes, and a tokenizer with one token per word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY)).save_pretrained(folder)
    words = {
        "[PAD]": 0,
        "[UNK]": 1,
        "[CLS]": 2,
        "[SEP]": 3,
        **{f"w{i}": i for i in range(4, VOCABULARY)},
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=ends
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def make_rows(folder: Path, train: int, validation: int) -> None:
    """Write rows of exactly 128 tokens."""
    generator = random.Random(0)
    for name, count in (("train", train), ("validation", validation)):
        texts = [
            " ".join(f"w{generator.randrange(4, VOCABULARY)}" for _ in range(TOKENS - 2))
            for _ in range(count)
        ]
        rows = [json.dumps({"text": text, "label": str(i % 2)}) for i, text in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


def recipe_for(folder: Path, samples: int, rounds: int) -> Recipe:
    """Percentile calibration on `samples` rows, both CPU targets, one shape."""
    return parse(
        {
            "model": str(folder / "bert-base"),
            "task": "text-classification",
            "data": {"source": str(folder), "calibrate": {"from": "train", "samples": samples}},
            "calibrate": {"percentile": {"keep": 99.99}},
            "targets": ["openvino-cpu", "ort-cpu"],
            "benchmark": {"batch": [1], "sequence": [TOKENS], "repeats": rounds},
        }
    )


def show(report: Report, larger: Report) -> None:
    """Print the figures as Markdown."""
    (shape,) = shapes(report.times)
    print(
        f"| model, {shape} | precision | median ms | p90 ms | × own float |\n| --- | --- | --- | --- | --- |"
    )
    for line in summary.timings(report):
        latency, speedup = line.latencies[shape], line.baseline.get(shape)
        medians = f"{latency.statistics_ms['p50']:.1f} | {latency.statistics_ms['p90']:.1f}"
        print(
            f"| {line.name} | {line.precision} | {medians} | {f'{speedup.ratio.value:.2f}' if speedup else ''} |"
        )
    print("\n| calibration rows of 128 tokens | peak memory GB | seconds |\n| --- | --- | --- |")
    for run in (report, larger):
        stage = run.stages["observe"]
        print(
            f"| {run.data.calibration_rows} | {stage.peak_memory_bytes / 1e9:.2f} | {stage.seconds:.1f} |"
        )
    here = report.environment
    print(
        f"\n{here.cpu}, {here.cores} cores, {', '.join(here.features)}; {json.dumps(here.versions)}"
    )


def main() -> None:
    """Create the model, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/foundation"))
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if not (options.out / "bert-base" / "model.safetensors").is_file():
        make_model(options.out / "bert-base")
    make_rows(options.out, train=256, validation=24)
    reports = [
        runner.run(recipe_for(options.out, n, options.rounds), options.out / f"rows-{n}")
        for n in (64, 256)
    ]
    show(*reports)


if __name__ == "__main__":
    main()
