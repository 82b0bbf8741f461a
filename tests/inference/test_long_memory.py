"""Memory for attention over a long text: said before it is tried, with the text's number, and batches become smaller first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import octobert
from octobert.config.loading import parse
from octobert.core import arrays, budget, environment
from octobert.core.errors import DataError, OctobertError
from octobert.engine.executors import inline
from octobert.evaluation import latency
from octobert.inference.batching import run_rows
from octobert.models import locating
from octobert.pipeline import runner
from octobert.quantization import observer
from tests.support.runs import write_pairs

# Of the tiny encoders.
HEADS, LONGEST = 4, 64
# Sums of float32 in another order.
SAME_FLOAT = 1e-5
SHORT, LONG = "the bank raised its rates", "the bank raised its rates on tuesday " * 30
SENTENCE = (
    r"a text of 64 tokens would take too much memory \(got about 0 MiB, expected at most 0 MiB, which are free\); "
    r"lower max_length, read texts in windows \(windows: mean\), or take the target openvino-cpu, which needs less"
)


@pytest.fixture
def free(monkeypatch):
    """`free(rows, tokens)` leaves as much memory as the attention of so many rows takes."""

    def set_(rows: int, tokens: int) -> None:
        count = 4 * (2 * HEADS + 3) * rows * tokens**2
        monkeypatch.setattr(budget, "_LITTLE", 0)
        monkeypatch.setattr(environment, "memory", lambda: environment.Memory(1 << 30, count))

    return set_


@pytest.mark.parametrize("call", ["few", "many", "stream"])
def test_the_text_is_named(embedding_package: Path, free, call: str) -> None:
    with octobert.load(embedding_package, measure=False) as model:
        free(1, LONGEST - 1)
        texts = [SHORT] * (2 if call == "few" else 7) + [LONG]
        with pytest.raises(DataError, match=rf"^input {len(texts)}: {SENTENCE}"):
            list(model.stream(texts)) if call == "stream" else model(texts)
        assert len(model([SHORT] * 3)) == 3


def test_what_has_run_once_runs_again(embedding_package: Path, free) -> None:
    """The runtime keeps the memory of its largest batch."""
    with octobert.load(embedding_package, measure=False) as model:
        free(1, LONGEST)
        model([LONG])
        free(0, 0)
        model([LONG])


def test_batches_become_smaller_first(embedding_package: Path, free) -> None:
    with octobert.load(embedding_package, measure=False) as model:
        rows = model.opened.tokenizer(model.task).encode([(LONG,), (LONG[:60],), (SHORT,)] * 4)
        expected = model.outputs(rows)
        free(1, LONGEST)
        session = model.opened.session(model.setting.options())
        sizes = []
        run = session._run

        def counted(inputs):
            sizes.append(len(inputs["input_ids"]))
            return run(inputs)

        session._run = counted
        found = run_rows(session, rows, 0, per_token=model.task.per_token)
    assert 1 in sizes
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, atol=SAME_FLOAT)


def test_an_evaluation_says_it(embedding_package: Path, tmp_path: Path, free) -> None:
    lines = [f"{SHORT}\t{SHORT}\t1"] * 5 + [f"{LONG}\t{SHORT}\t0"]
    file = tmp_path / "dev.tsv"
    file.write_text("sentence1\tsentence2\tscore\n" + "\n".join(lines) + "\n")
    free(1, LONGEST - 1)
    with pytest.raises(DataError, match=rf"row \d+: {SENTENCE}"):
        octobert.evaluate(embedding_package, file)


@pytest.mark.parametrize("part", ["train", "dev"])
def test_a_run_says_it(checkpoint, tmp_path: Path, free, monkeypatch, part: str) -> None:
    data = write_pairs(tmp_path / "data")
    for file in data.iterdir():
        if part in file.name:
            header, first, *others = file.read_text().splitlines()
            cells = [LONG if cell.count(" ") > 2 else cell for cell in first.split("\t")]
            file.write_text("\n".join([header, "\t".join(cells), *others]) + "\n")
    asked = {
        "model": str(checkpoint("bert", "embedding")),
        "task": {"embedding": {"text": "sentence1"}},
        "data": {"source": str(data), "calibrate": {"from": "train", "samples": 1000}},
        "targets": ["ort-cpu"],
    }
    free(1, LONGEST - 1)
    # The model itself fits.
    for room in (locating, arrays):
        monkeypatch.setattr(room, "check_size", lambda *_, **__: None)
    place = "calibration row" if part == "train" else "row"
    with pytest.raises(
        OctobertError, match=rf"{place} \d+: a text of 64 tokens would take too much"
    ):
        runner.run(parse(asked), tmp_path / "out", executor=inline.run)


def test_shapes_that_somebody_states() -> None:
    with pytest.raises(
        OctobertError,
        match=r"benchmark: a batch of 1,048,576 rows of 512 tokens would take too much memory",
    ):
        latency.random_workload(2**20, 512, 100, seed=0)


def test_heads_are_those_of_the_graph(bert) -> None:
    assert observer.heads_of(bert.model) == HEADS == bert.sizes.heads
