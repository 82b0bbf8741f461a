"""Recipes: both spellings, every mistake at once, paths, digests and the round trip."""

from __future__ import annotations

import subprocess
import sys

import pytest

from octobert.api import runs
from octobert.config import loading
from octobert.config.measuring import Benchmark, EvaluateMetric
from octobert.config.recipe import Choice, Recipe
from octobert.config.rows import Data
from octobert.core import plugins
from octobert.core.errors import ModelError, RecipeError, StorageError
from tests.support.cli import octobert

GOOD = {"model": "m", "task": "mrpc", "data": "d"}


def mistakes(**changes: object) -> str:
    with pytest.raises(RecipeError) as caught:
        loading.parse({**GOOD, **changes})
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_defaults() -> None:
    recipe = loading.parse(GOOD)
    assert recipe.data.source == "d"
    assert recipe.calibrate.name == "held-out"
    assert recipe.quantize.name == "static"
    assert recipe.targets == ("ort-cpu",)
    assert recipe.data.calibrate.samples == 256


@pytest.mark.parametrize("method", ["float", {"float": {"float_parts": "float16"}}])
def test_nothing_is_transformed_where_nothing_is_quantized(method: object) -> None:
    recipe = loading.parse({**GOOD, "quantize": method})
    assert (recipe.transforms, recipe.corrections) == ((), ())
    asked = loading.parse({**GOOD, "quantize": method, "transforms": ["smoothquant"]})
    assert [choice.name for choice in asked.transforms] == ["smoothquant"]
    default = loading.parse({**GOOD, "quantize": "static"}).transforms
    assert [choice.name for choice in default] == ["outlier-neurons", "smoothquant", "token-scales"]


@pytest.mark.parametrize(
    ("targets", "scaled"),
    [
        (["openvino-cpu"], True),
        (["ort-cpu", "openvino-cpu"], True),
        (["ort-cpu", "tensorrt"], False),
        (["openvino-gpu"], False),
    ],
)
def test_tokens_are_scaled_on_processors_alone(targets, scaled) -> None:
    transforms = loading.parse({**GOOD, "targets": targets}).transforms
    assert [choice.name for choice in transforms] == [
        "outlier-neurons",
        "smoothquant",
        *(["token-scales"] if scaled else []),
    ]


@pytest.mark.parametrize(
    ("method", "targets", "smoothed"),
    [
        ("static", ["openvino-cpu"], True),
        ("dynamic", ["ort-cpu"], True),
        ("dynamic", ["openvino-cpu"], False),
        ({"dynamic": {"group": 32}}, ["openvino-cpu"], False),
        ("dynamic", ["openvino-cpu", "ort-cpu"], True),
        ("weight-only", ["ort-cpu"], False),
        ("static", ["qnn"], False),
        ("static", ["ort-cuda"], False),
        ("static", ["qnn", "ort-cpu"], True),
        ({"static": {"activations": "uint16"}}, ["ort-cpu"], False),
        ({"static": {"activations": "uint8"}}, ["qnn"], True),
    ],
)
def test_models_are_smoothed_where_many_tokens_share_a_range(method, targets, smoothed) -> None:
    recipe = loading.parse({**GOOD, "quantize": method, "targets": targets})
    assert bool(recipe.transforms) is smoothed
    assert [choice.name for choice in recipe.corrections] == ["weight-rounding"]
    asked = loading.parse(
        {**GOOD, "quantize": method, "targets": targets, "transforms": ["smoothquant"]}
    )
    assert [choice.name for choice in asked.transforms] == ["smoothquant"]


@pytest.mark.parametrize(
    ("method", "targets", "calibrator"),
    [
        ("static", ["ort-cpu"], "held-out"),
        ("static", ["tensorrt"], "mse"),
        ("static", ["ort-cpu", "ort-cuda"], "mse"),
        ({"static": {"placement": "qdqbert"}}, ["ort-cpu"], "mse"),
        ({"static": {"placement": ["linear.*", "residual.branch"]}}, ["ort-cpu"], "mse"),
        ("dynamic", ["tensorrt"], "held-out"),
    ],
)
def test_outliers_are_clipped_where_residual_adds_are_quantized(
    method, targets, calibrator
) -> None:
    keys = {**GOOD, "quantize": method, "targets": targets}
    assert loading.parse(keys).calibrate.name == calibrator
    assert loading.parse({**keys, "calibrate": "entropy"}).calibrate.name == "entropy"


def test_plugins_by_name_or_with_options() -> None:
    recipe = loading.parse(
        {
            **GOOD,
            "calibrate": {"percentile": {"keep": 99.9}},
            "quantize": {"static": {"disable": ["a.*"]}},
        }
    )
    assert recipe.calibrate.options == {"keep": 99.9}
    assert plugins.values_of("methods").make(recipe.quantize).disable == ("a.*",)


def test_an_unknown_key_with_a_suggestion() -> None:
    assert 'targts: unknown key; did you mean "targets"?' in mistakes(targts=["ort-cpu"])
    assert 'data.calibrat: unknown key; did you mean "calibrate"?' in mistakes(
        data={"source": "d", "calibrat": 1}
    )
    assert 'quantize.static.placment: unknown key; did you mean "placement"?' in mistakes(
        quantize={"static": {"placment": "x"}}
    )


def test_a_recipe_as_it_was_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("own.tsv", "m", "train"):
        (tmp_path / name).touch()
    rows = {"source": "d", "tune": "own.tsv[:9]", "calibrate": {"samples": 5}}
    recipe = loading.parse(
        {**GOOD, "data": rows, "transforms": [], "targets": ["ort-cpu"], "allow_code": True}
    )
    written = loading.as_written(recipe)
    assert set(written) == {*GOOD, "transforms", "targets"}
    assert written["model"] == str(tmp_path / "m")
    assert [written["data"][key]["from"] for key in ("tune", "calibrate")] == [
        f"{tmp_path}/own.tsv[:9]",
        "train",
    ]
    assert loading.parse(written) == loading.with_absolute_paths(recipe).model_copy(
        update={"allow_code": False}
    )


@pytest.mark.parametrize(
    "weights", [{0: 1.0}, (1, 2), {1}, object(), b"\xff"], ids=lambda value: type(value).__name__
)
def test_what_stands_beside_a_path_stays_as_it_is(tmp_path, weights: object) -> None:
    """Also what JSON does not have."""
    (tmp_path / "metric").mkdir()
    metric = {"evaluate": {"name": "./metric", "weights": weights}}
    recipe = loading.parse({**GOOD, "metric": metric, "allow_code": True}, base=tmp_path)
    (read,) = recipe.metric
    assert isinstance(read, EvaluateMetric)
    assert read.name == str(tmp_path / "metric")
    assert read.arguments == {"weights": weights}


def test_paths_of_trainings_are_absolute_too(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("teacher", "trained", "train.py", "mrpc"):
        (tmp_path / name).touch()
    rows = {"source": "glue", "config": "mrpc"}
    finetune = {"distill": {"teacher": "teacher"}, "code": "train.py:loop"}
    recipe = loading.parse(
        {
            **GOOD,
            "data": rows,
            "finetune": finetune,
            "qat": {"trained": "trained"},
            "allow_code": True,
        }
    )
    written = loading.as_written(recipe)
    assert written["finetune"]["distill"]["teacher"] == str(tmp_path / "teacher")
    assert written["finetune"]["code"] == f"{tmp_path}/train.py:loop"
    assert written["qat"]["trained"] == str(tmp_path / "trained")
    # The configuration of a data set is no path, also where a file has its name.
    assert written["data"]["config"] == "mrpc"


def test_all_mistakes_at_once() -> None:
    text = mistakes(
        task="mrcp",
        targets=["ort-cpuu"],
        calibrate={"percentile": {"keep": 101}},
        benchmark={"batch": [], "repeats": 1},
        x=1,
    )
    for part in (
        "has 6 mistakes",
        'task: there is no task "mrcp"; did you mean "mrpc"?',
        'targets.0: there is no target "ort-cpuu"; did you mean "ort-cpu"?',
        "calibrate.percentile.keep: input should be less than or equal to 100 (got 101)",
        "benchmark.batch:",
        "benchmark.repeats: input should be greater than or equal to 3 (got 1)",
        "x: unknown key",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": ["mrpc", "sst2"]}, "task: write a name, or one name with its options"),
        ({"data": {}}, "data: give a source, or files for train and validation"),
        ({"seed": "x"}, "seed: input should be a valid integer"),
        ({"baselines": "tf"}, "baselines: input should be a valid tuple (got 'tf')"),
        ({"targets": []}, "targets:"),
        ({"targets": ["ort-cpu", "ort-cpu"]}, "targets: a name is listed twice"),
        ({"benchmark": {"sequence": ["data", 16, 0]}}, "benchmark.sequence.2"),
        (
            {"quantize": {"static": {"placement": "matmull"}}},
            'there is no placement "matmull"; did you mean "matmul"?',
        ),
    ],
)
def test_single_mistakes(changes: dict, message: str) -> None:
    assert message in mistakes(**changes)


def test_a_missing_key() -> None:
    with pytest.raises(RecipeError, match="model: missing"):
        loading.parse({"task": "mrpc", "data": "d"})


def test_files_are_relative_to_the_recipe(tmp_path) -> None:
    (tmp_path / "rows.tsv").write_text("x")
    path = tmp_path / "r.yaml"
    path.write_text(
        "model: ../m\ntask: mrpc\ndata: {train: rows.tsv, evaluate: other.tsv, source: glue}\n"
    )
    recipe = loading.load(path)
    assert recipe.model == str(tmp_path.parent / "m")
    assert recipe.data.train == str(tmp_path / "rows.tsv")
    assert recipe.data.source == "glue"


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-of-this-name/model"])
def test_a_path_that_no_disk_can_have_is_said_to_be_missing_when_the_run_begins(
    tmp_path, name: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"model: {name}\ntask: mrpc\ndata: d\nqat: {{trained: {name}}}\n")
    assert loading.load(path).model == name
    done = octobert("run", path, "--out", tmp_path / "out")
    assert done.returncode in (ModelError.exit_code, StorageError.exit_code)
    assert done.stderr.splitlines()[-1].startswith("octobert: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: [", "not valid YAML"), ("- a", "not a mapping"), ("", "not a mapping")],
)
def test_files_that_are_no_recipe(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        loading.load(path)


def test_a_missing_recipe(tmp_path) -> None:
    with pytest.raises(RecipeError, match="the recipe file does not exist"):
        loading.load(tmp_path / "none.yaml")


def test_what_is_printed_reads_back_as_the_same_recipe() -> None:
    import yaml

    given = {
        **GOOD,
        "task": {"embedding": {"text": "body"}},
        "targets": ["openvino-cpu"],
        "data": {"source": "d", "evaluate": "test"},
    }
    recipe = loading.parse(given)
    assert loading.parse(yaml.safe_load(loading.as_yaml(recipe))) == recipe
    assert loading.parse(recipe.model_dump(by_alias=True)) == recipe


def test_parts_of_a_file_can_be_changed_in_passing(tmp_path, monkeypatch) -> None:
    """Paths in a change are relative to where the command is typed, those in the file to the file."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.tsv").write_text("x")
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "r.yaml").write_text("model: ./m\ntask: squad\ndata: ./d\n")
    changes = ["task.squad.step=9", "data.train=mine.tsv", "targets=[ort-cpu]", "finetune.epochs=1"]
    recipe = loading.load(tmp_path / "r.yaml", changes)
    assert (recipe.task.name, recipe.task.options) == ("squad", {"step": 9})
    assert (recipe.data.source, recipe.data.train) == (
        str(tmp_path / "d"),
        str(tmp_path / "here" / "mine.tsv"),
    )
    assert recipe.finetune.epochs == 1.0
    assert recipe.model == str(tmp_path / "m")


def test_the_number_of_rows_can_be_changed_without_saying_where_they_are_from(tmp_path) -> None:
    """As the help of --set has it."""
    (tmp_path / "r.yaml").write_text("model: m\ntask: squad\ndata: d\n")
    recipe = loading.load(
        tmp_path / "r.yaml", ["data.calibrate.samples=50", "data.evaluate.samples=9"]
    )
    assert (recipe.data.calibrate.from_, recipe.data.calibrate.samples) == ("train", 50)
    assert (recipe.data.evaluate.from_, recipe.data.evaluate.samples) == ("auto", 9)


@pytest.mark.parametrize("written", ["squad_v2", "squad-v2"])
@pytest.mark.parametrize("changed", ["squad_v2", "squad-v2"])
def test_names_with_either_dash_are_one_name(tmp_path, written: str, changed: str) -> None:
    (tmp_path / "r.yaml").write_text(f"model: m\ntask: {written}\ndata: d\n")
    recipe = loading.load(tmp_path / "r.yaml", [f"task.{changed}.step=9"])
    assert (recipe.task.name, recipe.task.options) == ("squad-v2", {"step": 9})


@pytest.mark.parametrize(
    "change", ["seed", "seed=[", "seed.x=1", "data.calibrat.samples=1", "task.squad.max_length=7"]
)
def test_changes_that_do_not_fit(golden, tmp_path, change: str) -> None:
    (tmp_path / "r.yaml").write_text("model: m\ntask: squad\ndata: d\nseed: 3\n")
    with golden.raises(RecipeError):
        loading.load(tmp_path / "r.yaml", [change])


def test_quantization_aware_training_has_no_transforms_and_corrections() -> None:
    recipe = loading.parse({**GOOD, "qat": {}, "transforms": []})
    assert (recipe.transforms, recipe.corrections) == ((), ())
    with pytest.raises(RecipeError, match="transforms and qat exclude each other"):
        loading.parse({**GOOD, "qat": {}, "transforms": ["smoothquant"]})


def test_a_model_of_the_recipe_is_checked_alone(golden) -> None:
    with golden.raises(RecipeError):
        loading.checked(Benchmark, {"repeats": 1}, where="benchmark")


def test_a_list_of_mistakes_ends_somewhere() -> None:
    with pytest.raises(RecipeError) as error:
        loading.parse({"model": "m", "task": "mrpc", "data": "d", "targets": ["a" * 10_000] * 100})
    lines = str(error.value).splitlines()
    assert lines[0] == "recipe: the recipe has 100 mistakes:"
    assert (len(lines), lines[-1]) == (22, "  - and 80 more.")
    assert max(map(len, lines)) < 1000


def test_the_models_of_a_recipe_load_no_plugin() -> None:
    """What reads a stored recipe, such as a page, does without the plugins that it names."""
    code = f"""
import sys
from octobert.config.recipe import Recipe
recipe = Recipe.model_validate({loading.as_stored(loading.parse(GOOD))!r})
assert recipe.targets and recipe.transforms
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    own = [name for name in done if name.startswith("octobert.")]
    assert not [name for name in own if name.startswith(tuple(plugins.PACKAGES.values()))]
    assert len(own) <= 25


def test_a_recipe_made_by_hand_gets_what_depends_on_its_method() -> None:
    by_hand = Recipe(
        model="m",
        task=Choice(name="mrpc"),
        data=Data(source="d"),
        quantize=Choice(name="float"),
    )
    assert runs.parse_recipe(by_hand).transforms == ()
    plain = loading.parse(GOOD)
    assert runs.parse_recipe(plain) == plain


def test_a_mistake_is_not_said_twice() -> None:
    with pytest.raises(RecipeError) as raised:
        loading.parse({**GOOD, "qat": {}, "targets": ["ort-cp"]})
    assert "1 mistake" in str(raised.value)
