"""Recipes: what is written is what is read, and any document is a recipe or a `RecipeError`."""

from __future__ import annotations

from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

import octobert
from octobert.config.loading import as_yaml, parse
from octobert.core.errors import RecipeError
from tests.properties.outcomes import sentence_of

KEYS = st.sampled_from(
    [
        "model",
        "task",
        "data",
        "targets",
        "quantize",
        "calibrate",
        "transforms",
        "corrections",
        "benchmark",
        "accuracy",
        "seed",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["static", "ort-cpu", "auto"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
RECIPES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["org/model", "./folder", "package:name/model"]),
        "task": st.sampled_from(
            ["mrpc", "embedding", {"squad": {"step": 64}}, {"text-classification": {"text": ["a"]}}]
        ),
        "data": st.fixed_dictionaries(
            {"source": st.text(st.characters(categories=["L", "N"]), min_size=1)},
            optional={
                "calibrate": st.fixed_dictionaries({"samples": st.integers(1, 500)}),
                "allow_leakage": st.booleans(),
            },
        ),
    },
    optional={
        "targets": st.lists(
            st.sampled_from(["ort-cpu", "openvino-cpu", "qnn"]),
            min_size=1,
            max_size=3,
            unique=True,
        ),
        "calibrate": st.sampled_from(["minmax", {"percentile": {"keep": 99.9}}, "entropy"]),
        "benchmark": st.fixed_dictionaries(
            {"batch": st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True)}
        ),
        "seed": st.integers(0, 2**31),
        "transforms": st.sampled_from([[], ["smoothquant"]]),
    },
)


@given(RECIPES)
def test_a_recipe_is_what_its_text_says(plain: dict) -> None:
    recipe = parse(plain)
    text = as_yaml(recipe)
    assert parse(yaml.safe_load(text)) == recipe
    assert as_yaml(parse(yaml.safe_load(text))) == text


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_mapping_is_a_recipe_or_a_sentence(plain: dict) -> None:
    assert "recipe" in (sentence_of(RecipeError, parse, plain) or "recipe")


@given(RECIPES, KEYS, VALUES)
def test_any_value_of_a_key_is_taken_or_named(plain: dict, key: str, value: object) -> None:
    assert key in (sentence_of(RecipeError, parse, {**plain, key: value}) or key)


@given(st.text(max_size=80) | st.text("-:[]{}&*!|>%@`'\"\n a1", max_size=60))
def test_any_text_is_a_recipe_or_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    assert str(path) in (sentence_of(RecipeError, octobert.load_recipe, path) or str(path))
