"""Float operators in bfloat16 and float16: an option of the runtime where the CPU computes in the type, float32 elsewhere."""

from __future__ import annotations

import dataclasses

import pytest

from octobert import targets
from octobert.config.loading import parse
from octobert.core import capability, environment
from octobert.core.errors import RecipeError
from octobert.core.plan import QuantPlan
from octobert.core.results import PackageManifest
from octobert.core.session import SessionEntries, SessionOptions
from octobert.evaluation import candidates
from octobert.inference.opened import FinishedModel, FloatModel
from octobert.pipeline import preflight
from octobert.pipeline.run import Run
from octobert.targets import runtimes
from octobert.targets.runtimes import openvino

CAPABILITIES = targets.load("openvino-cpu").capabilities
HINT = "INFERENCE_PRECISION_HINT"


def computes(monkeypatch: pytest.MonkeyPatch, *precisions: str) -> None:
    """Let this CPU compute in some precisions and no others."""
    monkeypatch.setattr(
        openvino.OpenvinoRuntime,
        "precision_problem",
        lambda _, each: None if each in precisions else f"no {each} here",
    )


def test_types_are_options_of_the_runtime_where_the_cpu_computes_in_them(monkeypatch) -> None:
    own = SessionEntries(options={"ENABLE_CPU_PINNING": False})
    computes(monkeypatch, "bf16")
    assert runtimes.entries_in(own, CAPABILITIES, "bfloat16", per_token=False).options == {
        HINT: "bf16",
        "ENABLE_CPU_PINNING": False,
    }
    assert runtimes.entries_in(own, CAPABILITIES, "float32", per_token=False) is own
    assert runtimes.entries_in(own, CAPABILITIES, "float16", per_token=False) is own
    # What the user sets is used, and none of it is lost in a package.
    set_ = SessionEntries(options={HINT: "f32"})
    assert runtimes.entries_in(set_, CAPABILITIES, "bfloat16", per_token=False).options == {
        HINT: "f32"
    }
    computes(monkeypatch)
    assert runtimes.entries_in(own, CAPABILITIES, "bfloat16", per_token=False) is own
    assert runtimes.float_problems(CAPABILITIES) == {
        "float32": None,
        "bfloat16": "no bf16 here",
        "float16": "no f16 here",
    }


def test_a_plan_may_have_the_types_of_files_and_of_the_runtime() -> None:
    assert CAPABILITIES.float_parts.accepted == ("float32", "float16", "bfloat16")
    plan = QuantPlan(
        method="float",
        placement="none",
        target="openvino-cpu",
        decisions=(),
        float_parts="bfloat16",
    )
    assert capability.violations(plan, CAPABILITIES) == []
    assert capability.repaired(plan, CAPABILITIES).float_parts == "bfloat16"


def test_options_of_float_types_are_safe_in_packages_and_known_to_the_runtime() -> None:
    for name in targets.names():
        for options in targets.load(name).capabilities.float_parts.by_options.values():
            assert not SessionEntries(options=options).on_files
            if targets.load(name).probe().available:
                runtime = runtimes.load(targets.load(name).capabilities.runtime)
                runtime.check_entries(
                    SessionEntries(options=options), targets.load(name).capabilities.device
                )


def run_of(**changes: object) -> Run:
    """A run of which only the recipe and the machine are known."""
    blank = dict.fromkeys(field.name for field in dataclasses.fields(Run))
    recipe = parse({"model": "m", "task": "mrpc", "data": "d", **changes})
    return Run(**blank | {"recipe": recipe, "here": environment.current()})  # type: ignore[arg-type]


def test_targets_get_the_options_and_float_baselines_keep_their_precision(monkeypatch) -> None:
    computes(monkeypatch, "bf16")
    changes = {"quantize": {"float": {"float_parts": "bfloat16"}}, "targets": ["openvino-cpu"]}
    known = run_of(**changes)
    assert known.entries("openvino-cpu").options == {HINT: "bf16"}
    for other in (
        known.entries("openvino-f32"),
        known.entries("ort-f32"),
        known.targets[0].session,
    ):
        assert other == SessionEntries()


def test_packages_are_opened_in_the_type_where_the_cpu_computes_in_it(
    tmp_path, monkeypatch
) -> None:
    plan = QuantPlan(
        method="float",
        placement="none",
        target="openvino-cpu",
        decisions=(),
        float_parts="bfloat16",
    )
    manifest = PackageManifest.model_construct(plan=plan)
    opened = FinishedModel(
        tmp_path, tmp_path / "openvino_model.xml", "openvino-cpu", tmp_path, manifest=manifest
    )
    opened = dataclasses.replace(opened, floating=FloatModel(tmp_path / "model.onnx"))
    computes(monkeypatch, "bf16")
    assert candidates.candidate_of(opened).entries.options == {HINT: "bf16"}
    # Another device has other types; the float model keeps its precision.
    assert candidates.candidate_of(opened, device="AUTO").entries == SessionEntries()
    floating = candidates.float_of(opened, "openvino-f32")
    assert floating is not None
    assert floating.entries == SessionEntries()
    computes(monkeypatch)
    assert candidates.candidate_of(opened).entries == SessionEntries()


def test_the_runtime_reports_the_type_that_it_computes_in(float_path) -> None:
    pytest.importorskip("openvino")
    entries = runtimes.entries_in(SessionEntries(), CAPABILITIES, "bfloat16", per_token=False)
    session = targets.load("openvino-cpu").open_session(float_path, SessionOptions(entries=entries))
    assert session.precision == (
        "bf16" if openvino.OpenvinoRuntime().precision_problem("bf16") is None else "f32"
    )


@pytest.mark.parametrize("method", ["float", "static", "weight-only"])
def test_a_type_that_this_machine_does_not_compute_in_is_refused(
    golden, method: str, monkeypatch
) -> None:
    computes(monkeypatch)
    changes = {"quantize": {method: {"float_parts": "bfloat16"}}, "targets": ["openvino-cpu"]}
    with golden.raises(RecipeError) as raised:
        preflight._check_float_parts(run_of(**changes).targets[0], method)
    assert raised.value.where == f"quantize.{method}.float_parts"
    assert "measure: false" in str(raised.value.fix)
    # float16 makes the file smaller on every machine.
    halved = changes | {"quantize": {method: {"float_parts": "float16"}}}
    preflight._check_float_parts(run_of(**halved).targets[0], method)


@pytest.mark.parametrize(
    ("limit", "without"), [("AVX2", {"bf16", "f16"}), ("avx512_core_bf16", {"f16"}), ("ALL", set())]
)
def test_a_simulated_cpu_does_not_compute_in_what_it_lacks(
    limit: str, without: set[str], monkeypatch
) -> None:
    pytest.importorskip("openvino")
    native = {
        each
        for each in ("bf16", "f16")
        if openvino.OpenvinoRuntime().precision_problem(each) is None
    }
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert {
        each
        for each in ("bf16", "f16")
        if openvino.OpenvinoRuntime().precision_problem(each) is None
    } == native - without
    assert openvino.OpenvinoRuntime().precision_problem("f32") is None
