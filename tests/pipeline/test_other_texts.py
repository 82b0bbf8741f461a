"""Runs with octobert's own texts: ranges have room for them, and every report says how near the model is on others."""

from __future__ import annotations

from pathlib import Path

import pytest

import octobert
from octobert.config.loading import parse
from octobert.core.ranges import held_out
from octobert.core.results import Report
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.quantization import observer
from octobert.report.summary import verdicts
from tests.support.columns import columns
from tests.support.runs import write_pairs


def made(model: Path, folder: Path, data: dict | None = None, **keys: object) -> Report:
    """A run that measures nothing."""
    folder.mkdir(exist_ok=True)
    write_pairs(folder / "data")
    source = {"source": str(folder / "data"), "calibrate": {"from": "train", "samples": 24}}
    recipe = parse(
        {
            "model": str(model),
            "task": "text-classification",
            "data": {**source, **(data or {})},
            "corrections": [],
            "measure": False,
            **keys,
        }
    )
    return runner.run(recipe, folder / "out", executor=inline.run)


def test_ranges_have_room_for_them_unless_they_are_left_out(checkpoint, tmp_path) -> None:
    """The same graph: no range is narrower with them, and some are wider."""
    ends = []
    for wanted in (True, False):
        folder = tmp_path / str(wanted)
        report = made(
            checkpoint("bert"), folder, {"supplement": wanted}, transforms=[], calibrate="minmax"
        )
        assert report.ranges.provenance.samples == 24
        assert report.ranges.provenance.supplement == (235 if wanted else 0)
        plan = octobert.manifest(folder / "out" / "ort-cpu").plan
        ranged = [(s, q) for s, q in plan.quantized if not s.is_weight and q.low is not None]
        ends.append({site.value: (q.low, q.high) for site, q in ranged})
    with_, without = ends
    assert with_.keys() == without.keys()
    assert all(with_[v][0] <= without[v][0] and without[v][1] <= with_[v][1] for v in with_)
    assert sum(with_[v] != without[v] for v in with_) > len(with_) / 2


def test_transforms_learn_nothing_from_the_rows_that_ranges_are_judged_on(
    checkpoint, tmp_path, monkeypatch
) -> None:
    sampled, observed = [], []
    sample, observe = observer.sample, observer.observe
    monkeypatch.setattr(
        observer,
        "sample",
        lambda path, rows, *a, **k: sampled.append(rows) or sample(path, rows, *a, **k),
    )
    monkeypatch.setattr(
        observer,
        "observe",
        lambda path, rows, *a, **k: observed.append(rows) or observe(path, rows, *a, **k),
    )
    report = made(checkpoint("bert"), tmp_path)
    (rows,) = observed
    learned = [tuple(row.ids) for row, held in zip(rows, held_out(259), strict=True) if not held]
    assert len(sampled) == 1
    assert all([tuple(row.ids) for row in each] == learned for each in sampled)
    assert report.ranges.exceeded is not None
    assert report.ranges.exceeded.rows == 259 // 4
    assert str(report.ranges.exceeded) in "\n".join(verdicts(report))


def test_a_target_of_integers_alone_gets_no_float_branch_and_says_so(checkpoint, tmp_path) -> None:
    report = made(
        checkpoint("bert"),
        tmp_path,
        targets=["ort-cpu", "qnn"],
        quantize={"static": {"activations": "uint8"}},
        shape={"batch": 1, "sequence": 64},
    )
    assert report.transforms is not None
    neurons, smoothed = report.transforms.transforms
    assert (neurons.name, neurons.groups) == ("outlier-neurons", ())
    assert "qnn computes in integers alone" in neurons.summary
    assert smoothed.groups


def test_a_report_says_how_near_the_model_is_on_texts_that_nothing_was_fitted_to(finished) -> None:
    _, out, report = finished
    assert report.ranges.provenance.supplement == 235
    probes = {each.candidate: each.probe for each in columns(report).comparisons}
    assert set(probes) >= set(report.plans)
    for probe in probes.values():
        assert probe is not None
        assert probe.measure == "1 - change of a probability"
        assert 0 <= probe.least <= probe.low <= probe.mean <= 1
        assert [each.closeness for each in probe.worst] == sorted(
            each.closeness for each in probe.worst
        )
        assert probe.worst[0].closeness == probe.least
    # Float on another runtime is float; 8 bits are not.
    floats = [probe.least for name, probe in probes.items() if name not in report.plans]
    assert min(floats, default=1.0) > 0.98
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "235 of octobert's own" in page.replace("&#39;", "'")


@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_verify_measures_the_same_as_the_run(finished, target: str) -> None:
    """On the same texts; another batch may round a value between two codes otherwise."""
    _, out, report = finished
    found = octobert.verify(out / target).probe
    (expected,) = [each.probe for each in columns(report).comparisons if each.candidate == target]
    assert found is not None
    assert (found.measure, found.texts) == (expected.measure, expected.texts)
    assert found.mean == pytest.approx(expected.mean, abs=0.01)
