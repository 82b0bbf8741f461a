"""The accuracy-aware search: its logic on invented models, and whole runs on tiny ones, killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octobert.config.loading import parse
from octobert.core.errors import DataError, RecipeError
from octobert.core.plan import Decision, Quantizer, QuantPlan, Site
from octobert.core.results import Sensitivity, SiteSensitivity, Trial
from octobert.engine.executors import inline
from octobert.pipeline import runner
from octobert.quantization import search
from tests.support.cli import octobert
from tests.support.runs import warmed, write_pairs

SAVING = {"qkv": 2.0, "ffn_up": 4.0, "ffn_down": 4.0}
SYMMETRIC = Quantizer(dtype="int8", symmetric=True, axis=1)


def site(layer: int, part: str, role: str = "linear.weight") -> Site:
    value = (
        f"{layer}.{part}.{role}"
        if role == "linear.weight" or part != "key"
        else f"{layer}.query.{role}"
    )
    return Site(
        role=role,
        part=part,
        module=f"{layer}.{part}",
        layer=layer,
        node=f"{layer}.{part}.matmul",
        input=1,
        value=value,
    )


def plan_of(layers: int = 4) -> QuantPlan:
    parts = ("query", "key", "ffn_up", "ffn_down")
    decisions = [
        Decision(site=site(i, p), quantizer=SYMMETRIC, reason="")
        for i in range(layers)
        for p in parts
    ]
    return QuantPlan(
        method="static", placement="matmul", target="ort-cpu", decisions=tuple(decisions)
    )


UNITS = search.units_of(plan_of())


class World:
    """A model whose drop is the sum of the errors of its 8-bit units."""

    def __init__(self, errors: dict[str, float], allowed: float, seconds: float = 0.01) -> None:
        self.errors, self.allowed, self.seconds = errors, allowed, seconds
        self.tried: list[frozenset[str]] = []

    def attempt(self, names: frozenset[str]) -> Trial:
        self.tried.append(names)
        drop = sum(error for name, error in self.errors.items() if name not in names)
        saved = sum(SAVING[u.kind] for u in UNITS if u.name not in names)
        met = drop <= self.allowed
        return Trial(
            fallback=tuple(u.name for u in UNITS if u.name in names),
            rows=10,
            value=1 - drop,
            drop=drop,
            met=met,
            saved_ms=saved,
            seconds=self.seconds,
        )

    def search(self, done: tuple[Trial, ...] = (), seconds: float = 60.0) -> search.SearchOutcome:
        order = search.fallback_order(
            UNITS, {u.name: self.errors.get(u.name, 0.0) for u in UNITS}, SAVING
        )
        trials = search.Trials(self.attempt, seconds=seconds, earlier=done)
        outcome = search.search(order, SAVING, trials, most=len(UNITS) - 1)
        assert list(trials.results)[len(done) :] == self.tried
        return outcome


def test_units_are_what_a_runtime_feeds_from_one_value() -> None:
    assert [u.name for u in UNITS[:3]] == ["layer 0 qkv", "layer 0 ffn_up", "layer 0 ffn_down"]
    assert len(UNITS) == 12
    assert {len(u.sites) for u in UNITS if u.kind == "qkv"} == {2}


def test_nothing_falls_back_where_nothing_has_to() -> None:
    world = World({"layer 1 ffn_up": 0.001}, allowed=0.01)
    outcome = world.search()
    assert (outcome.met, outcome.taken.fallback) == (True, ())
    assert len(world.tried) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 11])
def test_exactly_the_harmful_units_fall_back(count: int) -> None:
    harmful = {u.name for u in UNITS[:count]}
    world = World(dict.fromkeys(harmful, 0.1), allowed=0.05)
    outcome = world.search()
    assert outcome.met
    assert set(outcome.taken.fallback) == harmful
    assert len(set(world.tried)) == len(world.tried), "a plan was tried twice"


def test_units_that_save_nothing_come_first_and_units_that_save_much_return_to_8_bits() -> None:
    order = search.fallback_order(
        UNITS, {u.name: 0.1 for u in UNITS}, {"qkv": -1.0, "ffn_up": 1.0, "ffn_down": 9.0}
    )
    assert [u.kind for u in order] == ["qkv"] * 4 + ["ffn_up"] * 4 + ["ffn_down"] * 4
    # The ranking is wrong about one unit: it looks harmful and is not.
    errors = {"layer 0 ffn_up": 0.2, "layer 2 ffn_down": 0.1}
    world = World({"layer 2 ffn_down": 0.1}, allowed=0.05)
    order = search.fallback_order(UNITS, {u.name: errors.get(u.name, 0.0) for u in UNITS}, SAVING)
    outcome = search.search(order, SAVING, search.Trials(world.attempt, seconds=60.0), most=11)
    assert outcome.taken.fallback == ("layer 2 ffn_down",)


def test_out_of_time_gives_the_best_so_far_and_says_so() -> None:
    world = World({u.name: 0.1 for u in UNITS}, allowed=0.05, seconds=10.0)
    outcome = world.search(seconds=5.0)
    assert len(world.tried) == 1
    assert (outcome.met, outcome.ended) == (False, "time limit reached")
    assert (
        World({u.name: 0.1 for u in UNITS}, allowed=0.05).search().ended
        == "no plan meets the criterion"
    )


def test_trials_of_an_interrupted_search_are_not_made_again() -> None:
    errors = {u.name: 0.1 for u in UNITS[3:8]}
    whole = World(errors, allowed=0.05)
    expected = whole.search()
    half = [World(errors, 0.05).attempt(names) for names in whole.tried[:3]]
    resumed = World(errors, allowed=0.05)
    assert resumed.search(done=tuple(half)).taken == expected.taken
    assert resumed.tried == whole.tried[3:]
    spent = [t.model_copy(update={"seconds": 100.0}) for t in half]
    late = World(errors, allowed=0.05)
    assert late.search(done=tuple(spent), seconds=200.0).ended == "time limit reached"
    assert late.tried == []


def test_the_longest_trial_so_far_must_fit_into_what_is_left_and_the_first_one_always_runs() -> (
    None
):
    world = World({}, allowed=0.0, seconds=5.0)
    trials = search.Trials(world.attempt, seconds=7.0)
    first, second = frozenset({"layer 0 qkv"}), frozenset({"layer 1 qkv"})
    assert trials.result(first) is trials.result(first)
    assert (trials.result(second), trials.out_of_time) == (None, True)
    # What is known needs no time.
    assert trials.result(first) is not None
    assert world.tried == [first]


def test_the_error_of_a_shared_value_is_divided() -> None:
    shared = SiteSensitivity(
        value="v",
        role="linear.input",
        part="query",
        module="m",
        layer=0,
        signal_to_noise_db=1.0,
        output_error=0.4,
    )
    first, second = (
        search.Unit(name, "qkv", (site(0, "query").model_copy(update={"value": "v"}),))
        for name in ("first", "second")
    )
    divided = search.unit_errors(
        [first, second], Sensitivity(rows=1, together=1.0, values=(shared,))
    )
    assert divided == {"first": 0.2, "second": 0.2}


@pytest.mark.parametrize("dtype", [None, "int16", "uint16"])
def test_fallback_edits_the_plan_and_says_why(dtype) -> None:
    plan = plan_of(1)
    activation = Quantizer(dtype="uint8", symmetric=False, low=-1.0, high=2.0)
    wide = site(0, "query", "linear.input")
    plan = plan.model_copy(
        update={
            "decisions": (*plan.decisions, Decision(site=wide, quantizer=activation, reason=""))
        }
    )
    units = search.units_of(plan)
    edited = search.with_fallback(plan, [u for u in units if u.kind == "qkv"], dtype)
    changed = {
        d.site.value: d for d in edited.decisions if "accuracy search (layer 0 qkv)" in d.reason
    }
    if dtype is None:
        assert {d.quantizer for d in changed.values()} == {None}
        assert len(changed) == 3
    else:
        assert [d.quantizer.dtype for d in changed.values()] == [dtype]
    assert len(edited.quantized) == (2 if dtype is None else 5)


def recipe_for(model: Path, source: Path, **accuracy: object):
    return parse(
        {
            "model": str(model),
            "task": "text-classification",
            "data": {
                "source": str(source),
                "calibrate": {"from": "train", "samples": 16},
                "tune": {"from": "train", "samples": 60},
            },
            "targets": ["ort-cpu"],
            "measure": False,
            "accuracy": accuracy,
        }
    )


@pytest.fixture(scope="module")
def searched(checkpoint, finished, tmp_path_factory):
    """One whole search: (recipe, output directory, report). What it captured and read is where other runs begin."""
    folder = tmp_path_factory.mktemp("search")
    recipe = recipe_for(checkpoint("bert"), write_pairs(folder / "data"), max_drop=1.0)
    out = warmed(finished[1], folder / "out", "capture")
    return recipe, out, runner.run(recipe, out, executor=inline.run)


@pytest.fixture
def begun(searched, tmp_path) -> Path:
    """An output directory with the rows and the captured model in its store."""
    return warmed(searched[1], tmp_path / "out", "capture", "data")


def test_a_whole_search(searched) -> None:
    _, out, report = searched
    result = report.searches["ort-cpu"]
    assert result.met
    assert (result.rows, result.taken.rows, result.taken.fallback) == (60, 60, ())
    assert set(result.unit_saving_ms) == {
        "qkv",
        "attention_output",
        "ffn_up",
        "ffn_down",
        "embeddings",
    }
    sensitivity = report.sensitivities["ort-cpu"]
    assert sensitivity.values[0].output_error == max(
        value.output_error for value in sensitivity.values
    )
    page = (out / "report.html").read_text()
    assert "accuracy drops by at most 1" in page
    assert "where one value alone is 8-bit" in page
    manifest = json.loads((out / "ort-cpu" / "octobert.json").read_text())
    assert manifest["search"]["met"] is True
    assert not list((out / ".octobert" / "store").glob("scratch-*"))


def test_a_criterion_that_cannot_be_met_ends_with_its_own_code_and_a_package(
    checkpoint, pairs, begun, tmp_path
) -> None:
    """A floor between the float model and 8 bits cannot be planted in a tiny model, so the time is: no trial but the first fits."""
    recipe = {
        "model": str(checkpoint("bert")),
        "task": "text-classification",
        "data": {
            "source": str(pairs),
            "calibrate": {"from": "train", "samples": 16},
            "tune": {"from": "train", "samples": 60},
        },
        "targets": ["ort-cpu"],
        "measure": False,
        "transforms": [],
        # Everything quantized with ranges that are far too narrow.
        "calibrate": {"percentile": {"keep": 50.1}},
        "accuracy": {"max_drop": 0.0, "minutes": 1e-6},
    }
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    out = begun
    done = octobert("run", tmp_path / "recipe.json", "--out", out)
    report = json.loads((out / "report.json").read_text())
    met = report["searches"]["ort-cpu"]["met"]
    assert not met, "50 % of the values clipped change no answer: choose another seed"
    assert done.returncode == 9
    assert "misses the accuracy criterion: time limit reached" in done.stderr
    assert (out / "ort-cpu" / "onnx" / "model_quantized.onnx").is_file()


def test_killed_half_way_and_resumed(checkpoint, pairs, begun, tmp_path) -> None:
    recipe = recipe_for(checkpoint("bert"), pairs, max_drop=0.0, minutes=5)
    plain = recipe.model_dump(mode="json", by_alias=True)
    plain["transforms"], plain["calibrate"] = [], {"percentile": {"keep": 50.1}}
    (tmp_path / "recipe.json").write_text(
        json.dumps({**plain, "task": "text-classification", "quantize": "static"})
    )
    out = begun
    command = [
        sys.executable,
        "-m",
        "octobert",
        "run",
        str(tmp_path / "recipe.json"),
        "--out",
        str(out),
    ]
    store, deadline = out / ".octobert" / "store", time.time() + 120
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while time.time() < deadline and not list(store.glob("scratch-search-*/trials.jsonl")):
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    (kept,) = store.glob("scratch-search-*/trials.jsonl")
    before = [
        json.loads(line.partition(" ")[2])
        for line in kept.read_text().splitlines()
        if line.endswith("}")
    ]
    assert before
    # Of damaged files nothing is used: neither float outputs and timings, nor a trial that says something else.
    for name in ("float.npz", "timings.json"):
        damaged = kept.with_name(name)
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    with kept.open("a") as stream:
        stream.write(kept.read_text().splitlines()[0].replace('"rows":', '"rows":1') + "\n")
    octobert("run", tmp_path / "recipe.json", "--out", out)
    trials = json.loads((out / "report.json").read_text())["searches"]["ort-cpu"]["trials"]
    assert trials[: len(before)] == before
    assert len({tuple(sorted(t["fallback"])) for t in trials}) == len(trials)


def test_criteria_that_cannot_be_checked_are_refused(golden, checkpoint, pairs, begun) -> None:
    model = checkpoint("bert")
    with golden.raises(RecipeError):
        runner.run(recipe_for(model, pairs, at_least=1.01), begun, executor=inline.run)
    with pytest.raises(RecipeError, match=r'the task has no metric "f2"; known: accuracy, f1'):
        runner.run(recipe_for(model, pairs, max_drop=0.1, metric="f2"), begun, executor=inline.run)
    with pytest.raises(RecipeError, match="give max_drop, at_least, or both"):
        recipe_for(model, pairs)
    same = recipe_for(model, pairs, max_drop=0.1)
    rows = same.data.tune.model_copy(update={"from_": "validation"})
    same = same.model_copy(update={"data": same.data.model_copy(update={"tune": rows})})
    with pytest.raises(RecipeError, match="the rows to search on are the evaluation rows"):
        runner.run(same, begun, executor=inline.run)


def test_no_rows_left_to_search_on(checkpoint, pairs, begun) -> None:
    recipe = recipe_for(checkpoint("bert"), pairs, max_drop=0.1)
    rows = recipe.data.tune.model_copy(update={"from_": "train[:1]"})
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"tune": rows})})
    rows = recipe.data.calibrate.model_copy(update={"from_": "train[:1]"})
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"calibrate": rows})})
    with pytest.raises(DataError, match=r"no rows are left to search on.*data.tune.from: SPLIT"):
        runner.run(recipe, begun, executor=inline.run)
