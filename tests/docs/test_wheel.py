"""The wheel: what is in it, and that it predicts in an environment without torch. `make wheel-test` runs this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
import hatch_build

pytestmark = pytest.mark.needs_network
ROOT = Path(__file__).parents[2]
ABSENT = ("torch", "transformers", "openvino", "optuna")
# Run in a folder outside the checkout, so that only the installed package can be imported.
PREDICT = """
import importlib.util, json, sys
import octobert
assert "site-packages" in octobert.__file__, octobert.__file__
answer = octobert.load(sys.argv[1])(["he was in it"])
loaded = [name for name in {absent!r} if importlib.util.find_spec(name)]
print(json.dumps([loaded, answer]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-deps",
            "-w",
            str(folder),
            str(ROOT),
        ],
        check=True,
    )
    (path,) = folder.glob("octobert-*.whl")
    return path


def test_the_wheel_holds_what_is_no_module(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "octobert/py.typed" in names
    assert "octobert/report/page/page.html" in names
    vendored = {
        name.removeprefix("octobert/report/vendor/")
        for name in names
        if "/vendor/" in name and ".py" not in name
    }
    assert vendored == {
        f"{library.name}{end}" for library in hatch_build.LIBRARIES for end in (".js", ".LICENSE")
    }
    assert [name for name in names if not name.startswith("octobert")] == []


@pytest.mark.parametrize("has_npm", [True, False])
def test_libraries_are_fetched_with_their_digests(has_npm: bool, tmp_path: Path) -> None:
    """From a clean clone; without npm, the build takes it from the package index."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    path = os.environ["PATH"] if has_npm else str(Path(sys.executable).parent)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "-w",
        str(tmp_path),
        str(tmp_path / "clone"),
    ]
    subprocess.run(command, check=True, env=os.environ | {"PATH": path})
    (wheel,) = tmp_path.glob("octobert-*.whl")
    assert "octobert/report/vendor/plot.js" in zipfile.ZipFile(wheel).namelist()


def test_a_library_with_another_digest_is_refused() -> None:
    changed = hatch_build.LIBRARIES[0]._replace(integrity="sha512-AAAA")
    with pytest.raises(
        RuntimeError, match=r"d3@7\.9\.0 has another digest \(got sha512-.*, expected sha512-AAAA\)"
    ):
        hatch_build._fetch(changed)


def test_the_documented_lines_install_a_wheel_with_extras(tmp_path: Path) -> None:
    """As docs/install.md and README.md have them, in a fresh environment; without torch, which takes gigabytes."""
    lines = [
        line.partition("  #")[0].strip()
        for line in (ROOT / "docs" / "install.md").read_text().splitlines()
    ]
    build, install, add = (
        line
        for line in lines
        if line.startswith(("pip wheel", 'pip install "$', "pip install 'octobert["))
    )
    readme = (ROOT / "README.md").read_text()
    assert all(line in readme for line in (build, install, add))
    venv.create(tmp_path / "venv", with_pip=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "checkout")], check=True)
    settings = {
        "PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}",
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    for line in (build, install.replace("torch,", ""), add):
        subprocess.run(
            line,
            shell=True,
            check=True,
            cwd=tmp_path / "checkout",
            env=os.environ | settings,
            capture_output=True,
        )
    code = "import octobert, openvino, starlette; print(octobert.__file__)"
    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "site-packages" in done.stdout


def test_a_finished_package_predicts_without_torch(
    wheel: Path, workspace: Callable[[str], Path], tmp_path: Path
) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / ("Scripts" if os.name == "nt" else "bin") / "python"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    command = [
        str(python),
        "-c",
        PREDICT.format(absent=ABSENT),
        str(workspace("docs/index.md") / "out" / "ort-cpu"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    installed, answers = json.loads(done.stdout)
    assert installed == []
    assert answers[0]["label"] in ("same", "different")
    shown = subprocess.run(
        [str(python), "-m", "octobert", "--help"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "quantize" in shown.stdout
