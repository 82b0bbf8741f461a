"""What `pip install octobert` has to do without the packages of the extra `quantize`, and what it says where it needs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from octobert.core import environment

ABSENT = [
    requirement.name.replace("-", "_") for requirement in environment.requirements_of("quantize")
]
# The packages of the extra are not found, and neither are those of the extras that need it.
WITHOUT = f"""
import sys
for name in {[*ABSENT, "torch", "transformers", "safetensors"]!r}:
    sys.modules[name] = None
"""


@pytest.fixture
def package(finished: tuple[object, Path]) -> Path:
    """A package of ONNX Runtime."""
    return finished[1] / "ort-cpu"


def run_without(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python code where the packages are absent."""
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "120"}
    )


def octobert_without(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program where the packages are absent."""
    return run_without("from octobert.cli.main import main; main()", *arguments)


def test_the_extra_is_what_the_metadata_says() -> None:
    assert "scipy" in ABSENT
    assert "quantize" in (metadata.metadata("octobert").get_all("Provides-Extra") or ())
    environment.require("quantize")


def test_a_finished_package_is_opened_verified_and_exported(package: Path, tmp_path: Path) -> None:
    done = run_without(
        "import json, octobert\n"
        "package, out = sys.argv[1:]\n"
        "answers = octobert.load(package)([('he was in it', 'he was here')])\n"
        "octobert.export(package, 'triton', out)\n"
        "print(json.dumps([answers, octobert.verify(package).model_dump(mode='json')]))",
        str(package),
        str(tmp_path / "exported"),
    )
    assert done.returncode == 0, done.stderr
    assert "label" in json.dumps(json.loads(done.stdout)[0])


@pytest.mark.parametrize(
    "arguments", [("--help",), ("doctor",), ("targets",), ("tasks",), ("schema",)]
)
def test_commands_that_make_nothing(arguments: tuple[str, ...]) -> None:
    done = octobert_without(*arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("quantize", "model", "--task", "embedding", "--data", "rows.txt", "--out", "out"),
        ("auto", "model", "--task", "embedding", "--data", "rows.txt", "--out", "out"),
        ("finetune", "model", "--task", "embedding", "--data", "rows.txt", "--out", "out"),
        ("run", "RECIPE", "--out", "out"),
        ("run", "RECIPE", "--out", "out", "--dry-run"),
        ("evaluate", "PACKAGE", "--data", "rows.txt"),
        ("benchmark", "PACKAGE"),
        ("tune", "PACKAGE", "--data", "rows.txt"),
        ("embed", "PACKAGE", "rows.txt", "out.parquet"),
    ],
    ids=lambda arguments: "-".join(arguments[:1] + arguments[4:]),
)
def test_commands_that_need_them_say_so(
    arguments: tuple[str, ...], package: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: model\ntask: embedding\ndata: rows.txt\ntargets: [ort-cpu]\n")
    places = {"RECIPE": str(recipe), "PACKAGE": str(package)}
    done = octobert_without(*(places.get(word, word) for word in arguments))
    assert done.returncode == 6, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert f"needs packages that are not installed (got no {', '.join(sorted(ABSENT))[:8]}" in last
    assert "[quantize]'" in last
    assert "Traceback" not in done.stderr
