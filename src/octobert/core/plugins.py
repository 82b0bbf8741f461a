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
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Generic, TypeVar, cast

from octobert.core.axes import Axis
from octobert.core.errors import RecipeError, did_you_mean

P = TypeVar("P")

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
