"""Packages whose manifest or side files do not fit their model: a sentence each, whatever is asked of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octobert import tasks
from octobert.core.errors import ModelError
from octobert.core.model_config import QUERY_TABLE, Reading
from octobert.core.results import ModelMetadata, TaskFacts
from octobert.core.session import VECTOR
from octobert.data.tokenization import Tokenizer
from octobert.models.source import resolve
from octobert.tasks import Result
from octobert.tasks.late_interaction import TokenVectors
from octobert.tasks.sparse_embedding import SparseRow
from octobert.tasks.zero_shot_classification import Hypothesis
from tests.support.sparse import ENCODER, TABLE, routed
from tests.support.tasks import build

IDS = np.array([2, 5, 3])


def test_a_table_of_queries_that_is_gone(tokenizer_folder: Path) -> None:
    task = build("sparse-embedding", {}, ModelMetadata(query_table=True))
    encoded = task.encode(Tokenizer(tokenizer_folder), [("the", "query")])
    with pytest.raises(ModelError, match="the table that makes queries is missing; copy the model"):
        task.answer(Result({VECTOR: np.zeros((0,))}, encoded), 0, None)


def test_tokens_beyond_the_table_of_queries(checkpoint, tmp_path: Path) -> None:
    model = routed(checkpoint("bert", "masked-lm"), tmp_path / "model")
    for folder in (model / TABLE, model / ENCODER):
        content = json.loads((folder / "tokenizer.json").read_text())
        content["model"]["vocab"]["the"] = 5000
        (folder / "tokenizer.json").write_text(json.dumps(content))
    folder = resolve(model).tokenizer_folder
    with pytest.raises(ModelError, match=r"not one weight for each .*expected \[5001\]"):
        Tokenizer(folder)
    assert (folder / QUERY_TABLE / "model.safetensors").is_file()


def test_vectors_that_are_wider_than_any_vocabulary() -> None:
    row = SparseRow(IDS, IDS, truncated=False, most=4, vocabulary=10)
    with pytest.raises(
        ModelError, match=r"more entries than any vocabulary has tokens \(got 1,048"
    ):
        row.kept({VECTOR: np.zeros(2**20 + 1, np.float32)})


def test_a_text_of_which_every_token_is_skipped(wordpiece_folder: Path) -> None:
    tokenizer = Tokenizer(wordpiece_folder)
    everything = tuple(tokenizer.words(range(tokenizer.vocabulary)))
    form = TokenVectors(Reading(skipped=everything, skipping=("query", "document")))
    for side in ("query", "document"):
        with pytest.raises(ModelError, match="no token of a text has a vector"):
            form.rows([("the of", side)], tokenizer)


def test_a_late_interaction_model_without_its_reading() -> None:
    facts = TaskFacts(
        name="late-interaction", options={}, head="late-interaction", primary=None, reading=None
    )
    with pytest.raises(ModelError, match="nothing says how the model reads queries and documents"):
        tasks.rebuild(facts)


@pytest.mark.parametrize("weighed", [(4, None), (0, 3)])
def test_labels_beyond_the_outputs(weighed: tuple[int, int | None]) -> None:
    row = Hypothesis(IDS, IDS, truncated=False, weighed=weighed)
    with pytest.raises(ModelError, match="fewer classes than its labels"):
        row.kept({"logits": np.zeros(3, np.float32)})
