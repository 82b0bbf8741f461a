"""How changes of a recipe are spelled: keys, values as `--set` takes them, and short texts for names of variants."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import yaml

from octobert.config.recipe import Recipe, plugin_families


def spelled(key: str) -> str:
    """A key with the name of a plugin as its file has it: `quantize.weight-only.per_channel`."""
    first, _, rest = key.partition(".")
    plugin, dot, option = rest.partition(".")
    return (
        f"{first}.{plugin.replace('_', '-')}{dot}{option}"
        if first in plugin_families() and rest
        else key
    )


def of_chosen_plugins(changes: dict[str, Any]) -> dict[str, Any]:
    """Changes without options of plugins that other changes do not choose."""
    single = {
        key: value
        for key, value in changes.items()
        if key in plugin_families() and not isinstance(value, list)
    }
    chosen = {key: plugin_named(value) for key, value in single.items()}

    def fits(key: str) -> bool:
        family, _, rest = key.partition(".")
        return (
            not rest
            or family not in chosen
            or rest.partition(".")[0].replace("_", "-") == chosen[family]
        )

    return {key: value for key, value in changes.items() if fits(key)}


def plugin_named(value: Any) -> str:
    """The name of a plugin, in any spelling of a recipe."""
    name = value.get("name", next(iter(value), "")) if isinstance(value, Mapping) else value
    return str(name).replace("_", "-")


def options_in(value: Any) -> Mapping[str, Any]:
    """The options of a plugin, in any spelling of a recipe."""
    if not isinstance(value, Mapping):
        return {}
    return (value.get("options") if "name" in value else next(iter(value.values()), None)) or {}


def as_text(value: Any) -> str:
    """A value as `--set` takes it."""
    plain = json.loads(json.dumps(value))
    return (
        str(yaml.safe_dump(plain, default_flow_style=True, width=math.inf))
        .removesuffix("...\n")
        .strip()
    )


def word(recipe: Recipe, key: str, value: Any) -> str:
    """A short text of a change that no axis names."""
    last = key.rpartition(".")[2].replace("_", " ")
    if key == "accuracy":
        return "some layers float"
    if key in plugin_families():
        values = value if isinstance(value, list) else [] if value is None else [value]
        names = [choice.name for choice in getattr(recipe, key)] if not values else []
        without = names[0] if len(names) == 1 else last
        return " + ".join(_plugin(plugin) for plugin in values) or f"no {without}"
    if isinstance(value, bool) or value is None:
        return last if value else f"no {last}"
    return f"{last} {' + '.join(map(str, value)) if isinstance(value, list) else value}"


def _plugin(value: Any) -> str:
    """A plugin with its options: `percentile 99.9`."""
    return " ".join((plugin_named(value), *map(str, options_in(value).values())))
