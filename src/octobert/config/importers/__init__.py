"""Configs of other tools become recipes. Each of their fields has an outcome: mapped to a key, not needed, or refused.

An importer is a plugin of the entry point group `octobert.importers`. `octobert import`, `octobert run` and `load_recipe` take
every config that one of them knows.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import yaml

from octobert.config import yaml_text
from octobert.config.loading import moved
from octobert.config.recipe import PlainRecipe
from octobert.core.errors import RecipeError
from octobert.core.frozen import FrozenModel, Row, Tabular
from octobert.core.plain import parsed_json
from octobert.core.plugins import Plugins

Verdict = Literal["mapped", "not needed", "refused"]


class Outcome(FrozenModel):
    """The outcome for one field.

    Args:
        field: its path in the config, such as `passes.conversion.target_opset`.
        value: its value, as JSON.
        verdict: `mapped`, `not needed`, or `refused`.
        key: the recipe key of a mapped field.
        note: why it is not needed or refused, or what differs from the source.
        default: the config does not name the field; the value is what its tool then takes.
    """

    field: str
    value: str
    verdict: Verdict
    key: str | None = None
    note: str = ""
    default: bool = False

    def sentence(self) -> str:
        """The outcome on one line.

        Example:
            >>> Outcome(field="passes.q.per_channel", value="false", verdict="mapped", key="quantize").sentence()
            'passes.q.per_channel = false: mapped to quantize'
        """
        what = f"mapped to {self.key}" if self.key else self.verdict
        value = f"{self.value} (not named: the default)" if self.default else self.value
        return f"{self.field} = {value}: {what}{'; ' if self.key and self.note else ': ' if self.note else ''}{self.note}"


class Importer(FrozenModel, ABC, validate_default=True):
    """What makes recipes of the configs of one tool.

    Args:
        tool: its name, for errors.
        expected: what its configs look like, for errors.
    """

    tool: str
    expected: str

    @abstractmethod
    def is_config(self, raw: Any) -> bool:
        """Return whether plain data is a config of this tool rather than a recipe."""

    @abstractmethod
    def convert(
        self, raw: Any, where: str, folder: Path, as_octobert: bool
    ) -> tuple[PlainRecipe, tuple[Outcome, ...]]:
        """Return the recipe as plain data, and one outcome for each field of the config, in its order.

        Args:
            raw: a config that `is_config` knows.
            where: name of the config in errors.
            folder: that relative paths are relative to.
            as_octobert: keep model, data, targets and goals, and leave the method to octobert.

        Raises:
            RecipeError: the config asks for what changes the result and octobert cannot do.
        """

    def modules(self) -> AbstractContextManager[None]:
        """While this is open, files of the user can import what scripts for the tool import, also where it is not installed.

        By default nothing more can be imported.
        """
        return nullcontext()


PLUGINS = Plugins("importers", Importer)
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each

_HEADINGS = {
    "refused": "Fields that octobert does not do",
    "mapped": "Fields that became keys of this recipe, and defaults of their tool",
    "not needed": "Fields that octobert needs no key for",
}


class Imported(Tabular):
    """A config as a recipe.

    Args:
        recipe: the recipe as plain data; relative paths are relative to `folder`.
        outcomes: what became of each field of the config, in its order.
        folder: of the config.
        source: name of the config.
        tool: whose config it is.
    """

    recipe: PlainRecipe
    outcomes: tuple[Outcome, ...]
    folder: Path
    source: str
    tool: str

    def text(self, folder: Path | None = None, *, every: bool = False) -> str:
        """The text of a recipe file, with one comment for each field of the config that is refused or mapped.

        Args:
            folder: where the file will be; relative paths follow. Default: the folder of the config.
            every: also the fields that octobert needs no key for.
        """
        recipe = _moved(self.recipe, self.folder, folder or self.folder)
        lines = [f"# Imported from {_line(self.source)}, a config of {self.tool}.", ""]
        lines += [yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, width=120).rstrip()]
        for verdict, heading in _HEADINGS.items():
            chosen = [outcome for outcome in self.outcomes if outcome.verdict == verdict]
            if chosen and (every or verdict != "not needed"):
                lines += [
                    "",
                    f"# {heading}:",
                    *(f"#   {_line(outcome.sentence())}" for outcome in chosen),
                ]
        return "\n".join(lines) + "\n"

    def to_rows(self) -> list[Row]:
        """One row for each field: field, value, verdict, key, note, default. Refused ones come first, then mapped ones."""
        order = list(_HEADINGS)
        ordered = sorted(self.outcomes, key=lambda outcome: order.index(outcome.verdict))
        return [outcome.model_dump() for outcome in ordered]


def read_if_known(path: Path) -> Imported | None:
    """Convert a config file; None where no importer knows it. Mistakes in other files are for the reader of recipes.

    Raises:
        RecipeError: it asks for what changes the result and octobert cannot do.
    """
    try:
        raw = _content_of(path)
    except RecipeError:
        return None
    return None if _importer_of(raw) is None else _of_file(raw, path)


def read(path: Path, *, as_octobert: bool = False) -> Imported:
    """Convert a config file; see `convert`.

    Raises:
        RecipeError: it cannot be read, or as for `convert`.
    """
    return _of_file(_content_of(path), path, as_octobert=as_octobert)


def _of_file(raw: Any, path: Path, *, as_octobert: bool = False) -> Imported:
    try:
        return convert(raw, where=str(path), folder=path.parent, as_octobert=as_octobert)
    except RecursionError:
        raise RecipeError("the config is nested too deeply", where=str(path)) from None


def convert(
    raw: Any, *, where: str = "config", folder: Path = Path(), as_octobert: bool = False
) -> Imported:
    """Convert a config given as plain data.

    Args:
        raw: the config.
        where: name of the config in errors.
        folder: that relative paths are relative to.
        as_octobert: keep model, data, targets and goals, and leave the method to octobert.

    Raises:
        RecipeError: no importer knows it, or it asks for what changes the result and octobert cannot do.
    """
    importer = _importer_of(raw)
    if importer is None:
        got = f"a {type(raw).__name__}"
        if isinstance(raw, Mapping):
            got = f"the keys {', '.join(map(str, list(raw)[:6]))}" if raw else "an empty object"
        raise RecipeError(
            "no importer knows this config",
            where=where,
            got=got,
            expected=", or ".join(f"{other.expected} ({other.tool})" for _, other in each()),
        )
    recipe, outcomes = importer.convert(raw, where, folder, as_octobert)
    name = Path(where).name
    return Imported(
        recipe=recipe, outcomes=outcomes, folder=folder, source=name, tool=importer.tool
    )


def _importer_of(raw: Any) -> Importer | None:
    """The importer that knows a config."""
    return next((importer for _, importer in each() if importer.is_config(raw)), None)


def _content_of(path: Path) -> Any:
    """Read a file.

    Raises:
        RecipeError: it does not exist, cannot be read, is too large, or is neither JSON nor YAML.
    """
    text = yaml_text.text_of(path, "config")
    if path.suffix.lower() != ".json":
        return yaml_text.parse(text, where=str(path), what="the config is not valid YAML")
    try:
        return parsed_json(text, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        raise RecipeError(
            "the file is not valid JSON", where=f"{path}, line {error.lineno}", got=error.msg
        ) from error
    except ValueError as error:
        raise RecipeError(
            "the file is not valid JSON", where=str(path), got=str(error)[:200]
        ) from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f'the key "{key}" is given twice')
        result[key] = value
    return result


def _moved(recipe: PlainRecipe, old: Path, new: Path) -> PlainRecipe:
    """The recipe for a file in another folder: relative paths of files that exist are changed."""
    if old.absolute() == new.absolute():
        return recipe

    def move(name: str) -> str:
        path = old / name
        if Path(name).is_absolute() or not path.exists():
            return name
        return os.path.relpath(path.absolute(), new.absolute())

    return dict(moved(recipe, move))


def _line(text: str) -> str:
    """A text that stays in its comment: YAML ends lines at more characters than Python does."""
    return "".join(c if c.isprintable() else " " for c in text)
