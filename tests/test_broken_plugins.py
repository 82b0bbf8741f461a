"""Broken plugins of other packages: one sentence with the package's name, and commands that need none of them go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from octobert.core import plugins
from octobert.core.errors import BrokenPluginWarning, RecipeError
from tests.support.packages import forget_plugins, install

# What a module does that is no plugin → what is said of it.
BREAKAGES = {
    "raise RuntimeError('no\\nlicence')": "RuntimeError: no licence",
    "raise SystemExit(0)": "SystemExit: 0",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "import octo_nothing": "ModuleNotFoundError: No module named 'octo_nothing'",
    "x = (": "SyntaxError: '(' was never closed",
    "": "",
}
FAMILIES = sorted(plugins.FAMILIES)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forget_plugins()
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    monkeypatch.undo()
    for name in [name for name in sys.modules if name.startswith("octo_")]:
        del sys.modules[name]
    forget_plugins()


def left_out(family: str, name: str) -> str:
    """The only note of `each`, after it has given all else; and `load` says the same with the key that names the plugin."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        found = [name for name, _ in plugins.each(family)]
        assert [name for name, _ in plugins.each(family)] == found
    assert set(found) == {*plugins.names(family)} - {name}
    with pytest.raises(RecipeError) as raised:
        plugins.load(family, name, where="here")
    (note,) = [str(n.message) for n in notes if issubclass(n.category, BrokenPluginWarning)]
    assert str(raised.value) == f"here: {note}."
    return note


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("text", BREAKAGES)
def test_a_broken_plugin_is_left_out_with_its_reason(site: Path, family: str, text: str) -> None:
    install(site, {family: {"octo-bad": "octo_bad"}}, {"octo_bad.py": text}, name="octo-acme")
    note = left_out(family, "octo-bad")
    assert '"octo-bad" of the package octo-acme 1.0 is broken (got ' in note
    assert (BREAKAGES[text] or "octo_bad has 0 ") in note
    assert note.endswith("; update the package, or remove it: pip uninstall octo-acme")


CALIBRATOR = """
from octobert.quantization.calibrators import Calibrator
class Mine(Calibrator):
    def interval(self, seen): ...
"""
TASK = """
from octobert.tasks import TaskOptions
class Mine(TaskOptions):
    description = ""
    def build(self, metadata=None): ...
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("del Mine.description", "Mine lacks description"),
        ("Mine.build = None", "TypeError: None is not a callable object"),
        ("Mine.build = lambda self: None", "build takes , not metadata"),
    ],
)
def test_members_of_another_kind_are_breakage(site: Path, text: str, said: str) -> None:
    install(site, {"tasks": {"octo-bad": "octo_bad"}}, {"octo_bad.py": f"{TASK}{text}\n"})
    assert said in left_out("tasks", "octo-bad")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Other(Mine): pass", "octo_bad has 2 subclasses of Calibrator, not one"),
        ("del Mine", "octo_bad has 0 subclasses of Calibrator, not one"),
        ("del Mine.interval; Mine.__abstractmethods__ = {'interval'}", "Mine lacks interval"),
        ("Mine.interval = lambda self: None", "interval takes , not seen"),
    ],
)
def test_classes_that_are_none_are_breakage(site: Path, text: str, said: str) -> None:
    install(
        site, {"calibrators": {"octo-bad": "octo_bad"}}, {"octo_bad.py": f"{CALIBRATOR}{text}\n"}
    )
    assert said in left_out("calibrators", "octo-bad")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "prefixes: Field required"),
        ("    prefixes: tuple[str, ...] = 3", "prefixes: Input should be a valid tuple"),
        (
            "    prefixes = ('octo:',)",
            "PydanticUserError: Field 'prefixes' defined on a base class",
        ),
    ],
)
def test_attributes_that_are_none_are_breakage(site: Path, text: str, said: str) -> None:
    head = "from octobert.models.sources import Source\nclass Mine(Source):\n"
    content = f"{head}    def fetch(self, name): ...\n{text}\n"
    install(site, {"sources": {"octo-bad": "octo_bad"}}, {"octo_bad.py": content})
    assert said in left_out("sources", "octo-bad")


@pytest.mark.parametrize(
    ("name", "module", "said"),
    [
        ("octo-bad", "octo_missing", "ModuleNotFoundError: No module named 'octo_missing'"),
        ("octo-bad", "octo_good:nothing", "AttributeError: module 'octo_good' has no attribute"),
        ("octo-bad", "no module!", "AttributeError"),
        ("Octo Bad", "octo_good", "a name has lower-case words with hyphens between them"),
        ("../octo", "octo_good", "a name has lower-case words with hyphens between them"),
    ],
)
def test_entry_points_that_name_no_plugin(site: Path, name: str, module: str, said: str) -> None:
    install(site, {"calibrators": {name: module}}, {"octo_good.py": CALIBRATOR})
    assert said in left_out("calibrators", name)


def test_two_packages_with_one_name_are_both_named(site: Path) -> None:
    for package in ("octo-one", "octo-two"):
        install(
            site, {"calibrators": {"octo": "octo_good"}}, {"octo_good.py": CALIBRATOR}, name=package
        )
    note = left_out("calibrators", "octo")
    assert "octo-one 1.0" in note
    assert "octo-two 1.0" in note
    assert "several packages have a plugin of that name" in note


@pytest.mark.parametrize(
    "content", [b"[octobert.targets]\nbroken\n", b"[octobert.targets]\n\xff = x\n"]
)
def test_damaged_metadata_is_told_and_others_go_on(site: Path, content: bytes) -> None:
    facts = install(site, {}, name="octo-damaged")
    (facts / "entry_points.txt").write_bytes(content)
    install(site, {"calibrators": {"octo": "octo_good"}}, {"octo_good.py": CALIBRATOR})
    with pytest.warns(
        BrokenPluginWarning, match=r"octo-damaged 1\.0 cannot be read .*pip uninstall"
    ):
        assert "octo" in dict(plugins.each("calibrators"))


def test_a_package_without_a_name_is_called_as_its_folder(site: Path) -> None:
    facts = install(site, {"calibrators": {"octo": "octo_x"}}, {"octo_x.py": "1/0"}, name="octo-y")
    (facts / "METADATA").unlink()
    assert "of the package octo_y-1.0 is broken (got ZeroDivisionError" in left_out(
        "calibrators", "octo"
    )


# --- commands


def octobert(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "octobert", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        check=False,
    )


@pytest.fixture(scope="module")
def all_broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with a plugin of each family, commands included, that prints and exits when it is imported."""
    folder = tmp_path_factory.mktemp("broken")
    points = {family: {"octo-bad": "octo_bad"} for family in (*FAMILIES, "commands")}
    text = "print('a line of JSON would be damaged')\nraise SystemExit(0)\n"
    install(folder, points, {"octo_bad.py": text}, name="octo-acme")
    return folder


@pytest.mark.parametrize(
    ("arguments", "family"),
    [
        (["targets", "--json"], "target"),
        (["tasks", "--json"], "task"),
        (["placements", "--json"], "placement"),
        (["schema"], "calibrator"),
        (["doctor", "--json"], "runtime"),
        (["--help"], "command"),
    ],
)
def test_lists_go_on(all_broken: Path, arguments: list[str], family: str) -> None:
    done = octobert(all_broken, *arguments)
    assert done.returncode == 0, done.stderr
    if arguments != ["--help"]:
        json.loads(done.stdout)
    assert f'octobert: the {family} "octo-bad" of the package octo-acme 1.0 is broken' in " ".join(
        done.stderr.split()
    )


def test_a_prediction_runs_no_code_of_other_packages(finished, tmp_path: Path) -> None:
    """A plugin that sleeps at its import, or does worse, is not imported by what does not need it."""
    points = {family: {"octo-slow": "octo_slow"} for family in (*FAMILIES, "commands")}
    install(tmp_path, points, {"octo_slow.py": "import time\ntime.sleep(10_000)\n"})
    done = octobert(tmp_path, "predict", finished[1] / "ort-cpu", "--pair", "a", "b", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)


def test_what_names_a_broken_plugin_is_refused(all_broken: Path, tmp_path: Path) -> None:
    done = octobert(all_broken, "octo-bad")
    assert done.returncode == 2
    assert '"octo-bad" of the package octo-acme 1.0 is broken (got SystemExit: 0)' in done.stderr
    recipe = {"model": "m", "task": "text-classification", "data": "d", "calibrate": "octo-bad"}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    done = octobert(all_broken, "run", tmp_path / "recipe.yaml", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert 'the calibrator "octo-bad" of the package octo-acme 1.0 is broken' in done.stderr
    assert "Traceback" not in done.stderr
