"""Child processes: nothing of the working directory can be imported in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from octobert.core import processes
from tests.support.hostile import hostile_folder, imported_from

TEMPORARY = "import tempfile, json\ndef main():\n    print(json.dumps(tempfile.mkdtemp()))\n"
SHOW = "import sys, os, json\ndef main():\n    print(json.dumps([sys.path, os.environ.get('PYTHONPATH'), sys.argv[1:]]))\n"


def test_the_path_of_a_child(tmp_path, monkeypatch) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "shows.py").write_text(SHOW)
    folder = hostile_folder(tmp_path / "downloads")
    monkeypatch.chdir(folder)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(["", ".", "../downloads", str(tmp_path / "kept")])
    )
    child = processes.start("shows", "an argument")
    path, variable, arguments = json.loads(child.communicate()[0])
    assert child.returncode == 0
    assert variable == str(tmp_path / "kept")
    assert arguments == ["an argument"]
    assert str(tmp_path / "kept") in path
    assert not {str(folder), "", ".", str(Path(processes.__file__).parent)} & set(path)
    assert imported_from(folder) == ""


def test_temporary_files_of_a_child_are_where_its_parent_wants_them(tmp_path, monkeypatch) -> None:
    """Those of a child that is killed would stay in the folder of the system."""
    (tmp_path / "makes.py").write_text(TEMPORARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    child = processes.start("makes", temporary=Path("here"))
    made = Path(json.loads(child.communicate()[0]))
    assert made.parent == tmp_path / "here"


def test_a_child_finds_octobert_where_its_parent_did(tmp_path) -> None:
    """Without `site`, no folder of installed packages is on the path, as where the parent found octobert in a way of its own."""
    command = [sys.executable, "-S", *processes.script("octobert.core.version")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "module 'octobert.core.version' has no attribute 'main'" in done.stderr


def test_sets_have_one_order_in_all_children(tmp_path, monkeypatch) -> None:
    """What transformers exports of a model in the order of a set is the same file each time."""
    (tmp_path / "orders.py").write_text("def main():\n    print(hash('a text'), flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    hashes = set()
    for seed in ("1", "2", "random"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        hashes.add(processes.start("orders").communicate()[0])
    assert len(hashes) == 1
