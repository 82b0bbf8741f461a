"""Answers of octobert's models compared with SentenceTransformer.encode and CrossEncoder.predict themselves.

    python -m tests.clients.reference_answers

Tiny random checkpoints of every kind are written by sentence-transformers, or by hand as older versions wrote them. Each is
quantized for ONNX Runtime. Prints a line for each, and fails if an answer of the float graph differs by more than 1e-5 of the
largest, or the 8-bit answers by more than 0.2. `make test-reference` runs it in an environment of its own for each version.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import octobert
from octobert.config.loading import parse
from octobert.engine.executors import inline
from octobert.pipeline import runner
from tests.models.test_modular import modular
from tests.support.checkpoints import WORDS, make_checkpoint

TOLERANCE = 1e-5
# By the length of all answers. Random weights amplify what rounding does; a module that is left out makes 0.3 and more.
IN_8_BITS = 0.2
WIDTH = 32
TEXTS = ("the of and", "he was in it for that", "a", "", "THEY Had This", " ".join(WORDS))
PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
Make = Callable[[], list[Any]]


def module(name: str) -> Any:
    """A module of sentence-transformers, wherever this version has it."""
    for place in ("base.modules", "sentence_transformer.modules"):
        found = getattr(importlib.import_module(f"sentence_transformers.{place}"), name, None)
        if found is not None:
            return found
    raise LookupError(name)


def embedding_cases() -> dict[str, Make]:
    """What follows the encoder."""
    import torch

    def pooling(mode: str | Sequence[str] = "mean") -> Any:
        return module("Pooling")(WIDTH, pooling_mode=mode)

    def dense(*sizes: int, function: Any = None, **more: object) -> Any:
        return module("Dense")(*sizes, activation_function=function or torch.nn.Tanh(), **more)

    activations = (torch.nn.Identity, torch.nn.Tanh, torch.nn.ReLU, torch.nn.Sigmoid, torch.nn.GELU)
    cases: dict[str, Make] = {
        **{mode: (lambda mode=mode: [pooling(mode)]) for mode in MODES},
        "all modes, normalized": lambda: [pooling(tuple(reversed(MODES))), module("Normalize")()],
        **{
            f"Dense, {a.__name__}": (lambda a=a: [pooling(), dense(WIDTH, 20, function=a())])
            for a in activations
        },
        "Dense without bias, LayerNorm, Dropout, Dense": lambda: [
            pooling("cls"),
            dense(WIDTH, 24, bias=False),
            module("LayerNorm")(24),
            module("Dropout")(0.3),
            dense(24, 8),
        ],
        "Normalize, Dense": lambda: [pooling(), module("Normalize")(), dense(WIDTH, 16)],
    }
    # Version 5.7 has none.
    if "use_residual" in inspect.signature(module("Dense")).parameters:
        both = dense(WIDTH, WIDTH, use_residual=True), dense(WIDTH, 16, use_residual=True)
        cases["Dense with residuals"] = lambda: [pooling(), *both]
    return cases


def saved(folder: Path, encoder: Path, modules: Sequence[Any], **about: Any) -> Path:
    """A model with random weights, as sentence-transformers saves it."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.manual_seed(0)
    for each in modules:
        for parameter in each.parameters():
            torch.nn.init.normal_(parameter, 0, 0.4)
    SentenceTransformer(
        modules=[module("Transformer")(str(encoder)), *modules], device="cpu", **about
    ).save_pretrained(str(folder))
    return folder


def answers(
    folder: Path, task: str, inputs: Sequence[Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the float graph of a model answers, and what its 8-bit package does."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(64)]
    rows = [
        {"sentence1": a, "sentence2": b, "label": 0.5, "score": 0.5}
        for a, b in zip(texts, reversed(texts), strict=True)
    ]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for split in ("train", "validation"):
            (work / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        data = {
            "source": str(work),
            "allow_leakage": True,
            "calibrate": {"from": "train", "samples": len(rows)},
        }
        recipe = parse(
            {
                "model": str(folder),
                "task": task,
                "data": data,
                "targets": ["ort-cpu"],
                "measure": False,
            }
        )
        runner.run(recipe, work / "out", executor=inline.run)
        package = work / "out" / "ort-cpu"
        stated = json.loads((package / "octobert.json").read_text())["task"]
        floating = octobert.load(
            package / "onnx" / "model.onnx", task={stated["name"]: stated["options"]}
        )
        return floating(inputs), octobert.load(package)(inputs)


class Comparisons:
    """Compares, prints, and remembers what differs."""

    def __init__(self) -> None:
        self.differing: list[str] = []

    def vectors(
        self, name: str, folder: Path, inputs: Sequence[Any] = TEXTS, **encode: Any
    ) -> None:
        """Compare embeddings."""
        from sentence_transformers import SentenceTransformer

        theirs = SentenceTransformer(str(folder), device="cpu").encode(list(TEXTS), **encode)
        self._compare(name, answers(folder, "embedding", inputs), "embedding", theirs)

    def scores(self, name: str, folder: Path) -> None:
        """Compare scores of pairs."""
        from sentence_transformers import CrossEncoder

        theirs = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
        self._compare(name, answers(folder, "text-classification", PAIRS), "score", theirs)

    def _compare(self, name: str, ours: Sequence[Any], key: str, theirs: Any) -> None:
        expected = np.asarray(theirs, dtype=np.float64)
        floating, quantized = (
            np.asarray([answer[key] for answer in form], dtype=np.float64) for form in ours
        )
        assert floating.shape == quantized.shape == expected.shape, name
        error = np.abs(floating - expected).max() / max(1.0, np.abs(expected).max())
        error8 = np.linalg.norm(quantized - expected) / np.linalg.norm(expected)
        print(f"{name:48} {error:.1e}  {error8:.3f}", flush=True)
        if not (error <= TOLERANCE and error8 <= IN_8_BITS):
            self.differing.append(name)


def compare_embeddings(found: Comparisons, work: Path) -> None:
    """Every module, old names of modules, and what stands beside them."""
    encoder = make_checkpoint(work / "encoder", "bert", "embedding")
    found.vectors("plain encoder", encoder)
    for index, (name, make) in enumerate(embedding_cases().items()):
        found.vectors(name, saved(work / f"case-{index}", encoder, make()))
    pooling, normalize = module("Pooling"), module("Normalize")
    old = saved(work / "old", encoder, [pooling(WIDTH, "max"), normalize()])
    entries = json.loads((old / "modules.json").read_text())
    renamed = [
        entry | {"type": f"sentence_transformers.models.{entry['type'].rpartition('.')[2]}"}
        for entry in entries
    ]
    (old / "modules.json").write_text(json.dumps(renamed))
    flags = {
        "word_embedding_dimension": WIDTH,
        "pooling_mode_max_tokens": True,
        "pooling_mode_cls_token": True,
    }
    (old / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    found.vectors("files of older versions", old)
    found.vectors(
        "truncate_dim", saved(work / "cut", encoder, [pooling(WIDTH), normalize()], truncate_dim=12)
    )
    prompts = {
        "prompts": {"query": "he was: ", "passage": "you are: "},
        "default_prompt_name": "passage",
    }
    prompted = saved(work / "prompted", encoder, [pooling(WIDTH)], **prompts)
    found.vectors("default prompt", prompted)
    chosen = [{"text": text, "prompt": "query"} for text in TEXTS]
    found.vectors("chosen prompt", prompted, chosen, prompt_name="query")
    lowered = saved(work / "lowered", encoder, [pooling(WIDTH)])
    tokenizer = json.loads((lowered / "tokenizer.json").read_text())
    tokenizer["normalizer"] = {"type": "NFC"}
    (lowered / "tokenizer.json").write_text(json.dumps(tokenizer))
    # A class that does not replace the normalizer of the file by its own.
    (lowered / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    )
    stated = json.loads((lowered / "sentence_bert_config.json").read_text())
    (lowered / "sentence_bert_config.json").write_text(
        json.dumps(stated | {"max_seq_length": 9, "do_lower_case": True})
    )
    found.vectors("max_seq_length and do_lower_case", lowered)
    stated["tokenizer_args"] = {"model_max_length": 7}
    (lowered / "sentence_bert_config.json").write_text(json.dumps(stated | {"max_seq_length": 9}))
    found.vectors("tokenizer_args before max_seq_length", lowered)
    tokenizer["truncation"] = {
        "direction": "Left",
        "max_length": 9,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (lowered / "tokenizer.json").write_text(json.dumps(tokenizer))
    found.vectors("texts cut on the left", lowered)


def compare_scores(found: Comparisons, work: Path) -> None:
    """One logit, and every place that states what makes a score of it."""
    import torch
    from sentence_transformers import CrossEncoder

    statements: dict[str, dict[str, Any]] = {
        "one logit": {},
        "activation_fn Identity": {"sentence_transformers": {"activation_fn": IDENTITY}},
        "activation_fn Sigmoid": {"sentence_transformers": {"activation_fn": SIGMOID}},
        "sbert_ce_default_activation_function": {"sbert_ce_default_activation_function": IDENTITY},
    }
    for index, (name, stated) in enumerate(statements.items()):
        folder = make_checkpoint(
            work / f"scores-{index}", "bert", "sequence-classification", labels=("LABEL_0",)
        )
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | stated))
        found.scores(name, folder)
    tanh = CrossEncoder(str(folder), device="cpu", activation_fn=torch.nn.Tanh())
    tanh.save_pretrained(str(work / "saved"))
    found.scores("saved by CrossEncoder", work / "saved")
    found.scores("modules behind the encoder", modular(work / "modular"))


def main() -> int:
    """Compare everything."""
    import sentence_transformers

    logging.disable(logging.WARNING)
    print(f"sentence-transformers {sentence_transformers.__version__}")
    found = Comparisons()
    with tempfile.TemporaryDirectory() as name:
        compare_embeddings(found, Path(name))
        compare_scores(found, Path(name))
    if found.differing:
        print(f"differ by more than {TOLERANCE:g} or {IN_8_BITS:g}: {', '.join(found.differing)}")
    return 1 if found.differing else 0


if __name__ == "__main__":
    sys.exit(main())
