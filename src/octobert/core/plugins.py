"""Plugins: modules that are found by their names. `load("targets", "openvino-cpu")` imports `octobert/targets/openvino_cpu.py`.

There is no registry. The package of each family defines a `Protocol` for its plugins, and a typed `load`. Files whose names
start with an underscore are shared code. Other Python packages add plugins through entry points of the group
`octobert.<family>`, such as `octobert.targets`: the name of the entry point is the name of the plugin, its value is a module.

Importing a plugin must not import a runtime (onnxruntime, openvino, torch, transformers). `tests/test_plugins.py` checks all of
this.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel

from octobert.core.axes import Axis
from octobert.core.errors import RecipeError, did_you_mean

P = TypeVar("P")
C = TypeVar("C", bound=BaseModel)

# Family → the package that holds its plugins.
PACKAGES = {
    "calibrators": "octobert.quantization.calibrators",
    "corrections": "octobert.quantization.corrections",
    "families": "octobert.models.families",
    "importers": "octobert.config.importers",
    "methods": "octobert.quantization.methods",
    "placements": "octobert.quantization.placements",
    "profilers": "octobert.inspection.profilers",
    "runtimes": "octobert.targets.runtimes",
    "sources": "octobert.models.sources",
    "targets": "octobert.targets",
    "tasks": "octobert.tasks",
    "transforms": "octobert.quantization.transforms",
}
FAMILIES = tuple(PACKAGES)
SINGULAR = {"families": "encoder family"}


def names(family: str) -> tuple[str, ...]:
    """Return the names of all plugins of a family, sorted.

    Args:
        family: a key of `PACKAGES`.

    Example:
        >>> names("corrections")
        ('bias-correction', 'weight-rounding')
    """
    return tuple(sorted({*_builtin(family), *_installed(family)}))


def load(family: str, name: str, *, where: str | None = None) -> ModuleType:
    """Import a plugin.

    Args:
        family: a key of `PACKAGES`.
        name: of the plugin, such as `openvino-cpu`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no plugin of that name. The message suggests a similar one.
    """
    if name in _builtin(family):
        return importlib.import_module(f"{PACKAGES[family]}.{name.replace('-', '_')}")
    if name in _installed(family):
        return importlib.import_module(_installed(family)[name].value)
    singular = SINGULAR.get(family, family.removesuffix("s"))
    raise RecipeError(
        f'there is no {singular} "{name}"', where=where, fix=did_you_mean(name, names(family))
    )


@functools.cache
def _builtin(family: str) -> frozenset[str]:
    package = importlib.import_module(PACKAGES[family])
    modules = (module for module in pkgutil.iter_modules(package.__path__) if not module.ispkg)
    return frozenset(
        module.name.replace("_", "-") for module in modules if not module.name.startswith("_")
    )


@functools.cache
def _installed(family: str) -> dict[str, EntryPoint]:
    """Return the plugins of other packages. Where names are equal, the plugin of octobert is used."""
    return {
        point.name: point
        for point in entry_points(group=f"octobert.{family}")
        if point.name not in _builtin(family)
    }


def options_of(family: str, name: str) -> type[BaseModel]:
    """Return the model of a plugin's options: the plugin itself, where its family is one of classes.

    Raises:
        RecipeError: there is no plugin of that name.
    """
    classes: Classes[Any] | None = getattr(
        importlib.import_module(PACKAGES[family]), "PLUGINS", None
    )
    model: type[BaseModel] = load(family, name).Options if classes is None else classes.load(name)
    return model


class Classes(Generic[C]):
    """The plugins of a family that are frozen classes, one in each file. Their fields are their options.

    Args:
        family: a key of `PACKAGES`.
        base: what each of them is a subclass of.
    """

    def __init__(self, family: str, base: type[C]) -> None:
        self._family, self._base = family, base

    def names(self) -> tuple[str, ...]:
        """Return the plugins as users write them (`moving-average`), sorted."""
        return names(self._family)

    def load(self, name: str, *, where: str | None = None) -> type[C]:
        """Return the class of one plugin.

        Args:
            name: as users write it.
            where: the recipe key or option that named it, for the error.

        Raises:
            RecipeError: there is no plugin of that name, or its file has not one class of the family.
        """
        module = load(self._family, name, where=where)
        own = [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, self._base)
            and value.__module__ == module.__name__
        ]
        if len(own) != 1:
            raise RecipeError(
                f'the plugin "{name}" has not one class of its family',
                where=module.__name__,
                got=", ".join(each.__name__ for each in own) or "none",
                expected=f"one subclass of {self._base.__name__}",
                fix="update the package that it comes from",
            )
        return own[0]

    def make(self, name: str, options: Mapping[str, Any]) -> C:
        """Return a plugin with its options.

        Raises:
            RecipeError: as `load`.
            ValueError: an option is wrong.
        """
        return self.load(name).model_validate(options)


class Family(Generic[P]):
    """The plugins of one family, typed by the Protocol of their modules.

    Args:
        name: a key of `PACKAGES`.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def names(self) -> tuple[str, ...]:
        """The plugins as users write them (`openvino-cpu`), sorted."""
        return names(self._name)

    def load(self, name: str, *, where: str | None = None) -> P:
        """The module of one plugin.

        Args:
            name: as users write it.
            where: the recipe key or option that named it, for the error.

        Raises:
            RecipeError: no plugin of that name; the message suggests the nearest.
        """
        return cast(P, load(self._name, name, where=where))

    def axes(self) -> tuple[Axis, ...]:
        """What the plugins declare as worth varying (`AXES`); plugins without a declaration are not varied."""
        return tuple(axis for name in self.names() for axis in getattr(self.load(name), "AXES", ()))
