"""The explicit search: samplers, orders, several processes on one study, interruptions, and wrong settings."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from octobert.config.loading import as_yaml, parse
from octobert.core.errors import OctobertError, RecipeError, StorageError, TargetError
from octobert.core.selection import Variant, VariantResult
from octobert.pipeline.choosing import claims, space, storage, study
from octobert.pipeline.choosing.combinations import space_of
from tests.pipeline.choosing import studies
from tests.pipeline.choosing.studies import MACHINE, Trials, found_of, names, recipe_of, searched

ALL = 12
SAMPLERS = ("exhaustive", "random", "tpe")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_equal_seeds_and_figures_give_equal_trials(tmp_path: Path, sampler: str) -> None:
    first = searched(tmp_path / "a", sampler=sampler, seed=1, trials=6)
    assert (len(first.found), first.ended) == (6, "after 6 trials")
    assert searched(tmp_path / "b", sampler=sampler, seed=1, trials=6) == first
    if sampler != "exhaustive":
        assert names(searched(tmp_path / "c", sampler=sampler, seed=2, trials=6)) != names(first)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_small_spaces_are_tried_whole_and_each_combination_once(
    tmp_path: Path, sampler: str
) -> None:
    result = searched(tmp_path / "trials", sampler=sampler, trials=50)
    assert result.ended == "all combinations were tried"
    assert sorted(names(result)) == sorted(set(names(result)))
    assert len(result.found) == ALL


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_several_trials_are_prepared_at_the_same_time(tmp_path: Path, sampler: str) -> None:
    prepared: list[list[str]] = []
    result = searched(
        tmp_path / "t",
        sampler=sampler,
        trials=50,
        at_once=3,
        prepare=lambda each: prepared.append([v.name for v in each]),
    )
    every = [name for batch in prepared for name in batch]
    assert (len(every), set(every), len(result.found)) == (ALL, set(names(result)), ALL)
    # TPE may change its mind after each trial.
    assert sampler == "tpe" or [len(batch) for batch in prepared] == [3, 3, 3, 3]


def test_tpe_comes_to_good_combinations_that_keep_the_limit(tmp_path: Path) -> None:
    values = [None, *range(1, 20)]

    def find(variant: Variant) -> VariantResult:
        ms = (
            5.0
            + abs(variant.changes["opset"] - 16)
            + abs(variant.changes["quantize.static.group"] - 7)
        )
        return found_of(variant).model_copy(
            update={
                "time_ms": studies.Estimate(value=ms, low=ms, high=ms),
                "values": {"accuracy": 0.95},
            }
        )

    settings = {
        "space": {"opset": values[1:], "quantize.static.group": values[1:]},
        "sampler": "tpe",
        "trials": 30,
    }
    # Without a recipe's checks: the space is only numbers.
    recipe = recipe_of(**settings)
    tried = _rounds(recipe, tmp_path / "t", find)
    best = [min(each.time_ms.value for each in tried[:count]) for count in (10, 30)]
    assert best[1] < best[0]
    assert sum(each.time_ms.value for each in tried[20:]) < sum(
        each.time_ms.value for each in tried[:10]
    )


def _rounds(
    recipe: Any, place: Path, find: Callable[[Variant], VariantResult]
) -> list[VariantResult]:
    texts = {
        key: tuple(json.dumps(value) for value in values)
        for key, values in recipe.search.space.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "space_of", lambda *_: texts)
        result = study.search(recipe, Trials(find), place)
    return list(result.found)


def test_one_pass_at_a_time_keeps_the_best_value_of_each_key(tmp_path: Path) -> None:
    result = searched(tmp_path / "trials", order="one-pass-at-a-time", sampler="exhaustive")
    assert [each.variant.changes for each in result.found] == [
        {"calibrate": "minmax"},
        {"calibrate": "mse"},
        # The fastest one misses the limit.
        {"calibrate": "entropy"},
        # Without transforms it is the second one again.
        {"calibrate": "mse", "transforms": ["smoothquant"]},
        {"calibrate": "mse", "quantize.static.per_channel": True},
        {"calibrate": "mse", "quantize.static.per_channel": False},
    ]


def test_several_goals_are_one_study_with_their_directions(tmp_path: Path) -> None:
    class TwoGoals(Trials):
        def values(self, result: VariantResult) -> claims.Values:
            return claims.Values(
                None
                if result.time_ms is None
                else (result.values["accuracy"], result.time_ms.value),
                0.0,
            )

    recipe = recipe_of(goals=["metric", "latency"], trials=11)
    place = tmp_path / "t"
    result = study.search(recipe, TwoGoals(), place)
    assert len(result.found) == 11
    import optuna

    loaded = optuna.load_study(study_name=None, storage=storage.opened(str(place), place))
    assert [each.name for each in loaded.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert {trial.state.name for trial in loaded.trials} == {"COMPLETE", "FAIL"}


@pytest.mark.parametrize(
    ("sampler", "order"),
    [("tpe", "joint"), ("random", "one-pass-at-a-time"), ("exhaustive", "one-pass-at-a-time")],
)
def test_an_interrupted_search_goes_on_as_if_it_had_not_been(
    tmp_path: Path, sampler: str, order: str
) -> None:
    settings = {"sampler": sampler, "order": order, "seed": 3, "trials": 9}
    whole = searched(tmp_path / "whole", **settings)
    tried = Counter[str]()

    def find(variant: Variant) -> VariantResult:
        tried[variant.name] += 1
        if sum(tried.values()) in (2, 3, 6):
            raise KeyboardInterrupt
        return found_of(variant)

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            searched(tmp_path / "again", find, **settings)
    assert searched(tmp_path / "again", find, **settings) == whole
    assert sum(tried.values()) == len(whole.found) + 3


def test_time_that_earlier_runs_took_counts(tmp_path: Path) -> None:
    spent = iter([0.0, 30.0, 70.0])

    class Resumed(Trials):
        @property
        def seconds(self) -> float:  # type: ignore[override]
            return next(spent)

    result = study.search(recipe_of(sampler="exhaustive", minutes=1), Resumed(), tmp_path / "t")
    assert (len(result.found), result.ended) == (2, "after 1 minutes")


@pytest.mark.parametrize(
    ("sampler", "kind", "order"),
    [
        ("tpe", "sqlite", "joint"),
        ("random", "file", "joint"),
        ("tpe", "file", "one-pass-at-a-time"),
    ],
)
def test_two_processes_try_no_combination_twice(
    tmp_path: Path, sampler: str, kind: str, order: str
) -> None:
    where = f"sqlite:///{tmp_path}/t.db" if kind == "sqlite" else str(tmp_path / "t.log")
    settings = {"sampler": sampler, "order": order, "trials": 8}
    tried, results = studies.together(tmp_path, where, settings)
    assert max(Counter(tried).values()) == 1
    assert len(tried) == len(set(results[0]))
    assert results[0] == results[1]


def test_the_combination_of_a_killed_process_is_tried_again(tmp_path: Path) -> None:
    where, log = str(tmp_path / "t.log"), tmp_path / "tried"
    worker = studies.FORK.Process(
        target=studies.work, args=(where, str(log), 60.0, {"sampler": "exhaustive"})
    )
    worker.start()
    ends = time.monotonic() + 30
    while not (log.exists() and log.stat().st_size) and time.monotonic() < ends:
        time.sleep(0.01)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    tried: list[str] = []
    result = searched(
        tmp_path,
        lambda variant: (tried.append(variant.name), found_of(variant))[1],
        storage=where,
        sampler="exhaustive",
    )
    assert len(result.found) == ALL
    assert log.read_text(encoding="utf-8").splitlines() == tried[:1]


def test_a_clock_that_is_set_back_takes_no_trial_from_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    psutil = pytest.importorskip(
        "psutil._pslinux", reason="Linux computes the start of a process from its clock"
    )
    started, real = claims._started(os.getpid()), psutil.boot_time
    monkeypatch.setattr(psutil, "boot_time", lambda: real() - 3600)
    assert claims._started(os.getpid()) == pytest.approx(started, abs=0.1)


def test_a_silent_process_of_another_machine_is_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = str(tmp_path / "t.log")
    with monkeypatch.context() as patch:
        patch.setattr(claims, "_machine", lambda: "elsewhere")
        # Its process ends without giving the trial up.
        patch.setattr(claims.Claims, "give_up", lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            searched(
                tmp_path,
                lambda _: (_ for _ in ()).throw(KeyboardInterrupt()),
                storage=where,
                trials=1,
            )
    monkeypatch.setattr(claims, "SILENT_S", 0.2)
    monkeypatch.setattr(study, "POLL_S", 0.05)
    began = time.monotonic()
    assert len(searched(tmp_path, storage=where, trials=1).found) == 1
    assert time.monotonic() - began > 0.2


def test_signs_of_life_keep_a_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = str(tmp_path / "t.log")
    monkeypatch.setattr(claims, "BEAT_S", 0.02)
    opened = storage.opened(where, tmp_path)
    own = claims.Claims(opened, where, "s", [False], {"a": "1"}, alone=False)
    with monkeypatch.context() as patch:
        patch.setattr(claims, "_machine", lambda: "elsewhere")
        other = claims.Claims(
            storage.opened(where, tmp_path), where, "s", [False], {"a": "1"}, alone=False
        )
        trial = other.claim({"x": "1"}, "k", {"x": ("1",)}, 5)
    assert trial is not None
    monkeypatch.setattr(claims, "SILENT_S", 0.1)
    with other.alive():
        for _ in range(15):
            assert len(own.tried()) == 1
            time.sleep(0.02)
        other._mine.clear()
        time.sleep(0.15)
        own.tried()
        time.sleep(0.15)
        assert own.tried() == []
    # What the other process found after that is not used; its combination is free again.
    other.finish(
        trial,
        found_of(Variant(name="v", target="t", changes={}, precision="")),
        claims.Values((1.0,), 0.0),
    )
    assert own.tried() == []


def test_the_lowest_number_has_a_combination(tmp_path: Path) -> None:
    where = str(tmp_path / "t.log")
    opened = storage.opened(where, tmp_path)
    one, two = (claims.Claims(opened, where, "s", [False], {}, alone=False) for _ in range(2))
    # Two objects stand for two processes.
    one._is_dead = two._is_dead = lambda *_: False  # type: ignore[method-assign]
    assert one.claim({"x": "1"}, "k", {"x": ("1", "2")}, 2) is not None
    assert two.claim({"x": "1"}, "k", {"x": ("1", "2")}, 2) is None
    assert two.claim({"x": "2"}, "l", {"x": ("1", "2")}, 2) is not None
    assert one.claim({"x": "2"}, "m", {"x": ("1", "2")}, 2) is None


def test_changed_inputs_are_another_study(tmp_path: Path) -> None:
    tried: list[str] = []

    def find(variant: Variant) -> VariantResult:
        tried.append(variant.name)
        return found_of(variant)

    settings = {"sampler": "exhaustive", "trials": 2}
    searched(tmp_path / "t", find, **settings)
    searched(tmp_path / "t", find, inputs={"model": "other"}, **settings)
    searched(tmp_path / "t", find, goals=["throughput"], **settings)
    assert len(tried) == 6
    # More trials go on.
    searched(tmp_path / "t", find, **{**settings, "trials": 5})
    assert len(tried) == 9


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": {"model": "other"}},
        {"machine": MACHINE.model_copy(update={"features": ("amx_int8",)})},
        {"machine": MACHINE.model_copy(update={"versions": {"onnxruntime": "2"}})},
        {"recipe": {"goals": ["size"]}},
        {"recipe": {"goals": ["metric"]}},
    ],
    ids=["model", "CPU", "version", "goal", "other metric"],
)
def test_a_named_study_takes_equal_inputs_only(
    golden, tmp_path: Path, change: dict[str, Any]
) -> None:
    def run(recipe: Any = None, inputs: Any = None, machine: Any = MACHINE) -> None:
        trials = Trials(inputs=inputs, machine=machine)
        study.search(
            recipe_of(study="mine", sampler="exhaustive", trials=1, **(recipe or {})),
            trials,
            tmp_path / "t",
        )

    run()
    with golden.raises(RecipeError):
        run(**change)


def test_accuracy_is_the_same_on_other_machines(tmp_path: Path) -> None:
    settings = {"goals": ["accuracy"], "limits": [{"of": "size", "at_most": 9}]}
    facts = [
        study._facts(recipe_of(**settings), recipe_of(**settings).search, {}, machine)
        for machine in (MACHINE, MACHINE.model_copy(update={"cpu": "b"}))
    ]
    assert facts[0] == facts[1]


@pytest.mark.parametrize(
    "wanted",
    [
        {"calibrat": ["mse"]},
        {"benchmark.batch": [[1]]},
        {"calibrate": ["mimax"]},
        {"calibrate": ["mse", "mse"]},
        {"quantize.static.per_chanel": [True]},
        {"targets": ["openvino"]},
        {"targets": ["ort-cpu", "vitisai"]},
    ],
)
def test_a_wrong_space_is_one_sentence(golden, wanted: dict[str, Any]) -> None:
    recipe = recipe_of(space=wanted)
    with golden.raises(RecipeError):
        space_of(recipe, recipe.search, lambda changes: space.variant_of(recipe, changes))


def test_options_go_with_the_plugins_that_have_them(tmp_path: Path) -> None:
    wanted = {
        "quantize.static.per_channel": [True, False],
        "quantize": ["static", "dynamic"],
        "calibrate": ["held-out", "mse"],
    }
    recipe = recipe_of(space=wanted, sampler="exhaustive")

    class OfTheRecipe(Trials):
        def variant_of(self, changes: Mapping[str, Any]) -> Variant:
            return space.variant_of(recipe, changes)

    result = study.search(recipe, OfTheRecipe(), tmp_path / "t")
    assert [each.variant.changes for each in result.found] == [
        {},
        {"calibrate": "mse"},
        # Dynamic quantization calibrates nothing.
        {"quantize": "dynamic"},
        {"quantize.static.per_channel": False},
        {"calibrate": "mse", "quantize.static.per_channel": False},
    ]


def test_several_targets_are_part_of_the_space() -> None:
    recipe = parse(
        {
            "model": "m",
            "task": "mrpc",
            "data": "glue",
            "targets": ["openvino-cpu", "ort-cpu", "vitisai"],
            "search": {"space": {"calibrate": ["mse"]}},
        }
    )
    found = space_of(recipe, recipe.search, lambda changes: space.variant_of(recipe, changes))
    assert found == {"targets": ('"openvino-cpu"', '"ort-cpu"'), "calibrate": ('"mse"',)}


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        (
            "postgresql://me@localhost:1/none",
            StorageError,
            "the trials of the search cannot be stored",
        ),
        (
            "sqlite:////no/such/folder/t.db",
            StorageError,
            "the trials of the search cannot be stored",
        ),
        ("sqlite://", RecipeError, "the URL names no file"),
        ("{folder}", StorageError, "{folder}: a search keeps its trials in a file"),
        ("{folder}/notes.txt", StorageError, "the file has no trials of a search"),
        ("{folder}/other.db", StorageError, "the file has no trials of a search"),
    ],
)
def test_a_storage_that_cannot_be_opened_is_one_sentence(
    tmp_path: Path,
    where: str,
    kind: type[OctobertError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "_PAUSE_S", 0)
    (tmp_path / "notes.txt").write_text("not a journal\n")
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("create table t (x)")
    if where.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="the driver is an extra")
    with pytest.raises(kind) as raised:
        searched(tmp_path / "t", storage=where.format(folder=tmp_path))
    assert message.format(folder=tmp_path) in str(raised.value)
    assert str(raised.value).count("\n") == 0


def test_a_missing_driver_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TargetError, match=r"psycopg.*\[postgres\]"):
        searched(tmp_path / "t", storage="postgresql://me@host/db")


def test_a_full_disk_is_one_sentence_and_the_search_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def full(descriptor: int) -> None:
        real(descriptor)
        if os.fstat(descriptor).st_size > 6000:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=f"{tmp_path / 't'}: the disk is full"):
            searched(tmp_path / "t", sampler="exhaustive")
    assert searched(tmp_path / "t", sampler="exhaustive") == searched(
        tmp_path / "alone", sampler="exhaustive"
    )


def test_half_a_line_at_the_end_of_a_file_is_dropped(tmp_path: Path) -> None:
    whole = searched(tmp_path / "t", sampler="exhaustive", trials=3)
    with (tmp_path / "t").open("a") as file:
        file.write('{"op_code": 4, "wor')
    assert searched(tmp_path / "t", sampler="exhaustive", trials=3) == whole
    assert len(searched(tmp_path / "t", sampler="exhaustive", trials=5).found) == 5


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@host/db",
        "postgresql://host/db?password=s3cret",
        "postgresql+psycopg://me:a/s3cret@host/db",
        "mysql://me:s3cret@h/d",
    ],
)
def test_passwords_are_refused_and_shown_nowhere(url: str) -> None:
    with pytest.raises(RecipeError) as raised:
        recipe_of(storage=url)
    assert "s3cret" not in str(raised.value) + json.dumps(raised.value.to_json())
    assert "search.storage" in str(raised.value)


def test_a_url_without_a_password_is_part_of_the_recipe() -> None:
    assert "postgresql://me@host/db" in as_yaml(recipe_of(storage="postgresql://me@host/db"))


@pytest.mark.parametrize(
    "where", ["trials.log", "sqlite:///trials.db", "~/home.log", "sqlite:///~/home.db"]
)
def test_a_storage_is_relative_to_the_working_directory(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checking it makes nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    storage.check(where)
    assert not any(tmp_path.iterdir())
    searched(tmp_path / "t", storage=where, trials=1)
    assert (tmp_path / where.rpartition("/")[2]).is_file()
    storage.check(where)


def test_trials_in_the_output_directory_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "t").symlink_to("outside")
    searched(tmp_path / "t", trials=1)
    assert (tmp_path / "t").is_file()
    assert not (tmp_path / "outside").exists()


def damaged_journal(content: bytes, generator: random.Random) -> bytes:
    """A journal with one or two values of its lines changed."""
    lines = [json.loads(line) for line in content.splitlines()]
    results = [line["user_attr"] for line in lines if "found" in line.get("user_attr", {})]
    for each in results:
        each["found"] = json.loads(each["found"])
    strange = (
        None,
        True,
        -1,
        2**63,
        0.5,
        "",
        "x",
        [],
        {},
        [1],
        {"a": 1},
        "9" * 5000,
        float("nan"),
        '{"a": 1}',
        "[" * 5000,
    )
    for _ in range(generator.choice((1, 2))):
        place: Any = generator.choice(lines)
        while (
            isinstance(inner := place[key := generator.choice(list(place))], dict)
            and inner
            and generator.random() < 0.8
        ):
            place = inner
        if generator.random() < 0.2:
            del place[key]
        else:
            place[key] = generator.choice(strange)
    for each in results:
        if "found" in each:
            each["found"] = json.dumps(each["found"])
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_a_damaged_journal_is_a_sentence_or_goes_on(tmp_path: Path) -> None:
    def search(place: Path) -> None:
        searched(place, study="s", sampler="exhaustive", trials=2)

    search(tmp_path / "t")
    whole, outcomes = (tmp_path / "t").read_bytes(), Counter[str]()
    for index in range(300):
        (tmp_path / "t").write_bytes(damaged_journal(whole, random.Random(index)))
        try:
            search(tmp_path / "t")
            outcomes["goes on"] += 1
        except OctobertError as error:
            outcomes[str(error)] += 1
    assert not any("\n" in said for said in outcomes)
    assert outcomes["goes on"] < 200


def test_what_a_trial_tries_follows_from_its_combination_alone(golden, tmp_path: Path) -> None:
    """A study may be of anybody, and a variant can name code."""
    whole = searched(tmp_path / "t", study="s", sampler="exhaustive", trials=2)
    text = (tmp_path / "t").read_text()
    evil = text.replace(
        '\\"changes\\":{', '\\"changes\\":{\\"allow_code\\":true,\\"preprocess\\":\\"evil.py:f\\",'
    )
    assert evil != text
    (tmp_path / "t").write_text(evil)
    assert searched(tmp_path / "t", study="s", sampler="exhaustive", trials=2) == whole
    (tmp_path / "t").write_text(text.replace("minmax", "evil"))
    with golden.raises(RecipeError):
        searched(tmp_path / "t", study="s", sampler="exhaustive", trials=2)
