"""Edited code makes its results again: octobert's own, that of plugins of other packages, and that of the user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import octobert
from octobert.config.loading import parse
from octobert.core import user_code
from octobert.engine import keys
from octobert.pipeline.planner import steps_of
from tests.support.packages import forget_plugins, install
from tests.support.runs import FAST

SOURCE = Path(octobert.__file__).parent
# Keys of the steps of a recipe, as a process of their own finds them.
KEYS = """
import json, sys
from octobert.config.loading import parse
from octobert.engine import keys
from octobert.pipeline.planner import steps_of
steps = steps_of(parse(json.loads(sys.argv[1])))
print(json.dumps({step.name: keys.key_of(step, {}) for step in steps}))
"""
FAMILY = '''"""A family."""
from octobert.core.family import EncoderFamily
FAMILY = EncoderFamily(model_types=("mine",), prefix="mine", layer="layers.{}", parts={})
'''
CALIBRATOR = '''"""A calibrator."""
from octobert.quantization.calibrators import Calibrator
class Mine(Calibrator):
    """Mine."""
    def interval(self, seen): ...
'''


@pytest.fixture
def recipe(checkpoint, pairs) -> dict[str, object]:
    return {
        "model": str(checkpoint("bert")),
        "task": "text-classification",
        "data": {"source": str(pairs), "calibrate": {"from": "train", "samples": 24}},
        "targets": ["ort-cpu"],
        "benchmark": FAST,
        "profile": False,
    }


@pytest.mark.parametrize("file", ["core/families/bert.py", "core/family.py", "graph/qdq.py"])
def test_any_edit_of_octobert_makes_results_again(recipe, tmp_path: Path, file: str) -> None:
    """Encoder families are found by their names, so that no file says that it imports them."""
    copy = tmp_path / "src" / "octobert"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))

    def found() -> dict[str, str]:
        environment = {**os.environ, "PYTHONPATH": str(copy.parent)}
        command = [sys.executable, "-c", KEYS, json.dumps(recipe)]
        return json.loads(subprocess.run(command, env=environment, check=True, stdout=-1).stdout)

    before = found()
    assert found() == before
    (copy / file).write_text((copy / file).read_text() + "\n# edited\n")
    after = found()
    assert {name for name in before if after[name] == before[name]} == set()


# --- plugins of other packages


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of Python's path, and a way to put another one on it."""
    folder = tmp_path / "site"
    folder.mkdir()
    forget_plugins()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    monkeypatch.undo()
    # A module that was imported is found where it was.
    for name in [name for name in sys.modules if name.partition(".")[0] == "mine"]:
        del sys.modules[name]
    forget_plugins()


def keys_of(recipe: dict[str, object]) -> dict[str, str]:
    """Keys of the steps, as a new process finds them."""
    forget_plugins()
    return {step.name: keys.key_of(step, {}) for step in steps_of(parse(recipe))}


def package(site: Path) -> Path:
    """Files of a package that its installer lists; its entry module imports a helper relatively."""
    files = {
        "mine/__init__.py": "",
        "mine/family.py": "from .helper import FAMILY\n",
        "mine/helper.py": FAMILY,
        "mine/table.json": "{}",
        "mine/inner/deep.py": "x = 1",
        "mine/_fast.cpython-311-x86_64-linux-gnu.so": "code",
        "mine_utils/__init__.py": "",
        "mine_data/table.bin": "0",
    }
    install(site, {"families": {"mine": "mine.family"}}, files, listed=True)
    return site


def unlisted(site: Path) -> Path:
    """The same files without a list of them."""
    package(site)
    (site / "octobert_extra-1.0.dist-info" / "RECORD").unlink()
    (site / "mine" / "family.py").write_text(
        "import os, mine_utils as utils\nfrom .helper import FAMILY\n"
    )
    return site


def single(site: Path) -> Path:
    """A module of one file, which imports one beside it, which imports another one."""
    files = {
        "mine.py": "import json, helper\nFAMILY = helper.FAMILY\n",
        "helper.py": "def later():\n    from farther import x\n" + FAMILY,
        "farther.py": "x = 1",
    }
    install(site, {"families": {"mine": "mine"}}, files)
    return site


def namespace(site: Path) -> Path:
    """A part of a namespace that other packages have parts of, too."""
    files = {
        "octo_space/mine/__init__.py": "",
        "octo_space/mine/family.py": FAMILY,
        "octo_space/mine/helper.py": "",
        "octo_space/others/__init__.py": "",
    }
    install(site, {"families": {"mine": "octo_space.mine.family"}}, files)
    return site


def editable(site: Path) -> Path:
    """An editable installation: the installer lists a `.pth` file, whose folder is on Python's path."""
    source = site.parent / "checkout" / "src"
    package(source)
    shutil.rmtree(source / "octobert_extra-1.0.dist-info")
    (source / "mine" / "family.py").write_text("import mine_utils\nfrom .helper import FAMILY\n")
    facts = install(site, {"families": {"mine": "mine.family"}}, {"mine.pth": str(source)})
    (facts / "RECORD").write_text("mine.pth,,\n")
    sys.path.append(str(source))
    return source


KINDS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "listed": (
        package,
        (
            "mine/family.py",
            "mine/helper.py",
            "mine/table.json",
            "mine/inner/deep.py",
            "mine/_fast.cpython-311-x86_64-linux-gnu.so",
            "mine_utils/__init__.py",
            "mine_data/table.bin",
        ),
    ),
    "unlisted": (
        unlisted,
        ("mine/family.py", "mine/helper.py", "mine/table.json", "mine_utils/__init__.py"),
    ),
    "single": (single, ("mine.py", "helper.py", "farther.py")),
    "namespace": (namespace, ("octo_space/mine/family.py", "octo_space/mine/helper.py")),
    "editable": (editable, ("mine/family.py", "mine/helper.py", "mine_utils/__init__.py")),
}


@pytest.mark.parametrize(
    ("make", "edited"), [(make, file) for make, files in KINDS.values() for file in files]
)
def test_an_edited_plugin_makes_results_again(
    recipe, site: Path, monkeypatch: pytest.MonkeyPatch, make, edited: str
) -> None:
    """Any file of its package counts, however it is installed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = make(site) / edited
    before = keys_of(recipe)
    assert keys_of(recipe) == before
    file.write_text(file.read_text() + "\n# edited\n")
    assert not before.items() & keys_of(recipe).items()


def test_what_another_package_has_of_a_namespace_does_not_count(recipe, site: Path) -> None:
    namespace(site)
    before = keys_of(recipe)
    (site / "octo_space" / "others" / "__init__.py").write_text("x = 1")
    assert keys_of(recipe) == before


def test_an_archive_counts_as_a_whole(recipe, tmp_path: Path, monkeypatch) -> None:
    package(tmp_path / "files")
    forget_plugins()
    archive = tmp_path / "mine.egg"

    def write(text: str) -> dict[str, str]:
        with zipfile.ZipFile(archive, "w") as stream:
            for file in sorted((tmp_path / "files").rglob("*")):
                if file.is_file():
                    stream.write(file, file.relative_to(tmp_path / "files"))
            stream.writestr(zipfile.ZipInfo("mine/late.txt"), text)
        return keys_of(recipe)

    monkeypatch.syspath_prepend(str(archive))
    before = write("a")
    assert "octobert-extra 1.0" in keys.plugin_digests({})
    assert write("a") == before
    assert not write("b").items() & before.items()
    monkeypatch.undo()
    forget_plugins()


def test_an_upgraded_plugin_makes_results_again(recipe, site: Path) -> None:
    """In place, as pip does it: another version, even with the same files, or another version of what it requires."""
    package(site)
    before = keys_of(recipe)
    shutil.rmtree(site / "octobert_extra-1.0.dist-info")
    install(site, {"families": {"mine": "mine.family"}}, version="1.1")
    upgraded = keys_of(recipe)
    assert not before.items() & upgraded.items()


def test_a_package_that_a_plugin_requires_counts_by_its_version(recipe, site: Path) -> None:
    files = {"mine/__init__.py": FAMILY}
    install(site, {"families": {"mine": "mine"}}, files, requires="octo-needed[fast]>=1; 1 == 1")
    install(site, {}, name="octo-needed")
    before = keys_of(recipe)
    shutil.rmtree(site / "octo_needed-1.0.dist-info")
    install(site, {}, name="octo-needed", version="2.0")
    assert not before.items() & keys_of(recipe).items()


def test_bytecode_and_places_do_not_count(recipe, site: Path, tmp_path: Path, monkeypatch) -> None:
    package(site)
    before = keys_of(recipe)
    (site / "mine" / "__pycache__").mkdir()
    (site / "mine" / "__pycache__" / "family.cpython-311.pyc").write_bytes(b"\0")
    assert keys_of(recipe) == before
    site.rename(tmp_path / "moved")
    monkeypatch.syspath_prepend(str(tmp_path / "moved"))
    assert keys_of(recipe) == before


def test_a_plugin_that_a_step_does_not_name_does_not_count(recipe, site: Path) -> None:
    """Where a family's plugins are named by options: an edited calibrator trains nothing again."""
    install(site, {"calibrators": {"mine": "mine"}}, {"mine.py": CALIBRATOR})
    before, used = keys_of(recipe), keys_of({**recipe, "calibrate": "mine"})
    (site / "mine.py").write_text(CALIBRATOR + "# edited\n")
    assert keys_of(recipe) == before
    after = keys_of({**recipe, "calibrate": "mine"})
    changed = {name for name in used if after[name] != used[name]}
    assert "calibrate" in changed
    assert not {"data", "capture", "observe"} & changed


def test_damaged_facts_of_a_package_stop_no_run(recipe, site: Path) -> None:
    facts = install(site, {"families": {"mine": "mine"}}, {"mine.py": FAMILY}, listed=True)
    (facts / "METADATA").unlink()
    (facts / "RECORD").write_bytes(b'\xff"broken')
    before = keys_of(recipe)
    (site / "mine.py").write_text(FAMILY + "# edited\n")
    assert not before.items() & keys_of(recipe).items()


# --- code of the user


@pytest.mark.parametrize(
    ("statement", "file"),
    [
        ("import helper", "helper.py"),
        ("import json, helper as h", "helper.py"),
        ("def later():\n    from helper import x", "helper.py"),
        ("from parts.inner import x", "parts/inner.py"),
        ("import parts", "parts/__init__.py"),
        ("import helper", "farther.py"),
    ],
)
def test_what_code_of_the_user_imports_from_its_folder_counts(
    tmp_path: Path, statement: str, file: str
) -> None:
    """It can where the code puts its folder on Python's path itself, as scripts do."""
    (tmp_path / "parts").mkdir()
    for name in ("helper.py", "farther.py", "parts/__init__.py", "parts/inner.py", "other.py"):
        (tmp_path / name).write_text("import farther\nx = 1\n")
    (tmp_path / "mine.py").write_text(f"{statement}\ndef metric(a, b):\n    return 1.0\n")

    def found() -> user_code.UserCode:
        return user_code.at(f"{tmp_path / 'mine.py'}:metric", "metric", where="metric")

    before = found()
    (tmp_path / "other.py").write_text("x = 2\n")
    assert found().digest == before.digest
    (tmp_path / file).write_text("import farther\nx = 2\n")
    assert found().digest != before.digest
    assert tmp_path / file in before.places
