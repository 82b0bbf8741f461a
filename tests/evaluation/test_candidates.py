"""Float baselines: each target is compared with the float model on its own device, and a new runtime is two files."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from octobert import targets
from octobert.core import environment
from octobert.core.errors import RecipeError, TargetError
from octobert.core.session import SessionEntries, SessionOptions
from octobert.engine.executors import inline
from octobert.evaluation import candidates, latency
from octobert.evaluation.candidates import CHECKPOINT, REFERENCE, Candidate, TargetBaseline
from octobert.pipeline import runner
from octobert.report import terminal
from octobert.targets import runtimes
from tests.support.hostile import hostile_folder, imported_from
from tests.support.packages import forget_plugins
from tests.support.pages import page_of
from tests.support.runs import warmed

RUNTIME = '''
"""A runtime of another package: ONNX Runtime under another name."""

from octobert.targets.runtimes import Runtime, ort


class Mirror(Runtime):
    title: str = "Mirror"
    packages: tuple[str, ...] = ("packaging",)
    suffixes: tuple[str, ...] = (".onnx",)
    cpu_target: str = "mirror-cpu"

    def check_entries(self, entries, device):
        pass


def session(path, options, precision):
    session = ort.OrtSession(path, options, ort.CPU)
    session.precision = options.precision or precision
    return session
'''
TARGET = """
from octobert.targets import ort_cpu

import mirror_runtime

TARGET = ort_cpu.TARGET.replaced(
    capabilities=ort_cpu.CAPABILITIES.model_copy(update={facts}),
    open_session=lambda path, options: mirror_runtime.session(path, options, {precision!r}),
    runtime_options={{}},
)
"""
TARGETS = {
    "mirror-cpu": ({"device": "CPU", "baseline_precisions": ("f32",)}, "f32"),
    "mirror-gpu": ({"device": "Mirror GPU", "baseline_precisions": ("f32", "f16")}, "f16"),
    "mirror-npu": ({"device": "Mirror NPU", "baseline_precisions": ()}, "f16"),
}


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with a runtime and three targets: a CPU, a GPU, and an NPU that cannot run float32."""
    folder = tmp_path / "site"
    metadata = folder / "mirror-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mirror\nVersion: 1.0\n")
    points = ["[octobert.runtimes]", "mirror = mirror_runtime", "", "[octobert.targets]"]
    (folder / "mirror_runtime.py").write_text(RUNTIME)
    for name, (facts, precision) in TARGETS.items():
        module = name.replace("-", "_")
        facts = {
            "name": name,
            "runtime": "mirror",
            "description": name,
            "status": "run here",
            **facts,
        }
        (folder / f"{module}.py").write_text(TARGET.format(facts=facts, precision=precision))
        points.append(f"{name} = {module}")
    (metadata / "entry_points.txt").write_text("\n".join(points) + "\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    forget_plugins()
    yield
    forget_plugins()
    for name in ("mirror_runtime", *(name.replace("-", "_") for name in TARGETS)):
        sys.modules.pop(name, None)


def candidate_of(name: str, folder: Path) -> Candidate:
    """A candidate of a package for ONNX Runtime."""
    file = "model.onnx" if name in candidates.float_baselines() else "model_quantized.onnx"
    return Candidate(name=name, path=str(folder / "onnx" / file), head="sequence-classification")


def test_names_of_baselines_on_the_cpu_are_those_of_their_runtimes() -> None:
    names = [name for name, baseline in candidates.float_baselines().items() if baseline.is_on_cpu]
    assert names == ["torch-f32", "ort-f32", "openvino-f32", "openvino-bf16"]
    assert (CHECKPOINT.name, REFERENCE.name) == ("torch-f32", "ort-f32")
    assert TargetBaseline(target="ort-cuda").name == "ort-cuda-f32"


@pytest.mark.parametrize("target", targets.names())
def test_the_baseline_is_on_the_device_of_the_target_or_on_the_cpu(target: str) -> None:
    baseline, capabilities = candidates.baseline_of(target), targets.load(target).capabilities
    if capabilities.baseline_precisions:
        assert baseline == TargetBaseline(
            target=target, precision=capabilities.baseline_precisions[0]
        )
    else:
        assert baseline.target == runtimes.load(capabilities.runtime).cpu_target
        assert baseline.capabilities.device == "CPU"


@pytest.mark.parametrize("name", runtimes.names())
def test_every_runtime_has_a_cpu_target_that_runs_float(name: str) -> None:
    runtime = runtimes.load(name)
    capabilities = targets.load(runtime.cpu_target).capabilities
    assert (capabilities.runtime, capabilities.device) == (name, "CPU")
    assert capabilities.baseline_precisions[0] == "f32"
    assert all((runtime.title, runtime.packages, runtime.suffixes))


def test_the_baselines_of_a_run(golden) -> None:
    def names(*measured: str, wanted: tuple[str, ...] | None = ()) -> list[str]:
        return [baseline.name for baseline in candidates.baselines_of(measured, wanted)]

    assert names("ort-cpu", wanted=None) == [
        "torch-f32",
        "ort-f32",
        "openvino-f32",
        "openvino-bf16",
    ]
    assert names("openvino-cpu") == ["ort-f32", "openvino-f32"]
    assert names("ort-cuda", "qnn") == ["ort-f32", "ort-cuda-f32"]
    assert names("ort-cpu", wanted=("openvino-bf16", "torch-f32")) == [
        "torch-f32",
        "ort-f32",
        "openvino-bf16",
    ]
    with golden.raises(RecipeError):
        names("ort-cpu", wanted=("ort-f23",))


def test_what_a_candidate_is_compared_with() -> None:
    measured = ("torch-f32", "ort-f32", "openvino-f32", "openvino-cpu")
    assert candidates.reference_of("openvino-cpu", measured) == "openvino-f32"
    assert candidates.reference_of("torch-f32", measured) == "ort-f32"
    assert candidates.reference_of("ort-f32", measured) is None
    # Its device is not here.
    assert candidates.reference_of("ort-cuda", measured) == "ort-f32"


def test_the_checkpoint_is_a_baseline_without_a_target() -> None:
    """PyTorch runs it; a model that came as ONNX has none, and a recipe sets nothing for it."""
    assert candidates.source_of("torch-f32") == "checkpoint"
    assert "came as ONNX" in str(CHECKPOINT.why_not(is_checkpoint=False))
    assert REFERENCE.why_not(is_checkpoint=False) is None
    entries = SessionEntries(options={"intra_op_num_threads": 1})
    session = {name: entries for name in targets.names()}
    assert REFERENCE.entries(session) == entries
    assert CHECKPOINT.entries(session) == SessionEntries()


def test_speed_is_compared_with_every_precision_on_the_same_runtime() -> None:
    measured = ("torch-f32", "ort-f32", "openvino-f32", "openvino-bf16", "openvino-cpu", "ort-cpu")
    assert candidates.rivals_of("openvino-cpu", measured) == ("openvino-f32", "openvino-bf16")
    assert candidates.rivals_of("ort-cpu", measured) == ("ort-f32",)
    assert candidates.rivals_of("openvino-cpu", ("ort-f32",)) == ("ort-f32",)
    assert candidates.float_forms("ort-cpu") == ("ort-f32",)


def test_an_unknown_candidate_is_refused(golden, tmp_path: Path) -> None:
    with golden.raises(TargetError):
        candidates.open_candidate(candidate_of("ort-f23", tmp_path), 0)


def test_a_gpu_is_compared_with_float_on_the_gpu(mirror, finished) -> None:
    assert candidates.baseline_of("mirror-gpu") == TargetBaseline(
        target="mirror-gpu", precision="f32"
    )
    names = [baseline.name for baseline in candidates.baselines_of(["mirror-gpu"], ())]
    assert names == ["ort-f32", "mirror-gpu-f32"]
    package = finished[1] / "ort-cpu"
    session = candidates.open_candidate(candidate_of("mirror-gpu-f32", package), 1)
    # The target's own default is f16; the baseline asks for f32.
    assert session.precision == "f32"
    assert (
        targets.load("mirror-gpu")
        .open_session(package / "onnx" / "model.onnx", SessionOptions())
        .precision
        == "f16"
    )
    assert candidate_of("mirror-gpu-f32", package).device == "Mirror GPU"


def test_an_npu_that_cannot_run_float_is_compared_with_the_cpu_of_its_runtime(mirror) -> None:
    assert candidates.baseline_of("mirror-npu") == TargetBaseline(target="mirror-cpu")
    assert candidates.baseline_of("mirror-npu").name == "mirror-f32"


def test_packages_of_a_new_runtime_are_imported_and_recorded(
    mirror, finished, tmp_path: Path, monkeypatch
) -> None:
    """In processes that import nothing from the working directory."""
    assert "packaging" in environment.current().versions
    hostile = hostile_folder(tmp_path / "hostile")
    monkeypatch.chdir(hostile)
    workload = latency.random_workload(1, 8, 50, seed=0)
    named = [
        candidate_of(name, finished[1] / "ort-cpu")
        for name in ("mirror-npu", "mirror-f32", "mirror-gpu-f16")
    ]
    footprints = latency.measure(named, [workload], repeats=1, threads=1).footprints
    assert imported_from(hostile) == ""
    assert [(one.candidate, one.device, one.precision) for one in footprints] == [
        ("mirror-npu", "Mirror NPU", "f16"),
        ("mirror-f32", "CPU", "f32"),
        ("mirror-gpu-f16", "Mirror GPU", "f16"),
    ]


def test_models_are_timed_with_equal_threads(finished, monkeypatch) -> None:
    """PyTorch alone reads this variable."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    workload = latency.random_workload(1, 8, 50, seed=0)
    named = [candidate_of(name, finished[1] / "ort-cpu") for name in ("ort-f32", "openvino-f32")]
    checkpoint = named[0].replaced(name="torch-f32", path=finished[0].model)
    footprints = latency.measure([checkpoint, *named], [workload], repeats=1, threads=0).footprints
    assert {one.candidate: one.threads for one in footprints} == dict.fromkeys(
        ("torch-f32", "ort-f32", "openvino-f32"), environment.cores()
    )


@pytest.mark.slow
def test_a_run_with_targets_of_a_new_runtime(mirror, finished, tmp_path: Path) -> None:
    recipe, source, _ = finished
    mine = recipe.model_copy(
        update={"targets": ("mirror-gpu", "mirror-npu"), "baselines": (), "sensitivity": False}
    )
    out = warmed(source, tmp_path / "out", "data", "capture", "transform", "observe", "calibrate")
    report = runner.run(mine, out, executor=inline.run)
    compared = {comparison.candidate: comparison.reference for comparison in report.compared}
    assert compared["mirror-gpu"] == "mirror-gpu-f32"
    # Float32 on the CPU has one score.
    assert compared["mirror-npu"] == "ort-f32"
    shown = io.StringIO()
    Console(file=shown, width=200).print(terminal.render(report))
    sentence = "The float baseline of mirror-npu ran on another device: mirror-f32 ran on the CPU."
    assert sentence in shown.getvalue()
    assert sentence in page_of(report)
    assert "baseline of mirror-gpu ran" not in shown.getvalue()
    assert re.search(
        r"mirror-npu: speed [\d. to]+ × mirror-f32 \(mirror-f32 ran on the CPU\)", page_of(report)
    )
