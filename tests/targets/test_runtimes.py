"""Runtimes: the cache of ONNX Runtime, and what is said of models that a runtime refuses."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import octobert
from octobert import targets
from octobert.core.errors import IgnoredFileWarning, ModelError, TargetError
from octobert.core.files import file_digest, read_sealed
from octobert.core.session import SessionOptions
from tests.support.runs import TARGETS

TEXTS = [("the of", "and a")]


# --- the cache of optimized graphs


def test_many_that_open_a_model_for_the_first_time_share_a_cache(finished, tmp_path: Path) -> None:
    package, cache, barrier = finished[1] / "ort-cpu", tmp_path / "cache", threading.Barrier(6)

    def opened(_: int) -> list[dict[str, object]]:
        barrier.wait()
        return octobert.load(package, cache=cache)(TEXTS)

    with warnings.catch_warnings(), ThreadPoolExecutor(6) as pool:
        warnings.simplefilter("error")
        assert list(pool.map(opened, range(6))) == [octobert.load(package)(TEXTS)] * 6
    # One whole file with its digest and its lock, and nothing of the way there.
    assert sorted(path.suffix for path in cache.iterdir()) == [".lock", ".onnx", ".sha256"]


FIRST_RUNS = """
import faulthandler, sys, threading
from pathlib import Path
import numpy as np
from octobert import targets
from octobert.core.session import SessionOptions

faulthandler.dump_traceback_later(60, exit=True)
sys.setswitchinterval(1e-6)
target = targets.load("openvino-cpu")
session = target.open_session(target.model_file(Path(sys.argv[1])), SessionOptions(streams=8))
ids, barrier = np.ones((1, 4), dtype=np.int64), threading.Barrier(8)

def run():
    barrier.wait()
    session.run({"input_ids": ids, "attention_mask": ids, "token_type_ids": ids})

threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_the_first_runs_of_a_process_may_be_on_several_threads(finished) -> None:
    command = [sys.executable, "-c", FIRST_RUNS, str(finished[1] / "openvino-cpu")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "one bit": lambda content: content[:5000] + bytes([content[5000] ^ 1]) + content[5001:],
    "another model": lambda content: OTHER_MODEL.SerializeToString(),
}
IDENTITY = helper.make_node("Identity", ["input_ids"], ["logits"])
SOME = [
    helper.make_tensor_value_info(name, TensorProto.INT64, [None, None])
    for name in ("input_ids", "logits")
]
OTHER_MODEL = helper.make_model(
    helper.make_graph([IDENTITY], "other", SOME[:1], SOME[1:]), ir_version=8
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again(finished, tmp_path: Path, damage: str) -> None:
    package, cache = finished[1] / "ort-cpu", tmp_path / "cache"
    expected = octobert.load(package, cache=cache)(TEXTS)
    (file,) = cache.glob("*.onnx")
    content, made = file.read_bytes(), file.stat().st_mtime_ns
    assert octobert.load(package, cache=cache)(TEXTS) == expected
    assert file.stat().st_mtime_ns == made
    file.write_bytes(DAMAGES[damage](content))
    assert octobert.load(package, cache=cache)(TEXTS) == expected
    assert list(cache.glob("*.onnx")) == [file]
    assert read_sealed(file.with_suffix(".sha256")) == file_digest(file).encode()


def test_a_cache_that_cannot_be_written_is_said_and_not_needed(finished, tmp_path: Path) -> None:
    package, cache = finished[1] / "ort-cpu", tmp_path / "cache"
    cache.write_text("a file")
    with pytest.warns(
        IgnoredFileWarning, match=r"cache: the optimized model cannot be stored \(.*File exists"
    ):
        answers = octobert.load(package, cache=cache)(TEXTS)
    assert answers == octobert.load(package)(TEXTS)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_runtime_refuses_is_one_sentence(golden, finished, target: str) -> None:
    module = targets.load(target)
    path = module.model_file(finished[1] / target)
    session = module.open_session(path, SessionOptions())
    ids = np.ones((1, 4), dtype=np.int64)
    with pytest.raises(TargetError, match="cannot run the model") as error:
        session.run({"input_ids": ids, "attention_mask": ids[:, :3], "token_type_ids": ids * 0})
    assert error.value.where == str(path)
    assert "\n" not in str(error.value)
    with golden.raises(ModelError):
        session.run({"input_ids": ids})


def test_an_output_keeps_its_name_where_openvino_removes_the_operator_that_made_it(
    tmp_path: Path,
) -> None:
    pytest.importorskip("openvino")
    # The bias of a new head is zero: adding it goes, and its output is that of the product, which has a name that comes first.
    floats = [("weight", np.eye(4, dtype=np.float32)), ("bias", np.zeros(4, np.float32))]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["input_ids"], ["cast"], to=TensorProto.FLOAT),
            helper.make_node("MatMul", ["cast", "weight"], ["classifier"]),
            helper.make_node("Add", ["classifier", "bias"], ["logits"]),
        ],
        "head",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "columns"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 4])],
        [numpy_helper.from_array(array, name) for name, array in floats],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )
    outputs = (
        targets.load("openvino-cpu")
        .open_session(path, SessionOptions())
        .run({"input_ids": np.arange(8).reshape(2, 4)})
    )
    np.testing.assert_array_equal(outputs["logits"], np.arange(8).reshape(2, 4))
