"""The JSON Schema of recipes, with the names and options of every plugin that is installed. Editors check recipes with it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from octobert.config.recipe import Choice, Recipe, plugin_families
from octobert.config.rows import Data, RowSelection
from octobert.core import plugins
from octobert.core.docstrings import arguments_of

Schema = dict[str, Any]
_TITLE = "A recipe of octobert"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def recipe_schema() -> Schema:
    """The schema of a recipe file, generated from the recipe's models and the plugins.

    Returns:
        A JSON Schema, draft 2020-12, as plain data.
    """
    recipe = Recipe.model_json_schema(schema_generator=_Described)
    definitions, properties = recipe.pop("$defs"), recipe["properties"]
    for key, family in plugin_families().items():
        found = dict(plugins.values_of(family).each())
        references = {} if family == "targets" else _options_(family, found, definitions)
        properties[key] = {
            "description": properties[key]["description"],
            **_plugin(key, found, references),
        }
    _allow_short_forms_(properties, definitions["Data"]["properties"])
    # `from` has a default wherever rows are selected.
    del definitions["RowSelection"]["required"], definitions["Choice"]
    return {
        "$schema": _DIALECT,
        "title": _TITLE,
        **recipe,
        "$defs": dict(sorted(definitions.items())),
    }


def _options_(
    family: str, found: Mapping[str, Any], definitions: dict[str, Schema]
) -> dict[str, Schema]:
    """Plugin → a reference to the schema of its options, which is added to the definitions."""
    for name, plugin in found.items():
        schema = type(plugin).model_json_schema(schema_generator=_Described)
        definitions |= schema.pop("$defs", {})
        definitions[f"{family}.{name}"] = schema
    return {name: {"$ref": f"#/$defs/{family}.{name}"} for name in found}


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Key → its description, from the `Args` sections of a model's docstring and of the models it inherits from.

    Args:
        model: A model whose docstring describes its fields in Google style.

    Example:
        >>> from octobert.config.training import Finetune
        >>> descriptions(Finetune)["learning_rate"]
        'Peak learning rate.'
    """
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        texts |= arguments_of(base.__dict__.get("__doc__"))
    return texts


def _plugin(key: str, names: Collection[str], options: dict[str, Schema]) -> Schema:
    """The schema of a key whose value is a plugin, or a list of plugins."""
    annotation = Recipe.model_fields[key].annotation
    choices: list[Schema] = [{"enum": sorted(names)}]
    for name, reference in options.items():
        # `{name: {option: value}}`
        choices.append(
            {
                "type": "object",
                "properties": {name: reference},
                "required": [name],
                "additionalProperties": False,
            }
        )
    if annotation is Choice:
        return {"oneOf": choices}
    items = {"oneOf": choices} if options else choices[0]
    return {"anyOf": [{"type": "array", "items": items}, *choices]}


def _allow_short_forms_(recipe: Schema, data: Schema) -> None:
    """`data: FOLDER`, `calibrate: SPLIT` and `metric: NAME` are short forms; the schemas are edited in place."""
    short: list[tuple[Schema, str, str]] = [(recipe, "data", "Data")]
    short += [
        (data, key, "RowSelection")
        for key, field in Data.model_fields.items()
        if field.annotation is RowSelection
    ]
    for properties, key, name in short:
        either = [{"type": "string"}, {"$ref": f"#/$defs/{name}"}]
        properties[key] = {"description": properties[key]["description"], "anyOf": either}
    metric = recipe["metric"]
    either = [{"type": "array", "items": metric["items"]}, *metric["items"]["anyOf"]]
    recipe["metric"] = {"description": metric["description"], "anyOf": either}


class _Described(GenerateJsonSchema):
    """Schemas of models with the texts of their docstrings, and without titles that only say names again."""

    def model_schema(self, schema: Any) -> Schema:
        """The schema of one model."""
        model, definition = schema["cls"], super().model_schema(schema)
        summary = inspect.cleandoc(model.__dict__.get("__doc__") or "").split("\n\n")[0]
        definition.pop("description", None)
        if summary and not summary.startswith("Args:"):
            definition["description"] = " ".join(summary.split())
        texts = descriptions(model)
        for name, entry in definition.get("properties", {}).items():
            entry.pop("title", None)
            if name in texts:
                entry["description"] = texts[name]
        definition.pop("title", None)
        return definition
