"""The parts of an Olive config, in whichever of its layouts they stand.

Versions differ in grouping, not in meaning. Fields of the engine stand at the top or in `engine`; fields of models, systems,
passes, metrics and data components stand flat or in `config`, `params`, `user_config` or `hf_config`; passes are a mapping of
objects, a mapping of lists, or a list; data configs, evaluators and systems are named or written in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octobert.core.errors import RecipeError, did_you_mean
from octobert.importers.outcomes import Ledger, Node

NESTS = ("engine", "config", "params", "user_config", "hf_config", "components", "params_config")
# Fields at the top that change what is built, in layouts that this importer does not read.
_OTHER_LAYOUTS = {
    "builds": "several builds in one file; write one config for each build",
    "workflow_host": "a workflow on another machine; run octobert there",
    "auto_optimizer_config": "settings of Olive's auto optimizer; list the passes",
}
# The data set of the model itself, in configs of Olive 0.2 to 0.5.
MODEL_DATA = "__input_model_data_config__"


@dataclass(frozen=True)
class Pass:
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
    others: tuple[Pass, ...] = ()


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

    def get(self, name: str) -> Node | None:
        """A field of the top, or of the engine."""
        return self.root.get(name)

    @property
    def model(self) -> Node:
        """The input model.

        Raises:
            RecipeError: there is none.
        """
        node = self.get("input_model")
        if node is None or not isinstance(node.value, Mapping):
            raise RecipeError("the config has no input_model", where=self.where, expected='{"type": …, "model_path": …}')
        return node

    def passes(self) -> list[Pass]:
        """The passes in the order in which they run; of several flows, those of the first.

        Raises:
            RecipeError: a flow or a type is not there.
        """
        given = self.get("passes")
        named: dict[str, list[Node]] = {}
        if given is not None and isinstance(given.value, Mapping):
            named = {
                key: node.elements() if isinstance(node.value, list) and node.value else [node] for key, node in given.items()
            }
        elif given is not None:
            named = {str(index): [node] for index, node in enumerate(given.elements())}
        order = list(named)
        flows = self.get("pass_flows")
        if flows is None or not flows.value:
            return [self._pass(name, named) for name in order]
        first, *others = flows.elements()
        # Scalars of a list of lists are one leaf.
        flows.not_needed("passes are taken in the order of the first flow") if not others else flows.refused(
            f"a recipe has one order of passes, that of the first flow: {', '.join(map(str, first.value))}; in a search, "
            "passes of the others that quantize are alternatives"
        )
        steps = [self._pass(str(name), named) for name in first.value]
        more = [str(name) for flow in others for name in flow.value if name not in first.value]
        return self._beside(steps, [self._pass(name, named) for name in dict.fromkeys(more)], named)

    def _beside(self, steps: list[Pass], more: list[Pass], named: Mapping[str, list[Node]]) -> list[Pass]:
        """Steps, with passes of other flows as alternatives of the one that quantizes."""
        place = next((index for index, step in enumerate(steps) if "quantization" in step.kind), None)
        used = {step.name for step in steps}
        if place is not None:
            beside = [each for each in more if "quantization" in each.kind]
            steps[place] = replace(steps[place], others=(*steps[place].others, *beside))
            used |= {each.name for each in beside}
        for name in named.keys() - used:
            for node in named[name]:
                node.refused("the first flow does not run this pass")
        return steps

    def _pass(self, name: str, named: Mapping[str, list[Node]]) -> Pass:
        if name not in named:
            raise RecipeError(f'there is no pass "{name}"', where=f"{self.where}: pass_flows", fix=did_you_mean(name, named))
        found = []
        for node in named[name]:
            kind = node.get("type")
            if kind is None:
                raise RecipeError("the pass has no type", where=f"{self.where}: {node.path}")
            found.append(Pass(name, kind.text.lower(), node))
        return replace(found[0], others=tuple(found[1:]))

    def named(self, field: str, reference: Node | None) -> Node | None:
        """What a field refers to: by its name in `systems`, `evaluators` or `data_configs`, or written in place.

        Raises:
            RecipeError: there is nothing of that name.
        """
        if reference is None or isinstance(reference.value, Mapping):
            return reference
        objects = self.objects(field)
        name = reference.text
        if name == MODEL_DATA:
            reference.not_needed("names the data set of the model")
            return self.model.get("dataset")
        if name not in objects:
            what = f'{field} has no "{name}"'
            raise RecipeError(what, where=f"{self.where}: {reference.path}", fix=did_you_mean(name, objects))
        reference.not_needed(f"names the object in {field}")
        return objects[name]

    def objects(self, field: str) -> dict[str, Node]:
        """Name → object, of `systems`, `evaluators` or `data_configs`, which are mappings or lists of objects with names."""
        node = self.get(field)
        if node is None:
            return {}
        if isinstance(node.value, Mapping):
            return dict(node.items())
        found = {}
        for element in node.elements():
            name = element.get("name")
            if name is not None:
                name.not_needed(f"names the object in {field}")
                found[name.text] = element
        return found


def config_of(raw: Any, *, where: str, folder: Path) -> Config:
    """The config in plain data.

    Raises:
        RecipeError: the data is not an Olive config, or one of a layout that is not read.
    """
    from octobert.importers.olive.document import is_config

    if not is_config(raw):
        expected = "a JSON object with input_model and passes"
        raise RecipeError("the file is not an Olive config", where=where, got=_kind(raw), expected=expected)
    for field, why in _OTHER_LAYOUTS.items():
        if raw.get(field):
            raise RecipeError(f"the config is of another version of Olive's schema: {field} means {why}", where=where)
    return Config(Node(raw, "", Ledger(), NESTS), folder, where)


def _kind(raw: Any) -> str:
    if isinstance(raw, Mapping):
        return f"the keys {', '.join(map(str, list(raw)[:6]))}" if raw else "an empty object"
    return f"a {type(raw).__name__}"
