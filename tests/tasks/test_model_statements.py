"""What a model states decides what its logits mean: one label, several labels, a score; and which prompts its texts get."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from octobert import tasks
from octobert.core.errors import DataError, ModelError
from octobert.core.results import ModelMetadata, TaskFacts
from octobert.data.tokenization import EncodedTexts, Tokenizer, save_tokenizer
from octobert.evaluation import scoring
from octobert.models.source import read_metadata, resolve
from octobert.tasks import Result
from octobert.tasks._classification import Classification
from octobert.tasks.text_classification import MultiLabel, Scores
from octobert.training.job import collate
from tests.support.checkpoints import make_tokenizer
from tests.support.pooling import write_modules
from tests.support.tasks import build

LABELS = ("x", "y", "z")
IDENTITY = "torch.nn.modules.linear.Identity"


def task(metadata: ModelMetadata, **options: object) -> Any:
    return build("text-classification", options, metadata)


def only(*texts: str) -> EncodedTexts:
    return EncodedTexts([(text,) for text in texts], [])


def model(folder: Path, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", **config}))
    return folder


ONE = {"id2label": {"0": "LABEL_0"}}
TWO = {"id2label": {"0": "no", "1": "yes"}}


@pytest.mark.parametrize(
    ("config", "kind", "activation"),
    [
        (TWO, Classification, None),
        (TWO | {"problem_type": "single_label_classification"}, Classification, None),
        (TWO | {"problem_type": "multi_label_classification"}, MultiLabel, None),
        (ONE, Scores, "Sigmoid"),
        (ONE | {"problem_type": "regression"}, Scores, "Identity"),
        (
            ONE | {"sentence_transformers": {"activation_fn": IDENTITY, "version": "5"}},
            Scores,
            "Identity",
        ),
        (ONE | {"sbert_ce_default_activation_function": IDENTITY}, Scores, "Identity"),
        (
            ONE
            | {
                "problem_type": "regression",
                "sentence_transformers": {"activation_fn": "torch.nn.Tanh"},
            },
            Scores,
            "Tanh",
        ),
    ],
)
def test_the_config_says_what_logits_mean(
    tmp_path: Path, config: dict[str, Any], kind: type, activation: str | None
) -> None:
    built = task(read_metadata(resolve(model(tmp_path, **config))))
    assert type(built) is kind
    assert getattr(built, "activation", None) == activation


def test_statements_that_cannot_be_followed(golden, tmp_path: Path) -> None:
    with golden.raises(ModelError):
        read_metadata(resolve(model(tmp_path, problem_type="ranking")))
    with golden.raises(DataError):
        task(ModelMetadata(labels=("a",), activation="my.Scale"))
    with pytest.raises(DataError, match=r"a regression has one score \(got 3 \(x, y, z\)"):
        task(ModelMetadata(labels=LABELS, problem="regression"))
    with golden.raises(DataError):
        task(ModelMetadata(labels=("a",)), metric="accuracy")
    for problem in ("regression", "multi-label"):
        with golden.raises(DataError):
            build(
                "sst2",
                {},
                ModelMetadata(
                    labels=("a",) if problem == "regression" else ("a", "b"), problem=problem
                ),
            )


def test_one_logit_is_a_score(golden) -> None:
    logits = np.array([[-2.0], [0.0], [3.0]], dtype=np.float32)
    built, encoded = task(ModelMetadata(labels=("LABEL_0",))), only("a", "b", "c")
    expected = 1 / (1 + np.exp(-logits[:, 0].astype(np.float64)))
    answers = [built.answer(Result({"logits": logits}, encoded), i, None) for i in range(3)]
    assert [list(answer) for answer in answers] == [["score"]] * 3
    np.testing.assert_allclose([answer["score"] for answer in answers], expected, rtol=1e-12)
    raw = task(ModelMetadata(labels=("LABEL_0",), problem="regression"))
    assert raw.answer(Result({"logits": logits}, encoded), 2, None) == {"score": 3.0}
    rows = [
        {"text": text, "score": gold} for text, gold in zip("abc", ("0.1", 2, 4.5), strict=True)
    ]
    gold = raw.gold(rows, where="rows")
    result = Result({"logits": logits}, encoded, gold)
    by_metric = {s.metric: s for s in scoring.scores(raw, result, seed=0)}
    assert by_metric["spearman"].value == pytest.approx(1.0)
    assert by_metric["pearson"].value == pytest.approx(np.corrcoef(logits[:, 0], gold)[0, 1])
    assert by_metric["pearson"].chance == 0.0
    rows[1]["score"] = "nan"
    with golden.raises(DataError):
        raw.gold(rows, where="rows")


def test_one_logit_is_never_a_class(golden) -> None:
    """A file without a config does not say how many logits it has."""
    built, outputs = task(ModelMetadata()), {"logits": np.zeros((1, 1), dtype=np.float32)}
    for use in (
        lambda: built.answer(Result(outputs, only("a")), 0, None),
        lambda: built.items(Result(outputs, only("a"), [0])),
    ):
        with golden.raises(DataError):
            use()
    assert task(ModelMetadata(), problem="regression").answer(
        Result(outputs, only("a")), 0, None
    ) == {"score": 0.0}
    with golden.raises(DataError):
        task(ModelMetadata(), problem="regression").answer(
            Result({"logits": np.zeros((1, 2))}, only("a")), 0, None
        )


def test_several_labels() -> None:
    generator = np.random.default_rng(0)
    right, logits = (
        generator.integers(0, 2, (30, 3)),
        generator.normal(0, 2, (30, 3)).astype(np.float32),
    )
    built, encoded = (
        task(ModelMetadata(labels=LABELS, problem="multi-label")),
        only(*map(str, range(30))),
    )
    rows = [
        {"text": str(i), "labels": [LABELS[j] for j in np.flatnonzero(own)]}
        for i, own in enumerate(right)
    ]
    gold = built.gold(rows, where="rows")
    items = built.items(Result({"logits": logits}, encoded, gold))
    for metric in ("micro", "macro"):
        expected = f1_score(right, logits >= 0, average=metric)
        assert built.metrics[f"{metric}_f1"](items) == pytest.approx(expected)
    assert built.chance(items)["micro_f1"] == pytest.approx(
        f1_score(right, np.ones_like(right), average="micro")
    )
    answer = built.answer(Result({"logits": np.array([[2.0, -2.0, 0.0]])}, only("a")), 0, None)
    assert answer["labels"] == ["x", "z"]
    assert answer["scores"] == pytest.approx(
        {"x": 0.8807970779778823, "y": 0.11920292202211755, "z": 0.5}
    )
    other = -logits
    fidelity = built.fidelity(
        Result({"logits": other}, encoded), Result({"logits": logits}, encoded)
    )
    assert fidelity.agreement < 0.2
    assert fidelity.changed[0] == (
        0,
        built.expected(np.flatnonzero(logits[0] >= 0)),
        built.expected(np.flatnonzero(other[0] >= 0)),
    )


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("x, z", [0, 2]),
        ("", []),
        (["z", "x"], [0, 2]),
        ([2], [2]),
        ([1.0, 0.0, 1.0], [0, 2]),
        ([0, 0, 1], [2]),
        ([True, False, False], [0]),
    ],
)
def test_labels_of_a_row_are_names_indices_or_flags(cell: object, expected: list[int]) -> None:
    built = task(ModelMetadata(labels=LABELS, problem="multi-label"))
    assert built.gold([{"text": "a", "labels": cell}], where="rows") == [expected]


def test_a_column_for_each_label_and_cells_that_cannot_be_read(golden) -> None:
    built = task(ModelMetadata(labels=LABELS, problem="multi-label"))
    assert built.gold([{"text": "a", "x": "1", "y": 0, "z": "1.0"}], where="rows") == [[0, 2]]
    with pytest.raises(DataError, match=r'column "y": the cell is not 0 or 1 \(got 2'):
        built.gold([{"text": "a", "x": "1", "y": 2, "z": 1}], where="rows")
    with pytest.raises(DataError, match=r"the task has no such label \(got 'w', expected x, y, z"):
        built.gold([{"text": "a", "labels": ["w"]}], where="rows")
    two = task(ModelMetadata(labels=("x", "y"), problem="multi-label"))
    with golden.raises(DataError):
        two.gold([{"text": "a", "labels": [0, 1]}], where="rows")
    assert built.labels_in(
        [{"text": "a", "labels": "b, a"}, {"text": "b", "labels": ["c"]}], where="rows"
    ) == ("a", "b", "c")


def test_training_targets_of_scores_and_of_several_labels_are_floats() -> None:
    from octobert.data.encoded import Encoded

    rows = [Encoded(np.arange(4), np.zeros(4, dtype=np.int64), False)] * 2
    scores, several = (
        task(ModelMetadata(), problem="regression"),
        task(ModelMetadata(labels=LABELS, problem="multi-label")),
    )
    assert scores.labels_in([{"text": "a", "score": 1}], where="rows") == ("score",)
    for built, gold, shape in ((scores, [0.5, 3.0], (2,)), (several, [[0], []], (2, 3))):
        targets = built.targets(EncodedTexts([], []), gold)
        labels = collate(
            [{"row": r, "targets": t} for r, t in zip(rows, targets, strict=True)],
            0,
            ("input_ids",),
        )["labels"]
        assert str(labels.dtype) == "torch.float32"
        assert tuple(labels.shape) == shape


def test_a_package_knows_how_many_texts_its_model_reads(golden) -> None:
    facts = TaskFacts(
        name="mrpc",
        options={},
        head="sequence-classification",
        primary="accuracy",
        labels=("no", "yes"),
        texts=2,
    )
    pairs = tasks.rebuild(TaskFacts.model_validate_json(facts.model_dump_json()))
    assert pairs.parse(("a", "b"), where="here") == ("a", "b")
    with golden.raises(DataError):
        pairs.parse("a", where="here")
    single = tasks.rebuild(facts.model_copy(update={"name": "text-classification", "texts": 1}))
    with pytest.raises(DataError, match=r"the model reads single texts, not pairs"):
        single.parse(("a", "b"), where="here")
    with golden.raises(DataError):
        single.inputs([{"sentence1": "a", "sentence2": "b"}], where="rows")


PROMPTS = ModelMetadata(prompts={"query": "Q: ", "passage": "P: "}, default_prompt="passage")


def test_prompts_are_put_before_texts() -> None:
    built = build("embedding", {"text": "body"}, PROMPTS)
    assert built.inputs([{"body": "a"}], where="rows") == [("P: a",)]
    assert built.parse("a", where="here") == ("P: a",)
    assert built.parse({"text": "a", "prompt": "query"}, where="here") == ("Q: a",)
    assert built.parse({"text": "a", "prompt": ""}, where="here") == ("a",)
    plain = build("embedding", {"text": "body", "prompt": ""}, PROMPTS)
    assert plain.inputs([{"body": "a"}], where="rows") == [("a",)]
    retrieval = build("embedding", {"query": "q", "document": "d"}, PROMPTS)
    assert retrieval.inputs([{"q": "a", "d": "b"}], where="rows") == [("Q: a",), ("P: b",)]
    chosen = build(
        "embedding", {"query": "q", "document": "d", "document_prompt": "query"}, PROMPTS
    )
    assert chosen.inputs([{"q": "a", "d": "b"}], where="rows") == [("Q: a",), ("Q: b",)]


def test_a_prompt_that_a_classifier_would_need(golden) -> None:
    for name in ("text-classification", "sst2"):
        with golden.raises(DataError):
            build(name, {}, PROMPTS)


def test_prompts_that_the_model_does_not_have(golden) -> None:
    with golden.raises(DataError):
        build("embedding", {"text": "body", "prompt": "querry"}, PROMPTS)
    with golden.raises(DataError):
        build("embedding", {}, ModelMetadata()).parse(
            {"text": "a", "prompt": "query"}, where="here"
        )


def test_prompts_are_read_as_sentence_transformers_reads_them(golden, tmp_path: Path) -> None:
    about = {"prompts": {"query": "Q: ", "document": ""}, "default_prompt_name": "query"}
    folder = write_modules(model(tmp_path / "a"), [("Pooling", {"pooling_mode": "mean"})], **about)
    metadata = read_metadata(resolve(folder))
    assert (metadata.prompts, metadata.default_prompt) == ({"query": "Q: "}, "query")
    other = write_modules(
        model(tmp_path / "b"),
        [("Pooling", {"pooling_mode": "mean"})],
        **about | {"default_prompt_name": "x"},
    )
    with golden.raises(ModelError):
        read_metadata(resolve(other))
    (folder / "modules.json").unlink()
    (folder / "1_Pooling" / "config.json").unlink()
    assert read_metadata(resolve(folder)) == ModelMetadata()


def test_lower_case_that_sentence_transformers_states(tmp_path: Path) -> None:
    make_tokenizer(model(tmp_path / "a", pad_token_id=0), pad_id=0)
    path = tmp_path / "a" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(content))
    # Of the class, which lowers by default.
    (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    upper, lower = [("THE of",)], [("the of",)]

    def ids(folder: Path, texts: list[tuple[str, ...]]) -> list[int]:
        return Tokenizer(folder).encode(texts)[0].ids.tolist()

    assert ids(tmp_path / "a", upper) != ids(tmp_path / "a", lower)
    stated = {"max_seq_length": 9, "do_lower_case": True}
    (tmp_path / "a" / "sentence_roberta_config.json").write_text(json.dumps(stated))
    # As that library, which reads no such file without the other one.
    assert ids(tmp_path / "a", upper) != ids(tmp_path / "a", lower)
    assert Tokenizer(tmp_path / "a").max_length != 9
    (tmp_path / "a" / "modules.json").write_text("[]")
    assert ids(tmp_path / "a", upper) == ids(tmp_path / "a", lower)
    (tmp_path / "b").mkdir()
    save_tokenizer(tmp_path / "a", tmp_path / "b")
    assert json.loads((tmp_path / "b" / "sentence_bert_config.json").read_text()) == stated
    # For programs that read nothing but this file.
    kinds = [
        n["type"]
        for n in json.loads((tmp_path / "b" / "tokenizer.json").read_text())["normalizer"][
            "normalizers"
        ]
    ]
    assert kinds == ["Lowercase", "BertNormalizer"]
    (tmp_path / "b" / "config.json").write_bytes((tmp_path / "a" / "config.json").read_bytes())
    assert Tokenizer(tmp_path / "b").max_length == 9
