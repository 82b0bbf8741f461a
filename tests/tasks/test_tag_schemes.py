"""Tags in all schemes that people write: the same entities, and the scores of seqeval in its strict mode."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval import metrics as seqeval
from seqeval import scheme as schemes

from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata
from octobert.data.encoded import TokenOffsets
from octobert.data.tokenization import EncodedTexts
from octobert.report import summary
from octobert.tasks import Result, _tags, token_classification
from tests.support.tasks import build

KINDS = ("PER", "LOC")
# Where an entity of so many words ends in each scheme: the letters of its words.
LETTERS = {
    "IOB2": lambda size, _: "B" + "I" * (size - 1),
    "IOB1": lambda size, touches: ("B" if touches else "I") + "I" * (size - 1),
    "IOE2": lambda size, _: "I" * (size - 1) + "E",
    "IOBES": lambda size, _: "S" if size == 1 else "B" + "I" * (size - 2) + "E",
    "BILOU": lambda size, _: "U" if size == 1 else "B" + "I" * (size - 2) + "L",
    "BMES": lambda size, _: "S" if size == 1 else "B" + "M" * (size - 2) + "E",
}
SPELLINGS = {
    "B-PER": lambda letter, kind: f"{letter}-{kind}",
    "B_PER": lambda letter, kind: f"{letter}_{kind}",
    "PER-B": lambda letter, kind: f"{kind}-{letter}",
    "PER_B": lambda letter, kind: f"{kind}_{letter}",
    "b-per": lambda letter, kind: f"{letter}-{kind}".lower(),
    "per_b": lambda letter, kind: f"{kind}_{letter}".lower(),
}
# (outside, an entity of so many words, and its type)
sentences = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(KINDS)), min_size=1, max_size=5
)


def written(
    entities: list[tuple[int, int, str]], scheme: str, spelling: str = "B-PER", outside: str = "O"
) -> list[str]:
    tags: list[str] = []
    before = ""
    for gap, size, kind in entities:
        tags += [outside] * gap
        touches = gap == 0 and before == kind
        letters = LETTERS[scheme](size, touches)
        tags += [SPELLINGS[spelling](letter, kind) for letter in letters]
        before = kind
    return [*tags, outside]


def labels_of(scheme: str, spelling: str = "B-PER", outside: str = "O") -> tuple[str, ...]:
    letters = {"BILOU": "BILU", "IOBES": "BIES", "BMES": "BMES", "IOE2": "IE"}.get(scheme, "BI")
    return (outside, *(SPELLINGS[spelling](letter, kind) for letter in letters for kind in KINDS))


def task(of_model: tuple[str, ...], **options: object) -> Any:
    return build("token-classification", options, ModelMetadata(labels=of_model))


def result(one: Any, said: list[list[str]], gold: list[list[str]]) -> Result:
    """What a model says that gives each word one token."""
    texts = [tuple(f"w{index}" for index in range(len(tags))) for tags in said]
    rows = [{"tokens": list(text), "tags": tags} for text, tags in zip(texts, gold, strict=True)]
    encoded = [[_Row(len(tags))] for tags in said]
    logits = [np.eye(len(one.labels))[one.labels.index(tag)] for tags in said for tag in tags]
    return Result(
        {"logits": np.array(logits)}, EncodedTexts(texts, encoded), one.gold(rows, where="dev")
    )


class _Row(TokenOffsets):
    """A row whose tokens are words."""

    def __init__(self, words: int) -> None:
        super().__init__(np.arange(words), np.stack([np.arange(words), np.arange(words) + 1], 1))
        self.best, self.entries = np.ones(words, dtype=bool), words

    def __len__(self) -> int:
        return len(self.ids)


def scores(one: Any, said: list[list[str]], gold: list[list[str]]) -> dict[str, float]:
    items = one.items(result(one, said, gold))
    return {name: metric(items) for name, metric in one.metrics.items()}


@pytest.mark.parametrize("scheme", LETTERS)
@settings(max_examples=40, deadline=None)
@given(st.lists(sentences, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_scores_are_those_of_strict_seqeval(scheme: str, rows: list, chance: random.Random) -> None:
    """Of well-formed tags: a model that ends, moves or renames some entities."""
    gold = [written(entities, scheme) for entities in rows]
    ours = [
        written([(gap, size, chance.choice(KINDS)) for gap, size, _ in entities], scheme)
        for entities in rows
    ]
    found = scores(task(labels_of(scheme)), ours, gold)
    strict = {} if scheme == "BMES" else {"mode": "strict", "scheme": getattr(schemes, scheme)}
    if scheme == "BMES":
        ours, gold = (
            [[tag.replace("M-", "I-") for tag in tags] for tags in side] for side in (ours, gold)
        )
    for name in ("f1", "precision", "recall"):
        theirs = getattr(seqeval, f"{name}_score")(gold, ours, zero_division=0, **strict)
        assert found[name] == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("scheme", ["BILOU", "BMES"])
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_tags_that_are_not_well_formed_are_read_as_seqeval_reads_iobes(scheme: str, data) -> None:
    tags = data.draw(st.lists(st.sampled_from(labels_of(scheme)), max_size=9))
    read = _tags.readings(labels_of(scheme))
    iobes = [
        tag.replace("L-", "E-").replace("U-", "S-").replace("M-", "I-") if "-" in tag else tag
        for tag in tags
    ]
    assert [read.get(tag, tag) for tag in tags] == iobes
    assert _tags.entities(iobes) == seqeval.sequence_labeling.get_entities(iobes)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("scheme", ["IOB2", "IOBES", "BILOU"])
@pytest.mark.parametrize("outside", ["O", "o", "OUT", "0"])
def test_every_spelling_of_a_scheme_has_the_same_entities(
    scheme: str, spelling: str, outside: str
) -> None:
    entities = [(1, 1, "PER"), (0, 3, "PER"), (0, 2, "LOC"), (2, 1, "LOC")]
    said = written(entities, scheme, spelling, outside)
    one = task(labels_of(scheme, spelling, outside))
    expected = ["PER 2–2", "PER 3–5", "LOC 6–7", "LOC 10–10"]
    answered = one.answer(
        result(one, [said], [said]), 0, [f"w{index}" for index in range(len(said))]
    )
    kinds = [kind.lower() if spelling.islower() else kind for _, _, kind in entities]
    assert [found["type"] for found in answered["entities"]] == kinds
    assert answered["tags"] == said
    assert one.expected(
        one.gold([{"tokens": said, "tags": said}], where="dev")[0]
    ).upper() == ", ".join(expected)
    assert one.primary == "f1"


@pytest.mark.parametrize("of_data", ["IOB2", "IOB1", "IOBES"])
@pytest.mark.parametrize("of_model", ["IOB2", "BILOU", "IOBES"])
def test_the_data_may_have_another_scheme_than_the_model(of_model: str, of_data: str) -> None:
    rows = [[(1, 1, "PER"), (0, 3, "LOC")], [(0, 2, "LOC"), (0, 1, "LOC")]]
    for spelling in ("B-PER", "B_PER", "PER-B"):
        one = task(labels_of(of_model, spelling))
        said = [written(entities, of_model, spelling) for entities in rows]
        found = scores(one, said, [written(entities, of_data) for entities in rows])
        assert (found["f1"], found["precision"], found["recall"]) == (1, 1, 1)


POS = ("ADJ", "DET", "NOUN", "PUNCT", "VERB", "X")


@pytest.mark.parametrize(
    ("labels", "primary"),
    [
        (POS, "accuracy"),
        (("LABEL_0", "LABEL_1", "LABEL_2"), "accuracy"),
        (("-LRB-", "NN", "NNS", "$"), "accuracy"),
        (("e-mail", "s-bahn"), "accuracy"),
        (("O", "PER", "LOC"), "f1"),
        (("B-PER", "I-PER"), "f1"),
        (("O", "B", "I"), "f1"),
        ((), "f1"),
    ],
)
def test_the_main_metric_of_tags_without_a_scheme_is_their_accuracy(
    labels: tuple[str, ...], primary: str
) -> None:
    assert task(labels).primary == primary
    assert task(labels, metric="recall").primary == "recall"


def test_chance_of_parts_of_speech_is_the_most_frequent_one() -> None:
    one = task(POS)
    gold = [["DET", "NOUN", "NOUN"], ["NOUN", "VERB"]]
    items = one.items(result(one, gold, gold))
    assert one.chance(items)["accuracy"] == pytest.approx(3 / 5)
    assert one.metrics["accuracy"](items) == 1


def test_integer_tags_of_a_model_that_does_not_name_them(golden) -> None:
    one = task(("LABEL_0", "LABEL_1", "LABEL_2"))
    assert one.gold([{"tokens": ["a", "b"], "tags": [0, 2]}], where="dev") == [
        ["LABEL_0", "LABEL_2"]
    ]
    named = task(("LABEL_0", "LABEL_1", "LABEL_2"), labels=("O", "B-X", "I-X"))
    assert named.primary == "f1"
    assert named.gold([{"tokens": ["a", "b"], "tags": [0, 1]}], where="dev") == [["O", "B-X"]]
    facts = SimpleNamespace(head="token-classification", labels=one.labels, options={})
    golden("\n".join(summary.tagging(facts)))
    facts.options = {"labels": ["O", "B-X", "I-X"]}
    assert summary.tagging(facts) == []


def test_types_that_the_model_does_not_have(golden) -> None:
    with golden.raises(DataError):
        task(labels_of("BILOU")).gold([{"tokens": ["a", "b"], "tags": ["U-ORG", "O"]}], where="dev")


def test_training_of_a_model_with_another_spelling() -> None:
    one = task(labels_of("BILOU", "PER_B", "OUT"))
    encoded = EncodedTexts([("a", "b")], [[_Row(2)]])
    rows = [{"tokens": ["a", "b"], "tags": ["PER_U", "OUT"]}]
    (target,) = one.targets(encoded, one.gold(rows, where="dev"))
    assert [one.labels[index] for index in target["labels"]] == ["PER_U", "OUT"]
    assert token_classification.METRICS.keys() == one.metrics.keys()
