"""Token classification: entities and scores as seqeval counts them, words to pieces, column files, and bad input."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from seqeval import metrics as seqeval
from seqeval.metrics.sequence_labeling import get_entities

from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata
from octobert.data import readers
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.data.windows import NOWHERE
from octobert.evaluation import scoring
from octobert.tasks import Result, _tags, token_classification
from tests.support.tasks import build

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
# seqeval warns of tags without a letter and of metrics without entities; both are wanted here.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*seems not to be NE tag", "ignore:.*ill-defined", "ignore:.*Mean of empty slice"
)


def task(of_model: tuple[str, ...] = LABELS, **options: object):
    return build("token-classification", options, ModelMetadata(labels=of_model))


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder) -> Tokenizer:
    return Tokenizer(tokenizer_folder, 64)


@pytest.fixture(scope="module")
def wordpiece(wordpiece_folder) -> Tokenizer:
    return Tokenizer(wordpiece_folder, 64)


def saying(
    encoded: EncodedTexts, tags: list[list[str]], labels: tuple[str, ...] = LABELS
) -> dict[str, np.ndarray]:
    """Outputs that give the first piece of each word its tag, and every other piece another one."""
    found = []
    for rows, own in zip(encoded.rows, tags, strict=True):
        for row in rows:
            logits = np.zeros((len(row), len(labels)), dtype=np.float32)
            logits[:, -1] = 4.0
            for place in np.flatnonzero(row.spans[:, 0] != NOWHERE):
                # Away from the middle of a window a model knows less: it is wrong there, and must not be asked.
                index = labels.index(own[row.spans[place, 0]])
                logits[place] = 0.0
                logits[place, index if row.best[place] else (index + 1) % len(labels)] = 9.0
            found.append(logits)
    return {"logits": np.concatenate(found)}


# --- Entities and scores, against seqeval ---

FORMS = {
    "iob": [f"{letter}-{kind}" for letter in "BI" for kind in ("PER", "LOC")],
    "iobes": [f"{letter}-{kind}" for letter in "BIES" for kind in ("PER", "LOC")],
    "one type": ["B-PER", "I-PER", "E-PER", "S-PER"],
    "with dashes": ["B-a-b", "I-a-b", "I-a", "B-a"],
}


def random_tags(form: str, seed: int, count: int) -> list[str]:
    generator = random.Random(seed)
    return [
        generator.choice(FORMS[form]) if generator.random() < 0.7 else "O" for _ in range(count)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_entities_are_those_of_seqeval(form: str) -> None:
    for seed in range(2000):
        tags = random_tags(form, seed, seed % 13)
        assert _tags.entities(tags) == get_entities(tags), tags


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["I-PER", "I-PER", "O", "I-LOC"], [("PER", 0, 1), ("LOC", 3, 3)]),
        (["I-PER", "B-PER", "I-PER"], [("PER", 0, 0), ("PER", 1, 2)]),
        (["B-PER", "I-LOC", "I-LOC"], [("PER", 0, 0), ("LOC", 1, 2)]),
        (["S-PER", "I-PER", "B-LOC", "E-LOC"], [("PER", 0, 0), ("PER", 1, 1), ("LOC", 2, 3)]),
        ([], []),
    ],
)
def test_entities_by_hand(tags: list[str], expected: list) -> None:
    assert _tags.entities(tags) == expected


@pytest.mark.parametrize("form", FORMS)
def test_scores_are_those_of_seqeval(form: str) -> None:
    for seed in range(60):
        gold = [random_tags(form, 1000 * seed + i, 1 + i % 9) for i in range(12)]
        ours = [
            [
                tag
                if random.Random(seed + i + k).random() < 0.7
                else random_tags(form, seed + k, 1)[0]
                for k, tag in enumerate(own)
            ]
            for i, own in enumerate(gold)
        ]
        _compare(ours, gold)


@pytest.mark.parametrize("nothing", ["gold", "ours", "both"])
def test_scores_where_there_are_no_entities(nothing: str) -> None:
    tagged, empty = [["B-PER", "O"], ["O", "B-LOC"]], [["O", "O"], ["O", "O"]]
    _compare(
        empty if nothing in ("ours", "both") else tagged,
        empty if nothing in ("gold", "both") else tagged,
    )


def _compare(ours: list[list[str]], gold: list[list[str]]) -> None:
    items = np.array(
        [_tags.counts(a, b) for a, b in zip(ours, gold, strict=True)],
        dtype=np.float64,
    )
    theirs = {
        "f1": seqeval.f1_score(gold, ours, zero_division=0),
        "precision": seqeval.precision_score(gold, ours, zero_division=0),
        "recall": seqeval.recall_score(gold, ours, zero_division=0),
        "accuracy": seqeval.accuracy_score(gold, ours),
    }
    assert {
        name: metric(items) for name, metric in token_classification.METRICS.items()
    } == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("form", ["iob", "one type"])
def test_iob2_has_the_same_entities(form: str) -> None:
    for seed in range(500):
        tags = [
            t.replace("E-", "I-").replace("S-", "B-") for t in random_tags(form, seed, seed % 11)
        ]
        found = _tags.iob2(tags)
        assert get_entities(found) == get_entities(tags)
        assert [tag == "O" for tag in found] == [tag == "O" for tag in tags]
        # IOB2: nothing goes on that did not begin.
        for before, tag in zip(["O", *found], found, strict=False):
            assert not tag.startswith("I-") or before in (tag, f"B-{tag[2:]}")


def test_tags_that_are_no_iob_stay_as_they_are() -> None:
    for tags in (["NOUN", "VERB", "O"], ["S-PER", "B-LOC", "E-LOC"], ["O", "O"], ["NN", "B-NP"]):
        assert _tags.iob2(tags) == tags


def test_a_model_that_says_iob1_is_judged_in_its_own_words(wordpiece) -> None:
    """What it was trained on, it says; the same tag is the same tag."""
    one = task(("O", "I-PER", "B-PER", "I-LOC", "B-LOC"))
    tags = ["I-PER", "I-PER", "B-PER", "O"]
    rows = [{"tokens": ["the", "of", "and", "to"], "ner_tags": tags}]
    encoded = one.encode(wordpiece, one.inputs(rows, where="rows"))
    items = one.items(
        Result(saying(encoded, [tags], one.labels), encoded, one.gold(rows, where="rows"))
    )
    assert {name: metric(items) for name, metric in one.metrics.items()} == dict.fromkeys(
        one.metrics, 1.0
    )


def test_word_accuracy_is_compared_word_by_word() -> None:
    """McNemar's test is one of answers that are right or wrong; a sentence is neither."""
    one = task(metric="accuracy")
    rows = [{"tokens": ["the", "of"], "ner_tags": ["B-PER", "I-PER"]}] * 40
    encoder_free = EncodedTexts([("the", "of")] * 40, [[_Row()]] * 40)
    gold = one.gold(rows, where="rows")
    right, wrong = (
        Result({"logits": np.tile(np.eye(5, dtype=np.float32)[own], (40, 1))}, encoder_free, gold)
        for own in ([0, 1, 2, 0], [0, 0, 0, 0])
    )
    compared = scoring.compare(one, ("ours", "float"), (right, wrong), seed=0)
    assert compared.difference == 1.0
    assert compared.p_value < 0.01


class _Row:
    """[CLS] the of [SEP]"""

    spans = np.array([[-1, -1], [0, 1], [1, 2], [-1, -1]])
    best = np.array([False, True, True, False])
    entries = 4

    def __len__(self) -> int:
        return 4


# --- Words and pieces ---

WORDS = [
    ["the", "cat", "was", "in", "zürich", ".", "--", "x9", "(", "a-b", ")"],
    ["Ada", "’s", "“", "…", "1,000", "km\u00b2", "日本", "\U0001f600"],
    ["the"],
    ["New York", "of", "e\u0301t\u00e9"],
]


@pytest.mark.parametrize("words", WORDS)
def test_every_word_is_tagged_at_its_first_piece(tokenizer, words: list[str]) -> None:
    one = task()
    encoded = one.encode(tokenizer, [tuple(words)])
    (row,) = encoded.rows[0]
    offsets = tokenizer.offsets([" ".join(words)])[0]
    np.testing.assert_array_equal(row.ids, tokenizer.encode([(" ".join(words),)])[0].ids)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    first: dict[int, int] = {}
    for index, (start, end) in enumerate(offsets.spans.tolist()):
        # A byte-level token may hold the space before its word.
        inside = next((c for c in range(start, end) if not " ".join(words)[c].isspace()), None)
        if inside is not None:
            first.setdefault(int(np.searchsorted(starts, inside, side="right")) - 1, index + 1)
    told = {
        int(row.spans[place, 0]): int(place) for place in np.flatnonzero(row.spans[:, 0] != NOWHERE)
    }
    assert told == first == {word: first[word] for word in range(len(words))}
    tags = [random.Random(i).choice(LABELS) for i in range(len(words))]
    assert one.predictions(Result(saying(encoded, [tags]), encoded))[0][0] == tags


def test_words_that_the_tokenizer_drops_are_outside(wordpiece) -> None:
    one = task()
    words = ("the", "\u200b", "\u200d\u200b", "of", "\u0007")
    encoded = one.encode(wordpiece, [words])
    tags, shares = one.predictions(
        Result(saying(encoded, [["B-PER", "B-LOC", "B-LOC", "I-PER", "B-LOC"]]), encoded)
    )[0]
    assert tags == ["B-PER", "O", "O", "I-PER", "O"]
    assert [share > 0.9 for share in shares] == [True, False, False, True, False]
    answer = one.answer(Result(saying(encoded, [["O"] * 5]), encoded), 0, list(words))
    assert (answer["words"], answer["tags"]) == (list(words), ["O"] * 5)


@pytest.mark.parametrize(
    ("length", "stride"), [(None, None), (16, None), (16, 13), (12, 1), (32, 5)]
)
def test_long_sentences_are_tagged_by_the_window_with_most_context(
    wordpiece, length: int | None, stride: int | None
) -> None:
    one = task(max_length=length, step=stride)
    tokenizer = wordpiece if length is None else _shorter(wordpiece, length)
    words = tuple(f"{word}{i % 10}" for i, word in enumerate(["the", "catz", "of", "in", "x"] * 40))
    encoded = one.encode(tokenizer, [words, ("the", "of")])
    assert len(encoded.rows[0]) > 2
    assert max(map(len, encoded.flat)) <= tokenizer.max_length
    answered = np.zeros(len(words), dtype=int)
    for row in encoded.rows[0]:
        answered[row.spans[row.best & (row.spans[:, 0] != NOWHERE), 0]] += 1
    np.testing.assert_array_equal(answered, 1)
    tags = [[random.Random(i).choice(LABELS) for i in range(len(words))], ["B-PER", "I-PER"]]
    assert [own for own, _ in one.predictions(Result(saying(encoded, tags), encoded))] == tags
    for index, given in enumerate((words, ("the", "of"))):
        assert (
            one.answer(Result(saying(encoded, tags), encoded), index, given)["tags"] == tags[index]
        )


def _shorter(tokenizer: Tokenizer, length: int) -> Tokenizer:
    import copy

    found = copy.copy(tokenizer)
    found.max_length = length
    return found


def test_windows_that_do_not_overlap(golden, wordpiece) -> None:
    with golden.raises(DataError):
        task(step=62).encode(wordpiece, [("the",)])


def test_targets_are_at_first_pieces_and_nowhere_else(golden, tokenizer) -> None:
    words = ["the", "zebra", "of", "quartz"]
    one, tags = task(), ["B-PER", "I-PER", "O", "B-LOC"]
    encoded = one.encode(tokenizer, [tuple(words)])
    (target,) = one.targets(encoded, [tags])
    row = encoded.rows[0][0]
    assert set(target) == {"labels"}
    assert len(target["labels"]) == len(row)
    told = {
        int(row.spans[i, 0]): LABELS[label]
        for i, label in enumerate(target["labels"].tolist())
        if label != -100
    }
    assert [told[i] for i in range(4)] == tags
    with golden.raises(DataError):
        one.targets(encoded, [["B-ORG", "O", "O", "O"]])


# --- What a user is told ---


def test_entities_of_raw_text_have_their_characters(wordpiece) -> None:
    one = task()
    text = "  He met Ada Lovelace,\u00a0and the-the (of) \U0001f600 Zu\u0308rich. "
    words = one.parse(text, where="x")
    encoded = one.encode(wordpiece, [("x",), words])
    tags = ["O"] * len(words)
    for name, tag in (("Ada", "B-PER"), ("Lovelace", "I-PER"), ("of", "B-LOC")):
        tags[words.index(name)] = tag
    answer = one.answer(Result(saying(encoded, [["O"], tags]), encoded), 1, text)
    assert [(e["type"], e["text"]) for e in answer["entities"]] == [
        ("PER", "Ada Lovelace"),
        ("LOC", "of"),
    ]
    for entity in answer["entities"]:
        assert text[entity["start"] : entity["end"]] == entity["text"]
        assert 0.9 < entity["score"] <= 1.0
    assert answer["words"] == list(words)
    assert "".join(words) == "".join(text.split())
    json.dumps(answer)


@pytest.mark.parametrize(
    "word", ["Zu\u0308rich", "e\u0301te\u0301", "हिन्दी", "שָׁלוֹם", "مَرْحَبًا", "ไทยที่"]
)
def test_a_word_of_raw_text_keeps_its_marks(word: str) -> None:
    """Combining marks belong to their letter: a word that is cut at each of them is no word that a model knows."""
    assert task().parse(f"the {word}, of", where="x") == ("the", word, ",", "of")


def test_entities_of_given_words_are_placed_in_their_joined_text(wordpiece) -> None:
    one, words = task(), ["the", "New York", "the", "of"]
    encoded = one.encode(wordpiece, [tuple(words)])
    answer = one.answer(Result(saying(encoded, [["O", "B-LOC", "O", "B-PER"]]), encoded), 0, words)
    joined = " ".join(words)
    assert [(joined[e["start"] : e["end"]], e["text"]) for e in answer["entities"]] == [
        ("New York",) * 2,
        ("of",) * 2,
    ]


# --- Gold ---


def test_tags_by_name_and_by_index() -> None:
    rows = [{"words": ["a", "b"], "labels": [1, 2]}, {"words": ["c"], "labels": [" B-LOC "]}]
    assert task().gold(rows, where="rows") == [["B-PER", "I-PER"], ["B-LOC"]]
    named = task(("LABEL_0", "LABEL_1"), labels=("O", "B-X"))
    assert named.gold([{"tokens": ["a"], "tags": [1]}], where="rows") == [["B-X"]]
    assert task(words="w", tags="t").gold(
        [{"w": ["a"], "t": ["O"], "tokens": 1, "tags": 2}], where="rows"
    ) == [["O"]]


@pytest.mark.parametrize("row", [{"tokens": ["a", "b"], "ner_tags": ["O"]}, {"tokens": ["a"], "ner_tags": [5]}, {"tokens": ["a"], "ner_tags": [-1]}, {"tokens": ["a"], "ner_tags": [None]}, {"tokens": ["a"], "ner_tags": "O"}, {"tokens": ["a"], "ner_tags": []}, {"tokens": ["a"], "ner_tags": ["B-ORG"]}])  # fmt: skip
def test_bad_tags_name_their_row(golden, row: dict) -> None:
    rows = readers.numbered([{"tokens": ["x"], "ner_tags": ["O"]}, row])
    with golden.raises(DataError):
        task().gold(rows, where="dev.conll")


def test_words_that_are_no_texts_name_their_row() -> None:
    rows = readers.numbered(
        [{"tokens": ["x"], "ner_tags": ["O"]}, {"tokens": ["a", None], "ner_tags": ["O", "O"]}]
    )
    with pytest.raises(DataError, match=r'dev\.jsonl, row 2, column "tokens"'):
        task().inputs(rows, where="dev.jsonl")


def test_labels_of_a_new_head_come_from_the_data() -> None:
    one = task(())
    # IOB1 without a single B: the model is to say IOB2 all the same.
    rows = [
        {"tokens": ["a", "b", "c"], "ner_tags": ["I-PER", "I-PER", "O"]},
        {"tokens": ["d"], "ner_tags": ["I-LOC"]},
    ]
    assert one.labels_in(rows, where="rows") == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert one.labels_in([{"tokens": ["a", "b"], "pos_tags": ["NOUN", "ADV"]}], where="rows") == (
        "ADV",
        "NOUN",
    )
    shorter = [{"tokens": ["a", "b"], "tags": ["S-PER", "O"]}]
    assert one.labels_in(shorter, where="rows") == ("O", "S-PER")
    for some in (rows, shorter):
        trained = task(one.labels_in(some, where="rows"))
        assert all(set(tags) <= set(trained.labels) for tags in trained.gold(some, where="rows"))


def test_another_number_of_labels_than_the_model_has(golden) -> None:
    with golden.raises(DataError):
        task(labels=("O", "B-X"))
    with golden.raises(ValidationError):
        task(metric="f2")


# --- Files ---


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


CONLL = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n\nPeter NNP I-NP I-PER\nB NNP I-NP I-PER\n"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n\n"])
def test_the_official_columns(tmp_path, ending: str, start: str) -> None:
    rows = readers.read_file(write(tmp_path / "eng.testa", (start + CONLL).replace("\n", ending)))
    assert [row["tokens"] for row in rows] == [["EU", "rejects"], ["Peter", "B"]]
    assert rows[0] == {
        "tokens": ["EU", "rejects"],
        "pos_tags": ["NNP", "VBZ"],
        "chunk_tags": ["I-NP", "I-VP"],
        "ner_tags": ["I-ORG", "O"],
    }
    assert task(()).gold(rows, where="rows") == [["B-ORG", "O"], ["B-PER", "I-PER"]]


def test_two_columns_with_tabs_comments_and_words_with_spaces(tmp_path) -> None:
    text = "# id 1\nNew York\tB-LOC\nof\tO\n\n# id 2 of 3 words here\nthe\tO\n#\tO\n"
    rows = readers.read_file(write(tmp_path / "a.conll", text))
    assert [(row["tokens"], row["tags"]) for row in rows] == [
        (["New York", "of"], ["B-LOC", "O"]),
        (["the", "#"], ["O", "O"]),
    ]


def test_other_numbers_of_columns_and_names(golden, tmp_path) -> None:
    path = write(tmp_path / "a.bio", "the DT x O\nof IN y O\n".replace(" x", "").replace(" y", ""))
    assert readers.read_file(path) == [
        {"tokens": ["the", "of"], "column_2": ["DT", "IN"], "tags": ["O", "O"]}
    ]
    assert readers.read_file(path, ("words", "pos_tags", "labels"))[0]["labels"] == ["O", "O"]
    with golden.raises(DataError):
        readers.read_file(path, ("words", "labels"))


@pytest.mark.parametrize(
    "text",
    ["the O\nof\nand O\n", "the O\n\nof O\nand a O\n", "the\nof\n", "\n \n", "-DOCSTART- O\n\n"],
)
def test_bad_column_files(golden, tmp_path, text: str) -> None:
    with golden.raises(DataError):
        readers.read_file(write(tmp_path / "a.conll", text))


def test_lines_of_a_sentence_keep_odd_white_space(tmp_path) -> None:
    rows = readers.read_file(write(tmp_path / "a.conll", "one\u2028two\tO\nthe\u00a0of\tO\n"))
    assert rows[0]["tokens"] == ["one\u2028two", "the\u00a0of"]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_lists_in_other_files(tmp_path, suffix: str) -> None:
    given = [
        {"tokens": ["the", "é"], "ner_tags": ["O", "B-PER"]},
        {"tokens": ["of"], "ner_tags": ["O"]},
    ]
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, given)) + "\n")
    else:
        from datasets import Dataset

        Dataset.from_list(given).to_parquet(str(path))
    rows = readers.read_file(path)
    assert task().inputs(rows, where="rows") == [("the", "é"), ("of",)]
    assert task().gold(rows, where="rows") == [["O", "B-PER"], ["O"]]


def test_class_labels_in_a_parquet_file_keep_their_names(tmp_path) -> None:
    """As the hub stores CoNLL-2003: numbers, with their names in the file."""
    from datasets import ClassLabel, Dataset, Features, Sequence, Value

    names = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    features = Features(
        {"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=names))}
    )
    Dataset.from_dict(
        {"tokens": [["the", "Ada"]], "ner_tags": [[0, 3]]}, features=features
    ).to_parquet(str(tmp_path / "a.parquet"))
    # The model's labels are in another order than the file's.
    assert task().gold(readers.read_file(tmp_path / "a.parquet"), where="rows") == [["O", "B-PER"]]


@pytest.mark.needs_shared
def test_the_real_development_set(shared) -> None:
    rows = readers.read_file(shared / "data" / "conll2003" / "eng.testa")
    gold = task(()).gold(rows, where="rows")
    assert len(rows) == 3250
    assert sum(len(_tags.entities(tags)) for tags in gold) == 5942
    assert [_tags.entities(tags) for tags in gold] == [
        get_entities(list(row["ner_tags"])) for row in rows
    ]
    assert task(()).labels_in(rows, where="rows") == (
        "O",
        *(f"{a}-{k}" for k in ("LOC", "MISC", "ORG", "PER") for a in "BI"),
    )


@pytest.mark.needs_shared
@pytest.mark.parametrize("name", ["bert-base-uncased", "bert-base-multilingual-cased"])
def test_every_real_word_is_tagged_once(shared, name: str) -> None:
    rows = readers.read_file(shared / "data" / "conll2003" / "eng.testa")
    one, tokenizer = task(()), Tokenizer(shared / "data" / "tokenizers" / name, 64)
    encoded = one.encode(tokenizer, one.inputs(rows, where="rows"))
    for words, own in zip(encoded.texts, encoded.rows, strict=True):
        told = [
            w for row in own for w in row.spans[row.best & (row.spans[:, 0] != NOWHERE), 0].tolist()
        ]
        assert sorted(told) == list(range(len(words)))
