"""A search of Olive becomes `search`: the fields of passes that it varies, alternatives of passes, the strategy, and goals.

A field is open where the config lists its values, or leaves it to the search: with `SEARCHABLE_VALUES`, or by not naming a
field that Olive varies by default.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from octobert.importers.olive import systems
from octobert.importers.olive.draft import Draft, Rule, apply, needless, refuse
from octobert.importers.olive.layout import Config, Pass
from octobert.importers.outcomes import Node

SEARCHABLE = "SEARCHABLE_VALUES"
_SWITCH = {"true": True, "false": False}
_TYPES = {"qint8": "int8", "quint8": "uint8", "int8": "int8", "uint8": "uint8"}
_WIDE = {**_TYPES, "qint16": "int16", "quint16": "uint16", "int16": "int16", "uint16": "uint16"}
_METHODS = {"static": "static", "dynamic": "dynamic"}
# Field of a pass → the recipe's key, and Olive's values in lower case → the recipe's. `*` is the method.
FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "quant_mode": ("quantize", _METHODS),
    "approach": ("quantize", _METHODS),
    "calibrate_method": ("calibrate", {"minmax": "minmax", "entropy": "entropy", "percentile": "percentile"}),
    "per_channel": ("quantize.*.per_channel", _SWITCH),
    "reduce_range": ("quantize.*.reduce_range", _SWITCH),
    "activation_symmetric": ("quantize.static.symmetric", _SWITCH),
    "activation_type": ("quantize.static.activations", _WIDE),
    "precision": ("quantize.static.weights", _TYPES),
    "weight_type": ("quantize.static.weights", _TYPES),
    "quant_format": ("format", {"qdq": "qdq", "qoperator": "qoperator"}),
}
_CALIBRATED = ("calibrate_method", "per_channel", "reduce_range", "quant_format")
# Type of a pass → fields that Olive varies where the config does not name them.
_BY_DEFAULT = {
    "onnxquantization": ("quant_mode", *_CALIBRATED),
    "onnxstaticquantization": _CALIBRATED,
    "onnxdynamicquantization": ("per_channel", "reduce_range"),
    "incquantization": ("approach",),
}
_NAMES = {"joint": "joint", "pass-by-pass": "one-pass-at-a-time"}
_SAMPLERS = {"tpe": "tpe", "random": "random", "sequential": "exhaustive", "exhaustive": "exhaustive"}
# Options that both methods have.
_SHARED = ("per_channel", "reduce_range", "embeddings", "disable", "enable")


def is_searched(config: Config, steps: list[Pass]) -> bool:
    """Whether a config asks for a search, and has something to search over."""
    strategy = config.get("search_strategy")
    wanted = strategy is not None and (strategy.value is True or isinstance(strategy.value, Mapping))
    trained = any(step.kind == "quantizationawaretraining" for step in steps)
    return wanted and not trained and any(step.others or _open_fields(step) for step in steps)


def _open_fields(step: Pass) -> dict[str, Node | None]:
    """Fields that a search varies; None for those that the config does not name."""
    given = dict(step.node.items())
    found: dict[str, Node | None] = {name: node for name, node in given.items() if name in FIELDS and _values(name, node)}
    off = given.get("disable_search")
    if off is None or off.value is not True:
        found |= {name: None for name in _BY_DEFAULT.get(step.kind, ()) if name not in given}
    return found


def _values(name: str, node: Node | None) -> list[Any]:
    """The values of an open field as the recipe has them; none for a field with one value."""
    known = FIELDS[name][1]
    raw = SEARCHABLE if node is None else node.value
    if isinstance(raw, Mapping):
        raw = raw.get("values", SEARCHABLE if str(raw.get("type", "")).lower() == "boolean" else None)
    if raw == SEARCHABLE:
        return [known[key] for key in known if not key.startswith("q") or name == "quant_format"]
    values = [known.get(str(value).lower()) for value in raw] if isinstance(raw, list) else []
    return list(dict.fromkeys(value for value in values if value is not None))


def open_(draft: Draft, step: Pass) -> None:
    """Add the open fields of a pass to the space of the search."""
    opened = _open_fields(step)
    both = bool({"quant_mode", "approach"} & opened.keys())
    method = "dynamic" if "dynamic" in step.kind else "static"
    for name, node in opened.items():
        key = FIELDS[name][0]
        for place in [key.replace("*", each) for each in (("static", "dynamic") if both and "*" in key else (method,))]:
            draft.space.setdefault(place, []).extend(
                value for value in _values(name, node) if value not in draft.space.get(place, [])
            )
        if node is not None:
            draft.opened.add(node.path)
            node.mapped(f"search.space.{key.replace('*', method)}")


def finish(draft: Draft) -> None:
    """Set `search`, once method, targets, goals and the strategy are known."""
    if not draft.searching:
        return
    space = dict(draft.space)
    if not set(draft.recipe["targets"]) <= set(systems.QOPERATOR):
        space.pop("format", None)
    if not set(draft.recipe["targets"]) <= set(systems.UNSIGNED) and "quantize.static.weights" in space:
        space["quantize.static.weights"] = ["int8"]
    if "quantize" in space:
        methods = [each for each in space.pop("quantize") if each != draft.method]
        space = {"quantize": [copy.deepcopy(draft.recipe["quantize"]), *(_beside(draft, each) for each in methods)], **space}
    if draft.has("accuracy"):
        # Each trial has an accuracy-aware pass.
        space["accuracy"] = [draft.recipe.pop("accuracy")]
    for key in [key for key in space if key.startswith("quantize.") and key.split(".")[2] in draft.options]:
        # A value that the config fixes.
        del space[key]
    search = {"space": space, **draft.strategy}
    if search.get("trials") == 0:
        search["trials"] = math.prod(len(values) for values in space.values())
    if draft.goals:
        search["goals"] = list(dict.fromkeys(name for _, name in sorted(draft.goals, key=lambda goal: goal[0])))
    if draft.limits:
        search["limits"] = draft.limits
    draft.set("search", search)


def _beside(draft: Draft, method: Any) -> Any:
    """Another method, with the options that the config gives to both."""
    options = {name: value for name, value in draft.options.items() if name in _SHARED}
    return {method: options} if method == "dynamic" and options else method


def strategy(draft: Draft, node: Node) -> None:
    """Read the strategy of a search."""
    draft.strategy = {"sampler": "exhaustive"}
    if not isinstance(node.value, Mapping):
        node.mapped(
            "search", "Olive's default tries all combinations; fields that the config leaves open are varied as in Olive"
        )
        return
    nested = Node(node.value, node.path, node.ledger, (*node.nests, "sampler_config", "search_algorithm_config"))
    apply(draft, nested, _STRATEGY)


def _choice(key: str, values: Mapping[str, str]) -> Rule:
    def rule(draft: Draft, node: Node) -> None:
        name = values.get(node.text.lower())
        if name is None:
            node.refused(f"search.{key} is one of {', '.join(dict.fromkeys(values.values()))}")
            return
        draft.strategy[key] = name
        node.mapped(f"search.{key}")

    return rule


def _number(key: str, factor: float = 1, note: str = "") -> Rule:
    def rule(draft: Draft, node: Node) -> None:
        if not isinstance(node.value, int | float) or node.value < 0:
            node.refused("it is not a number")
            return
        value = node.value * factor if factor != 1 else int(node.value)
        if key == "trials" and value and draft.strategy.get(key):
            value = min(value, draft.strategy[key])
        draft.strategy[key] = value
        node.mapped(f"search.{key}", note if value or key != "trials" else "all combinations")

    return rule


def _params(draft: Draft, node: Node) -> None:
    if node.value is False:
        node.refused("fields of passes that have several values are varied")
    else:
        node.not_needed("fields of passes are varied")


def _models(draft: Draft, node: Node) -> None:
    if node.value == 1:
        node.not_needed("the best model is packaged")
    else:
        node.refused("the best model is packaged; report.json has the figures of all")


_TRIALS = _number("trials")
_STRATEGY: dict[str, Rule] = {
    "execution_order": _choice("order", _NAMES),
    "sampler": _choice("sampler", _SAMPLERS),
    "search_algorithm": _choice("sampler", _SAMPLERS),
    "seed": _number("seed"),
    "max_samples": _TRIALS,
    "num_samples": _TRIALS,
    "max_iter": _TRIALS,
    "max_time": _number("minutes", 1 / 60, "from seconds"),
    "stop_when_goals_met": needless("the best of all trials is packaged, not the first that meets the goals"),
    "output_model_num": _models,
    "include_pass_params": _params,
    "multivariate": needless("the sampler looks at all keys together"),
    "group": refuse("the sampler looks at all keys together"),
}


def limit(draft: Draft, goal: Node, figure: str) -> None:
    """Set a limit of the search from a goal.

    Args:
        figure: name of a figure as `search.limits` has them.
    """
    kind, value = goal.get("type"), goal.get("value")
    if kind is None or value is None or not isinstance(value.value, int | float):
        goal.refused("a goal has a type and a number")
        return
    number, metric = float(value.value), figure.partition("@")[0] not in ("latency", "throughput", "size")
    less = figure.startswith(("latency", "size"))
    if kind.text == "threshold":
        kept: dict[str, Any] | None = {"at_most" if less else "at_least": number / 1e6 if figure == "size" else number}
    elif kind.text == "percent-min-improvement":
        kept = {"min_gain": number}
    elif kind.text == "percent-max-degradation":
        kept = {"max_drop": float(f"{number / 100:.6g}"), "relative": True} if metric else {"min_gain": -number}
    else:
        kept = {"max_drop": number} if kind.text == "max-degradation" and metric else None
    if kept is None:
        goal.refused("write it in percent of the float model's figure, or as a threshold")
        return
    draft.limits.append({**({} if figure == "metric" else {"of": figure}), **kept})
    goal.mapped("search.limits", "compared with the float model in ONNX Runtime" if kind.text != "threshold" else "")
