"""The rows that changed: what is told of them, what they have in common, and long texts that are cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octobert.core.evidence import ChangedRows
from octobert.core.plain import GAP, beginning, excerpt
from octobert.core.results import ModelMetadata
from octobert.data.tokenization import EncodedTexts
from octobert.data.windows import NOWHERE, Window
from octobert.evaluation import scoring
from octobert.evaluation.scoring import changed_rows, sentence
from octobert.tasks import Result, Task, measured, metric_specs
from tests.support.tasks import build

NAMES = ("equivalent", "different")
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '\u202e\x00\'; rm -rf "$HOME"',
)
EMOJI = "👩‍👩‍👧 Ada e\u0301crivait 東京 🏳️‍🌈"


def told(
    task: Task, outputs: tuple[dict[str, Any], ...], encoded: EncodedTexts, gold: Sequence[Any] = ()
) -> ChangedRows:
    """What is told of two outputs: those of the float model, and those of the quantized one."""
    before, after = (
        Result({name: np.asarray(array, np.float32) for name, array in each.items()}, encoded, gold)
        for each in outputs
    )
    comparison = scoring.compare(task, ("ours", "float"), (after, before), seed=0)
    (found,) = changed_rows(task, [comparison], {"float": before, "ours": after})
    return found


def pairs(*texts: tuple[str, ...]) -> EncodedTexts:
    return EncodedTexts(texts, [])


def test_classes_are_told_with_their_probabilities() -> None:
    task = build("mrpc", {}, ModelMetadata(labels=NAMES))
    before, after = [[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]], [[0.0, 1.0], [0.0, 2.0], [0.0, 1.0]]
    encoded = pairs(("a", HOSTILE[0]), ("b", "b"), (HOSTILE[1], HOSTILE[2]))
    found = told(task, ({"logits": before}, {"logits": after}), encoded, [1, 1, 0])
    assert (found.total, found.lost, found.gained) == (2, 1, 1)
    lost, gained = found.rows
    assert (lost.row, lost.outcome, lost.expected, lost.texts) == (
        2,
        "lost",
        "equivalent",
        (HOSTILE[1], HOSTILE[2]),
    )
    assert (lost.before.text, lost.after.text) == NAMES
    assert lost.before.scores == pytest.approx(
        {"equivalent": 0.9526, "different": 0.0474}, abs=1e-4
    )
    assert list(lost.after.scores) == ["different", "equivalent"]
    assert lost.after.score == pytest.approx(0.7311, abs=1e-4)
    assert (gained.row, gained.outcome) == (0, "gained")
    assert found.transitions[0].model_dump() == {
        "before": "equivalent",
        "after": "different",
        "count": 2,
        "lost": 1,
        "gained": 1,
    }


def test_nothing_changes_where_ties_are_broken_alike() -> None:
    logits = {"logits": [[0.5, 0.5], [1.0, 1.0]]}
    found = told(
        build("mrpc", {}, ModelMetadata(labels=NAMES)),
        (logits, logits),
        pairs(("a", "b"), ("c", "d")),
        [0, 1],
    )
    assert (found.total, found.rows, found.sentence, found.transitions) == (0, (), "", ())


def test_without_labels_a_row_is_neither_better_nor_worse() -> None:
    task = build("text-classification", {}, ModelMetadata(labels=("x", "y", "z")))
    found = told(
        task,
        ({"logits": [[3, 0, 0], [3, 0, 0]]}, {"logits": [[0, 3, 0], [0, 9, 0]]}),
        pairs(("a",), ("b",)),
    )
    assert [(row.row, row.outcome, row.expected) for row in found.rows] == [
        (1, "other", ""),
        (0, "other", ""),
    ]


def test_metrics_of_a_recipe_do_not_change_what_is_worse() -> None:
    own = build("mrpc", {}, ModelMetadata(labels=NAMES))
    task = measured(own, metric_specs(["matthews"], None, own))
    found = told(
        task,
        ({"logits": [[1, 0], [0, 1]]}, {"logits": [[0, 1], [0, 1]]}),
        pairs(("a", "b"), ("c", "d")),
        [0, 1],
    )
    assert [(row.row, row.outcome) for row in found.rows] == [(0, "lost")]


def test_several_labels_change_one_by_one() -> None:
    task = build(
        "text-classification", {}, ModelMetadata(labels=("x", "y", "z"), problem="multi-label")
    )
    found = told(
        task, ({"logits": [[1, -1, 1]]}, {"logits": [[1, 1, -1]]}), pairs(("a",)), [[0, 1]]
    )
    (row,) = found.rows
    assert (row.before.text, row.after.text, row.expected, row.outcome) == (
        "x, z",
        "x, y",
        "x, y",
        "gained",
    )
    assert row.transitions == (("(not y)", "y"), ("z", "(not z)"))


def test_scores_count_where_they_changed_clearly() -> None:
    task = build(
        "text-classification",
        {"problem": "regression"},
        ModelMetadata(labels=("score",), activation="torch.nn.Identity"),
    )
    before, after = np.arange(0.0, 5.0, 0.05), np.arange(0.0, 5.0, 0.05)
    after[7] += 0.1
    after[[11, 60]] += [0.9, -0.4]
    texts = pairs(*((str(i),) for i in range(len(before))))
    found = told(
        task, ({"logits": before[:, None]}, {"logits": after[:, None]}), texts, before.tolist()
    )
    assert [(row.row, row.transitions) for row in found.rows] == [
        (11, (("lower", "higher"),)),
        (60, (("higher", "lower"),)),
    ]
    assert (found.rows[0].before.score, found.rows[0].outcome) == (pytest.approx(0.55), "other")


def window(text: str, places: Sequence[tuple[int, int]]) -> Window:
    """A window with one token before those of a text."""
    spans = np.array([(NOWHERE, NOWHERE), *places])
    best = np.array([False, *(True for _ in places)])
    ids = np.zeros(len(spans), dtype=np.int64)
    return Window(ids, ids, False, spans, best)


def asked(
    context: str, said: Sequence[tuple[str, str]], question: str = "who?"
) -> tuple[EncodedTexts, list[Any], list[Any]]:
    """(windows over a context with a token for each character, start and end logits of float and 8 bits for each answer)."""
    half = len(context) // 2
    parts = [[(i, i + 1) for i in range(half)], [(i, i + 1) for i in range(half, len(context))]]
    rows = [[window(context, part) for part in parts] for _ in said]
    outputs: list[dict[str, list[float]]] = [
        {"start_logits": [], "end_logits": []} for _ in range(2)
    ]
    for answers in said:
        for side, answer in zip(outputs, answers, strict=True):
            start = context.index(answer) if answer else -1
            for name, place in (
                ("start_logits", start),
                ("end_logits", start + len(answer) - 1 if answer else -1),
            ):
                for part in parts:
                    side[name] += [
                        0.0 if answer else 9.0,
                        *(9.0 if i == place else 0.0 for i, _ in part),
                    ]
    return EncodedTexts([(question, context)] * len(said), rows), outputs, []


def test_answers_are_marked_in_their_context_by_characters() -> None:
    context = f"{EMOJI} and {EMOJI}"
    encoded, outputs, _ = asked(
        context, [("Ada", "e\u0301crivait"), ("東京", "Ada"), ("Ada", "Ada e\u0301")], "qui 🙂?"
    )
    gold = [
        {"texts": ["Ada"], "starts": [context.index("Ada")]},
        {"texts": ["東京"], "starts": []},
        {"texts": ["x"], "starts": []},
    ]
    found = told(build("squad", {}), tuple(outputs), encoded, gold)
    assert found.total == 3
    for row in found.rows:
        for side in (row.before, row.after):
            assert [row.texts[1][mark.start : mark.end] for mark in side.marks] == [side.text]
    by_row = {row.row: row for row in found.rows}
    assert (by_row[0].before.text, by_row[0].after.text, by_row[0].outcome) == (
        "Ada",
        "e\u0301crivait",
        "lost",
    )
    assert by_row[1].texts[1][by_row[1].marks[0].start :].startswith("東京")
    assert by_row[2].transitions == (("shorter", "longer"),)
    assert by_row[2].marks == ()


def test_no_answer_has_no_place() -> None:
    encoded, outputs, _ = asked("Ada wrote", [("Ada", ""), ("", "wrote")])
    found = told(build("squad-v2", {}), tuple(outputs), encoded, [{"texts": [], "starts": []}] * 2)
    first, second = sorted(found.rows, key=lambda row: row.row)
    assert (first.after.text, first.after.marks, first.outcome) == ("(no answer)", (), "gained")
    assert (second.before.text, second.before.marks, second.outcome) == ("(no answer)", (), "lost")
    assert {row.transitions for row in found.rows} == {
        (("an answer", "(no answer)"),),
        (("(no answer)", "an answer"),),
    }
    assert first.expected == "(no answer)"


def test_long_contexts_are_cut_around_the_answers_and_questions_are_not() -> None:
    context = "word " * 1000 + "Ada" + " word" * 1000 + " Grace" + " word" * 1000
    encoded, outputs, _ = asked(context, [("Ada", "Grace")], "why " * 1000)
    found = told(
        build("squad", {}), tuple(outputs), encoded, [{"texts": ["Ada"], "starts": [5000]}]
    )
    (row,) = found.rows
    assert not row.whole
    assert len(row.texts[0]) == 4000
    assert len(row.texts[1]) < scoring._LONGEST + 100
    assert row.texts[1].count("…") == 3
    assert [
        row.texts[1][m.start : m.end] for m in (*row.marks, *row.before.marks, *row.after.marks)
    ] == ["Ada", "Ada", "Grace"]


def test_entities_are_marked_in_their_sentence() -> None:
    tags = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    task = build("token-classification", {}, ModelMetadata(labels=tags))
    words = ("👩‍👧", "Ada", "Ada", "Lovelace", "東京")
    said = [["O", "O", "B-PER", "I-PER", "B-LOC"], ["B-LOC", "O", "O", "B-PER", "B-PER"]]
    row = Window(
        *(np.zeros(6, dtype=np.int64),) * 2,
        False,
        np.array([(NOWHERE, NOWHERE), *((i, i + 1) for i in range(5))]),
        np.ones(6, bool),
    )
    outputs = [{"logits": np.eye(5)[[0, *map(tags.index, own)]]} for own in said]
    found = told(task, (outputs[0], outputs[1]), EncodedTexts([words], [[row]]), [said[0]])
    (changed,) = found.rows
    (text,) = changed.texts
    assert [(text[m.start : m.end], m.label) for m in changed.before.marks] == [
        ("Ada Lovelace", "PER"),
        ("東京", "LOC"),
    ]
    assert [(text[m.start : m.end], m.label) for m in changed.after.marks] == [
        ("👩‍👧", "LOC"),
        ("Lovelace", "PER"),
        ("東京", "PER"),
    ]
    assert changed.marks == changed.before.marks
    assert changed.marks[0].start == text.rindex("Ada")
    assert changed.transitions == (("PER", "PER"), ("LOC", "PER"), ("(nothing)", "LOC"))
    assert changed.outcome == "lost"


def vectors(*angles: float) -> np.ndarray:
    radians = np.radians(angles)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1)


def test_only_ranks_among_the_first_ten_count() -> None:
    task = build(
        "embedding", {"query": "q", "document": "d"}, ModelMetadata(prompts={"query": "ask: "})
    )
    documents = np.arange(0.0, 80.0, 2.0)
    queries = np.zeros(40)
    before, after = vectors(*queries, *documents), vectors(*queries, *documents)
    # Two near the top change places; two far below do too.
    after[[41, 42]], after[[70, 71]] = after[[42, 41]], after[[71, 70]]
    texts = pairs(
        *((f"ask: {i}",) for i in range(40)), *((f"document {i} " + "x" * 300,) for i in range(40))
    )
    found = told(
        task,
        ({"sentence_embedding": before}, {"sentence_embedding": after}),
        texts,
        [[(40 + i, 1)] for i in range(40)],
    )
    assert {row.row: (row.before.text, row.after.text, row.outcome) for row in found.rows} == {
        1: ("rank 2", "rank 3", "lost"),
        2: ("rank 3", "rank 2", "gained"),
    }
    (lost, _) = found.rows
    assert lost.texts == ("1",)
    assert (
        lost.expected
        == lost.before.neighbours[1][0]
        == lost.after.neighbours[2][0]
        == beginning(texts.texts[41][0], 200)
    )
    assert [round(cosine, 3) for _, cosine in lost.before.neighbours] == [
        1.0,
        0.999,
        0.998,
        0.995,
        0.99,
    ]
    assert lost.before.score == pytest.approx(np.cos(np.radians(2)))


def test_texts_alone_change_where_another_is_nearest() -> None:
    task = build("embedding", {"text": "t"})
    texts = pairs(("a",), ("b",), ("c",), ("a",))
    found = told(
        task,
        (
            {"sentence_embedding": vectors(0, 10, 30, 0)},
            {"sentence_embedding": vectors(0, 10, 19, 0)},
        ),
        texts,
    )
    (row,) = found.rows
    assert (row.row, row.before.text, row.after.text, row.outcome) == (1, "a", "c", "other")
    assert [text for text, _ in row.before.neighbours] == ["a", "c"]
    # With few texts that lie far apart, often none changes.
    same = {"sentence_embedding": vectors(0, 10, 30, 0)}
    assert told(task, (same, same), texts).rows == ()


def test_the_rows_that_changed_most_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "MOST", 2)
    monkeypatch.setattr(scoring, "_ALL", 400)
    task = build("sst2", {}, ModelMetadata(labels=("negative", "positive")))
    logits = np.array([[1.0, 0], [5, 0], [3, 0]])
    texts = pairs(*((str(i) + " word" * 100,) for i in range(3)))
    found = told(task, ({"logits": logits}, {"logits": -logits}), texts, [0, 0, 1])
    assert (found.total, found.lost, found.gained) == (3, 2, 1)
    assert [(row.row, row.outcome, row.whole) for row in found.rows] == [
        (1, "lost", False),
        (2, "gained", False),
    ]
    assert all(len(row.texts[0]) <= 202 and row.texts[0].endswith(" word …") for row in found.rows)


@pytest.mark.parametrize(
    ("counts", "lost", "gained", "said"),
    [
        (
            {("a", "b"): 8},
            6,
            2,
            "All 8 changes went from a to b (p < 0.01); 6 rows are worse and 2 better.",
        ),
        ({("a", "b"): 6}, 0, 0, "All 6 changes went from a to b (p = 0.03)."),
        # As likely as a coin that shows heads five times: not beyond chance.
        ({("a", "b"): 5}, 5, 0, ""),
        ({("a", "b"): 4, ("b", "a"): 4}, 8, 0, "8 rows are worse and 0 better (p < 0.01)."),
        (
            {("b", "a"): 18, ("a", "b"): 2},
            1,
            0,
            "18 of 20 changes went from b to a (p < 0.01); 1 row is worse and 0 better.",
        ),
        (
            {("a", "b"): 9, ("c", "a"): 3},
            0,
            0,
            "All 9 changes between a and b went to b (p < 0.01).",
        ),
        # Of three pairs, one with six of six is expected too often.
        ({("a", "b"): 6, ("b", "c"): 1, ("c", "a"): 1}, 4, 4, ""),
        ({("a", "a"): 50}, 0, 0, ""),
        ({}, 0, 9, "0 rows are worse and 9 better (p < 0.01)."),
        ({}, 0, 0, ""),
    ],
)
def test_what_stands_out_is_said_beyond_chance(
    counts: dict[tuple[str, str], int], lost: int, gained: int, said: str
) -> None:
    assert sentence(counts, lost, gained) == said


SPAN = st.tuples(st.integers(0, 400), st.integers(1, 30))


@settings(max_examples=60, deadline=None)
@given(
    st.text(alphabet="ab \u0301é東😀\n", max_size=400),
    st.lists(SPAN, max_size=6),
    st.integers(20, 300),
)
def test_marks_of_excerpts_show_the_same_text(
    text: str, chosen: list[tuple[int, int]], length: int
) -> None:
    spans = [(start, min(start + size, len(text))) for start, size in chosen if start < len(text)]
    shown, places = excerpt(text, spans, length)
    assert len(places) == len(spans)
    assert spans == [] or any(place is not None for place in places)
    for (start, end), place in zip(spans, places, strict=True):
        assert place is None or shown[place[0] : place[1]] == text[start:end]
    assert len(text) > length or shown == text
    assert all(part.strip() in text for part in shown.split(GAP.strip()))
    assert len(shown) <= max(length, 100) + 60
