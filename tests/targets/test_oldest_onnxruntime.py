"""Files of octobert in the oldest onnxruntime that this Python installs: it refuses files with a later version of their format.

Needs a package index: `make test-newest` runs it, in an environment of its own in `runs/oldest`.
"""

from __future__ import annotations

import json
import re
import subprocess
import venv
from pathlib import Path

import numpy as np
import onnx
import pytest

from octobert.config.loading import parse
from octobert.engine.executors import inline
from octobert.pipeline import runner
from tests.support.graphs import outputs_of
from tests.support.runs import brief

pytestmark = pytest.mark.needs_network
ROOT = Path(__file__).parents[2]
# Another release rounds sums in another order, and a value may be halfway between two of 255 steps.
STEP = 0.02
# Opset 18 came with version 1.14; 16-bit pairs and 4 bits need opset 21, of version 1.17.
FORMS: dict[str, tuple[dict[str, object], int]] = {
    "static": ({"static": {}}, 8),
    "Q/DQ": ({"static": {"weight_form": "pair"}}, 8),
    "dynamic": ({"dynamic": {}}, 8),
    "weights alone": ({"weight-only": {}}, 8),
    "float16": ({"static": {"float_parts": "float16"}}, 9),
    "16 bits": ({"static": {"activations": "uint16"}}, 10),
}
CODE = """
import json, sys
import numpy as np, onnxruntime as ort
feeds = {name: np.array(rows, np.int64) for name, rows in json.loads(sys.argv[2]).items()}
session = ort.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
print(json.dumps(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0].tolist()))
"""


@pytest.fixture(scope="module")
def oldest() -> Path:
    """The Python of an environment with that onnxruntime alone."""
    folder = ROOT / "runs" / "oldest"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    listed = subprocess.run(
        [*pip, "index", "versions", "onnxruntime"], stdout=subprocess.PIPE, check=True, text=True
    )
    found = re.search(r"Available versions: .*?([\d.]+)\n", listed.stdout)
    assert found
    # Releases before 1.19 were built for NumPy 1.
    wanted = [f"onnxruntime=={found[1]}", "numpy<2"]
    subprocess.run([*pip, "install", "--quiet", *wanted], check=True)
    return python


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One output directory, so that the model is captured once."""
    return tmp_path_factory.mktemp("oldest")


@pytest.mark.parametrize("form", FORMS)
def test_files_open_there_and_answer_the_same(oldest, finished, out, form) -> None:
    quantize, version = FORMS[form]
    plain = brief(finished[0]).model_dump(by_alias=True, exclude_unset=True, mode="json")
    recipe = parse(
        {**plain, "task": plain["task"]["name"], "targets": ["ort-cpu"], "quantize": quantize}
    )
    runner.run(recipe, out, executor=inline.run)
    file = out / "ort-cpu" / "onnx" / "model_quantized.onnx"
    assert onnx.load(file).ir_version == version
    if version > 8:
        return  # for later releases only
    ids = np.arange(5, 29).reshape(2, 12)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    plain_feeds = json.dumps({name: array.tolist() for name, array in feeds.items()})
    done = subprocess.run(
        [str(oldest), "-c", CODE, str(file), plain_feeds], stdout=subprocess.PIPE, check=True
    )
    np.testing.assert_allclose(json.loads(done.stdout), outputs_of(file, feeds), rtol=0, atol=STEP)
