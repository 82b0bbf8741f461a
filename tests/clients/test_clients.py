"""Packages in the programs that they are meant for, each in an environment of its own. `make test-clients` runs this.

`octobert.export` writes a folder and the lines that load it. Those lines run as they are printed, and again with the texts of
`tests.clients.models`; the answers must be those of octobert with the same file. A table of the answers, beside those of the
float model, is written to `runs/clients/table.md`.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

import octobert
from octobert import targets
from octobert.api import clients, exports
from octobert.config.loading import parse
from octobert.core.session import Session, SessionOptions
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer
from octobert.inference.package_files import read_manifest
from octobert.pipeline import runner
from tests.clients import models
from tests.clients.environments import ENVIRONMENTS, FOLDER, MTEB, ROOT, Environment

pytestmark = pytest.mark.needs_network
# The same 8-bit file in another batch, release or runtime: last digits move single values to the next of 256 steps.
SAME_CODES = 0.995
# transformers.js cuts the last special token off texts that are too long.
WITHOUT_END = 0.98
# Of 8-bit and float vectors, where octobert itself reaches it.
MIN_COSINE = 0.96
# Of a rank correlation of a dozen pairs, whose neighbours may change places.
SAME_RANKS = 0.02
# Of labels: one of two that are almost as likely may come first in another batch.
SAME_ANSWERS = 0.95
# Of scores, whose head is random and wide: about a hundredth of their range.
SAME_SCORE = 0.1
KINDS = {
    "embedding": clients.EMBEDDING,
    "dense": clients.EMBEDDING,
    "pairs": clients.PAIRS,
    "single": clients.SINGLE,
    "multi-label": clients.SINGLE,
    "reranker": clients.RERANKER,
    "tags": clients.TAGGING,
    "answers": clients.ANSWERING,
}
CASES = [
    pytest.param(environment, client, kind, id=f"{environment.name}-{client}-{kind}")
    for environment in ENVIRONMENTS
    for client in environment.clients
    for kind in KINDS
    if KINDS[kind] in clients.CLIENTS[client].kinds
    # Servers give logits of padding too, and do not say which.
    and not (environment.server and kind == "tags")
]
# Its reranker does not pass segment ids, which BERT needs; the export refuses.
CASES = [case for case in CASES if case.id != "infinity-infinity-reranker"]
Package = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    """`package(kind, target)`: made once."""
    made: dict[str, Path] = {}

    def get(kind: str, target: str) -> Path:
        if kind not in made:
            lines = {
                line.strip()
                for path in sorted(ROOT.glob("docs/**/*.md"))
                for line in path.read_text().splitlines()
            }
            texts = sorted(line for line in lines if len(line) > 40 and line[0].isalpha())
            folder = tmp_path_factory.mktemp(kind)
            runner.run(parse(models.recipe(kind, folder, texts[::7])), folder / "out")
            made[kind] = folder / "out"
        return made[kind] / target

    return get


@pytest.fixture(scope="session", autouse=True)
def table() -> Iterator[dict[str, dict[str, str]]]:
    """Cells of the table by program and kind, written at the end, beside those of earlier sessions."""
    rows: dict[str, dict[str, str]] = {}
    yield rows
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = FOLDER / "table.json"
    found = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
    for name, cells in rows.items():
        found[name] = found.get(name, {}) | cells
    kept.write_text(json.dumps(found, indent=1), encoding="utf-8")
    lines = [f"| program | {' | '.join(KINDS)} |", f"| --- |{' --- |' * len(KINDS)}"]
    lines += [
        f"| {name} | {' | '.join(cells.get(kind, '') for kind in KINDS)} |"
        for name, cells in found.items()
    ]
    (FOLDER / "table.md").write_text(
        "\n".join([*lines, "", f"{datetime.date.today()}", ""]), encoding="utf-8"
    )


@pytest.mark.parametrize(("environment", "client", "kind"), CASES)
def test_the_printed_lines_answer_as_octobert_does(
    environment: Environment,
    client: str,
    kind: str,
    package: Package,
    table: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if client == "infinity" and kind in ("single", "multi-label"):
        # Its classifier does not cut texts that are too long.
        monkeypatch.setattr(models, "TEXTS", models.TEXTS[:-1])
    if client == "tei":
        # It refuses an empty text.
        monkeypatch.setattr(models, "TEXTS", models.TEXTS[1:])
    if environment.missing:
        pytest.skip(f"the program {environment.missing} is not installed")
    environment.make()
    target = "openvino-cpu" if environment.openvino else "ort-cpu"
    source = package(kind, target)
    exported = octobert.export(source, client, tmp_path / "model")
    asked = [exported.snippet, *scripts(source, client, exported.folder, kind, monkeypatch)]
    names = [
        name
        for name in ("vectors", "queries", "answers")
        if f"{name} = " in exported.snippet or f"{name}, " in exported.snippet
    ]
    with environment.serving(exported.folder):
        printed, *given = environment.run(asked, names, tmp_path / "ran")
    assert all(len(printed[name]) for name in names)
    theirs = read(client, kind, given)
    file = "openvino_model.xml" if environment.openvino else "onnx/model_quantized.onnx"
    ours, right = (
        expected(source, target, file, kind, client),
        expected(source, "ort-cpu", "onnx/model.onnx", kind, client),
    )
    cells = {
        f"octobert, {target}": compared(kind, ours, right),
        f"{client}: {environment.versions()}": compared(kind, theirs, right),
    }
    for name, cell in cells.items():
        table.setdefault(name, {})[kind] = cell
    if KINDS[kind] == clients.EMBEDDING:
        assert cosines(theirs, ours).min() >= (
            WITHOUT_END if client == "transformers.js" else SAME_CODES
        )
        assert np.all((cosines(theirs, right) >= MIN_COSINE) | (cosines(ours, right) < MIN_COSINE))
    elif kind == "reranker":
        np.testing.assert_allclose(theirs, ours, atol=SAME_SCORE)
    else:
        same, count = agreeing(kind, theirs, ours)
        # Of a few questions one may have two answers that are almost as likely.
        assert same >= min(count - 1, SAME_ANSWERS * count)


@pytest.mark.parametrize("kind", ["embedding", "dense"])
def test_mteb_scores_the_vectors_of_octobert(kind: str, package: Package, tmp_path: Path) -> None:
    MTEB.make()
    source = package(kind, "ort-cpu")
    exported = octobert.export(source, "sentence-transformers", tmp_path / "model")
    first, second = list(models.SENTENCES), list(reversed(models.SENTENCES))
    gold = [number / len(first) for number in range(len(first))]
    tasks = (Path(__file__).parent / "mteb_tasks.py").read_text(encoding="utf-8")
    # As docs/clients.md says.
    named = 'model.prompts["document"] = model.prompts.get("passage", "")\n'
    script = (
        f"{exported.snippet}{named}{tasks}found = scored(model, {first!r}, {second!r}, {gold!r})\n"
    )
    ((found,),) = (each.values() for each in MTEB.run([script], ["found"], tmp_path / "ran"))
    with octobert.load(source) as model:
        prompts = read_manifest(source).task.prompts

        def vectors(texts: Sequence[str], name: str = "") -> np.ndarray:
            return np.stack(
                [a["embedding"] for a in model([prompts.get(name, "") + t for t in texts])]
            )

        cosine = cosines(vectors(first), vectors(second))
        table = unit(vectors(first, "query")) @ unit(vectors(second, "passage")).T
    assert found["scores"]["Similarity"] == pytest.approx(
        spearmanr(cosine, gold)[0], abs=SAME_RANKS
    )
    for query, passages in found["predictions"].items():
        ours = {f"d{i}": score for i, score in enumerate(table[int(query[1:])])}
        assert passages == pytest.approx(ours, abs=1 - SAME_CODES)


def scripts(
    source: Path, client: str, folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The printed lines with other texts: one program, or one for each question."""
    model = exports.model_of(source, read_manifest(source), client, str(folder))
    for name, value in (
        ("TEXTS", models.TEXTS),
        ("QUERY", models.QUERY),
        ("ONE_TEXT", models.TEXTS),
        ("TWO_TEXTS", models.PAIRS),
        ("RANKED", (models.QUERY, models.PASSAGES)),
    ):
        monkeypatch.setattr(clients, name, value)
    made = []
    for question, context in models.QUESTIONS if kind == "answers" else (("", ""),):
        monkeypatch.setattr(clients, "QUESTION", question)
        monkeypatch.setattr(clients, "CONTEXT", context)
        made.append(clients.snippet(client, model))
    return made


def expected(source: Path, target: str, file: str, kind: str, client: str) -> Any:
    """What octobert answers with a model of a package, in the form of `read`."""
    session = targets.load(target).open_session(source / file, SessionOptions(threads=2))
    manifest = read_manifest(source)
    windowed = kind in ("tags", "answers")
    tokenizer = Tokenizer(source, None if windowed else manifest.task.options.get("max_length"))

    def outputs(*text: str) -> dict[str, np.ndarray]:
        return session.run(feeds_of(tokenizer.encode([text]), tokenizer.pad_id))

    if KINDS[kind] == clients.EMBEDDING:
        prompts = manifest.task.prompts
        given = [prompts.get("passage", "") + text for text in models.TEXTS]
        given += [prompts["query"] + models.QUERY] if prompts else []
        return np.concatenate([outputs(text)["sentence_embedding"] for text in given])
    if kind == "answers":
        return [
            span_of(tokenizer, session, *asked, pipeline=client == "transformers.js")
            for asked in models.QUESTIONS
        ]
    if kind == "reranker":
        given = ranked() if client in RANKING else models.PAIRS
        return [float(outputs(*pair)["logits"][0, 0]) for pair in given]
    logits = [
        outputs(*(text if kind == "pairs" else (text,)))["logits"][0] for text in _inputs(kind)
    ]
    if kind == "tags":
        # Programs leave out tokens that are outside.
        return [[models.TAGS[index] for index in each[1:-1].argmax(-1) if index] for each in logits]
    names = manifest.task.labels
    if kind == "multi-label":
        return [
            sorted(name for name, x in zip(names, each, strict=True) if x >= 0) for each in logits
        ]
    return [names[int(each.argmax())] for each in logits]


# Programs that are given a query and passages.
RANKING = ("haystack", "infinity", "openvino-genai", "tei")


def ranked() -> list[tuple[str, str]]:
    return [(models.QUERY, passage) for passage in models.PASSAGES]


def _inputs(kind: str) -> Sequence[Any]:
    return models.PAIRS if kind == "pairs" else models.TEXTS


def span_of(
    tokenizer: Tokenizer, session: Session, question: str, context: str, *, pipeline: bool
) -> str:
    """The text between the likeliest start and end; for a pipeline, of those after the question that are in order."""
    (row,) = tokenizer.encode([(question, context)])
    outputs = session.run(feeds_of([row], tokenizer.pad_id))
    starts, ends = outputs["start_logits"][0], outputs["end_logits"][0]
    start, end = int(starts.argmax()), int(ends.argmax())
    if pipeline:
        first = int(np.flatnonzero(row.types == 1)[0])
        sums = np.triu(starts[first:, None] + ends[None, first:] + 1e6)
        start, end = (int(index) + first for index in np.unravel_index(sums.argmax(), sums.shape))
    return squeezed(tokenizer.decoded(row.ids[start : end + 1]))


def squeezed(text: str) -> str:
    """Text without what decoders write in different ways."""
    return "".join(text.replace("[SEP]", "").replace("[CLS]", "").lower().split())


def read(client: str, kind: str, given: list[dict[str, Any]]) -> Any:
    """Answers of a program in one form: vectors, labels, sets of labels, tags of tokens, texts or scores."""
    if KINDS[kind] == clients.EMBEDDING:
        return np.concatenate(
            [np.array(given[0][name]) for name in ("vectors", "queries") if name in given[0]]
        )
    if kind == "answers":
        found = (each["answers"] for each in given)
        return [squeezed(each["answer"] if isinstance(each, dict) else each) for each in found]
    found = given[0]["answers"]
    if kind == "tags":
        return [[each["entity"] for each in entities] for entities in found]
    if kind == "reranker":
        return scores_of(client, found)
    if kind == "multi-label":
        return [sorted(labels_of(each)) for each in found]
    return [
        top(each, ("different", "same") if kind == "pairs" else ("bad", "fair", "good"))
        for each in found
    ]


def scores_of(client: str, found: Any) -> list[float]:
    """Scores in the order of the pairs."""
    if client not in RANKING:
        return found
    places = {passage: place for place, passage in enumerate(models.PASSAGES)}
    by_place = {places[key] if isinstance(key, str) else key: score for key, score in found}
    return [by_place[place] for place in range(len(by_place))]


def labels_of(answer: Any) -> list[str]:
    """All labels of a text."""
    if isinstance(answer[0], dict):
        return [each["label"] for each in answer if each["score"] >= 0.5]
    return [
        name for name, logit in zip(("art", "law", "sea", "war"), answer, strict=True) if logit >= 0
    ]


def top(answer: Any, names: Sequence[str]) -> str:
    """The label of a text."""
    if isinstance(answer, dict):
        return answer["label"]
    if isinstance(answer[0], dict):
        return max(answer, key=lambda each: each["score"])["label"]
    return names[int(np.argmax(answer))]


def compared(kind: str, ours: Any, right: Any) -> str:
    """A cell of the table: the smallest cosine, or how many answers are those of the float model."""
    if KINDS[kind] == clients.EMBEDDING:
        # The first two texts are empty and a single sign.
        found = cosines(ours, right)
        return f"{found[2:].min():.3f} ({found[:2].min():.3f})"
    if kind == "reranker":
        return f"±{np.abs(np.array(ours) - np.array(right)).max():.2f}"
    same, count = agreeing(kind, ours, right)
    return f"{same} / {count}"


def agreeing(kind: str, ours: Any, theirs: Any) -> tuple[int, int]:
    """How many answers are the same, and of how many."""
    if kind == "tags":
        # A token that one of them leaves out moves those after it.
        ours, theirs = (
            [f"{i} {tag}" for i, each in enumerate(tags) for tag in each] for tags in (ours, theirs)
        )
        return sum((Counter(ours) & Counter(theirs)).values()), len(theirs)
    return sum(one == other for one, other in zip(ours, theirs, strict=True)), len(theirs)


def cosines(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Of two vectors of each text."""
    return np.sum(unit(ours) * unit(theirs), axis=1)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
