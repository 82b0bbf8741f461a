"""The recipe while it is made from a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from octobert.config.recipe import Recipe
from octobert.importers.olive.layout import Config
from octobert.importers.outcomes import Node

# What a field of a config does to the recipe.
Rule = Callable[["Draft", Node], None]
QUANTIZED = ("static", "dynamic", "weight-only")


class Draft:
    """A recipe as plain data, and what is known of it before its keys can be written.

    Args:
        config: the source.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.recipe: dict[str, Any] = {}
        # The quantization method, and its options. None: no pass quantizes.
        self.method: str | None = None
        self.options: dict[str, Any] = {}
        # The field that asks for float16.
        self.half: Node | None = None
        # The field that says the opset, and those that say the type of weights.
        self.opset: Node | None = None
        self.weights: list[Node] = []
        # Fields that ask for integer operators instead of Q/DQ.
        self.formats: list[Node] = []
        self.task = ""
        self.task_options: dict[str, Any] = {}
        # (batch, sequence) of fixed shapes, and the field that says so.
        self.shape: tuple[int, int] | None = None
        self.shape_fields: list[Node] = []
        # Execution provider and device → the fields that name them.
        self.providers: dict[tuple[str, str], list[Node]] = {}
        # The device of OpenVINO's passes.
        self.openvino_device: str | None = None
        # Targets that passes imply.
        self.implied: dict[str, Node] = {}
        # Fields that ask for inputs and outputs bound to a device.
        self.bound: list[Node] = []
        # Whether the config searches; key of a recipe → values, and the paths of fields that became such values.
        self.searching = False
        self.space: dict[str, list[Any]] = {}
        self.opened: set[str] = set()
        # Keys of `search`; (priority, figure) of its goals; and its limits.
        self.strategy: dict[str, Any] = {}
        self.goals: list[tuple[int, str]] = []
        self.limits: list[dict[str, Any]] = []
        # (execution provider, kind of option, options, field), until the targets are known.
        self.settings: list[tuple[str, str, Mapping[str, Any], Node]] = []

    def set(self, key: str, value: Any, node: Node | None = None, note: str = "") -> None:
        """Set a key of the recipe, such as `data.source`, because of a field of the config."""
        place = self.recipe
        *outer, last = key.split(".")
        for part in outer:
            place = place.setdefault(part, {})
        place[last] = value
        if node is not None:
            node.mapped(key, note)

    def has(self, key: str) -> bool:
        """Whether a key of the recipe is set."""
        place: Any = self.recipe
        for part in key.split("."):
            if not isinstance(place, dict) or part not in place:
                return False
            place = place[part]
        return True

    def option(self, name: str, value: Any, node: Node, note: str = "") -> None:
        """Set an option of the quantization method."""
        self.options[name] = value
        node.mapped(f"quantize.{self.method}.{name}", note)

    def task_option(self, name: str, value: Any, node: Node, note: str = "") -> None:
        """Set an option of the task."""
        self.task_options[name] = value
        node.mapped(f"task.{self.task}.{name}", note)

    def ordered(self) -> dict[str, Any]:
        """The recipe with its keys in their usual order."""
        order = list(Recipe.model_fields)
        return dict(sorted(self.recipe.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def apply(draft: Draft, node: Node, *tables: Mapping[str, Rule]) -> None:
    """Apply to each field of a mapping the rule of the first table that has one. Fields without a rule are unknown."""
    for name, field in node.items():
        if field.path in draft.opened:
            continue
        rule = next((table[name] for table in tables if name in table), None)
        if rule is not None and field.value is not None:
            rule(draft, field)
        elif rule is not None:
            field.not_needed("null is the default")


def needless(why: str) -> Rule:
    """A rule for fields that octobert needs no key for."""
    return lambda _, node: node.not_needed(why)


def refuse(why: str) -> Rule:
    """A rule for fields that ask for what octobert does not do."""
    return lambda _, node: node.refused(why)


def false_is_default(why: str) -> Rule:
    """A rule for switches: off is what octobert does, and on is refused."""

    def rule(_: Draft, node: Node) -> None:
        if node.value in (False, 0, "", [], {}, None):
            node.not_needed("off, as in octobert")
        else:
            node.refused(why)

    return rule


def key(name: str, values: Mapping[Any, Any] | None = None, note: str = "") -> Rule:
    """A rule that copies a value to a recipe key, or looks it up."""

    def rule(draft: Draft, node: Node) -> None:
        if values is not None and node.value not in values:
            node.refused(f"{name} takes {', '.join(map(str, values.values()))}")
            return
        draft.set(name, values[node.value] if values else node.value, node, note)

    return rule
