"""Copies of records: fields and types are checked, and what was set is known."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.limits import Limit
from octobert.core.results import Report
from tests.support.columns import LISTS, columns
from tests.support.reports import rich_report
from tests.support.selections import selection


class Record(FrozenModel):
    """A record."""

    kind: Literal["a", "b"] = "a"
    count: int = Field(default=1, ge=0)
    names: tuple[str, ...] = ()


def test_a_copy_has_other_values_and_knows_what_was_set() -> None:
    record = Record(kind="b")
    other = record.replaced(count=2, names=["x"])
    assert (other, record.count) == (Record(kind="b", count=2, names=("x",)), 1)
    assert other.model_fields_set == {"kind", "count", "names"}


@pytest.mark.parametrize("changes", [{"kinds": "a"}, {"kind": "c"}, {"count": -1}, {"names": 1}])
def test_a_wrong_name_and_a_wrong_type_are_errors(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"kinds|'a' or 'b'|greater than|valid tuple"):
        Record().replaced(**changes)


def test_reports_and_packages_of_earlier_versions_are_read() -> None:
    report = rich_report(rows=20)
    limited = {**report.recipe, "accuracy": {"max_drop": 0.01, "metric": "accuracy", "minutes": 5}}
    choice = selection(recipe={"choose": {"limits": {"max_drop": 0.01}}}, load=None)
    report = report.replaced(recipe=limited, choice=choice)
    content = json.loads(report.model_dump_json())
    # Limits were sentences, and what follows from them was stored.
    (search,) = content["searches"].values()
    search["criterion"] = "accuracy drops by at most 1 point"
    content["choice"] |= {"limits": ["F1 drops by at most 1 point"], "accepted_drop": 0.01}
    content["choice"] |= {"accepted_ms": None, "checks": [{"limit": "F1", "state": "kept"}]}
    # Figures were one list for each kind, of all models.
    lists = vars(columns(report))
    old = {name: value for name, value in content.items() if name != "models"}
    old |= {"pruning": None, "speed_goals": [], "absent": lists["absent"]}
    old["scores"] = {n: [s.model_dump() for s in scores] for n, scores in lists["scores"].items()}
    for name in LISTS:
        old[name] = [each.model_dump(mode="json") for each in lists[name]]
    for comparison in old["comparisons"]:
        del comparison["fidelity_kind"]
    read = Report.of_json(json.dumps(old))
    assert read.models == report.models
    assert read.choice == report.choice
    assert [found.criterion for found in read.searches.values()] == [Limit(max_drop=0.01)]
    two = {"footprints": [*old["footprints"], old["footprints"][0]]}
    with pytest.raises(ValueError, match="footprint"):
        Report.of_json(json.dumps(old | two))
    for damaged in ({"choice": 3}, {"recipe": []}, {"searches": {"a": 1}}, {"searches": [1]}):
        with pytest.raises(ValueError, match=next(iter(damaged))):
            Report.of_json(json.dumps(content | damaged))
    with pytest.raises(ValueError, match="prunings"):
        Report.of_json(json.dumps(content | {"prunings": None}))
