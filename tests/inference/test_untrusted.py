"""Packages of an enemy: nothing of what a card or a graph names is run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

import octobert
from octobert import targets
from octobert.core.errors import OctobertError
from octobert.core.session import SessionOptions
from tests.support.hostile import hostile_folder, imported_from
from tests.support.runs import TARGETS


@pytest.fixture
def package(finished, tmp_path: Path) -> Path:
    return shutil.copytree(finished[1] / "ort-cpu", tmp_path / "package")


def changed_card(package: Path, **changes: object) -> None:
    card = json.loads((package / "octobert.json").read_text())
    (package / "octobert.json").write_text(json.dumps({**card, **changes}))


@pytest.mark.parametrize(
    "target", ["wandb", "os", "../../hostile/wandb", "octobert.core.plugins", "_ort", "ort-cpu\x00"]
)
def test_a_card_names_a_plugin_and_not_a_module(
    package: Path, tmp_path: Path, monkeypatch, target: str
) -> None:
    folder = hostile_folder(tmp_path / "hostile")
    monkeypatch.syspath_prepend(folder)
    changed_card(package, target=target)
    with pytest.raises(OctobertError, match="target"):
        octobert.load(package)
    assert imported_from(folder) == ""


@pytest.mark.parametrize("target", TARGETS)
def test_operators_of_a_library_are_refused_by_name(finished, tmp_path: Path, target: str) -> None:
    """octobert registers no library of custom operators, so no runtime knows them."""
    path = tmp_path / "model.onnx"
    model = onnx.load(finished[1] / "ort-cpu" / "onnx" / "model_quantized.onnx")
    model.graph.node[0].domain = "enemy.operators"
    model.graph.node[0].op_type = "Escape"
    model.opset_import.append(onnx.helper.make_opsetid("enemy.operators", 1))
    onnx.save(model, path)
    with pytest.raises(OctobertError, match="Escape"):
        targets.load(target).open_session(path, SessionOptions())


@pytest.mark.parametrize("command", ["benchmark", "tune", "predict_rows", "evaluate"])
def test_functions_for_rows_do_not_run_without_permission(
    package: Path, tmp_path: Path, command: str
) -> None:
    code, ran = tmp_path / "rows.py", tmp_path / "ran"
    code.write_text(f"open({str(ran)!r}, 'w')\ndef rows(split): return []\n")
    source = f"{code}:rows"
    calls = {
        "benchmark": lambda: octobert.benchmark(package, data=source),
        "tune": lambda: octobert.tune(package, source),
        "predict_rows": lambda: octobert.predict_rows(octobert.load(package), source, [1]),
        "evaluate": lambda: octobert.evaluate(package, source),
    }
    with pytest.raises(OctobertError, match="code"):
        calls[command]()
    assert not ran.exists()
