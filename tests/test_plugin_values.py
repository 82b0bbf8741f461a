"""Plugins as values: fields of steps hold them, keys count them, and plain data has their names and options."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octobert import targets
from octobert.config.recipe import Choice
from octobert.core.errors import RecipeError
from octobert.core.frozen import FrozenModel
from octobert.engine import keys
from octobert.engine.contract import Request
from octobert.engine.executors import _remote
from octobert.quantization.calibrators import PLUGINS, CalibratorField
from octobert.quantization.calibrators.percentile import Percentile
from tests.support.packages import forget_plugins, install

MINE = """
from enum import Enum
from pydantic import Field
from octobert.quantization.calibrators import Calibrator
class Side(Enum):
    LOW = "low"
class Mine(Calibrator):
    share: int = 1
    digest: str = ""
    sides: frozenset[str] = frozenset(("a", "b", "c", "d"))
    side: Side = Side.LOW
    from_: int = Field(1, alias="from")
    def interval(self, seen): ...
"""
TARGET = """
from octobert.targets import load
TARGET = load("ort-cpu").replaced()
"""


class Held(FrozenModel):
    calibrator: CalibratorField


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of Python's path with a package of two plugins, one of them broken."""
    forget_plugins()
    monkeypatch.syspath_prepend(str(tmp_path))
    files = {
        "octo_pack/__init__.py": "from . import mine\n",
        "octo_pack/mine.py": MINE,
        "octo_bad.py": "x = (",
    }
    install(
        tmp_path, {"calibrators": {"octo-mine": "octo_pack:mine", "octo-bad": "octo_bad"}}, files
    )
    yield tmp_path
    monkeypatch.undo()
    for name in [name for name in sys.modules if name.startswith("octo_")]:
        del sys.modules[name]
    forget_plugins()


def made(name: str, **options: Any) -> Held:
    return Held(calibrator=PLUGINS.make(Choice(name=name, options=options)))


@pytest.mark.parametrize(
    ("name", "options"),
    [("mse", {}), ("percentile", {"keep": 99.5}), ("octo-mine", {"from": 3, "sides": ["x"]})],
)
def test_a_value_survives_json(site: Path, name: str, options: dict[str, Any]) -> None:
    value = made(name, **options)
    plain = json.loads(value.model_dump_json())
    assert plain["calibrator"]["name"] == name
    assert set(plain["calibrator"]["options"]) == set(options)
    again = Held.model_validate(plain)
    assert again == value
    assert keys.key_data(again) == keys.key_data(value)


@pytest.mark.filterwarnings("error")
def test_the_name_of_a_value_imports_no_other_plugin(site: Path) -> None:
    assert PLUGINS.name_of(made("octo-mine").calibrator) == "octo-mine"
    assert PLUGINS.name_of(Percentile()) == "percentile"
    assert "octo_bad" not in sys.modules


def test_what_was_not_loaded_has_no_name() -> None:
    class Other(Percentile):
        pass

    with pytest.raises(RecipeError, match=r"the calibrator has no name .*Other"):
        PLUGINS.name_of(Other())


def test_each_option_counts_whatever_it_is_called(site: Path) -> None:
    found = [
        json.dumps(keys.key_data(made("octo-mine", **options)))
        for options in ({}, {"share": 2}, {"digest": "d"}, {"from": 2})
    ]
    assert len(set(found)) == len(found)


def test_another_class_with_the_same_options_is_another_key() -> None:
    assert keys.key_data(made("mse")) != keys.key_data(made("minmax"))


def test_sets_have_one_order_in_all_processes(site: Path) -> None:
    code = (
        "import json; from tests.test_plugin_values import made; from octobert.engine import keys; "
        "print(json.dumps(keys.key_data(made('octo-mine'))))"
    )
    path = ":".join(
        [str(site), str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "src")]
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": path},
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_the_package_of_a_value_counts_here_and_on_a_cluster(site: Path, tmp_path: Path) -> None:
    """The module of an entry point may be an attribute of its package."""
    value = made("octo-mine")
    found = keys.plugin_digests(keys.key_data(value))
    assert [name.split()[0] for name in found] == ["octobert-extra"]
    assert not keys.plugin_digests(keys.key_data(made("mse")))
    options = {
        "calibrator": value.model_dump(mode="json")["calibrator"],
        "model_digest": "",
        "source": "",
        "allow_leakage": False,
    }
    request = Request(
        stage="calibrate", inputs={}, options=options, scratch=tmp_path, temporary=tmp_path
    )
    assert found.items() <= _remote.kind_of(request).items()


def test_a_target_with_another_name_than_its_entry_point_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_plugins()
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, {"targets": {"octo-chip": "octo_chip"}}, {"octo_chip.py": TARGET})
    with pytest.raises(RecipeError, match="it calls itself ort-cpu"):
        targets.load("octo-chip")
    monkeypatch.undo()
    forget_plugins()
