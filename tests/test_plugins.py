"""Plugins: every one that is discovered keeps its family's contract, and a new one is a single file of any package."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file

from octobert.config.recipe import Choice
from octobert.core import plugins
from octobert.core.errors import RecipeError
from octobert.core.frozen import FrozenModel
from tests.support.checkpoints import make_checkpoint
from tests.support.packages import EXTRA, install_extra
from tests.support.runs import write_pairs

ALL = [(family, name) for family in plugins.FAMILIES for name in plugins.names(family)]
RUNTIMES = ("torch", "transformers", "onnxruntime", "openvino", "datasets", "sklearn", "scipy")


def wrong_options(options: Any) -> list[str]:
    if not (inspect.isclass(options) and issubclass(options, FrozenModel)):
        return ["Options is not a FrozenModel"]
    texts = " ".join(
        base.__doc__ or "" for base in options.__mro__ if issubclass(base, FrozenModel)
    )
    wrong = [
        f"option {name} has no default"
        for name, field in options.model_fields.items()
        if field.is_required()
    ]
    wrong += [
        f"option {name} is not described" for name in options.model_fields if name not in texts
    ]
    return wrong if options.__doc__ else [*wrong, "Options has no docstring"]


@pytest.mark.parametrize(("family", "name"), ALL)
def test_every_value_is_described_and_its_options_have_defaults(family: str, name: str) -> None:
    module, value = plugins.load(family, name), plugins.values_of(family).load(name)
    assert module.__doc__
    if type(value).__module__ == module.__name__:
        assert wrong_options(type(value)) == []
        assert plugins.values_of(family).make(Choice(name=name)) == value


@pytest.mark.parametrize(
    ("family", "content", "said"),
    [
        ("calibrators", "", "0 subclasses of Calibrator"),
        (
            "calibrators",
            "from octobert.quantization.calibrators.minmax import MinMax",
            "0 subclasses of Calibrator",
        ),
        ("placements", "from octobert.core.plan import Placement", "0 values of Placement"),
        (
            "placements",
            "from octobert.quantization.placements.matmul import PLACEMENT as one\n"
            "from octobert.quantization.placements.whole import PLACEMENT as other",
            "2 values of Placement",
        ),
    ],
)
def test_a_file_without_one_plugin_of_its_family_is_refused(
    family: str, content: str, said: str
) -> None:
    module = ModuleType("mine")
    exec(content, vars(module))
    with pytest.raises(RecipeError, match=f"mine has {said}, not one"):
        plugins.values_of(family).value_in(module)


@pytest.mark.parametrize("family", plugins.FAMILIES)
def test_loaders_are_typed_and_name_what_is_near(family: str) -> None:
    package = importlib.import_module(plugins.PACKAGES[family])
    assert package.names() == plugins.names(family) == tuple(sorted(package.names()))
    name = package.names()[0]
    assert package.load(name) is not None
    with pytest.raises(RecipeError, match=rf'there is no .+ "{name}s"; did you mean "{name}"\?'):
        package.load(f"{name}s")


def test_importing_plugins_imports_no_runtime() -> None:
    code = f"""
import sys
from octobert.core import plugins
for family in plugins.FAMILIES:
    for name in plugins.names(family):
        plugins.load(family, name)
        imported = [m for m in {RUNTIMES!r} if m in sys.modules]
        assert not imported, (family, name, imported)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- plugins of another package


@pytest.fixture(scope="module")
def extra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the extra plugins, a checkpoint of the extra family, and rows."""
    folder = tmp_path_factory.mktemp("extra")
    install_extra(folder / "site")
    make_checkpoint(folder / "checkpoint", "ernie", "sequence-classification")
    write_pairs(folder / "data")
    recipe = {
        "model": f"extra://{folder / 'checkpoint'}",
        "task": {"extra-task": {"first": "sentence1"}},
        "data": {"source": str(folder / "data"), "calibrate": {"from": "train", "samples": 8}},
        "transforms": ["extra-transform"],
        "calibrate": {"extra-calibrator": {"fraction": 0.95}},
        "quantize": {"extra-method": {"placement": "extra-placement"}},
        "corrections": [{"extra-correction": {"shift": 0.002}}],
        "targets": ["extra-target"],
        "measure": False,
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder


# A run whose stages are in one process: each of their own would import the runtimes again.
RUN = """
import sys
from pathlib import Path
from octobert.config import loading
from octobert.pipeline import runner
from octobert.engine.executors import inline
runner.run(loading.load(Path(sys.argv[1])), Path(sys.argv[2]), executor=inline.run)
"""


def octobert(folder: Path, *arguments: object) -> str:
    """Run the command line with the extra plugins installed."""
    return python(folder, "-m", "octobert", *arguments)


def python(folder: Path, *arguments: object) -> str:
    """Run Python with the extra plugins installed."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(extra: Path) -> Path:
    """The package that a run makes with the extra plugins."""
    python(extra, "-c", RUN, extra / "recipe.yaml", extra / "out")
    return extra / "out" / "extra-target"


def test_plugins_of_another_package_run_end_to_end(extra: Path, package: Path) -> None:
    manifest = json.loads((package / "octobert.json").read_text())
    assert manifest["model"]["family"] == "ernie"
    assert manifest["target"] == manifest["plan"]["target"] == "extra-target"
    assert (manifest["task"]["name"], manifest["task"]["options"]["first"]) == (
        "extra-task",
        "sentence1",
    )
    assert (manifest["ranges"]["calibrator"], manifest["ranges"]["options"]) == (
        "extra-calibrator",
        {"fraction": 0.95},
    )
    assert (manifest["plan"]["method"], manifest["plan"]["placement"]) == (
        "extra-method",
        "extra-placement",
    )
    quantized = {
        (d["site"]["layer"], d["site"]["part"])
        for d in manifest["plan"]["decisions"]
        if d["quantizer"]
    }
    assert quantized == {(1, "ffn_up"), (None, "embeddings")}
    report = json.loads((package.parent / "report.json").read_text())
    (transform,) = report["transforms"]["transforms"]
    assert (transform["name"], transform["groups"][0]["kind"]) == ("extra-transform", "extra")
    assert report["recipe"]["corrections"] == [
        {"name": "extra-correction", "options": {"shift": 0.002}}
    ]
    answers = octobert(extra, "predict", package, "--pair", "the one", "of the one", "--json")
    assert [answer["label"] for answer in json.loads(answers)] in (["different"], ["same"])


def test_the_correction_of_another_package_is_in_the_written_model(
    extra: Path, package: Path
) -> None:
    bias = "encoder.layer.1.intermediate.dense.bias"
    graph = ir.load(package / "onnx" / "model_quantized.onnx").graph
    weights = load_file(extra / "checkpoint" / "model.safetensors")
    written = graph.initializers[bias].const_value.numpy()
    np.testing.assert_allclose(written, weights[f"ernie.{bias}"] + 0.002, rtol=0, atol=1e-6)


def test_a_command_of_another_package_is_in_the_help_and_runs(extra: Path) -> None:
    assert "extra-command" in octobert(extra, "--help")
    assert "extra-calibrator!" in octobert(extra, "extra-command", "--suffix", "!").split()


def test_configs_that_an_importer_of_another_package_knows_are_recipes(extra: Path) -> None:
    config = extra / "config.json"
    facts = {"checkpoint": str(extra / "checkpoint"), "rows": str(extra / "data"), "bits": 8}
    config.write_text(json.dumps(facts))
    imported = json.loads(octobert(extra, "import", config, "--json"))
    assert imported["recipe"]["model"] == facts["checkpoint"]
    assert [row["verdict"] for row in imported["fields"]] == ["refused", "mapped", "mapped"]
    assert "quantize/ort-cpu" in octobert(extra, "run", config, "--out", extra / "o", "--dry-run")
    # What its scripts import is there while they are imported.
    (extra / "script.py").write_text("import extra_tool\ndef metric(a, b): return 1.0\n")
    code = "from octobert.core import user_code, plugins; import sys; "
    code += (
        f"user_code.load(user_code.at('{extra / 'script.py'}:metric', 'metric', where='here')); "
    )
    code += "assert 'extra_tool' not in sys.modules"
    python(extra, "-c", code)


def test_the_extra_plugins_are_all_families() -> None:
    assert {*plugins.FAMILIES, "commands"} - set(EXTRA) == {"profilers", "runtimes"}
