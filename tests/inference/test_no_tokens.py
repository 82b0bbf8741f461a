"""A text without any token, of a tokenizer without special tokens: its answer is the same alone and beside any others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from octobert import targets
from octobert.core.session import SessionOptions
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.graph import operators
from octobert.graph.capture import capture
from octobert.models.source import resolve
from tests.support.checkpoints import make_checkpoint, parity_feeds
from tests.support.pooling import write_modules
from tests.support.runs import TARGETS

# Sums of float32 in another order, over masked scores of -10,000.
SUM_ORDER = 2e-5
POOLINGS = ("cls", "max", "mean", "lasttoken", "weightedmean")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graphs of a classifier and of an encoder with each pooling, beside a tokenizer without special tokens."""
    root = tmp_path_factory.mktemp("no-tokens")
    for kind in ("classes", *POOLINGS):
        head = "sequence-classification" if kind == "classes" else "embedding"
        folder = make_checkpoint(root / kind, "bert", head)
        if kind != "classes":
            write_modules(folder, [("Pooling", {"pooling_mode": kind})])
        captured = capture.capture(resolve(folder), head, parity_feeds())
        operators.save(captured.model, root / f"{kind}.onnx")
    stated = json.loads((root / "classes" / "tokenizer.json").read_text())
    (root / "tokenizer.json").write_text(json.dumps(stated | {"post_processor": None}))
    shutil.copy(root / "classes" / "config.json", root)
    return root


@pytest.mark.parametrize("target", [t for t in ("ort-cpu", "openvino-cpu") if t in TARGETS])
@pytest.mark.parametrize("kind", ["classes", *POOLINGS])
def test_the_answer_is_as_alone(graphs: Path, kind: str, target: str) -> None:
    session = targets.load(target).open_session(graphs / f"{kind}.onnx", SessionOptions())
    texts = ["", "the of and to", "", "a", "in is you that it he was for on are"]
    rows = Tokenizer(graphs).encode([(text,) for text in texts])
    assert [len(row) for row in rows] == [0, 4, 0, 1, 10]
    (alone,) = session.run(feeds_of(rows[:1], 0)).values()
    assert np.isfinite(alone).all()
    for others, length in ((rows[2:4], 0), (rows, 0), (rows[:1], 24)):
        (beside,) = session.run(feeds_of([rows[0], *others], 0, length)).values()
        np.testing.assert_allclose(beside[0], alone[0], atol=SUM_ORDER)
