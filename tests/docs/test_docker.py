"""The container files are consistent with the repository: pinned images, constraints, no root, sources that are sent along."""

from __future__ import annotations

import fnmatch
import re
import shlex
from pathlib import Path

import pytest
import yaml

from octobert.api.setup import DRIVERS
from tests.docs import markdown

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docker").glob("Dockerfile.*"))


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, its text) of a Dockerfile, with continued lines joined."""
    lines = [
        line
        for line in path.read_text(encoding="utf-8").splitlines()
        if not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (word, text)
        for word, _, text in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_images_are_pinned_run_without_root_and_start_octobert(path: Path) -> None:
    steps = instructions(path)
    stages = {text.split()[2] for word, text in steps if word == "FROM" and " AS " in text}
    images = [
        text.split()[0] for word, text in steps if word == "FROM" and text.split()[0] not in stages
    ]
    assert images
    assert all(re.search(r":\d+\.\d+\.\d+-", image) for image in images)
    last = {word: text for word, text in steps}
    assert last["USER"] == "10001"
    assert last["ENTRYPOINT"] == '["octobert"]'
    assert last["VOLUME"] == '["/work", "/cache"]'
    users = [index for index, (word, _) in enumerate(steps) if word == "USER"]
    assert not [text for word, text in steps[users[-1] :] if word == "RUN"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_installed_are_pinned_versions_of_what_exists(path: Path) -> None:
    tomllib = pytest.importorskip("tomllib")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    steps = instructions(path)
    runs = [text for word, text in steps if word == "RUN"]
    installs = [part for text in runs for part in text.split("&&") if "pip install" in part]
    assert installs
    assert all("-c constraints.txt" in part for part in installs)
    assert all(
        "--mount=type=cache,target=/root/.cache/pip" in text
        for text in runs
        if "pip install" in text
    )
    arguments = dict(text.partition("=")[::2] for word, text in steps if word == "ARG")
    assert set(filter(None, arguments["EXTRAS"].split(","))) <= set(extras)
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "torch==" in pins
    assert "onnxruntime-gpu==" in pins
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    copied = [
        name
        for word, text in steps
        if word == "COPY" and "--from" not in text
        for name in shlex.split(text)[:-1]
    ]
    # Without its hook octobert is not built.
    assert "hatch_build.py" in copied
    assert all(
        (ROOT / name).exists() and any(fnmatch.fnmatch(name, rule) for rule in allowed)
        for name in copied
    )


def test_the_service_has_whole_cores_and_the_program_of_its_page() -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    (service,) = compose["services"].values()
    build = service["build"]
    steps = instructions(ROOT / "docker" / build["context"] / build["dockerfile"])
    arguments = {text.partition("=")[0] for word, text in steps if word == "ARG"}
    assert build["args"].keys() <= arguments
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert all(f"\n{package}==" in pins for package in build["args"]["PACKAGES"].split())
    places = [volume.removesuffix(":ro").rpartition(":")[2] for volume in service["volumes"]]
    assert f"{places}".replace("'", '"') == dict(steps)["VOLUME"]
    # The page starts the same program, on the same port.
    (line,) = (
        line
        for block in markdown.blocks()
        if block.document == "docs/guides/service.md" and block.language == "bash"
        for line in markdown.commands(block.text)
        if "uvicorn" in line and line.startswith("python")
    )
    assert [
        word for word in service["entrypoint"] if word not in ("--host", "0.0.0.0")
    ] == line.split()
    # octobert rounds a quota down, and what is lost with a part of a core is in docs/install.md.
    assert service["cpus"] == int(service["cpus"]) >= 1
    assert re.fullmatch(r"\d+g", service["mem_limit"])


def test_the_page_names_every_driver_and_extra() -> None:
    tomllib = pytest.importorskip("tomllib")
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert [driver.title for driver in DRIVERS.values() if driver.title not in page] == []
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert [
        extra
        for extra in set(extras) - {"demo", "bench", "docs", "dev", "browser"}
        if f"| `{extra}` |" not in page
    ] == []
