"""Whole runs of question answering and tagging: from official files in a folder to answers on the command line."""

from __future__ import annotations

import json
import shlex
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octobert
from octobert.api.runs import example
from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core.errors import DataError
from octobert.core.evidence import Evidence
from octobert.core.results import Report
from octobert.data import readers
from octobert.engine.executors import inline
from octobert.evaluation.packages import judge
from octobert.inference.opened import open_model
from octobert.pipeline import runner
from octobert.pipeline.planner import steps_of
from octobert.report.commands import predict_command
from octobert.tasks import _squad
from tests.support.checkpoints import WORDS, make_checkpoint
from tests.support.cli import octobert as octobert_program
from tests.support.columns import columns

BRIEF = {
    "targets": ["ort-cpu"],
    "baselines": ["ort-f32"],
    "benchmark": {"batch": [1], "sequence": ["data", 16], "repeats": 3},
    "profile": False,
}
NO_ANSWER = "(no answer)"


def official(path: Path, *, paragraphs: int, seed: int, unanswerable: bool) -> None:
    """An official SQuAD file: contexts longer than the tiny model takes, two questions about each."""
    generator, found = np.random.default_rng(seed), []
    for number in range(paragraphs):
        words = [WORDS[i] for i in generator.integers(0, len(WORDS), 30 + 10 * (number % 7))]
        context = " ".join(words) + f" <{number}{'abcdef'[seed]}> caf\u00e9."
        questions = []
        for k in range(2):
            first = int(generator.integers(len(words)))
            answer = " ".join(words[first : first + 2])
            start = len(" ".join(words[:first])) + (first > 0)
            impossible = unanswerable and (number + k) % 3 == 0
            golds = [] if impossible else [{"text": answer, "answer_start": start}]
            questions.append(
                {
                    "id": f"{seed}-{number}-{k}",
                    "question": f"where is {k}?",
                    "answers": golds,
                    "is_impossible": impossible,
                }
            )
        found.append({"context": context, "qas": questions})
    whole = {
        "version": "1.1",
        "data": [
            {"title": "First", "paragraphs": found[:2]},
            {"title": "Rest", "paragraphs": found[2:]},
        ],
    }
    path.write_text(json.dumps(whole))


@pytest.fixture(scope="module")
def squad(tmp_path_factory) -> Path:
    """A folder with both versions in it."""
    folder = tmp_path_factory.mktemp("squad")
    for seed, (name, paragraphs) in enumerate(
        {"train-v1.1": 12, "dev-v1.1": 8, "train-v2.0": 24, "dev-v2.0": 12}.items()
    ):
        official(
            folder / f"{name}.json", paragraphs=paragraphs, seed=seed, unanswerable="v2.0" in name
        )
    return folder


def answering(model: Path, source: Path, task: str = "squad-v2", **changes: object) -> Recipe:
    rows = {"calibrate": {"from": "train", "samples": 12}, "tune": {"from": "train", "samples": 20}}
    return parse(
        {
            "model": str(model),
            "task": task,
            "data": {"source": str(source), **rows},
            **BRIEF,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def answered(checkpoint, squad, tmp_path_factory) -> tuple[Path, Report]:
    """A whole run with a search in it, ranges so narrow that answers change: (output directory, report)."""
    out = tmp_path_factory.mktemp("answered") / "out"
    narrow = {
        "calibrate": {"percentile": {"keep": 90}},
        "transforms": [],
        "corrections": [],
        "accuracy": {"max_drop": 1.0},
    }
    return out, runner.run(
        answering(checkpoint("bert", "question-answering"), squad, **narrow),
        out,
        executor=inline.run,
    )


def test_the_files_of_the_right_version_are_picked(golden, checkpoint, squad) -> None:
    model = checkpoint("bert", "question-answering")
    for task, version in (("squad", "v1.1"), ("squad-v2", "v2.0")):
        (step,) = (s for s in steps_of(answering(model, squad, task)) if s.name == "data")
        assert {Path(place).name for place in step.options.places.values()} == {
            f"train-{version}.json",
            f"dev-{version}.json",
        }
    with golden.raises(DataError):
        steps_of(answering(model, squad, "question-answering"))


def test_a_2_0_file_is_refused_by_the_task_without_unanswerable_questions(
    golden, checkpoint, squad, tmp_path
) -> None:
    files = {"train": str(squad / "train-v1.1.json"), "validation": str(squad / "dev-v2.0.json")}
    recipe = answering(checkpoint("bert", "question-answering"), squad, "squad", data=files)
    with golden.raises(DataError):
        runner.run(recipe, tmp_path / "out", executor=inline.run)


def test_questions_over_long_contexts_are_read_in_windows_and_scored(answered) -> None:
    _, report = answered
    assert (report.data.calibration_rows, report.data.evaluation_rows) == (12, 24)
    # What is compared is questions; what is read is windows.
    assert report.ranges.provenance.samples == 12
    summary = report.stages["evaluate/ort-cpu"].summary
    assert summary["texts"] == 24 < summary["rows"]
    names = {s.metric for s in columns(report).scores["ort-cpu"]}
    assert names >= {"f1", "exact", "HasAns_f1", "NoAns_exact", "best_f1", "best_exact_threshold"}
    assert all(s.rows == 24 for s in columns(report).scores["ort-cpu"])
    assert report.task.primary == "f1"


def test_a_search_holds_windows_against_a_criterion(answered) -> None:
    _, report = answered
    found = report.searches["ort-cpu"]
    assert (found.metric, found.rows, found.met) == ("f1", report.data.tuning_rows, True)
    assert 0 < found.rows <= 20
    assert found.float_value - found.taken.value == pytest.approx(found.taken.drop)


def test_changed_answers_are_shown_as_text(answered, squad) -> None:
    out, report = answered
    rows = readers.read_file(squad / "dev-v2.0.json")
    comparison = next(c for c in columns(report).comparisons if c.candidate == "ort-cpu")
    assert len(comparison.changed) == round((1 - comparison.fidelity) * 24) > 0
    answers = octobert.load(out / "ort-cpu")([(r["question"], r["context"]) for r in rows])
    for index, expected, before, after in comparison.changed:
        golds = {answer["text"] for answer in rows[index]["answers"]} or {NO_ANSWER}
        assert expected in golds
        for said in (before, after):
            assert said == NO_ANSWER or said in rows[index]["context"]
        # The package says what was measured.
        assert (answers[index]["answer"] or NO_ANSWER) == after
    (shown,) = Evidence.model_validate_json((out / "evidence.json").read_text()).changed
    assert {(row.row, row.expected, row.before.text, row.after.text) for row in shown.rows} == set(
        comparison.changed
    )
    assert comparison.direction == shown.sentence
    for row in shown.rows:
        assert row.texts[0] == rows[row.row]["question"]
        for side in (row.before, row.after):
            assert [row.texts[1][mark.start : mark.end] for mark in side.marks] == [side.text] * (
                side.text != NO_ANSWER
            )


def test_a_package_is_judged_on_a_folder_with_both_versions(answered, squad) -> None:
    out, report = answered
    found = judge(open_model(out / "ort-cpu"), str(squad))
    for name in ("ort-cpu", "ort-f32"):
        assert {s.metric: s.value for s in found.scores[name]} == pytest.approx(
            {s.metric: s.value for s in columns(report).scores[name]}
        )


def test_predictions_are_scored_by_the_official_rules_as_the_report_says(
    answered, squad, tmp_path
) -> None:
    out, _ = answered
    files = {"predictions": tmp_path / "predictions.json", "nbest": tmp_path / "nbest.json"}
    found = octobert.evaluate(out / "ort-cpu", squad / "dev-v2.0.json", **files)
    said, best, odds = (
        json.loads(path.read_text())
        for path in (*files.values(), tmp_path / "predictions.null_odds.json")
    )
    scores = {score.metric: score.value for score in found.scores["ort-cpu"]}
    data = json.loads((squad / "dev-v2.0.json").read_text())["data"]
    questions = [
        question for article in data for part in article["paragraphs"] for question in part["qas"]
    ]
    assert list(said) == list(best) == list(odds) == [q["id"] for q in questions]

    def words(text: str) -> str:
        kept = "".join(c for c in text.lower() if c not in string.punctuation)
        return " ".join(w for w in kept.split() if w not in ("a", "an", "the"))

    def exact(q: dict[str, Any]) -> bool:
        golds = [words(a["text"]) for a in q["answers"] if words(a["text"])] or [""]
        return words(said[q["id"]]) in golds

    assert scores["exact"] == pytest.approx(np.mean([exact(q) for q in questions]))
    judged = [
        _squad.judge(said[q["id"]], [a["text"] for a in q["answers"]], unanswerable=True)
        for q in questions
    ]
    assert scores["f1"] == pytest.approx(np.mean([f1 for _, f1 in judged]))
    for name, entries in best.items():
        assert sum(entry["probability"] for entry in entries) == pytest.approx(1)
        answers = [entry for entry in entries if entry["text"]]
        (null,) = [entry for entry in entries if not entry["text"]]
        assert odds[name] == pytest.approx(null["score"] - answers[0]["score"])
        assert said[name] == ("" if odds[name] > 0 else answers[0]["text"])


def predict(
    package: Path, *arguments: object, **options: object
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octobert", "predict", str(package), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def test_questions_on_the_command_line(answered, tmp_path) -> None:
    package = answered[0] / "ort-cpu"
    context = "  " + " ".join(WORDS * 4) + " caf\u00e9\u00a042 \n"
    (tmp_path / "context.txt").write_text(context, encoding="utf-8")
    done = predict(
        package,
        "--question",
        "who?",
        "--question",
        "where is 1?",
        "--context-file",
        tmp_path / "context.txt",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [one["input"][0] for one in told] == ["who?", "where is 1?"]
    for one in told:
        best = next(a for a in (one, *one["others"]) if a["start"] is not None)
        assert context[best["start"] : best["end"]] == best["answer"]
    assert told == [
        {"input": one["input"], **octobert.load(package)([tuple(one["input"])])[0]} for one in told
    ]
    lines = predict(package, "--question", "who?", "--context", context.strip()).stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].endswith("\twho?")
    for arguments in (
        ["--question", "who?"],
        ["--context", "it"],
        ["--question", "a", "--context", "b", "--context-file", "c"],
    ):
        refused = predict(package, *arguments)
        assert refused.returncode == DataError.exit_code
        assert "a question needs one context" in refused.stderr


def printed_next_step(out: Path, report: Report) -> str:
    """What the command that a run prints as next step answers."""
    command = shlex.split(predict_command(out / "ort-cpu", report.task.head, example(out, report)))
    done = octobert_program(*command[1:])
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return line


def test_the_printed_next_step_asks_a_question_of_the_data(answered) -> None:
    assert printed_next_step(*answered).split("\t")[-1].startswith("where is ")


def test_the_printed_next_step_tags_a_sentence_of_the_data(tagged) -> None:
    assert printed_next_step(*tagged).split("\t")[-1] == " ".join(example(*tagged))


TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@pytest.fixture(scope="module")
def tagged(tmp_path_factory) -> tuple[Path, Report]:
    """A whole run of a random tagger on column files: (output directory, report)."""
    folder = tmp_path_factory.mktemp("tagged")
    names = {"id2label": dict(enumerate(TAGS)), "label2id": {tag: i for i, tag in enumerate(TAGS)}}
    model = make_checkpoint(folder / "model", "bert", "token-classification", **names)
    generator = np.random.default_rng(0)
    for name, count in (("eng.train", 40), ("eng.testa", 20)):
        lines = ["-DOCSTART- -X- O O", ""]
        for index in range(count):
            # One sentence is longer than the model takes.
            for _ in range(90 if index == 3 else 2 + index % 9):
                tag = ("O", "O", "I-PER", "I-LOC", "B-LOC")[int(generator.integers(5))]
                lines.append(f"{WORDS[int(generator.integers(len(WORDS)))]} NN I-NP {tag}")
            lines += [f"{name[4:6]}{index} NN I-NP O", ""]
        (folder / name).write_text("\n".join(lines))
    rows = {"source": str(folder), "calibrate": {"from": "train", "samples": 20}}
    recipe = parse({"model": str(model), "task": "token-classification", "data": rows, **BRIEF})
    return folder / "out", runner.run(recipe, folder / "out", executor=inline.run)


def test_column_files_are_tagged_and_scored(tagged) -> None:
    out, report = tagged
    assert report.data.evaluation_rows == 20
    assert {s.metric for s in columns(report).scores["ort-cpu"]} == {
        "f1",
        "precision",
        "recall",
        "accuracy",
    }
    comparison = next(c for c in columns(report).comparisons if c.candidate == "ort-cpu")
    assert 0.7 < comparison.fidelity < 1.0
    assert comparison.changed
    (shown,) = Evidence.model_validate_json((out / "evidence.json").read_text()).changed
    assert {row.after.text for row in shown.rows} == {
        after for _, _, _, after in comparison.changed
    }
    assert all(
        len(row.after.marks) == (row.after.text != "(nothing)") + row.after.text.count(",")
        for row in shown.rows
    )
    assert "Rows that changed" in (out / "report.html").read_text()
    assert report.stages["evaluate/ort-cpu"].summary["rows"] > 20


def test_a_tagger_finds_places_in_raw_text(tagged) -> None:
    package = tagged[0] / "ort-cpu"
    text = "  the of,  and\u00a0was! " + "with his they at be " * 30
    (answer,) = octobert.load(package)(text)
    assert len(answer["words"]) == len(answer["tags"]) == 6 + 5 * 30
    assert answer["entities"]
    assert all(text[e["start"] : e["end"]] == e["text"] for e in answer["entities"])
    assert octobert.load(package)([["the", "of"], text])[1] == answer
    (told,) = json.loads(predict(package, text, "--json").stdout)
    assert told == {"input": text, **answer}
    shown = predict(package, "the of and was").stdout
    assert shown.endswith("\tthe of and was\n")
