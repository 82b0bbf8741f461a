"""What a recipe sets for sessions: applied by the runtimes, refused where it is wrong, and safe in packages of any origin."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octobert
from octobert import targets
from octobert.config.loading import parse
from octobert.core.errors import ModelError, RecipeError
from octobert.core.session import KEEP_FLOAT, SessionEntries, SessionOptions
from octobert.evaluation import candidates
from octobert.pipeline import preflight
from octobert.pipeline.planner import steps_of
from octobert.targets import runtimes

ONE = {
    "options": {
        "intra_op_num_threads": 1,
        "session.intra_op.allow_spinning": False,
        "io_binding": True,
    }
}


def recipe_of(finished: Any, session: dict[str, Any], **keys: Any) -> octobert.Recipe:
    plain = finished[0].model_dump(by_alias=True, exclude_unset=True)
    return parse({**plain, "task": plain["task"]["name"], "session": session, **keys})


def test_every_step_that_opens_a_target_has_its_entries(finished) -> None:
    steps = {step.name: step for step in steps_of(recipe_of(finished, {"ort-cpu": ONE}))}
    given = SessionEntries.model_validate(ONE)
    for name in ("evaluate/ort-f32", "package/ort-cpu"):
        assert steps[name].options.entries == given, name
    # Float products stay float.
    opened = SessionEntries(options={**KEEP_FLOAT, **given.options})
    assert steps["evaluate/ort-cpu"].options.entries == opened
    assert steps["benchmark"].options.session["ort-cpu"] == opened
    assert steps["evaluate/openvino-cpu"].options.entries == SessionEntries()


def test_entries_of_the_recipe_take_the_place_of_tuned_settings(finished) -> None:
    """The answers stay; the thread that the recipe asks for is the one that is used."""
    target = targets.load("ort-cpu")
    path = target.model_file(finished[1] / "ort-cpu")
    ids = np.ones((2, 5), dtype=np.int64)
    feeds = {"input_ids": ids, "attention_mask": ids, "token_type_ids": 0 * ids}
    tuned = SessionOptions(threads=2, entries=SessionEntries.model_validate(ONE))
    session, plain = target.open_session(path, tuned), target.open_session(path, SessionOptions())
    assert session.threads == 1
    np.testing.assert_array_equal(session.run(feeds)["logits"], plain.run(feeds)["logits"])


def test_openvino_takes_properties(finished) -> None:
    target = targets.load("openvino-cpu")
    entries = SessionEntries(
        options={"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    )
    runtimes.load("openvino").check_entries(entries, "CPU")
    path = target.model_file(finished[1] / "openvino-cpu")
    assert target.open_session(path, SessionOptions(entries=entries)).threads == 1


def test_a_package_is_opened_as_its_recipe_says(golden, finished, tmp_path: Path) -> None:
    folder = shutil.copytree(finished[1] / "ort-cpu", tmp_path / "package")
    manifest = folder / "octobert.json"
    plain = json.loads(manifest.read_text())
    assert plain["session"] == {"options": {}, "provider": {}}
    manifest.write_text(json.dumps({**plain, "session": ONE}))
    with octobert.load(folder, streams=1, threads=2) as model:
        assert model._engine.get().session.threads == 1
    manifest.write_text(json.dumps({**plain, "session": {"provider": {"backend_path": "libevil"}}}))
    with golden.raises(ModelError):
        octobert.load(folder)


@pytest.mark.parametrize(
    ("entries", "on_files"),
    [
        ({"provider": {"trt_engine_cache_enable": 1}}, ("provider.trt_engine_cache_enable",)),
        ({"options": {"optimized_model_filepath": "x"}}, ("options.optimized_model_filepath",)),
        ({"options": {"enable_profiling": True}}, ("options.enable_profiling",)),
        ({"options": {"CACHE_DIR": "x"}}, ("options.CACHE_DIR",)),
        ({"provider": {"op_packages": "a"}}, ("provider.op_packages",)),
        ({"provider": {"user_aux_stream_array": 1}}, ("provider.user_aux_stream_array",)),
        ({"provider": {"anything": "/tmp/lib.so"}}, ("provider.anything",)),
        ({"provider": {"anything": 2**46}}, ("provider.anything",)),
        (
            {
                "options": {"session.intra_op_thread_affinities": "1,2;3,4"},
                "provider": {"device_id": 0},
            },
            (),
        ),
        ({"options": {"mlas.disable_kleidiai": "1"}, "provider": {"gpu_mem_limit": 2**32}}, ()),
    ],
)
def test_entries_on_files_are_known(entries: dict[str, Any], on_files: tuple[str, ...]) -> None:
    given = SessionEntries.model_validate(entries)
    assert given.on_files == on_files
    assert not given.portable().on_files


@pytest.mark.parametrize(
    ("session", "text"),
    [
        ({"qnn": ONE}, "session.qnn: the recipe has no such target; it has"),
        (
            {"ort-cpu": {"provider": {"backend_path": "x.so"}}},
            "session.ort-cpu.provider.backend_path may make the runtime load",
        ),
        (
            {"ort-cpu": {"option": {}}},
            'session.ort-cpu.option: unknown key; did you mean "options"?',
        ),
    ],
)
def test_a_session_that_the_recipe_cannot_have(
    finished, session: dict[str, Any], text: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_of(finished, session)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("target", "entries", "text"),
    [
        ("ort-cpu", {"options": {"intra_op_threads": 1}}, "intra_op_num_threads"),
        (
            "ort-cpu",
            {"options": {"execution_mode": "PARALLEL"}},
            "expected ORT_SEQUENTIAL or ORT_PARALLEL",
        ),
        ("ort-cpu", {"options": {"intra_op_num_threads": "two"}}, "expected int"),
        ("openvino-cpu", {"options": {"NUM_STREAM": 1}}, "NUM_STREAMS"),
        (
            "openvino-cpu",
            {"provider": {"device_type": "CPU"}},
            "OpenVINO has no execution providers",
        ),
    ],
)
def test_a_session_that_a_runtime_does_not_take(
    target: str, entries: dict[str, Any], text: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        preflight._check_entries(
            targets.load(target).capabilities, SessionEntries.model_validate(entries)
        )
    assert str(caught.value).startswith(f"session.{target}")
    assert text in str(caught.value)


def test_the_float_model_of_another_target_is_opened_without_them(finished) -> None:
    floating = finished[1] / "ort-cpu" / "onnx" / "model.onnx"
    entries = SessionEntries(options={"no_such_field": 1})
    assert candidates.open_float("qnn", floating, "sequence-classification", entries)
