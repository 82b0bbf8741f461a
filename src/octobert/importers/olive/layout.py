"""The parts of an Olive config, in whichever of its layouts they stand.

Versions differ in grouping, not in meaning. Fields of the engine stand at the top or in `engine`; fields of models, systems,
passes, metrics and data components stand flat or in `config`, `params`, `user_config` or `hf_config`; passes are a mapping of
objects, a mapping of lists, or a list; data configs, evaluators and systems are named or written in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from octobert.core.errors import RecipeError, did_you_mean
from octobert.importers.outcomes import Node

GROUPS = ("engine", "config", "params", "user_config", "hf_config", "components", "params_config")
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

    @property
    def quantizes(self) -> bool:
        """Whether the pass quantizes, or trains for it."""
        return "quantization" in self.kind


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
        if not isinstance(node.value, Mapping):
            raise RecipeError(
                "the config has no input_model",
                where=self.where,
                expected='{"type": …, "model_path": …}',
            )
        return node

    def passes(self) -> list[Pass]:
        """The passes in the order in which they run; of several flows, those of the first.

        Raises:
            RecipeError: a flow or a type is not there.
        """
        passes, flows = self.root.get("passes"), self.root.get("pass_flows")
        if isinstance(passes.value, Mapping):
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

    def _pass(self, name: str, named: Mapping[str, list[Node]]) -> Pass:
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
            steps.append(Pass(name, kind.lower, node))
        return replace(steps[0], others=tuple(steps[1:]))

    def named(self, field: str, reference: Node) -> Node:
        """What a field refers to: by its name in `systems`, `evaluators` or `data_configs`, or written in place.

        Raises:
            RecipeError: there is nothing of that name.
        """
        if not reference or isinstance(reference.value, Mapping):
            return reference
        name = reference.text
        if name == MODEL_DATA:
            reference.not_needed("names the data set of the model")
            return self.model.get("dataset")
        objects = self.objects(field)
        if name not in objects:
            what = f'{field} has no "{name}"'
            raise RecipeError(
                what, where=f"{self.where}: {reference.path}", fix=did_you_mean(name, objects)
            )
        reference.not_needed(f"names the object in {field}")
        return objects[name]

    def objects(self, field: str) -> dict[str, Node]:
        """Name → object, of `systems`, `evaluators` or `data_configs`, which are mappings or lists of objects with names."""
        node = self.root.get(field)
        if isinstance(node.value, Mapping):
            return dict(node.items())
        objects = {}
        for element in node.elements():
            name = element.get("name")
            if name:
                name.not_needed(f"names the object in {field}")
                objects[name.text] = element
        return objects
