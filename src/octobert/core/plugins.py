"""Plugins: modules that are found by their names. `load("targets", "openvino-cpu")` imports `octobert/targets/openvino_cpu.py`.

There is no registry. The package of each family says of which class its plugins are (`Plugins`), and has a typed `load`. Files
whose names start with an underscore are shared code. Other packages add plugins through entry points of the group
`octobert.<family>`, such as `octobert.targets`: the name of the entry point is the name of the plugin, its value is a module.

A plugin of another package may be broken in any way. `load` says so in a sentence with the name of the package, and `each`, by
which all lists and searches go, leaves it out with a `BrokenPluginWarning`. Plugins of octobert come first in `each`, and
nothing is imported before its turn, so what finds a plugin of octobert runs no code of others. An import takes as long as it
takes: Ctrl-C ends that of one plugin, which then is broken.

Importing a plugin must not import a runtime (onnxruntime, openvino, torch, transformers). `tests/test_plugins.py` checks all of
this.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from traceback import format_exception_only
from types import ModuleType
from typing import Annotated, Any, Generic, Protocol, TypeVar, cast

from pydantic import (
    BaseModel,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    ValidationError,
)

from octobert.core.errors import BrokenPluginWarning, RecipeError, did_you_mean, reason
from octobert.core.frozen import first_problem

P = TypeVar("P")

# Family → the package that holds its plugins.
PACKAGES = {
    "calibrators": "octobert.quantization.calibrators",
    "corrections": "octobert.quantization.corrections",
    "families": "octobert.core.families",
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
GROUP = "octobert."


def names(family: str) -> tuple[str, ...]:
    """Return the names of all plugins of a family, sorted. One of another package may be broken.

    Args:
        family: a key of `PACKAGES`.

    Example:
        >>> names("corrections")
        ('bias-correction', 'weight-rounding')
    """
    return tuple(sorted({*_builtin(family), *installed(family)}))


def load(family: str, name: str, *, where: str | None = None) -> ModuleType:
    """Import a plugin.

    Args:
        family: a key of `PACKAGES`.
        name: of the plugin, such as `openvino-cpu`.
        where: the recipe key or option that named it, for the error.

    Raises:
        RecipeError: there is no plugin of that name, and the message suggests a similar one; or it is broken.
    """
    if name in _builtin(family):
        return importlib.import_module(f"{PACKAGES[family]}.{name.replace('-', '_')}")
    if name not in installed(family):
        raise RecipeError(
            f'there is no {_singular(family)} "{name}"',
            where=where,
            fix=did_you_mean(name, names(family)),
        )
    outcome = _outcome(family, name)
    if isinstance(outcome, RecipeError):
        raise RecipeError(outcome.what, where=where, got=outcome.got, fix=outcome.fix) from outcome
    return outcome


def each(family: str) -> Iterator[tuple[str, ModuleType]]:
    """Yield all plugins of a family that are not broken, with their names: those of octobert first.

    Args:
        family: a key of `PACKAGES`, or `commands`, of which it has those of other packages.
    """
    for name in (*sorted(_builtin(family)), *sorted(installed(family))):
        try:
            yield name, load(family, name)
        except RecipeError as error:
            _leave_out(str(error).rstrip("."))


@functools.cache
def installed(family: str) -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the plugins of other packages: name → the one entry point that has it; several are a mistake.

    Where names are equal, the plugin of octobert is used.
    """
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in _entry_points():
        if point.group == GROUP + family and point.name not in _builtin(family):
            found[point.name] = (*found.get(point.name, ()), point)
    return found


def title_of(package: Distribution | None) -> str:
    """Return the name and the version of a package; where its own facts are damaged, the name of the folder that has them."""
    try:
        facts = package.metadata  # type: ignore[union-attr]
        return " ".join((facts["Name"], facts["Version"]))
    except Exception:  # noqa: BLE001  # damaged facts fail in many ways
        return Path(str(getattr(package, "_path", "unknown"))).stem


@functools.cache
def _outcome(family: str, name: str) -> ModuleType | RecipeError:
    """A plugin of another package, which is imported once, or why it is broken. What it prints is not shown."""
    points = installed(family)[name]
    try:
        if len(points) > 1:
            raise RecipeError("several packages have a plugin of that name")
        if not re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name):
            raise RecipeError("a name has lower-case words with hyphens between them")
        # A plugin may close or replace what it prints to.
        with (
            warnings.catch_warnings(),
            open(os.devnull, "w") as nowhere,
            redirect_stderr(sys.stderr),
            redirect_stdout(nowhere),
        ):
            module = points[0].load()
        _check(module, family, name)
        return cast(ModuleType, module)
    # A plugin that exits, or that a user interrupts because it takes too long, would end the command without a word.
    except BaseException as error:  # noqa: BLE001
        packages = " and ".join(title_of(point.dist) for point in points)
        kind = RecipeError(
            f'the {_singular(family)} "{name}" of the package {packages} is broken',
            got=_said(error),
            fix=f"update the package, or remove it: pip uninstall {packages.partition(' ')[0]}",
        )
        kind.__cause__ = error
        return kind


def _check(module: Any, family: str, name: str) -> None:
    """Raise ValidationError or RecipeError where a module is not what its family asks for."""
    if family not in PACKAGES:
        return
    values = values_of(family)
    plugin = values.value_in(module)
    _check_methods(plugin, values.base)
    if not inspect.isabstract(values.base) and getattr(plugin, "name", name) != name:
        raise RecipeError(f"it calls itself {plugin.name}")


def _said(error: BaseException) -> str:
    if isinstance(error, RecipeError):
        return error.what
    if isinstance(error, ValidationError):
        return first_problem(error)
    return " ".join(format_exception_only(error)[-1].split())


@functools.cache
def _leave_out(sentence: str) -> None:
    """Say once that a plugin is left out."""
    warnings.warn(sentence, BrokenPluginWarning, stacklevel=2)


def _singular(family: str) -> str:
    return SINGULAR.get(family, family.removesuffix("s"))


@functools.cache
def _builtin(family: str) -> frozenset[str]:
    if family not in PACKAGES:
        return frozenset()
    package = importlib.import_module(PACKAGES[family])
    modules = (module for module in pkgutil.iter_modules(package.__path__) if not module.ispkg)
    return frozenset(
        module.name.replace("_", "-") for module in modules if not module.name.startswith("_")
    )


@functools.cache
def _entry_points() -> tuple[EntryPoint, ...]:
    """The entry points of all packages that have one for octobert. Of packages of one name the first on the path counts."""
    points: dict[str, tuple[EntryPoint, ...]] = {}
    for package in distributions():
        try:
            # Names are read only of packages that matter: they take a millisecond each.
            if f"[{GROUP}" in (package.read_text("entry_points.txt") or ""):
                points.setdefault(title_of(package).split()[0], tuple(package.entry_points))
        except Exception as error:  # noqa: BLE001  # damaged facts fail in many ways
            title = title_of(package)
            _leave_out(
                f"the entry points of the package {title} cannot be read ({reason(error)}); "
                f"install it again, or remove it: pip uninstall {title.partition(' ')[0]}"
            )
    return tuple(point for group in points.values() for point in group)


def values_of(family: str) -> Plugins[Any]:
    """Return the plugins of a family as values."""
    plugins: Plugins[Any] = importlib.import_module(PACKAGES[family]).PLUGINS
    return plugins


class Chosen(Protocol):
    """The name of a plugin and its options, as a recipe has them."""

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


class Plugins(Generic[P]):
    """The plugins of a family that are frozen values, one in each file.

    A file defines the one value of the class. Where the class is abstract, it defines one subclass, and the value is the one
    with its defaults: the fields of the subclass are its options.

    Args:
        family: a key of `PACKAGES`.
        base: the class.
    """

    def __init__(self, family: str, base: type[P]) -> None:
        self._family, self.base = family, base
        self._abstract = inspect.isabstract(base)
        # Identities of plugins that were loaded; what is held here keeps its identity.
        self._names: dict[int, tuple[str, object]] = {}

    def names(self) -> tuple[str, ...]:
        """Return the plugins as users write them (`moving-average`), sorted."""
        return names(self._family)

    def load(self, name: str, *, where: str | None = None) -> P:
        """Return one plugin.

        Args:
            name: as users write it.
            where: the recipe key or option that named it, for the error.

        Raises:
            RecipeError: there is no plugin of that name, or it is broken.
        """
        return self._named(name, load(self._family, name, where=where))

    def each(self) -> Iterator[tuple[str, P]]:
        """Yield the plugins that are not broken, with their names: those of octobert first."""
        return ((name, self._named(name, module)) for name, module in each(self._family))

    def value_in(self, module: ModuleType) -> P:
        """Return the one plugin of the family that a module defines.

        Raises:
            RecipeError: it has none, or several, or one that lacks a method or a class variable.
            ValidationError: it lacks a field.
        """
        # One value may have two names.
        members = {id(value): value for value in vars(module).values()}.values()
        found: list[Any]
        if self._abstract:
            kinds = [kind for kind in members if _is_defined_in(module, kind, self.base)]
            # What several plugins share may be defined beside one of them.
            found = [kind for kind in kinds if not inspect.isabstract(kind)] or kinds
        else:
            found = [value for value in members if isinstance(value, self.base)]
        if len(found) != 1:
            kind = f"{'subclasses' if self._abstract else 'values'} of {self.base.__name__}"
            raise RecipeError(f"{module.__name__} has {len(found)} {kind}, not one")
        [own] = found
        if self._abstract:
            unset = {name for name in own.__class_vars__ if not hasattr(own, name)}
            if lacking := sorted(unset | own.__abstractmethods__):
                raise RecipeError(f"{own.__name__} lacks {', '.join(lacking)}")
        plugin: P = own() if self._abstract else own
        return plugin

    def make(self, choice: Chosen) -> P:
        """Return the plugin that a recipe names, with its options.

        Raises:
            RecipeError: as `load`.
            ValueError: an option is wrong.
        """
        return self._made(choice.name, choice.options)

    def name_of(self, plugin: P) -> str:
        """Return the name of a plugin, whatever its options are.

        Raises:
            RecipeError: it is not of this family, or was not loaded by a name.
        """
        named, _ = self._names.get(self._identity(plugin), (None, None))
        module = type(plugin).__module__
        if named is None and module.rpartition(".")[0] == PACKAGES[self._family]:
            named = module.rpartition(".")[2].replace("_", "-")
        if named is None:
            raise RecipeError(
                f"the {_singular(self._family)} has no name",
                got=type(plugin).__qualname__,
                fix=f"add its module to the entry points {GROUP}{self._family} of its package",
            )
        return named

    def written(self, plugin: P) -> dict[str, Any]:
        """Return a plugin as plain data, with the options that are set: a recipe has it so."""
        options = (
            plugin.model_dump(mode="json", by_alias=True, exclude_unset=True)
            if isinstance(plugin, BaseModel) and self._abstract
            else {}
        )
        return {"name": self.name_of(plugin), "options": options}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Let fields hold plugins: `Annotated[Calibrator, PLUGINS]`. As plain data, a plugin is its name and its options."""
        return handler.generate_schema(
            Annotated[Any, PlainValidator(self._read), PlainSerializer(self.written)]
        )

    def _read(self, value: Any) -> P:
        if isinstance(value, self.base):
            return value
        return self._made(value["name"], value["options"])

    def _identity(self, plugin: Any) -> int:
        """Return what two plugins of one name have in common."""
        return id(type(plugin) if self._abstract else plugin)

    def _named(self, name: str, module: ModuleType) -> P:
        plugin = self.value_in(module)
        self._names[self._identity(plugin)] = name, (type(plugin), plugin)
        return plugin

    def _made(self, name: str, options: Mapping[str, Any]) -> P:
        plugin: Any = self.load(name)
        made: P = type(plugin).model_validate(options) if self._abstract else plugin
        return made


def _check_methods(plugin: object, base: type) -> None:
    """Raise RecipeError where a method of a plugin takes other parameters than that of its family."""
    for name, declared in vars(base).items():
        if inspect.isfunction(declared) and name[0] != "_":
            _, *wanted = inspect.signature(declared).parameters
            taken = [*inspect.signature(getattr(plugin, name)).parameters]
            if taken[: len(wanted)] != wanted:
                raise RecipeError(f"{name} takes {', '.join(taken)}, not {', '.join(wanted)}")


def _is_defined_in(module: ModuleType, value: Any, base: type) -> bool:
    """Return whether a value is a subclass that the module itself defines, and does not import."""
    return (
        isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    )
