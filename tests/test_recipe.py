"""Recipes: both spellings, every mistake at once, paths, digests and the round trip."""

from __future__ import annotations

import pytest

from octobert import recipe as recipes
from octobert.errors import RecipeError

GOOD = {"model": "m", "task": "mrpc", "data": "d"}


def mistakes(**changes: object) -> str:
    with pytest.raises(RecipeError) as caught:
        recipes.parse({**GOOD, **changes})
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_defaults() -> None:
    found = recipes.parse(GOOD)
    assert found.data.source == "d"
    assert found.calibrate.name == "minmax"
    assert found.quantize.name == "static"
    assert found.targets == ("ort-cpu",)
    assert found.data.calibrate.samples == 256


def test_plugins_by_name_or_with_options() -> None:
    found = recipes.parse({**GOOD, "calibrate": {"percentile": {"keep": 99.9}}, "quantize": {"static": {"disable": ["a.*"]}}})
    assert found.calibrate.options == {"keep": 99.9}
    assert recipes.options_of(found.quantize, "methods").disable == ("a.*",)


def test_an_unknown_key_with_a_suggestion() -> None:
    assert 'targts: unknown key; did you mean "targets"?' in mistakes(targts=["ort-cpu"])
    assert 'data.calibrat: unknown key; did you mean "calibrate"?' in mistakes(data={"source": "d", "calibrat": 1})
    assert 'quantize.static.placment: unknown key; did you mean "placement"?' in mistakes(
        quantize={"static": {"placment": "x"}}
    )


def test_all_mistakes_at_once() -> None:
    text = mistakes(
        task="mrcp", targets=["ort-cpuu"], calibrate={"percentile": {"keep": 101}}, benchmark={"batch": [], "repeats": 1}, x=1
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
        ({"baselines": ["tf"]}, "baselines.0: input should be 'torch-f32'"),
        ({"targets": []}, "targets:"),
        ({"targets": ["ort-cpu", "ort-cpu"]}, "targets: each may be named once"),
        ({"benchmark": {"sequence": ["data", 16, 0]}}, "benchmark.sequence.2"),
        ({"quantize": {"static": {"placement": "matmull"}}}, 'there is no placement "matmull"; did you mean "matmul"?'),
    ],
)
def test_single_mistakes(changes: dict, message: str) -> None:
    assert message in mistakes(**changes)


def test_a_missing_key() -> None:
    with pytest.raises(RecipeError, match="model: missing"):
        recipes.parse({"task": "mrpc", "data": "d"})


def test_files_are_relative_to_the_recipe(tmp_path) -> None:
    (tmp_path / "rows.tsv").write_text("x")
    path = tmp_path / "r.yaml"
    path.write_text("model: ../m\ntask: mrpc\ndata: {train: rows.tsv, evaluate: other.tsv, source: glue}\n")
    found = recipes.load(path)
    assert found.model == str(tmp_path.parent / "m")
    assert found.data.train == str(tmp_path / "rows.tsv")
    assert found.data.source == "glue"


@pytest.mark.parametrize(("text", "message"), [("a: [", "not YAML"), ("- a", "not a mapping"), ("", "not a mapping")])
def test_files_that_are_no_recipe(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        recipes.load(path)


def test_a_missing_recipe(tmp_path) -> None:
    with pytest.raises(RecipeError, match="there is no such recipe"):
        recipes.load(tmp_path / "none.yaml")


def test_what_is_printed_reads_back_as_the_same_recipe() -> None:
    import yaml

    given = {
        **GOOD,
        "task": {"embedding": {"text": "body"}},
        "targets": ["openvino-cpu"],
        "data": {"source": "d", "evaluate": "test"},
    }
    found = recipes.parse(given)
    assert recipes.parse(yaml.safe_load(recipes.as_yaml(found))) == found
    assert recipes.parse(found.model_dump(by_alias=True)) == found
