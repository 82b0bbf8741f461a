"""The engine of the import: a field of a config has a row in `fields.yaml`, which says what it does to the recipe.

A rule that a table cannot say is a small function in the module of its subject, which the table names. It gets the recipe
while it is made, a `Draft`, and the field.

`Config` has the parts of a config, in whichever layout they stand. Versions differ in grouping, not in meaning. Fields of the
engine stand at the top or in `engine`; fields of models, systems, passes, metrics and data components stand flat or in
`config`, `params`, `user_config` or `hf_config`; passes are a mapping of objects, a mapping of lists, or a list; data configs,
evaluators and systems are named or written in place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from octobert.config.recipe import PlainRecipe, Recipe
from octobert.core.errors import RecipeError, did_you_mean
from octobert_olive.nodes import Node

_OFF: tuple[Any, ...] = (False, 0, "", [], {}, None)
COMPUTED: dict[str, Callable[[Draft, Node], None]] = {}


SEARCHABLE = "SEARCHABLE_VALUES"
# Mappings that only group fields.
GROUPS = ("engine", "config", "params", "user_config", "hf_config", "components", "params_config")
# The data set of the model itself, in configs of Olive 0.2 to 0.5.
MODEL_DATA = "__input_model_data_config__"


@dataclass(frozen=True)
class OlivePass:
    """One pass.

    Args:
        name: in the config.
        kind: its type in lower case.
        node: its fields.
        others: alternatives, of which a search takes the best.
    """

    name: str
    kind: str
    node: Node
    others: tuple[OlivePass, ...] = ()

    @property
    def quantizes(self) -> bool:
        """Return whether the pass quantizes, or trains for it."""
        return "quantization" in self.kind

    @property
    def takes_ranges(self) -> bool:
        """Return whether the pass takes ranges of activations from calibration rows."""
        mode = self.node.get("quant_mode", "approach").lower
        trains = self.kind == "quantizationawaretraining"
        return self.quantizes and not trains and "dynamic" not in f"{self.kind} {mode}"


@dataclass(frozen=True)
class Config:
    """An Olive config.

    Args:
        root: the whole document.
        folder: that relative paths are relative to.
        where: name of the config in errors.
    """

    root: Node
    folder: Path
    where: str

    @property
    def model(self) -> Node:
        """The input model.

        Raises:
            RecipeError: there is none.
        """
        node = self.root.get("input_model")
        if not node.is_mapping:
            raise RecipeError(
                "the config has no input_model",
                where=self.where,
                expected='{"type": …, "model_path": …}',
            )
        return node

    @property
    def searches(self) -> bool:
        """Return whether Olive would search, and judge goals."""
        strategy = self.root.get("search_strategy")
        return strategy.value is True or strategy.is_mapping

    def passes(self) -> list[OlivePass]:
        """The passes in the order in which they run; of several flows, those of the first.

        Raises:
            RecipeError: a flow or a type is not there.
        """
        passes, flows = self.root.get("passes"), self.root.get("pass_flows")
        if passes.is_mapping:
            named = {name: node.elements() or [node] for name, node in passes.items()}
        else:
            named = {str(index): [node] for index, node in enumerate(passes.elements())}
        if not flows.value:
            return [self._pass(name, named) for name in named]
        first, *others = flows.elements()
        if others:
            flows.refused(
                f"a recipe has one order of passes, that of the first flow: {', '.join(map(str, first.value))}; in a search, "
                "passes of the others that quantize are alternatives"
            )
        else:
            # Scalars of a list of lists are one leaf.
            flows.not_needed("passes are taken in the order of the first flow")
        steps = [self._pass(str(name), named) for name in first.value]
        more = dict.fromkeys(
            str(name) for flow in others for name in flow.value if name not in first.value
        )
        alternatives = [
            step for step in [self._pass(name, named) for name in more] if step.quantizes
        ]
        used = {step.name for step in steps}
        place = next((index for index, step in enumerate(steps) if step.quantizes), None)
        if place is not None:
            steps[place] = replace(steps[place], others=(*steps[place].others, *alternatives))
            used |= {step.name for step in alternatives}
        for name in named.keys() - used:
            for node in named[name]:
                node.refused("the first flow does not run this pass")
        return steps

    def _pass(self, name: str, named: Mapping[str, list[Node]]) -> OlivePass:
        if name not in named:
            raise RecipeError(
                f'there is no pass "{name}"',
                where=f"{self.where}: pass_flows",
                fix=did_you_mean(name, named),
            )
        steps = []
        for node in named[name]:
            kind = node.get("type")
            if not kind:
                raise RecipeError("the pass has no type", where=f"{self.where}: {node.path}")
            steps.append(OlivePass(name, kind.lower, node))
        return replace(steps[0], others=tuple(steps[1:]))

    def named(self, field: str, reference: Node) -> Node:
        """The node that a field refers to: by its name in `systems`, `evaluators` or `data_configs`, or written in place.

        Raises:
            RecipeError: there is nothing of that name.
        """
        if not reference or reference.is_mapping:
            return reference
        name = reference.text
        if name == MODEL_DATA:
            reference.not_needed("names the data set of the model")
            return self.model.get("dataset")
        objects = self.objects(field)
        if name not in objects:
            raise RecipeError(
                f'{field} has no "{name}"',
                where=f"{self.where}: {reference.path}",
                fix=did_you_mean(name, objects),
            )
        reference.not_needed(f"names the object in {field}")
        return objects[name]

    def objects(self, field: str) -> dict[str, Node]:
        """Name → object, of `systems`, `evaluators` or `data_configs`, which are mappings or lists of objects with names."""
        node = self.root.get(field)
        if node.is_mapping:
            return dict(node.items())
        objects = {}
        for element in node.elements():
            name = element.get("name")
            if name:
                name.not_needed(f"names the object in {field}")
                objects[name.text] = element
        return objects


@dataclass
class OliveSearch:
    """The space and the goals of a search.

    Args:
        space: recipe key → values.
        goals: (priority, figure).
        limits: as in the recipe.
        fields: (field, its name, recipe key) of what is varied.
    """

    space: dict[str, list[Any]] = field(default_factory=dict)
    goals: list[tuple[int, str]] = field(default_factory=list)
    limits: list[dict[str, Any]] = field(default_factory=list)
    fields: list[tuple[Node, str, str]] = field(default_factory=list)


@dataclass
class Draft:
    """The recipe while it is made.

    Args:
        config: the source.
        recipe: its keys so far.
        task: of the recipe.
        task_options: its options.
        method: of quantization. None: no pass quantizes.
        options: its options.
        providers: execution provider and device → the fields that name them.
        implied: target → the pass that implies it.
        openvino_device: that passes name.
        sessions: (execution provider, kind of option, options, field), until the targets are known.
        shape: batch and sequence of fixed shapes.
        later: question → the fields that answer it, until the method and the targets are known.
        search: None: the config does not search.
        opened: paths of fields that a search varies.
    """

    config: Config
    recipe: PlainRecipe = field(default_factory=dict)
    task: str = ""
    task_options: dict[str, Any] = field(default_factory=dict)
    method: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    providers: defaultdict[tuple[str, str], list[Node]] = field(
        default_factory=lambda: defaultdict(list)
    )
    implied: dict[str, Node] = field(default_factory=dict)
    openvino_device: str = ""
    sessions: list[tuple[str, str, dict[str, Node], Node]] = field(default_factory=list)
    shape: tuple[int, int] | None = None
    later: defaultdict[str, list[Node]] = field(default_factory=lambda: defaultdict(list))
    search: OliveSearch | None = None
    opened: set[str] = field(default_factory=set)

    def set(self, key: str, value: Any, node: Node | None = None, note: str = "") -> None:
        """Set a key of the recipe, such as `data.source`, because of a field of the config."""
        place = self.recipe
        *outer, last = key.split(".")
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
        if node is not None:
            node.mapped(key, note)

    def get(self, key: str) -> Any:
        """The value of a key of the recipe; None if it is not set."""
        place: Any = self.recipe
        for part in key.split("."):
            place = place.get(part) if isinstance(place, dict) else None
        return place

    def option(self, name: str, value: Any, node: Node, note: str = "") -> None:
        """Set an option of the quantization method."""
        self.options[name] = value
        node.mapped(f"quantize.{self.method}.{name}", note)

    def task_option(self, name: str, value: Any, node: Node) -> None:
        """Set an option of the task."""
        self.task_options[name] = value
        node.mapped(f"task.{self.task}.{name}")

    def ordered(self) -> PlainRecipe:
        """The recipe with its keys in their usual order."""
        order = list(Recipe.model_fields)
        return dict(sorted(self.recipe.items(), key=lambda item: order.index(item[0])))


def computed(function: Callable[[Draft, Node], None]) -> Callable[[Draft, Node], None]:
    """A function that `fields.yaml` or `names.yaml` names."""
    COMPUTED[function.__name__] = function
    return function


@cache
def _tables(name: str) -> dict[str, Any]:
    """The content of a YAML file of this package."""
    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    tables: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tables


def names(table: str) -> Any:
    """A table of `names.yaml`."""
    return _tables("names")[table]


@cache
def fields(table: str) -> dict[str, tuple[str, Any]]:
    """A table of `fields.yaml`: field → (outcome, what it says of it)."""
    groups = _tables("fields")[table].items()
    return {
        name: (outcome, what)
        for outcome, rows in groups
        for row, what in rows.items()
        for name in row.split(", ")
    }


def apply(draft: Draft, node: Node, *tables: str) -> None:
    """Give the fields of a mapping the outcomes of the first table that knows them. Fields in no table are unknown."""
    for name, value in node.items():
        rule = next((rules[name] for rules in map(fields, tables) if name in rules), None)
        if rule is None or value.path in draft.opened:
            continue
        if value:
            apply_rule(draft, value, *rule)
        else:
            value.not_needed("null is the default")


def apply_rule(draft: Draft, node: Node, outcome: str, what: Any) -> None:
    """Give a field the outcome of a row."""
    match outcome:
        case "not needed":
            node.not_needed(what)
        case "refused if on" if node.value in _OFF:
            node.not_needed("off, as in octobert")
        case "refused" | "refused if on":
            node.refused(what)
        case "mapped" | "text":
            key, _, note = what.partition("; ")
            draft.set(key, node.text if outcome == "text" else node.value, node, note)
        case "named":
            key, table, why = what
            name, values = node.value if node.is_number else node.lower, names(table)
            if node.is_default and draft.get(key) is not None:
                # Another field of the pass says it.
                return
            if name in values:
                draft.set(key, values[name], node)
            else:
                node.refused(why)
        case "option" if node.value == SEARCHABLE:
            node.refused("a recipe has one value; the default is taken")
        case "option" if draft.method == "dynamic" and what == "symmetric":
            node.not_needed("dynamic activations have the form that the runtime computes")
        case "option":
            draft.option(what, node.value, node)
        case "value":
            key, template, *notes = what
            draft.set(key, _filled(template, node.value), node, *notes)
        case "implied":
            target, *notes = what
            draft.implied[target] = node
            for note in notes:
                node.mapped("targets", note)
        case "option value":
            name, value = what
            draft.option(name, value, node)
        case "session":
            provider = what.get("provider") or next(iter(draft.providers), ("CPU", ""))[0]
            draft.sessions.append((provider, what["kind"], dict(node.items()), node))
        case "cases":
            apply_rule(
                draft,
                node,
                *next(rule for condition, *rule in what if _holds(draft, node, condition)),
            )
        case "later":
            draft.later[what].append(node)
        case "fields":
            for element in node.elements():
                apply(draft, element, what)
        case _:
            COMPUTED[what](draft, node)


def _holds(draft: Draft, node: Node, condition: Any) -> bool:
    """Return whether a case of a field applies."""
    match condition:
        case "otherwise":
            return True
        case "not empty":
            return bool(node.value)
        case "a list":
            return isinstance(node.value, list) and bool(node.value)
        case "a number":
            return node.is_number and node.value >= 0
        case "a mapping":
            return node.is_mapping
        case "not static":
            return draft.method != "static"
        case bool():
            return node.value is condition
    return bool(node.value == condition or node.lower == condition)


def _filled(template: Any, value: Any) -> Any:
    """A value of the recipe, in which `*` stands for the value of the field, and `* 60` for 60 times as much."""
    if isinstance(template, dict):
        return {key: _filled(inner, value) for key, inner in template.items()}
    if isinstance(template, list):
        return [_filled(inner, value) for inner in template]
    if str(template).startswith("* "):
        return value * float(template[2:])
    return value if template == "*" else template
