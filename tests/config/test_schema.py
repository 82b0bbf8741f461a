"""The JSON Schema of recipes: current, complete, and fitting the shipped recipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from octobert.config.loading import as_file, parse
from octobert.config.recipe import Recipe, plugin_families
from octobert.config.schema import descriptions, recipe_schema
from octobert.config.training import Qat
from octobert.core import plugins

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "reference" / "recipe.schema.json"
SHIPPED = sorted((ROOT / "recipes").rglob("*.yaml"))
LINE = "# yaml-language-server: $schema="


@pytest.fixture(scope="module")
def schema() -> dict:
    return recipe_schema()


def test_the_file_is_current(schema) -> None:
    """`octobert schema --out docs/reference/recipe.schema.json` writes it."""
    assert json.loads(FILE.read_text(encoding="utf-8")) == schema


def test_every_key_is_described(schema) -> None:
    assert set(schema["properties"]) == set(Recipe.model_fields)
    for name, definition in {"recipe": schema, **schema["$defs"]}.items():
        missing = [
            key
            for key, value in definition.get("properties", {}).items()
            if not value.get("description")
        ]
        assert not missing, f"{name}: {missing}"


def test_plugins_are_enumerated(schema) -> None:
    for key, family in plugin_families().items():
        text = json.dumps(schema["properties"][key])
        assert all(json.dumps(name) in text for name in plugins.names(family))
    assert "keep" in schema["$defs"]["calibrators.percentile"]["properties"]


def test_every_reference_is_defined(schema) -> None:
    text = json.dumps(schema)
    used = {part.split('"')[0] for part in text.split("#/$defs/")[1:]}
    assert used <= set(schema["$defs"])


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_name_the_schema_and_fit_it(path: Path, schema) -> None:
    first, *_ = text = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith(LINE)
    assert (path.parent / first.removeprefix(LINE)).resolve() == FILE.resolve()
    raw = yaml.safe_load("\n".join(text))
    assert set(raw) <= set(schema["properties"])
    for key in ("finetune", "qat", "training", "benchmark", "accuracy"):
        keys = schema["$defs"][key.title()]["properties"]
        assert set(raw.get(key) or ()) <= set(keys)


def test_printed_recipes_name_the_schema() -> None:
    text = as_file(parse({"model": "m", "task": "mrpc", "data": "d"}))
    assert text.startswith(f"{LINE}recipe.schema.json\n")
    assert parse(yaml.safe_load(text)).model == "m"


def test_descriptions_are_inherited() -> None:
    texts = descriptions(Qat)
    assert texts["weight_decay"] == "Weight decay of AdamW."
    assert texts["epochs"] == "Passes over the training rows."
