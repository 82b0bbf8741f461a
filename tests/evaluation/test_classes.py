"""Single classes, calibration of probabilities and a user's threshold, compared with scikit-learn and with plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import precision_recall_fscore_support

from octobert.core.errors import DataError
from octobert.core.results import ModelMetadata, Report
from octobert.data.tokenization import EncodedTexts
from octobert.evaluation import scoring
from octobert.evaluation.classes import calibration_error, class_changes, crossed
from octobert.report import contents, summary
from octobert.tasks import Result
from tests.support.columns import columns, with_columns
from tests.support.tasks import build

# Both sides are float64; the orders of their sums differ.
SAME = 1e-12
ROWS, NAMES = 400, ("usual", "often", "rare")


def task(kind: str = "single-label", **options: object) -> Any:
    labels = ("score",) if kind == "regression" else NAMES
    stated = ModelMetadata(labels=labels, problem=kind)  # type: ignore[arg-type]  # a parameter
    return build("text-classification", options, stated)


def results(gold: list[Any], width: int = 3, noise: float = 0.5) -> tuple[Result, Result]:
    """The results of a quantized model and of its float model, which differ by noise."""
    random = np.random.default_rng(0)
    logits = random.normal(0, 2, (len(gold), width))
    encoded = EncodedTexts([("x",)] * len(gold), [])
    both = (logits + noise * random.normal(size=logits.shape), logits)
    ours, reference = (Result({"logits": each}, encoded, gold) for each in both)
    return ours, reference


def single(rare: float = 0.02) -> list[int]:
    share = (0.58, 0.4, rare) if rare < 0.1 else (1 / 3, 1 / 3, 1 / 3)
    return list(np.random.default_rng(1).choice(3, ROWS, p=share).tolist())


def several() -> list[list[int]]:
    right = np.random.default_rng(2).random((ROWS, 3)) < (0.6, 0.5, 0.03)
    return [np.flatnonzero(row).tolist() for row in right]


def test_classes_are_those_of_scikit_learn() -> None:
    gold = single()
    ours, reference = results(gold)
    found = class_changes(task(), ours, reference)
    assert [one.label for one in found] == ["rare", "often", "usual"]
    after, before = (np.argmax(each.logits, axis=1) for each in (ours, reference))
    for predicted, side in ((after, ""), (before, "reference_")):
        precision, recall, _, rows = precision_recall_fscore_support(
            gold, predicted, labels=[0, 1, 2], zero_division=0
        )
        for one in found:
            index = NAMES.index(one.label)
            assert one.rows == rows[index]
            figures = (getattr(one, f"{side}precision"), getattr(one, f"{side}recall"))
            assert figures == pytest.approx((precision[index], recall[index]), abs=SAME)
    for one in found:
        index = NAMES.index(one.label)
        pairs = list(zip(before == index, after == index, strict=True))
        assert (one.lost, one.gained) == (pairs.count((True, False)), pairs.count((False, True)))
        assert one.lost + one.gained > 0


def test_labels_are_those_of_scikit_learn() -> None:
    gold = several()
    ours, reference = results(gold)
    right = np.array([[int(k in row) for k in range(3)] for row in gold])
    found = {one.label: one for one in class_changes(task("multi-label"), ours, reference)}
    precision, recall, _, rows = precision_recall_fscore_support(
        right, expit(ours.logits) >= 0.5, zero_division=0
    )
    for index, name in enumerate(NAMES):
        one = found[name]
        assert one.rows == rows[index]
        assert (one.precision, one.recall) == pytest.approx((precision[index], recall[index]))


def test_equal_classes_are_not_told() -> None:
    ours, reference = results(single(rare=1 / 3))
    assert class_changes(task(), ours, reference) == ()
    assert class_changes(task(), *results([])) == ()


def test_the_calibration_error_is_that_of_its_definition() -> None:
    """Guo et al. (2017): bins (0, 1/15], (1/15, 2/15], …, weighted by their rows."""

    def by_hand(confidence: np.ndarray, right: np.ndarray) -> float:
        total = 0.0
        for k in range(15):
            inside = (confidence > k / 15) & (confidence <= (k + 1) / 15)
            if inside.any():
                gap = abs(right[inside].mean() - confidence[inside].mean())
                total += inside.sum() / len(confidence) * gap
        return float(total)

    gold = single()
    ours, _ = results(gold)
    likely = softmax(ours.logits, axis=1)
    expected = by_hand(likely.max(axis=1), likely.argmax(axis=1) == np.array(gold))
    assert calibration_error(task(), ours) == pytest.approx(expected, abs=SAME)
    labels = several()
    ours, _ = results(labels)
    right = np.array([[k in row for k in range(3)] for row in labels])
    expected = by_hand(expit(ours.logits).ravel(), right.ravel())
    assert calibration_error(task("multi-label"), ours) == pytest.approx(expected, abs=SAME)
    assert calibration_error(task("regression"), results([0.5], width=1)[0]) is None


@pytest.mark.parametrize("kind", ["single-label", "multi-label", "regression"])
def test_rows_that_cross_a_threshold_are_counted(kind: str) -> None:
    """Also where the rows have no labels."""
    width, threshold = (1, 1.5) if kind == "regression" else (3, 0.8)
    ours, reference = results([0.0] * ROWS if kind == "regression" else single(), width)
    ours, reference = (Result(each.outputs, each.encoded) for each in (ours, reference))
    read = {"single-label": softmax, "multi-label": lambda logits, axis: expit(logits)}
    one = task(kind, threshold=threshold)
    if kind == "regression":
        after, before = (one.scores(each)[:, None] for each in (ours, reference))
    else:
        after, before = (read[kind](each.logits, axis=1) for each in (ours, reference))
    fell = rose = rows = 0
    for new, old in zip(after, before, strict=True):
        down = any(a < threshold <= b for a, b in zip(new, old, strict=True))
        up = any(b < threshold <= a for a, b in zip(new, old, strict=True))
        fell, rose, rows = fell + down, rose + up, rows + (down or up)
    found = crossed(one, ours, reference)
    assert found is not None
    assert (found.threshold, found.rows, found.fell, found.rose) == (threshold, rows, fell, rose)
    assert fell > 0 < rose
    assert crossed(task(kind), ours, reference) is None


def test_a_threshold_is_a_probability() -> None:
    with pytest.raises(
        DataError,
        match=r"task\.text-classification\.threshold: .*not a probability .*got 80, expected a number between 0 and 1",
    ):
        task(threshold=80)


def test_a_report_tells_them(finished: Any) -> None:
    report: Report = finished[2]
    ours, reference = results(single())
    names = ("ort-cpu", "ort-f32")
    found = scoring.compare(task(threshold=0.8), names, (ours, reference), seed=0)
    others = [each for each in columns(report).comparisons if each.candidate != "ort-cpu"]
    report = with_columns(report, {"comparisons": (found, *others)})
    table = next(one for one in contents.tables(report) if one.title.startswith("Classes"))
    first = [cell.plain for cell in table.rows[0].cells]
    rare = found.classes[0]
    assert first[:3] == ["ort-cpu", "rare", str(rare.rows)]
    assert first[3] == f"{rare.reference_precision:.3f} → {rare.precision:.3f}"
    (sentence,) = [text for text in summary.outcomes(report) if "threshold" in text]
    assert sentence.startswith(
        f"ort-cpu: {found.crossed.rows} of 40 rows cross the threshold of 0.8"  # type: ignore[union-attr]
    )


def test_a_report_has_the_calibration_error_of_each_model(finished: Any) -> None:
    report: Report = finished[2]
    table = contents.quality_table(report)
    (place,) = [n for n, column in enumerate(table.columns) if column.name == "ECE"]
    told = {row.cells[0].plain: row.cells[place].plain for row in table.rows}
    assert float(told["ort-cpu"]) == pytest.approx(report.of("ort-cpu").calibration_error, abs=1e-4)
    errors = [each.calibration_error for each in report.models if each.scores]
    assert errors
    assert all(error is not None and 0 <= error <= 1 for error in errors)
