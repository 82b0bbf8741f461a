"""Searches: the fields of passes that are varied, alternatives of passes, and the strategy.

A field is open where the config lists its values, or leaves it to the search: with `SEARCHABLE_VALUES`, or by not naming a
field that Olive varies by default.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octobert_olive.nodes import Node, joined
from octobert_olive.rules import (
    SEARCHABLE,
    Config,
    Draft,
    OlivePass,
    OliveSearch,
    apply,
    computed,
    names,
)
from octobert_olive.systems import are

# Options that both methods have.
_SHARED = ("per_channel", "reduce_range", "embeddings", "disable", "enable")


def search_of(config: Config, steps: list[OlivePass]) -> OliveSearch | None:
    """An empty search, if the config asks for one and has something to search over."""
    trained = any(step.kind == "quantizationawaretraining" for step in steps)
    if config.searches and not trained:
        return (
            OliveSearch() if any(step.others or _fields_of_search(step) for step in steps) else None
        )
    return None


def _fields_of_search(step: OlivePass) -> dict[str, tuple[Node, list[Any]]]:
    """Fields that a search varies, with their values in the recipe; also those that the config does not name."""
    fields = dict(step.node.items())
    opened: dict[str, tuple[Node, list[Any]]] = {}
    for name, node in fields.items():
        if values := _values(name, node.value):
            opened[name] = node, values
    if "disable_search" not in fields or fields["disable_search"].value is not True:
        for name in names("varied_by_default").get(step.kind, []):
            if name not in fields:
                node = replace(
                    step.node, value=SEARCHABLE, path=joined(step.node.path, name), is_default=True
                )
                opened[name] = node, _values(name, SEARCHABLE)
    return opened


def _values(name: str, value: Any) -> list[Any]:
    """The values of an open field as the recipe has them; none for a field with one value."""
    if name not in names("searched"):
        return []
    recipe_values = names("searched")[name][1]
    if isinstance(value, Mapping):
        value = value.get(
            "values", SEARCHABLE if str(value.get("type", "")).lower() == "boolean" else None
        )
    if value == SEARCHABLE:
        return [
            recipe_values[key]
            for key in recipe_values
            if not key.startswith("q") or name == "quant_format"
        ]
    words = [str(word).lower() for word in value] if isinstance(value, list) else []
    values: list[Any] = []
    add(values, [recipe_values[word] for word in words if word in recipe_values])
    return values


def _left_out(name: str, value: Any) -> str:
    """What is said of values that octobert has no word for."""
    _, known, *left = names("searched")[name]
    if isinstance(value, list):
        left = [str(word) for word in value if str(word).lower() not in known]
    return f"without {', '.join(left)}" if left else ""


def open_fields(draft: Draft, step: OlivePass) -> set[str]:
    """Add the open fields of a pass to the space of the search; their names."""
    assert draft.search is not None
    opened = _fields_of_search(step)
    method = "dynamic" if "dynamic" in step.kind else "static"
    modes = opened.get("quant_mode") or opened.get("approach")
    methods = modes[1] if modes else [method]
    for name, (node, values) in opened.items():
        key = names("searched")[name][0]
        for place in dict.fromkeys(key.replace("*", method_name) for method_name in methods):
            add(draft.search.space.setdefault(place, []), values)
        draft.opened.add(node.path)
        draft.search.fields.append((node, name, key.replace("*", methods[0])))
    return set(opened)


def add(values: list[Any], more: list[Any]) -> None:
    """Append what is not there yet."""
    values.extend(value for value in more if value not in values)


def set_search(draft: Draft) -> None:
    """Set `search`, once method, targets, goals and the strategy are known."""
    if draft.search is None:
        return
    space: dict[str, list[Any]] = dict(draft.search.space)
    fixed = {
        key: (why, values)
        for able, (key, why, values) in names("fixed_axes").items()
        if key in space and not are(draft, able)
    }
    space |= {key: values for key, (_, values) in fixed.items()}
    forms = _types(draft, space)
    if "quantize" in space or len(forms) > 1:
        methods = [method for method in space.pop("quantize", []) if method != draft.method]
        space = {"quantize": [*forms, *(_beside(draft, method) for method in methods)], **space}
    if draft.get("accuracy") is not None:
        # Each trial has an accuracy-aware pass.
        space["accuracy"] = [draft.recipe.pop("accuracy")]
    # Values that the config fixes are not varied.
    space = {
        key: values
        for key, values in space.items()
        if values and key.rpartition(".")[2] not in draft.options
    }
    for node, name, key in draft.search.fields:
        if key in fixed:
            node.refused(f"not varied; {fixed[key][0]}")
        elif key not in space and key != "quantize.static.weights":
            node.refused("not varied; another field says it")
        node.mapped(f"search.space.{key}", _left_out(name, node.value))
    search = {"space": space, **draft.get("search")}
    if search.get("trials") == 0:
        search["trials"] = math.prod(map(len, space.values()))
    if draft.search.goals:
        search["goals"] = list(
            dict.fromkeys(name for _, name in sorted(draft.search.goals, key=lambda goal: goal[0]))
        )
    if draft.search.limits:
        search["limits"] = draft.search.limits
    draft.set("search", search)


def _types(draft: Draft, space: dict[str, list[Any]]) -> list[Any]:
    """The recipe's method, once for each type that is varied: Olive varies those of weights and activations as one."""
    method = draft.recipe["quantize"]
    if (
        draft.method != "static"
        or "quantize.static.weights" not in space
        or {"weights", "activations"} & draft.options.keys()
        or "quantize.static.activations" in space
    ):
        return [copy.deepcopy(method)]
    options = method["static"] if isinstance(method, dict) else {}
    zero_point = {"uint8": {"weights_symmetric": False}}
    forms = [
        {"static": {**options, "activations": name, "weights": name, **zero_point.get(name, {})}}
        for name in space.pop("quantize.static.weights")
    ]
    draft.recipe["quantize"] = copy.deepcopy(forms[0])
    return forms


def _beside(draft: Draft, method: Any) -> Any:
    """Another method, with the options that the config gives to both."""
    options = {name: value for name, value in draft.options.items() if name in _SHARED}
    return {method: options} if method == "dynamic" and options else method


@computed
def strategy(draft: Draft, node: Node) -> None:
    """The strategy of a search, or of one that has nothing to vary."""
    if draft.search is None and node.is_mapping:
        apply(draft, _flat(node), "no_search")
    elif draft.search is None and node.value is True and draft.get("accuracy") is None:
        node.refused("a search needs a goal for a metric")
    elif draft.search is None:
        node.not_needed(
            "the plan is searched if the recipe has an accuracy criterion, and only then"
        )
    else:
        draft.set("search.sampler", "exhaustive")
        apply(draft, _flat(node), "search")
        if not node.is_mapping:
            node.mapped(
                "search",
                "Olive's default tries all combinations; fields that the config leaves open are varied as in Olive",
            )


def _flat(node: Node) -> Node:
    """A strategy whose sampler has settings of its own."""
    return replace(node, groups=(*node.groups, "sampler_config", "search_algorithm_config"))


@computed
def accuracy_minutes(draft: Draft, node: Node) -> None:
    """A time limit where nothing is varied."""
    if draft.get("accuracy") is not None:
        draft.set("accuracy.minutes", node.value / 60, node, "from seconds")
    else:
        node.refused("a time limit needs an accuracy goal to search for")


@computed
def search_trials(draft: Draft, node: Node) -> None:
    """The least of several limits; 0 stands for all combinations."""
    trials, earlier = int(node.value), draft.get("search.trials")
    least = min(trials, earlier) if trials and earlier else trials
    draft.set("search.trials", least, node, "" if least else "all combinations")
