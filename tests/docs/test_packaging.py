"""`pyproject.toml` declares what the code imports, and nothing else; the package is marked as typed."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import octobert

ROOT = Path(__file__).parents[2]
SOURCE = Path(octobert.__file__).parent
# Distributions that no module imports by name, and why they are declared.
NOT_IMPORTED = {
    "accelerate": "transformers' Trainer needs it",
    "safetensors": "transformers reads and writes checkpoints with it",
    "onnxruntime-qnn": "a provider that ONNX Runtime loads",
}


def normalized(name: str) -> str:
    """The form in which distribution names are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared() -> dict[str, set[str]]:
    """Extra → the distributions that it declares; `""` holds the required ones."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    names = {
        extra: {re.split(r"[\[<>=!~; ]", entry)[0] for entry in entries}
        for extra, entries in groups.items()
    }
    return {
        extra: {normalized(name) for name in entries} - {"octobert"}
        for extra, entries in names.items()
    }


# Packages that are called otherwise than their distributions, where none is installed.
NAMESPACES = {"azure": ["azure-ai-ml", "azure-identity"], "mlflow": ["mlflow-skinny"]}


def imported() -> dict[str, set[str]]:
    """Top-level package that is not part of Python → the files of octobert that import it."""
    files: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules = [node.module]
            for name in {module.split(".")[0] for module in modules} - {
                "octobert",
                *sys.stdlib_module_names,
            }:
                files.setdefault(name, set()).add(str(path.relative_to(SOURCE)))
    return files


@cache
def providers() -> Mapping[str, list[str]]:
    """Top-level package → the installed distributions that provide it. Reading all of them takes seconds."""
    return packages_distributions()


def distributions(package: str) -> set[str]:
    """The installed distributions that provide a top-level package."""
    return {
        normalized(name) for name in providers().get(package, NAMESPACES.get(package, [package]))
    }


def test_every_import_is_declared() -> None:
    names = set().union(
        *(
            names
            for extra, names in declared().items()
            if extra not in ("dev", "docs", "bench", "demo")
        )
    )
    missing = {
        package: files
        for package, files in imported().items()
        if not distributions(package) & names
    }
    assert missing == {}


def test_every_declared_dependency_is_imported() -> None:
    runtime = set().union(
        *(declared()[extra] for extra in ("", "torch", "train", "openvino", "tune", "qnn"))
    )
    used = set().union(*(distributions(package) for package in imported())) | set(NOT_IMPORTED)
    assert runtime - used == set()
    assert set(NOT_IMPORTED) <= runtime


def test_every_dependency_is_pinned() -> None:
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    ]
    pinned = {normalized(line.split("==")[0]) for line in pins}
    assert set().union(*declared().values()) - pinned == set()


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").is_file()
