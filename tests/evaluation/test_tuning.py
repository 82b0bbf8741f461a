"""Settings that are faster beyond doubt are kept with the model, for this machine; all others are not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

import octobert
from octobert import targets
from octobert.core import environment
from octobert.core.errors import ModelError, OctobertError, RecipeError, StorageError, TargetError
from octobert.core.results import TUNED_FILE
from octobert.core.session import GOALS, Goal, SessionOptions, Setting, Tuned, default_setting
from octobert.data.encoded import Encoded
from octobert.evaluation import candidates, tuning
from octobert.inference import package_files
from tests.support.cli import octobert as octobert_cli
from tests.support.reports import tuned

ROWS = [
    Encoded(np.arange(3, 3 + n), np.zeros(n, dtype=np.int64), False) for n in (4, 9, 12, 5, 7, 20)
]


def candidate_of(folder: Path, target: str = "ort-cpu") -> candidates.Candidate:
    path = targets.load(target).model_file(folder)
    return candidates.Candidate(name=target, path=str(path), head="sequence-classification")


@pytest.fixture
def package(finished, tmp_path) -> Path:
    """A package that may be written into."""
    return shutil.copytree(finished[1] / "ort-cpu", tmp_path / "package")


class Scripted:
    """A candidate whose rounds take what a script says: the judge is tested, not the clock."""

    def __init__(self, ms: Callable[[Setting, int], float]) -> None:
        self._ms = ms

    def __call__(self, candidate: object, setting: Setting, work: object) -> Scripted:
        made = Scripted(self._ms)
        made.setting, made.times, made.runs = setting, list[float](), True
        return made

    def __enter__(self) -> Scripted:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def ms(self) -> float:
        self.times.append(self._ms(self.setting, len(self.times)))
        return self.times[-1]


def search(monkeypatch, ms: Callable[[Setting, int], float], goal: Goal = "latency") -> Tuned:
    monkeypatch.setattr(tuning, "_opened", Scripted(ms))
    found = candidates.Candidate(name="ort-cpu", path="", head="")
    return tuning.tune(found, ROWS, 0, goal=goal, longest=64, trials=40, minutes=1)


def noise(setting: Setting, index: int) -> float:
    """Up to 10 % either way, as on a machine that others use, and no better on average for any setting."""
    return float(
        np.random.default_rng([index, *setting.model_dump_json().encode()]).uniform(0.9, 1.1)
    )


def test_what_is_faster_is_kept(monkeypatch) -> None:
    def ms(setting: Setting, index: int) -> float:
        return noise(setting, index) * (
            0.8 if setting.runtime_options.get("session.intra_op.allow_spinning") is False else 1.0
        )

    found = search(monkeypatch, ms)
    assert found.setting.runtime_options["session.intra_op.allow_spinning"] is False
    assert found.ratio.low <= found.ratio.value <= found.ratio.high < 1 - tuning.MARGIN
    assert found.ratio.value == pytest.approx(0.8, abs=0.06)
    assert default_setting("latency") != found.setting


def test_a_setting_that_is_slower_in_each_of_the_first_rounds_is_dropped(monkeypatch) -> None:
    rounds: dict[str, int] = {}

    def ms(setting: Setting, index: int) -> float:
        rounds[setting.model_dump_json()] = index + 1
        # Slower in all rounds, or in all but the third.
        disturbed = (
            setting.runtime_options.get("session.intra_op.allow_spinning") is False and index == 2
        )
        return 1.0 if setting == default_setting("latency") or disturbed else 1.2

    found = search(monkeypatch, ms)
    base = rounds.pop(default_setting("latency").model_dump_json())
    spinning = {
        one.setting.model_dump_json(): one.setting.runtime_options.get(
            "session.intra_op.allow_spinning"
        )
        is not False
        for one in found.tried
    }
    assert rounds == {name: 3 if spinning[name] else 7 for name in rounds}
    assert set(rounds.values()) == {3, 7}
    # The defaults took as many turns as all settings together.
    assert base == sum(rounds.values())
    assert found.ratio.value == 1.0


@pytest.mark.parametrize("goal", GOALS)
def test_noise_is_not_a_gain(monkeypatch, goal: Goal) -> None:
    found = search(monkeypatch, noise, goal)
    assert (found.setting, found.ratio.value) == (default_setting(goal), 1.0)
    # All were looked at, each once, and some looked faster.
    assert len({one.setting.model_dump_json() for one in found.tried}) == len(found.tried) > 10
    assert min(one.ratio or 1.0 for one in found.tried) < 1.0


def test_a_setting_that_the_runtime_refuses_is_passed_over(monkeypatch) -> None:
    def ms(setting: Setting, index: int) -> float:
        if setting.runtime_options.get("execution_mode") == "ORT_PARALLEL":
            raise TargetError("the runtime refuses it")
        return 1.0

    found = search(monkeypatch, ms)
    refused = [one for one in found.tried if one.ratio is None]
    assert refused
    assert all(one.problem and "the runtime refuses it" in one.problem for one in refused)


def test_defaults_that_die_end_the_search_with_their_own_sentence(finished) -> None:
    def kill(*_: object) -> None:
        for child in psutil.Process().children(recursive=True):
            if "octobert.evaluation.worker" in child.cmdline():
                child.kill()

    with pytest.raises(TargetError, match="the candidate's process was killed by signal 9"):
        tuning.tune(
            candidate_of(finished[1] / "ort-cpu"),
            ROWS,
            0,
            goal="latency",
            longest=64,
            trials=40,
            on_trial=kill,
        )


@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_a_search_opens_and_runs_what_it_says(finished, target: str, goal: Goal) -> None:
    found = tuning.tune(
        candidate_of(finished[1] / target, target), ROWS, 0, goal=goal, longest=64, trials=2
    )
    assert [one.problem for one in found.tried] == [None] * len(found.tried)
    assert found.default_ms > 0
    assert (found.goal, found.rows) == (goal, len(ROWS))


@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_every_knob_opens_and_computes_the_same(finished, target: str) -> None:
    module = targets.load(target)
    path = module.model_file(finished[1] / target)
    ids = np.arange(3, 15, dtype=np.int64)[None]
    feeds = {"input_ids": ids, "attention_mask": ids * 0 + 1, "token_type_ids": ids * 0}
    expected = module.open_session(path, SessionOptions()).run(feeds)["logits"]
    for name, values in module.runtime_options.items():
        for value in values:
            ours = module.open_session(
                path, SessionOptions(threads=1, runtime_options={name: value})
            ).run(feeds)["logits"]
            assert np.abs(ours - expected).max() <= 1e-5, (name, value)


def test_what_was_tuned_is_used_on_this_machine_only(package, monkeypatch) -> None:
    setting = Setting(
        streams=1, threads=1, tokens=64, runtime_options={"enable_cpu_mem_arena": False}
    )
    result = tuned(setting)
    package_files.write_tuned(package, result)
    package_files.write_tuned(
        package,
        result.model_copy(update={"goal": "throughput", "setting": Setting(streams=2, threads=1)}),
    )
    assert octobert.load(package).setting == setting
    assert octobert.load(package, goal="throughput").setting.streams == 2
    assert octobert.load(package, threads=2).setting == Setting(threads=2)
    assert octobert.load(package)([("the of", "and a")])[0].keys() == {"label", "score"}
    here = environment.current()
    monkeypatch.setattr(
        environment, "current", lambda *_: here.model_copy(update={"cpu": "another"})
    )
    assert octobert.load(package).setting == default_setting("latency")
    package_files.write_tuned(package, result)
    assert len(json.loads((package / TUNED_FILE).read_text())) == 2


def settings_file(package: Path, **setting: object) -> None:
    """A file of this machine with a setting that no search found."""
    result = {
        "goal": "latency",
        "ratio": {"value": 0.9, "low": 0.8, "high": 0.95},
        "default_ms": 1.0,
        "rows": 1,
        "tried": [],
    }
    content = {package_files.machine_id(): {"latency": {**result, "setting": setting}}}
    (package / TUNED_FILE).write_text(json.dumps(content))


UNFIT = {
    "not JSON": "{",
    "too deep": "[" * 100_000,
    "a list": "[[]]",
    "not UTF-8": "\udcff",
    "threads": {"threads": 100_000},
    "streams": {"streams": 0},
    "another program's option": {"runtime_options": {"CACHE_DIR": "/tmp/elsewhere"}},
    "a name of an earlier version": {"runtime_options": {"memory_arena": False}},
    "a value that is not listed": {
        "runtime_options": {"graph_optimization_level": "ORT_DISABLE_ALL"}
    },
    "a value of another type": {"runtime_options": {"session.intra_op.allow_spinning": 1}},
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_file_that_does_not_fit_is_named_and_not_used(package, name: str, tmp_path) -> None:
    content = UNFIT[name]
    if isinstance(content, str):
        (package / TUNED_FILE).write_bytes(content.encode(errors="surrogateescape"))
    else:
        settings_file(package, **content)
    with pytest.warns(
        octobert.IgnoredFileWarning, match="the results of tuning cannot be used"
    ) as warned:
        model = octobert.load(package)
    assert [str(package / TUNED_FILE) in str(warning.message) for warning in warned] == [True]
    assert model.setting == default_setting("latency")
    assert len(model([("the of", "and a")])) == 1
    with pytest.raises(ModelError, match="remove the file, and tune again"):
        octobert.tune(package, rows_file(tmp_path), trials=1)


def test_threads_that_a_caller_asks_for_are_bounded(golden, package) -> None:
    with golden.raises(RecipeError):
        octobert.load(package, threads=100_000)
    with pytest.raises(RecipeError, match=r"streams, threads: not a whole number \(got -1"):
        octobert.load(package, streams=-1)


def test_a_package_that_cannot_be_written_is_an_error_before_the_search(package, tmp_path) -> None:
    # Permissions stop root only without this capability.
    unprivileged = (
        ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    )
    rows = rows_file(tmp_path)
    package.chmod(0o555)
    command = [
        *unprivileged,
        sys.executable,
        "-m",
        "octobert",
        "tune",
        str(package),
        "--data",
        str(rows),
        "--verbose",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    package.chmod(0o755)
    assert done.returncode == StorageError.exit_code, done.stderr
    assert f"{package}: the directory cannot be written" in done.stderr
    assert "tuning.py" not in done.stderr


def rows_file(folder: Path) -> Path:
    """A file of rows that the package takes."""
    path = folder / "rows.tsv"
    path.write_text("sentence1\tsentence2\tlabel\n" + "the of\tand a\t0\n" * 9)
    return path


def test_without_optuna(package, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(TargetError, match="optuna") as error:
        tuning.tune(candidate_of(package), ROWS, 0, goal="latency", longest=64)
    assert error.value.fix == environment.install("tune")


def test_a_model_that_does_not_open_is_an_error_and_keeps_nothing(package) -> None:
    (package / "onnx" / "model_quantized.onnx").write_bytes(b"nothing")
    with pytest.raises(OctobertError):
        tuning.tune(candidate_of(package), ROWS, 0, goal="latency", longest=64, trials=2)
    assert not (package / TUNED_FILE).exists()


def test_the_command(package, tmp_path) -> None:
    data = rows_file(tmp_path)
    done = octobert_cli(
        "tune", str(package), "--data", str(data), "--goal", "latency", "--trials", "2", "--json"
    )
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["goal"] == "latency"
    assert "latency" in package_files.read_tuned(
        package, candidates.targets.load("ort-cpu").runtime_options
    )
    wrong = octobert_cli("tune", str(package), "--data", str(data), "--goal", "speed")
    assert (wrong.returncode, "latency or throughput" in wrong.stderr) == (2, True)
