"""What evaluators mean in an import: metrics over classes, goals, priorities, and what is timed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octobert.config import importers
from octobert_olive.nodes import UNKNOWN
from tests.octobert_olive.configs import (
    STATIC,
    config,
    converted,
    data_config,
    goal,
    metric,
    outcome,
    sub,
    system,
)


def test_goals_are_judged_in_a_search_only() -> None:
    timed = metric("latency", sub("avg", 2, goal("percent-min-improvement", 0.1)))
    scored = metric("accuracy", sub("accuracy_score", 1, goal("max-degradation", 0.05)))
    scores = {"scores": {"metrics": [scored, timed]}}
    ignored = converted(config({"quant": STATIC}, evaluators=scores))
    assert not {"accuracy", "speed"} & ignored.recipe.keys()
    for number in (0, 1):
        field = f"evaluators.scores.metrics[{number}].sub_types[0].goal.value"
        assert outcome(ignored, field).verdict == "not needed"
    judged = converted(
        config({"convert": {"type": "OnnxConversion"}}, evaluators=scores, search_strategy=True)
    )
    assert judged.recipe["accuracy"] == {"max_drop": 0.05}
    assert judged.recipe["speed"] == {"min_speedup": 1.001}


def test_a_goal_of_the_throughput_is_not_one_of_the_latency() -> None:
    part = metric("throughput", sub("avg", 1, goal("percent-min-improvement", 50)))
    raw = config(
        {"convert": {"type": "OnnxConversion"}},
        evaluators={"scores": {"metrics": [part]}},
        search_strategy=True,
    )
    imported = converted(raw)
    assert "speed" not in imported.recipe
    assert (
        "of: throughput"
        in outcome(imported, "evaluators.scores.metrics[0].sub_types[0].goal.value").note
    )


def scored(name: str, raw: dict[str, Any], **more: Any) -> tuple[importers.Imported, str]:
    """An import with one metric, and the path of its arguments."""
    part = metric("accuracy", sub(name, 1, metric_config=raw), **more)
    imported = converted(config({"quant": STATIC}, evaluators={"scores": {"metrics": [part]}}))
    return imported, "evaluators.scores.metrics[0].sub_types[0].metric_config"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("f1_score", {"average": "macro"}, None),
        ("f1_score", {"task": "binary", "average": "macro"}, None),
        ("f1_score", {"task": "multiclass"}, "micro_f1"),
        ("f1_score", {"task": "multiclass", "average": "macro"}, "macro_f1"),
        ("precision", {"task": "multiclass", "average": "macro"}, "macro_precision"),
        ("recall", {"task": "multilabel"}, "micro_recall"),
        ("accuracy_score", {"task": "multiclass", "average": "micro"}, None),
    ],
)
def test_averages_are_over_several_classes_only(
    name: str, arguments: dict[str, Any], expected: str | None
) -> None:
    imported, _ = scored(name, arguments)
    assert imported.recipe.get("metric") == ([expected] if expected else None)
    assert not [each for each in imported.outcomes if each.verdict == "refused"]


@pytest.mark.parametrize(
    ("name", "arguments", "field"),
    [
        ("accuracy_score", {"task": "multiclass", "average": "macro"}, "average"),
        ("f1_score", {"task": "multiclass", "average": "weighted"}, "average"),
        ("auroc", {"task": "multiclass"}, "task"),
    ],
)
def test_averages_that_octobert_has_not_are_refused(
    name: str, arguments: dict[str, Any], field: str
) -> None:
    imported, place = scored(name, arguments)
    assert outcome(imported, f"{place}.{field}").verdict == "refused"
    assert "macro_accuracy" not in str(imported.recipe)


def test_averages_of_evaluate_are_arguments_of_compute() -> None:
    raw = {"compute_params": {"average": "macro", "pos_label": 0}, "result_key": "f1"}
    imported, place = scored("f1", raw, backend="huggingface_metrics")
    assert imported.recipe["metric"] == ["macro_f1"]
    assert outcome(imported, f"{place}.compute_params.average").key == "metric"
    assert outcome(imported, f"{place}.compute_params.pos_label").verdict == "refused"


def test_unknown_fields_of_the_evaluator_are_not_those_of_another() -> None:
    scores = {"metrics": [metric("latency", sub("avg", 1), luck=1)], "luck": 2}
    raw = config({"quant": STATIC}, evaluators={"scores": scores, "other": {"luck": 3}})
    imported = converted(raw)
    for field in ("scores.metrics[0].luck", "scores.luck"):
        assert outcome(imported, f"evaluators.{field}").note == UNKNOWN
    assert outcome(imported, "evaluators.other.luck").verdict == "not needed"


def test_metrics_of_the_first_releases_have_one_sub_type() -> None:
    def old(kind: str, name: str, rank: int, **more: Any) -> dict[str, Any]:
        return {"name": kind, "type": kind, "sub_type": name, "priority_rank": rank, **more}

    least = goal("threshold", 0.8)
    metrics = [old("latency", "p90", 2), old("accuracy", "f1_score", 1, goal=least)]
    raw = config(
        {"quant": STATIC},
        evaluators={"scores": {"metrics": metrics, "target": "here"}},
        search_strategy=True,
        systems=system("MIGraphX")["systems"],
    )
    imported = converted(raw)
    assert imported.recipe["search"]["goals"] == ["metric", "latency@p90"]
    assert imported.recipe["targets"] == ["migraphx"]
    assert outcome(imported, "evaluators.scores.metrics[1].sub_type").note.startswith("f1")
    assert not [each for each in imported.outcomes if each.note == UNKNOWN]


@pytest.mark.parametrize(
    ("name", "figure"), [("avg", "latency"), ("p95", "latency@p95"), ("p999", None), ("max", None)]
)
def test_a_goal_of_another_statistic_is_not_one_of_the_average(
    name: str, figure: str | None
) -> None:
    part = metric("latency", sub(name, 1, goal("threshold", 9)))
    raw = config({"quant": STATIC}, evaluators={"scores": {"metrics": [part]}}, search_strategy=True)  # fmt: skip
    imported = converted(raw)
    limits = imported.recipe["search"].get("limits")
    assert limits == ([{"of": figure, "at_most": 9.0}] if figure else None)
    field = outcome(imported, "evaluators.scores.metrics[0].sub_types[0].goal.value")
    assert field.verdict == ("mapped" if figure else "refused")


def test_of_two_numbers_of_repeats_the_larger_is_taken() -> None:
    def timed(kind: str, repeats: int) -> dict[str, Any]:
        return metric(kind, sub("avg", metric_config={"repeat_test_num": repeats}))

    metrics = [timed("latency", 50), timed("throughput", 20)]
    for ordered in (metrics, metrics[::-1]):
        imported = converted(config({"quant": STATIC}, evaluators={"scores": {"metrics": ordered}}))
        assert imported.recipe["benchmark"]["repeats"] == 50
        notes = {each.value: each.note for each in imported.outcomes if "repeat" in each.field}
        assert notes == {"50": "", "20": "the most of all metrics, and at least 3"}


@pytest.mark.parametrize(("load", "rows"), [({}, "all"), ({"max_samples": 100}, "100")])
def test_a_function_that_scores_is_computed_on_the_rows_of_the_recipe(
    load: dict[str, int], rows: str, tmp_path: Path
) -> None:
    text = "def score(model, *_):\n    return torchmetrics.Accuracy(task='binary')(model(), labels())\n"
    (tmp_path / "script.py").write_text(text)
    custom = metric("custom", sub("mine"), evaluate_func="score", user_script="script.py")
    data = data_config(pre_process_data_config=load)
    raw = config({"quant": STATIC}, evaluators={"scores": {"metrics": [custom]}}, data_configs=[data])  # fmt: skip
    field = outcome(converted(raw, folder=tmp_path), "evaluators.scores.metrics[0].evaluate_func")
    assert f"on {rows} rows of data.evaluate" in field.note
