"""The shape of the code: imports point one way, plugins import no runtime, and the public names are these."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import octobert
from octobert import plugins

ROOT = Path(octobert.__file__).parent
# Each layer may import from itself and from the layers before it.
LAYERS = (
    ("errors",),
    ("plugins",),
    ("plan", "encoder"),
    ("ranges", "refinement", "training", "capability", "placement", "session", "artifact", "environment"),
    ("recipe", "texts", "windows", "task"),
    ("measure", "inspection", "results", "tuned"),
    ("graph",),
    ("encoders", "preparers", "calibrators", "placements", "methods", "refiners", "targets", "tasks"),
    (
        "formats",
        "data",
        "observe",
        "refine",
        "fakequant",
        "intercept",
        "simulate",
        "distill",
        "train",
        "sensitivity",
        "search",
        "batching",
        "judging",
        "candidates",
        "timing",
        "tuning",
        "tables",
        "lint",
        "profiling",
    ),
    ("runtime", "executors"),
    ("stages",),
    ("report",),
    ("refusals", "steps", "pipeline"),
    ("cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
RUNTIMES = ("torch", "transformers", "onnxruntime", "openvino", "datasets", "sklearn", "scipy")


def layer_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else "__init__"


def imports_of(path: Path) -> set[str]:
    """Modules of octobert that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.startswith("octobert.")}


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for module in imports_of(path):
        other = layer_of(module)
        if other.startswith("__version"):
            continue
        assert LEVEL[other] <= LEVEL[own], f"{path.name} of layer {own} imports {module}"


def test_the_report_reads_nouns_only() -> None:
    nouns = {name for level in LAYERS[:6] for name in level} | {"report"}
    for path in (ROOT / "report").glob("*.py"):
        assert {layer_of(m) for m in imports_of(path)} <= nouns


@pytest.mark.parametrize("family", plugins.FAMILIES)
def test_importing_a_plugin_imports_no_runtime(family: str) -> None:
    code = (
        f"import sys\nfrom octobert import plugins\n[plugins.load({family!r}, n) for n in plugins.names({family!r})]\n"
        f"print([m for m in {RUNTIMES!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_family_has_the_plugins_that_are_promised() -> None:
    assert {f: plugins.names(f) for f in plugins.FAMILIES} == {
        "calibrators": ("entropy", "mean-minmax", "minmax", "moving-average", "mse", "percentile"),
        "encoders": (
            "albert",
            "bert",
            "deberta-v2",
            "distilbert",
            "electra",
            "mobilebert",
            "modernbert",
            "mpnet",
            "roberta",
        ),
        "methods": ("dynamic", "float", "static", "weight-only"),
        "placements": (
            "ffn",
            "matmul",
            "matmul-attention",
            "matmul-scores",
            "qdqbert",
            "qdqbert-row",
            "qordered",
            "tensorrt",
            "whole",
        ),
        "preparers": ("smoothquant",),
        "refiners": ("bias-correction", "weight-rounding"),
        "targets": (
            "migraphx",
            "openvino-cpu",
            "openvino-ep",
            "openvino-gpu",
            "openvino-npu",
            "ort-cpu",
            "ort-cuda",
            "qnn",
            "tensorrt",
            "torch-cpu",
            "torch-cuda",
            "vitisai",
        ),
        "tasks": (
            "embedding",
            "imdb",
            "mrpc",
            "question-answering",
            "squad",
            "squad-v2",
            "sst2",
            "text-classification",
            "token-classification",
        ),
    }


def test_the_public_names() -> None:
    assert octobert.__all__ == ["OctobertError", "Recipe", "load", "load_recipe", "parse_recipe", "run"]
    for name in octobert.__all__:
        assert getattr(octobert, name) is not None
    assert callable(octobert.run)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        octobert.nothing  # noqa: B018


def test_importing_octobert_costs_nothing() -> None:
    code = "import sys, octobert; print(sorted(m for m in sys.modules if m.split('.')[0] in ('numpy', 'pydantic', 'typer')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_readable() -> None:
    long = {str(p.relative_to(ROOT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 450}
    assert long == {}
