"""Finished packages of every head on emulated processors of aarch64: their answers are those of this machine."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arm import answers, emulated
from tests.support import any_graphs
from tests.support.checkpoints import WORDS, make_checkpoint
from tests.support.every_head import MAKERS, PAIR, quantized
from tests.support.runs import pairs_of_sentences

pytestmark = pytest.mark.needs_emulator

TEXTS = [" ".join(WORDS[i : i + n]) for i, n in enumerate((3, 1, 9, 14, 28, 2, 16, 5))]
PAIRS = [list(pair) for pair in zip(TEXTS, TEXTS[::-1], strict=True)]


def _classifier(folder: Path, quantize: Any) -> None:
    model = make_checkpoint(folder / "model", "bert", "sequence-classification")
    quantized(folder, model, {"text-classification": {"text": PAIR}}, quantize=quantize)


def _reranker(folder: Path) -> None:
    model = make_checkpoint(folder / "model", "bert", "sequence-classification", ("LABEL_0",))
    (folder / "data").mkdir()
    for split, first in (("train", 0), ("validation", 40)):
        rows = [
            {"query": query, "document": [query, other], "relevance": [1, 0]}
            for query, other, _ in pairs_of_sentences(40, first)
        ]
        lines = "\n".join(map(json.dumps, rows))
        (folder / "data" / f"{split}.jsonl").write_text(lines)
    quantized(folder, model, "reranking", folder / "data")


def _graph(folder: Path) -> None:
    model = any_graphs.write("spans", folder / "model.onnx")
    (folder / "data").mkdir()
    for index, feed in enumerate(any_graphs.feeds_of("spans", 50)):
        np.savez(folder / "data" / f"{index:03}.npz", **feed)
    quantized(folder, model, {"graph": {"scores": ["logits"]}}, folder / "data", allow_code=True)


FEEDS = [
    {name: array.tolist() for name, array in feed.items()}
    for feed in any_graphs.feeds_of("spans", 4, seed=1)
]
QUESTIONS = [{"question": pair[0], "context": pair[1]} for pair in PAIRS]
MASKED = [f"{text} [MASK] of" for text in TEXTS]
# Kind → what makes its packages, and what they are asked.
KINDS: dict[str, tuple[Callable[[Path], object], list[Any]]] = {
    "mean": (MAKERS["mean"], TEXTS),
    "sparse": (MAKERS["sparse"], TEXTS),
    "late": (MAKERS["late"], TEXTS),
    "single": (MAKERS["single"], TEXTS),
    "pairs": (MAKERS["pairs"], PAIRS),
    "reranker": (_reranker, PAIRS),
    "tags": (MAKERS["tags"], TEXTS),
    "answers": (MAKERS["answers"], QUESTIONS),
    "masks": (MAKERS["masks"], MASKED),
    "states": (MAKERS["states"], TEXTS),
    "next": (MAKERS["next"], PAIRS),
    "dynamic": (partial(_classifier, quantize="dynamic"), PAIRS),
    "4 bits": (partial(_classifier, quantize={"dynamic": {"bits": 4, "group": 32}}), PAIRS),
    "graph": (_graph, FEEDS),
}
# Ranges come of the run, so that another order of sums moves all values of a text by a rounding.
OF_THE_RUN = ("dynamic", "4 bits")
# Of the largest output: sums of float32 in another order. Measured: up to 2e-6.
SUM_ORDER = 1e-5
# Error of 8 bits there ÷ here, with such ranges. Measured: 0.5 to 1.01.
AS_CLOSE = 1.5
# Of the largest output: a product in bfloat16 has errors of 2⁻⁸, and an answer has some ten of them behind each other. Measured: 0.006 to
# 0.022.
BFLOAT16 = 0.04


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind, with the packages and what they are asked."""
    found = tmp_path_factory.mktemp("packages")
    for kind, (make, inputs) in KINDS.items():
        (found / kind).mkdir()
        make(found / kind)
        (found / kind / answers.INPUTS).write_text(json.dumps(inputs))
    return found


@pytest.fixture(scope="module")
def here(packages: Path) -> answers.Seen:
    """What the packages answer on this machine."""
    return answers.see(packages)


@pytest.fixture(scope="module", params=emulated.PROCESSORS, ids=str)
def there(
    request: pytest.FixtureRequest, packages: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, answers.Seen]:
    """A processor, and what they answer on it."""
    found = tmp_path_factory.mktemp("seen") / "seen.pickle"
    code = f"from tests.arm.answers import write; write({str(packages)!r}, {str(found)!r})"
    emulated.run(emulated.FOLDER, request.param, "-c", code)
    return str(request.param), pickle.loads(found.read_bytes())


def _pairs(
    here: answers.Seen, there: answers.Seen
) -> Iterator[tuple[str, answers.Answered, answers.Answered]]:
    """Kind, what a package answers here, and there."""
    assert here.packages.keys() == there.packages.keys()
    assert len(here.packages) == 2 * len(KINDS)
    for (kind, target), answered in here.packages.items():
        yield kind, answered, there.packages[kind, target]


def _most(ours: list[np.ndarray], theirs: list[np.ndarray]) -> np.ndarray:
    """[texts] the largest difference in each text."""
    return np.array([np.abs(a - b).max() for a, b in zip(ours, theirs, strict=True)])


def _largest(outputs: list[np.ndarray]) -> float:
    return max(float(np.abs(array).max()) for array in outputs)


def test_doctor_names_the_instructions(there: tuple[str, answers.Seen]) -> None:
    processor, seen = there
    features, finding = {
        "cortex-a72": ((), "no instruction for 8-bit products is known of this CPU"),
        "neoverse-n1": (("asimddp",), "Arm with dot products: take ort-cpu"),
        "max": (("asimddp", "i8mm", "bf16", "sve"), "Arm with I8MM: take ort-cpu"),
    }[processor]
    assert seen.features == features
    assert seen.findings[0].startswith(finding)
    named = any(finding.startswith("bfloat16: ONNX Runtime") for finding in seen.findings)
    assert named == ("bf16" in features)


def test_every_head_answers(here: answers.Seen, there: tuple[str, answers.Seen]) -> None:
    for _, ours, theirs in _pairs(here, there[1]):
        for name in ("alone", "together", "backwards"):
            found = [answer.keys() for answer in getattr(theirs, name)]
            assert found == [answer.keys() for answer in getattr(ours, name)]
            assert all("error" not in keys for keys in found)


def test_float_files_answer_alike(here: answers.Seen, there: tuple[str, answers.Seen]) -> None:
    for kind, ours, theirs in _pairs(here, there[1]):
        for name, floats in ours.floats.items():
            moved = _most(theirs.floats[name], floats).max() / _largest(floats)
            assert moved < SUM_ORDER, (kind, name, moved)


def test_8_bit_files_answer_alike(here: answers.Seen, there: tuple[str, answers.Seen]) -> None:
    """To float32, but for a value that rounds to the other of two 8-bit numbers. With ranges of the run all values may."""
    for kind, ours, theirs in _pairs(here, there[1]):
        for name, outputs in ours.outputs.items():
            moved, error = _most(theirs.outputs[name], outputs), _most(outputs, ours.floats[name])
            if kind in OF_THE_RUN:
                own = _most(theirs.outputs[name], theirs.floats[name])
                assert own.max() < AS_CLOSE * error.max(), (kind, name, own, error)
            else:
                assert np.median(moved) < SUM_ORDER * _largest(outputs), (kind, name, moved)
                assert moved.max() < error.max(), (kind, name, moved, error)


def test_other_texts_change_no_answer_of_onnx_runtime(there: tuple[str, answers.Seen]) -> None:
    for (kind, target), seen in there[1].packages.items():
        if target == "ort-cpu" and kind not in OF_THE_RUN:
            assert seen.alone == seen.together == seen.backwards, kind
            assert seen.batches is None or seen.batches.state == "exact", kind


def test_the_float_file_in_bfloat16(there: tuple[str, answers.Seen]) -> None:
    processor, seen = there
    if processor != "max":
        assert seen.no_bfloat16 == "this CPU does not compute in bfloat16"
        return
    assert seen.no_bfloat16 is None
    for (kind, target), answered in seen.packages.items():
        assert (answered.halves is None) == (target != "ort-cpu")
        for name, halves in (answered.halves or {}).items():
            floats = answered.floats[name]
            moved = _most(halves, floats).max() / _largest(floats)
            assert SUM_ORDER < moved < BFLOAT16, (kind, name, moved)
