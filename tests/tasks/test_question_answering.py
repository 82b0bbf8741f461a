"""Question answering: answers against brute force and against SQuAD's own definitions, and every form of bad input."""

from __future__ import annotations

import itertools
import json
import random
import re
import string
import unicodedata
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from octobert.core.errors import DataError, OctobertError
from octobert.data import readers, sampling
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.data.windows import NOWHERE
from octobert.evaluation import scoring
from octobert.models.source import resolve
from octobert.tasks import Result, _squad
from tests.support.tasks import build

PLAIN = "the one was in a house, and they had 42 of them. " * 3
NASTY = {
    "plain": PLAIN,
    "no-break spaces": "in\u00a0the\u00a042\u00a0\u00a0km of\u202fit",
    "decomposed accents": "Cafe\u0301 de\u0301ja\u0300 vu a\u0300 Zu\u0308rich, o\u0302\u0323k",
    "emoji": "he \U0001f469\u200d\U0001f469\u200d\U0001f467 ran\U0001f44d\U0001f3fd the \u2764\ufe0f of \U0001f600",
    "hebrew": "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05b9\u05dc\u05b8\u05dd 42",
    "arabic": "\u0645\u064e\u0631\u0652\u062d\u064e\u0628\u064b\u0627 \u0628\u0650\u0627\u0644\u0639\u064e\u0627\u0644\u064e\u0645\u0650 42",
    "chinese": "\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002 the \u4e2d\u6587",
    "white space around": " \t\n the of \u3000and\n\n",
}


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder) -> Tokenizer:
    return Tokenizer(tokenizer_folder, 256)


@pytest.fixture(scope="module")
def wordpiece(wordpiece_folder) -> Tokenizer:
    return Tokenizer(wordpiece_folder, 256)


def task(name: str = "question-answering", **options: object):
    return build(name, options)


def said(encoded: EncodedTexts, seed: int = 0) -> dict[str, np.ndarray]:
    """Random outputs."""
    generator = np.random.default_rng(seed)
    count = sum(map(len, encoded.flat))
    return {
        name: 3 * generator.standard_normal(count).astype(np.float32)
        for name in ("start_logits", "end_logits")
    }


def pointing(encoded: EncodedTexts, *tokens: tuple[int, int]) -> dict[str, np.ndarray]:
    """Outputs in which every row is sure of one (start, end)."""
    found = {}
    for part, name in enumerate(("start_logits", "end_logits")):
        own = [
            np.eye(len(row), dtype=np.float32)[pair[part]]
            for row, pair in zip(encoded.flat, tokens, strict=True)
        ]
        found[name] = 9 * np.concatenate(own)
    return found


# --- What is answered ---


def predictions(one, outputs: dict[str, np.ndarray], encoded: EncodedTexts):
    return one.predictions(Result(outputs, encoded), one.options.n_best)


def by_hand(
    context: str, rows, outputs, *, keep: int, longest: int
) -> tuple[list[tuple[str, float]], float]:
    """(distinct answers with their scores, best first; the null score), pair by pair."""
    found, nulls, at = [], [], 0
    for row in rows:
        starts, ends = (
            outputs[name][at : at + len(row)].astype(float)
            for name in ("start_logits", "end_logits")
        )
        at += len(row)
        nulls.append(starts[0] + ends[0])
        inside = [i for i in range(len(row)) if row.spans[i, 0] != NOWHERE]
        first = sorted((i for i in inside if row.best[i]), key=lambda i: -starts[i])[:keep]
        last = sorted(inside, key=lambda i: -ends[i])[:keep]
        pairs = [
            (starts[i] + ends[j], i, j)
            for i, j in itertools.product(first, last)
            if i <= j < i + longest
        ]
        pairs = sorted(pairs, reverse=True)[:keep]
        found += [
            (context[row.spans[i, 0] : row.spans[j, 1]].strip(), score) for score, i, j in pairs
        ]
    distinct: dict[str, float] = {}
    for text, score in sorted(found, key=lambda one: -one[1]):
        if text:
            distinct.setdefault(text, score)
    return list(distinct.items())[:keep], min(nulls)


@pytest.mark.parametrize(
    ("keep", "longest", "length"),
    [(20, 30, 384), (20, 30, 40), (3, 5, 40), (1, 1, 32), (1024, 8, 40), (1024, 10**5, 256)],
)
def test_answers_are_those_of_trying_every_pair(
    tokenizer, keep: int, longest: int, length: int
) -> None:
    one = task(n_best=keep, max_answer_length=longest, max_length=min(length, tokenizer.max_length))
    contexts = [PLAIN, PLAIN[:60], "he was the one"]
    encoded = one.encode(
        tokenizer, [(f"who is {i}?", context) for i, context in enumerate(contexts)]
    )
    outputs = said(encoded)
    at = 0
    predicted, alone = (
        predictions(one, outputs, encoded),
        one.predictions(Result(outputs, encoded), 1),
    )
    for (_, context), rows, found, best in zip(
        encoded.texts, encoded.rows, predicted, alone, strict=True
    ):
        size = sum(map(len, rows))
        own = {name: array[at : at + size] for name, array in outputs.items()}
        expected, null = by_hand(context, rows, own, keep=keep, longest=longest)
        assert [span.text for span in found.spans] == [text for text, _ in expected]
        np.testing.assert_allclose(
            [span.score for span in found.spans], [score for _, score in expected], rtol=1e-12
        )
        assert found.null == best.null == pytest.approx(null, rel=1e-6)
        # Where only the best is asked for, it is the same.
        assert best.spans == found.spans[:1]
        at += size


@pytest.mark.parametrize("name", NASTY)
def test_answers_are_exact_parts_of_the_context(tokenizer, name: str) -> None:
    context = NASTY[name]
    one = task(n_best=1024, max_answer_length=10**4)
    encoded = one.encode(tokenizer, [("who?", context)])
    (found,) = predictions(one, said(encoded), encoded)
    assert len({span.text for span in found.spans}) == len(found.spans) > 2
    for span in found.spans:
        assert context[span.start : span.end] == span.text
        assert span.text == span.text.strip()
        # No letter without its marks.
        assert not unicodedata.category((context + " ")[span.end]).startswith("M"), (
            span.text,
            context[span.end :],
        )
    assert context.strip() in {span.text for span in found.spans}


@pytest.mark.parametrize("name", ["decomposed accents", "emoji", "hebrew", "arabic"])
def test_no_answer_begins_with_the_mark_of_a_letter_before_it(tokenizer, name: str) -> None:
    context, one = NASTY[name], task(n_best=1024, max_answer_length=10**4)
    encoded = one.encode(tokenizer, [("who?", context)])
    (found,) = predictions(one, said(encoded), encoded)
    assert [
        ascii(span.text)
        for span in found.spans
        if unicodedata.category(span.text[0]).startswith("M")
    ] == []


def test_what_is_told_is_the_best_answer_with_its_place_and_others(tokenizer) -> None:
    context = NASTY["decomposed accents"]
    one = task()
    encoded = one.encode(tokenizer, [("a", PLAIN), ("who?", context), ("b", PLAIN)])
    outputs = said(encoded, seed=3)
    answer = one.answer(Result(outputs, encoded), 1, encoded.texts[1])
    predicted = predictions(one, outputs, encoded)[1]
    assert set(answer) == {"answer", "score", "start", "end", "others"}
    told = [answer, *answer["others"]]
    assert len(told) == 5
    assert [t["answer"] for t in told] == [span.text for span in predicted.spans[:5]]
    assert all(context[t["start"] : t["end"]] == t["answer"] for t in told)
    logits = np.array([span.score for span in predicted.spans])
    np.testing.assert_allclose(
        [t["score"] for t in told], (np.exp(logits) / np.exp(logits).sum())[:5], rtol=1e-9
    )
    json.dumps(answer)


def test_no_answer_is_said_where_it_leads_by_more_than_the_threshold(wordpiece) -> None:
    texts = [("you", "the of and")]
    encoded = task().encode(wordpiece, texts)
    outputs = pointing(encoded, (3, 3))
    outputs["start_logits"][0] = 10.5
    outputs["end_logits"][0] = 9.0
    # The best answer scores 18, "no answer" 19.5.
    for threshold, expected in ((0.0, ""), (1.4, ""), (1.5, "the"), (2.0, "the")):
        one = task(unanswerable=True, null_score_diff_threshold=threshold)
        (found,) = predictions(one, outputs, encoded)
        assert found.null_minus_best == pytest.approx(1.5)
        assert one.final_answer(found) == expected
        answer = one.answer(Result(outputs, encoded), 0, texts[0])
        assert answer["answer"] == expected
        assert (answer["start"], answer["end"]) == ((None, None) if not expected else (0, 3))
        assert [t["answer"] for t in answer["others"]].count("the") == (0 if expected else 1)
        assert 0 < answer["score"] < 1
    # Where every question has an answer, one is given.
    always = task()
    assert always.final_answer(predictions(always, outputs, encoded)[0]) == "the"
    assert task("squad-v2", null_score_diff_threshold=-3.0).threshold == -3.0


def test_no_answer_is_the_least_of_all_windows(wordpiece) -> None:
    one = task(unanswerable=True, max_length=24)
    encoded = one.encode(wordpiece, [("who?", PLAIN)])
    outputs = {
        name: np.zeros(sum(map(len, encoded.flat)), dtype=np.float32)
        for name in ("start_logits", "end_logits")
    }
    edges = np.cumsum([0, *map(len, encoded.flat)])[:-1]
    assert len(edges) > 3
    outputs["start_logits"][edges] = 5.0
    outputs["start_logits"][edges[2]] = -1.0
    assert predictions(one, outputs, encoded)[0].null == -1.0


# --- How answers are judged: SQuAD's published definitions, written down a second time ---


def bare(text: str) -> str:
    """Lower case, then no punctuation, then no articles, then single spaces."""
    kept = "".join(
        character for character in text.lower() if character not in set(string.punctuation)
    )
    return " ".join(re.split(r"\s+", re.sub(r"\b(?:an?|the)\b", " ", kept).strip()))


def shared_words(ours: list[str], theirs: list[str]) -> int:
    rest, count = list(theirs), 0
    for word in ours:
        if word in rest:
            rest.remove(word)
            count += 1
    return count


def word_f1(prediction: str, gold: str, *, version: int) -> float:
    ours, theirs = bare(prediction).split(), bare(gold).split()
    if version == 2 and (not ours or not theirs):
        return float(ours == theirs)
    same = shared_words(ours, theirs)
    if same == 0:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return 2 * precision * recall / (precision + recall)


def official(
    questions: list[dict], said: dict[str, str], version: int
) -> dict[str, tuple[float, float]]:
    """id → (exact, F1): the best over the gold answers."""
    found = {}
    for question in questions:
        golds = [answer["text"] for answer in question["answers"]]
        if version == 2:
            golds = [gold for gold in golds if bare(gold)] or [""]
        prediction = said[question["id"]]
        exact = max(float(bare(prediction) == bare(gold)) for gold in golds)
        found[question["id"]] = (
            exact,
            max(word_f1(prediction, gold, version=version) for gold in golds),
        )
    return found


def official_best(
    questions: list[dict], scores: dict[str, float], said: dict[str, str], null: dict[str, float]
) -> float:
    """`find_best_thresh` of the 2.0 script, tried threshold by threshold, so that equal scores fall together."""
    answerable = {question["id"]: bool(question["answers"]) for question in questions}
    found = []
    for threshold in [min(null.values()) - 1, *sorted(set(null.values()))]:
        total = 0.0
        for name, has in answerable.items():
            # A question without an answer is lost by any answer that is not empty.
            answered = scores[name] if has else float(not said[name])
            total += answered if null[name] <= threshold else float(not has)
        found.append(total / len(questions))
    return max(found)


PIECES = ("the", "a", "An", "A", "cat", "Cat", "cats", "42", "U.S.", "--", "!", "’", "—the", "an-d", "…", "x_y", "é", "e\u0301",
          "\u00a0", "\u3000", "the\u00a0cat", "İ", "ß", "\u200b", "«a»", "$5", "`a`", "")  # fmt: skip


def strings(seed: int, count: int) -> list[str]:
    generator = random.Random(seed)
    return [
        "",
        " ",
        "the",
        "a an",
        *(" ".join(generator.choices(PIECES, k=generator.randint(0, 5))) for _ in range(count)),
    ]


@pytest.mark.parametrize("version", [1, 2])
def test_metrics_are_those_of_the_official_definitions(version: int) -> None:
    for seed, prediction in enumerate(strings(0, 1500)):
        golds = random.Random(seed).choices(
            strings(1, 200), k=random.Random(seed).randint(version == 1, 4)
        )
        question = {"id": "q", "answers": [{"text": gold} for gold in golds]}
        expected = official([question], {"q": prediction}, version)["q"]
        assert _squad.judge(prediction, golds, unanswerable=version == 2) == expected, (
            prediction,
            golds,
        )


@pytest.mark.parametrize(
    ("prediction", "gold", "exact", "f1"),
    [
        ("The  Cat.", "cat", 1.0, 1.0),
        ("a cat sat", "cat", 0.0, 2 / 3),
        ("cat cat", "cat", 0.0, 2 / 3),
        ("theatre", "atre", 0.0, 0.0),
        ("U.S.", "us", 1.0, 1.0),
        ("“cat”", "cat", 0.0, 0.0),
        ("the", "a", 1.0, 0.0),
    ],
)
def test_metrics_on_answers_counted_by_hand(
    prediction: str, gold: str, exact: float, f1: float
) -> None:
    assert _squad.judge(prediction, [gold], unanswerable=False) == (
        exact,
        pytest.approx(f1, abs=1e-15),
    )


def test_the_versions_differ_where_nothing_is_left_of_an_answer() -> None:
    assert _squad.judge("the", ["a"], unanswerable=False) == (1.0, 0.0)
    assert _squad.judge("the", ["a"], unanswerable=True) == (1.0, 1.0)
    assert _squad.judge("", [], unanswerable=True) == (1.0, 1.0)
    assert _squad.judge("x", [], unanswerable=True) == (0.0, 0.0)


def test_a_question_whose_only_answer_is_an_article_is_answerable(wordpiece) -> None:
    """`make_qid_to_has_ans` of the 2.0 script asks whether there are answers, not whether any word of them is left."""
    one = task("squad-v2")
    encoded = one.encode(wordpiece, [("which vitamin?", "vitamin a is it")])
    items = one.items(Result(said(encoded), encoded, [{"texts": ["a"], "starts": [8]}]))
    assert items[0, _squad.ANSWERABLE] == 1.0


def test_the_best_threshold_is_the_best_of_all() -> None:
    for seed in range(300):
        generator = np.random.default_rng(seed)
        count = int(generator.integers(1, 25))
        items = np.zeros((count, 7))
        items[:, _squad.ANSWERABLE] = generator.integers(0, 2, count)
        items[:, _squad.NULL_MINUS_BEST] = (
            generator.integers(-4, 4, count) if seed % 2 else generator.standard_normal(count)
        )
        items[:, _squad.SAYS] = generator.random(count) < 0.8
        items[:, _squad.BEST_F1] = np.where(
            items[:, _squad.ANSWERABLE] == 1, generator.random(count).round(1), 0
        )
        reached, threshold = _squad.best_threshold(items, _squad.BEST_F1)
        names = [str(i) for i in range(count)]
        questions = [
            {"id": n, "answers": ["x"] * int(items[i, _squad.ANSWERABLE])}
            for i, n in enumerate(names)
        ]
        scores = dict(zip(names, items[:, _squad.BEST_F1].tolist(), strict=True))
        answers = {n: "x" * int(items[i, _squad.SAYS]) for i, n in enumerate(names)}
        null = dict(zip(names, items[:, _squad.NULL_MINUS_BEST].tolist(), strict=True))
        assert reached == pytest.approx(official_best(questions, scores, answers, null), abs=1e-12)
        # The threshold that is named reaches what is promised.
        at = items[:, _squad.NULL_MINUS_BEST] <= threshold
        has = items[:, _squad.ANSWERABLE] == 1
        answered = np.where(has, items[:, _squad.BEST_F1], 1 - items[:, _squad.SAYS])
        assert np.mean(np.where(at, answered, ~has)) == pytest.approx(reached, abs=1e-12)


@pytest.fixture(scope="module")
def real(shared, tmp_path_factory):
    """minilm-squad on the first window of 400 questions of either version: (questions, task, asked, outputs) by version."""
    from octobert.evaluation import candidates
    from octobert.graph import operators
    from octobert.graph.capture import capture
    from octobert.inference.batching import run_rows
    from octobert.pipeline.stages.capture import parity_batches

    checkpoint, path = (
        shared / "checkpoints" / "minilm-squad",
        tmp_path_factory.mktemp("squad") / "model.onnx",
    )
    tokenizer = Tokenizer(checkpoint, 64)
    operators.save(
        capture.capture(resolve(checkpoint), "question-answering", parity_batches(tokenizer)).model,
        path,
    )
    session = candidates.open_candidate(
        candidates.Candidate(name="ort-f32", path=str(path), head="question-answering"), 0
    )
    found = {}
    for version, name in ((1, "squad"), (2, "squad-v2")):
        one = task(name, max_length=64)
        questions = readers.read_file(
            shared / "data" / "squad" / ("dev-v1.1.json" if version == 1 else "dev-v2.0.json")
        )
        questions = [questions[i] for i in sampling.sample(len(questions), 400, 0)]
        encoded = one.encode(tokenizer, one.inputs(questions, where="dev"))
        # Predictions are wanted here, not good ones: the first window is read, as if the text ended there.
        encoded = EncodedTexts(encoded.texts, [rows[:1] for rows in encoded.rows])
        found[version] = (
            questions,
            one,
            encoded,
            run_rows(session, encoded.flat, tokenizer.pad_id, per_token=True),
        )
    return found


@pytest.mark.needs_shared
@pytest.mark.parametrize("version", [1, 2])
def test_real_predictions_score_what_the_official_definitions_say(real, version: int) -> None:
    questions, one, encoded, outputs = real[version]
    predicted = predictions(one, outputs, encoded)
    names = [question["id"] for question in questions]
    final = {n: one.final_answer(p) for n, p in zip(names, predicted, strict=True)}
    assert len(final) == 400
    gold = one.gold(questions, where="dev")
    result = Result(outputs, encoded, gold)
    items = one.items(result)
    expected = official(questions, final, version)
    assert [tuple(row) for row in items[:, [_squad.EXACT, _squad.F1]]] == [
        expected[n] for n in names
    ]
    scores = {s.metric: s.value for s in scoring.scores(one, result, seed=0) if s.rows}
    has = {question["id"] for question in questions if question["answers"]}
    groups = {"": names} | (
        {"HasAns_": [n for n in names if n in has], "NoAns_": [n for n in names if n not in has]}
        if version == 2
        else {}
    )
    for prefix, own in groups.items():
        assert len(own) > 150
        assert scores[f"{prefix}exact"] == pytest.approx(
            fmean(expected[n][0] for n in own), abs=1e-12
        )
        assert scores[f"{prefix}f1"] == pytest.approx(fmean(expected[n][1] for n in own), abs=1e-12)
    # The model has learned something, and its predictions are of many kinds.
    assert scores["HasAns_f1" if version == 2 else "f1"] > 0.2
    assert len(set(final.values())) > 100
    if version == 2:
        best = {n: p.spans[0].text for n, p in zip(names, predicted, strict=True)}
        null = {n: p.null_minus_best for n, p in zip(names, predicted, strict=True)}
        open_ended = official(questions, best, 2)
        for part, metric in enumerate(("best_exact", "best_f1")):
            single = {n: open_ended[n][part] for n in names}
            assert scores[metric] == pytest.approx(
                official_best(questions, single, best, null), abs=1e-12
            )
            assert scores[metric] >= scores[metric.removeprefix("best_")]


# --- What training wants ---


@pytest.mark.parametrize(
    "name", ["plain", "no-break spaces", "decomposed accents", "hebrew", "arabic", "chinese"]
)
@pytest.mark.parametrize("length", [24, 256])
def test_targets_are_the_answer_in_every_window_that_holds_it(
    tokenizer, name: str, length: int
) -> None:
    context = NASTY[name]
    one = task("squad-v2", max_length=length, max_query_length=4)
    words = [(m.start(), m.end()) for m in re.finditer(r"\S+", context)]
    places = [
        (words[i][0], words[j][1])
        for i, j in itertools.combinations_with_replacement(range(len(words)), 2)
        if j < i + 3
    ]
    rows = [
        {
            "question": f"who {a} {b}",
            "context": context,
            "answers": [{"text": context[a:b], "answer_start": a}],
        }
        for a, b in places
    ] + [{"question": "none?", "context": context, "answers": []}]
    encoded = one.encode(tokenizer, one.inputs(rows, where="rows"))
    targets = iter(one.targets(encoded, one.gold(rows, where="rows")))
    learned = 0
    offsets = tokenizer.offsets([context])[0]
    for (start, end), windows in zip([*places, (0, 0)], encoded.rows, strict=True):
        touched = [
            i
            for i, (a, b) in enumerate(offsets.spans.tolist())
            if a < end and b > start and context[a:b].strip()
        ]
        for window in windows:
            target = next(targets)
            first, last = target["start_positions"], target["end_positions"]
            held = window.spans[window.spans[:, 0] != NOWHERE].tolist()
            whole = bool(touched) and all(offsets.spans[i].tolist() in held for i in touched)
            assert (first != 0) == whole, (context[start:end], held)
            assert (first == 0) == (last == 0)
            if whole:
                learned += 1
                # The tokens stand for the answer and nothing beyond it but what a tokenizer leaves out.
                assert (
                    window.spans[first, 0] <= start
                    or not context[start : window.spans[first, 0]].strip()
                )
                assert bare_of_marks(
                    context[window.spans[first, 0] : window.spans[last, 1]]
                ) == bare_of_marks(context[start:end])
    assert next(targets, None) is None
    assert learned >= len(places) // 3 or length < 256


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("the cafe\u0301", "cafe\u0301"),
        ("at Ada \n", "Ada \n"),
        ("\u200bthe of", "\u200bthe"),
        ("the of\u200b", "of\u200b"),
    ],
)
def test_what_a_tokenizer_drops_at_the_edge_of_a_window_does_not_hide_the_answer(
    wordpiece, context: str, answer: str
) -> None:
    one = task()
    row = {
        "question": "who?",
        "context": context,
        "answers": [{"text": answer, "answer_start": context.index(answer)}],
    }
    encoded = one.encode(wordpiece, one.inputs([row], where="rows"))
    (target,) = one.targets(encoded, one.gold([row], where="rows"))
    assert target["start_positions"] > 0
    window = encoded.rows[0][0]
    told = context[
        window.spans[target["start_positions"], 0] : window.spans[target["end_positions"], 1]
    ]
    assert bare_of_marks(told) == bare_of_marks(answer).strip("\u200b")


def bare_of_marks(text: str) -> str:
    return "".join(c for c in text.strip() if not unicodedata.category(c).startswith("M"))


def test_an_answer_at_no_stated_place_is_found_or_refused(golden, wordpiece) -> None:
    one = task()
    rows = [{"question": "who?", "context": "the of and of", "answers": "of"}]
    encoded = one.encode(wordpiece, one.inputs(rows, where="rows"))
    (target,) = one.targets(encoded, one.gold(rows, where="rows"))
    first = int(np.flatnonzero(encoded.rows[0][0].spans[:, 0] == 4)[0])
    assert target == {"start_positions": first, "end_positions": first}
    with golden.raises(DataError):
        one.targets(encoded, one.gold([{**rows[0], "answers": "xyz"}], where="rows"))


# --- What is read ---

QUESTION = {"id": "1", "question": "who?", "context": "He met Ada and Bob."}


@pytest.mark.parametrize(
    ("cell", "texts", "starts"),
    [
        (
            [{"text": "Ada", "answer_start": 7}, {"text": "Bob", "answer_start": 15}],
            ["Ada", "Bob"],
            [7, 15],
        ),
        ({"text": ["Ada", "Bob"], "answer_start": [7, 15]}, ["Ada", "Bob"], [7, 15]),
        ({"text": "Ada", "answer_start": 7}, ["Ada"], [7]),
        ([{"text": "Ada"}], ["Ada"], []),
        (["Ada", "Bob"], ["Ada", "Bob"], []),
        ("Ada", ["Ada"], []),
        ('{"text": ["Ada"], "answer_start": [7]}', ["Ada"], [7]),
        ('[{"text": "Ada", "answer_start": 7}]', ["Ada"], [7]),
        ('["Ada"]', ["Ada"], []),
        ("[sic] Ada", ["[sic] Ada"], []),
        ([], [], []),
        ({"text": [], "answer_start": []}, [], []),
        (None, [], []),
        ("", [], []),
    ],
)
def test_answers_in_every_form(cell: object, texts: list[str], starts: list[int]) -> None:
    gold = task("squad-v2").gold([{**QUESTION, "answers": cell}], where="rows")
    assert gold == [{"texts": texts, "starts": starts}]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet", "json"])
def test_the_same_questions_from_every_kind_of_file(tmp_path, suffix: str) -> None:
    answers = {"text": ["Ada"], "answer_start": [7]}
    rows = [{**QUESTION, "id": str(i), "answers": answers} for i in range(3)]
    path = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        cells = [
            ["id", "question", "context", "answers"],
            *([r["id"], r["question"], r["context"], json.dumps(answers)] for r in rows),
        ]
        quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells]
        path.write_text("\n".join(quoted) + "\n")
    elif suffix == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    elif suffix == "parquet":
        from datasets import Dataset

        Dataset.from_list(rows).to_parquet(str(path))
    else:
        write_official(
            path,
            [
                (
                    "He met Ada and Bob.",
                    [
                        ("0", "who?", [("Ada", 7)]),
                        ("1", "who?", [("Ada", 7)]),
                        ("2", "who?", [("Ada", 7)]),
                    ],
                )
            ],
        )
    found = readers.read_file(path)
    one = task("squad")
    assert one.inputs(found, where="rows") == [("who?", "He met Ada and Bob.")] * 3
    assert one.gold(found, where="rows") == [{"texts": ["Ada"], "starts": [7]}] * 3


def write_official(path: Path, paragraphs: list) -> Path:
    """[(context, [(id, question, [(answer, start)])])] as the official JSON; no answers make a question impossible."""
    found = []
    for context, questions in paragraphs:
        encoded = [
            {
                "id": i,
                "question": q,
                "answers": [{"text": t, "answer_start": s} for t, s in golds],
                "is_impossible": not golds,
            }
            for i, q, golds in questions
        ]
        found.append({"context": context, "qas": encoded})
    path.write_text(
        json.dumps({"version": "v", "data": [{"title": "Someone", "paragraphs": found}]})
    )
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"answers": [{"text": "Ada", "answer_start": 8}]},
            r'got "da " at 8, expected "Ada"\); correct answer_start \(the text occurs at 7\)',
        ),
        (
            {"answers": [{"text": "Ada", "answer_start": -1}]},
            r"the answer is not in the context at the stated place",
        ),
        ({"answers": [{"text": "Ada", "answer_start": 700}]}, r'got "" at 700.*occurs at 7'),
        (
            {"answers": [{"text": "Eve", "answer_start": 7}]},
            r"correct the answer, which occurs nowhere in the context",
        ),
        ({"answers": [{"text": None, "answer_start": 7}]}, r"the answers cannot be read"),
        (
            {"answers": [{"text": "Ada", "answer_start": "7"}]},
            r"the answers cannot be read .*expected \[{\"text\": …, \"answer_start\"",
        ),
        (
            {"answers": [{"text": "Ada", "answer_start": 7}, {"text": "Bob"}]},
            r"the answers cannot be read",
        ),
        ({"answers": 7}, r"the answers cannot be read \(got \[?7"),
        (
            {"answers": []},
            r"the question has no answer, and in this task every question has an answer .*use the task squad-v2",
        ),
        ({"answers": "Ada", "is_impossible": True}, r"got is_impossible: true"),
    ],
)
def test_bad_answers_name_their_row(change: dict, message: str) -> None:
    rows = readers.numbered([{**QUESTION, "answers": "Ada"}, {**QUESTION, "id": "2", **change}])
    with pytest.raises(DataError, match=rf'dev\.json, row 2, column "answers": .*{message}'):
        task("squad").gold(rows, where="dev.json")


@pytest.mark.parametrize("change", [{"question": " "}, {"context": None}, {"id": "1"}])
def test_bad_questions_name_their_row(golden, change: dict) -> None:
    rows = readers.numbered(
        [{**QUESTION, "answers": "Ada"}, {**QUESTION, "id": "2", "answers": "Ada", **change}]
    )
    with golden.raises(DataError):
        task("squad").inputs(rows, where="dev.json")


def test_questions_without_an_id_may_be_the_same() -> None:
    rows = [{"question": "who?", "context": "Ada", "id": name} for name in (None, None, "", "")]
    assert len(task("squad").inputs(rows, where="dev.json")) == 4


def test_columns_that_are_missing_or_named_otherwise(golden) -> None:
    row = {"frage": "wer?", "text": "Ada war es.", "antwort": "Ada"}
    with golden.raises(DataError):
        task("squad").inputs([{"question": "who?", "kontext": "Ada"}], where="rows")
    with pytest.raises(DataError, match='there is no column "answers"'):
        task("squad").gold([{"question": "who?", "context": "Ada"}], where="rows")
    own = task(question="frage", context="text", answers="antwort")
    assert own.inputs([row], where="rows") == [("wer?", "Ada war es.")]
    assert own.gold([row], where="rows") == [{"texts": ["Ada"], "starts": []}]


@pytest.mark.parametrize(
    "given",
    [
        "who?",
        ("who?",),
        ("who?", "it", "was"),
        ("who?", 1),
        {"question": "who?"},
        ("who?", " "),
        ("", "it"),
    ],
)
def test_a_question_needs_a_context(golden, given: object) -> None:
    with golden.raises(DataError):
        task().parse(given, where="input 3")


def test_a_question_with_its_context() -> None:
    expected = ("who?", "Ada")
    assert task().parse(expected, where="x") == task().parse(["who?", "Ada"], where="x") == expected
    assert task().parse({"question": "who?", "context": "Ada"}, where="x") == expected


def official_text(**paragraph: object) -> dict:
    good = {
        "context": "It was Ada.",
        "qas": [{"id": "1", "question": "who?", "answers": [{"text": "Ada", "answer_start": 7}]}],
    }
    return {
        "data": [
            {"title": "One", "paragraphs": [good]},
            {"title": "Two", "paragraphs": [good, {**good, **paragraph}]},
        ]
    }


@pytest.mark.parametrize(
    "paragraph",
    [
        {"context": None},
        {"context": " "},
        {"context": ["It"]},
        {"qas": None},
        {"qas": [{"id": "1"}]},
        {"qas": ["who?"]},
        {"qas": [{"question": "who?", "answers": ["Ada"]}]},
        {"qas": [{"question": "who?", "answers": {"text": ["Ada"], "answer_start": [7]}}]},
    ],
)
def test_a_broken_official_file_names_the_place(golden, tmp_path, paragraph: dict) -> None:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(official_text(**paragraph)))
    with golden.raises(DataError):
        readers.read_file(path)


@pytest.mark.parametrize(
    ("whole", "message"),
    [
        ({"data": []}, "the file has no rows"),
        ({"data": [{"title": "One", "paragraphs": []}]}, "the file has no rows"),
        ({"data": [{"title": "One", "paragraphs": ["It"]}]}, r'article 1 \("One"\)'),
        ({"data": [{"title": "One", "paragraphs": None}]}, r'article 1 \("One"\)'),
    ],
)
def test_official_files_with_nothing_in_them(tmp_path, whole: dict, message: str) -> None:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(OctobertError, match=message):
        readers.read_file(path)


def test_the_official_form_is_read_with_its_ids(golden, tmp_path) -> None:
    path = write_official(
        tmp_path / "dev.json", [("It was Ada.", [("a", "who?", [("Ada", 7)]), ("b", "when?", [])])]
    )
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    rows = readers.read_file(path)
    assert [(r["id"], r["title"], r["is_impossible"]) for r in rows] == [
        ("a", "Someone", False),
        ("b", "Someone", True),
    ]
    with golden.raises(DataError):
        task("squad").gold(readers.numbered(rows), where="dev.json")
    gold = task("squad-v2").gold(rows, where="dev.json")
    assert [one["texts"] for one in gold] == [["Ada"], []]
    assert [task("squad-v2").expected(one) for one in gold] == ["Ada", "(no answer)"]


def test_an_answer_may_be_any_text() -> None:
    for text in ("[sic]", "{", "[" * 100_000):
        assert _squad.answers_of(text, "row 1") == ([text], [])


def test_plausible_answers_of_impossible_questions_are_not_gold() -> None:
    row = {**QUESTION, "answers": [{"text": "Ada", "answer_start": 7}], "is_impossible": True}
    assert task("squad-v2").gold([row], where="rows")[0]["texts"] == []


@pytest.mark.needs_shared
def test_the_official_files_are_read_whole(shared) -> None:
    for name, questions, impossible in (
        ("dev-v1.1.json", 5696, 0),
        ("train-v1.1.json", 11877, 0),
        ("dev-v2.0.json", 2805, 1527),
    ):
        rows = readers.read_file(shared / "data" / "squad" / name)
        one = task("squad-v2" if impossible else "squad")
        assert len(one.inputs(rows, where=name)) == questions
        assert sum(not gold["texts"] for gold in one.gold(rows, where=name)) == impossible


@pytest.mark.needs_shared
@pytest.mark.parametrize("language", ["de", "zh"])
def test_targets_of_real_questions_decode_to_their_answers(shared, language: str) -> None:
    """Multilingual contexts and the real multilingual tokenizer, in windows of 128."""
    one = task("squad", max_length=128)
    rows = readers.read_file(shared / "data" / "xquad" / f"xquad.{language}.json")[:400]
    tokenizer = Tokenizer(shared / "data" / "tokenizers" / "bert-base-multilingual-cased", 128)
    encoded = one.encode(tokenizer, one.inputs(rows, where="rows"))
    targets, held = iter(one.targets(encoded, one.gold(rows, where="rows"))), 0
    for row, windows in zip(rows, encoded.rows, strict=True):
        answers = set()
        for window in windows:
            target = next(targets)
            if target["start_positions"]:
                start, end = (
                    window.spans[target["start_positions"], 0],
                    window.spans[target["end_positions"], 1],
                )
                answers.add(row["context"][start:end])
        gold = row["answers"][0]["text"].strip()
        # A gold answer may end inside a token; the token is then all of it that can be pointed at.
        assert all(gold in answer and len(answer) <= len(gold) + 25 for answer in answers), (
            gold,
            answers,
        )
        held += bool(answers)
    assert held >= 0.97 * len(rows)
