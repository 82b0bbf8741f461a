"""Options that describe a recipe. Options for plain recipe keys are generated from the recipe's models."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from octobert.cli import _show

if TYPE_CHECKING:
    from octobert.config.recipe import Recipe

MODEL_HELP = "Hub id, folder, package:NAME/PATH, an .onnx file next to its tokenizer, or a .zip file or URL of one of these."
TASK_HELP = "The task: a name, or YAML with its options: '{squad: {max_length: 384}}'."
DATA_HELP = "File, folder, Hub id (glue/mrpc), or SPLIT=FILE. Give it several times for several splits."
# Of a data set on the Hub; they stand beside every `--data`.
ConfigOption = Annotated[str | None, typer.Option("--config", help="Configuration of a Hub data set, such as mrpc of GLUE.")]
RevisionOption = Annotated[str | None, typer.Option("--data-revision", help="Branch, tag or commit of a Hub data set.")]
# Keys with options of another name.
_SPELLINGS = {"quantize": "--method", "targets": "--target", "strict": "--repair"}
_HELP = {
    "strict": "Repair a plan that breaks rules of its target.",
    "measure": "Only write the models. Do not evaluate or time them.",
}
_YAML = "A name, or YAML with its options"
# Keys that commands have arguments or options of their own for.
_EXPLICIT = ("model", "task", "data")


def recipe_options(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option for each plain key of the recipe; the command gets the given ones as `keys`.

    Args:
        without: Keys that mean nothing to the command.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        from octobert.config.recipe import RENAMED

        parameters = {key: p for key, p in _parameters().items() if key not in without}
        parameters |= {old: _hidden(old) for old, new in RENAMED.items() if new in parameters}
        parameters["changes"] = _parameter(
            "changes", list[str], "--set", "Set any key of the recipe, as KEY=VALUE with a value in YAML."
        )

        @functools.wraps(command)
        def wrapped(**options: Any) -> None:
            values = {key: options.pop(key) for key in parameters}
            changes = values.pop("changes") or []
            # Options that are not given: None, [] of several values, False of a flag; 0 is a value.
            keys = {key: _value(key, value) for key, value in values.items() if value or (value == 0 and value is not False)}
            with _options_in_errors():
                command(**options, keys=keys, changes=changes)

        return _show.with_parameters(wrapped, command, list(parameters.values()), without=("keys", "changes"))

    return decorate


@contextmanager
def _options_in_errors() -> Iterator[None]:
    """Errors name options of the command line where they name keys of a recipe, which its user has not written."""
    from octobert.core.errors import OctobertError

    try:
        yield
    except OctobertError as error:
        if error.where in _parameters():
            error.where = _option(error.where)
        error.fix = error.fix and in_options(error.fix)
        raise


def in_options(text: str) -> str:
    """A text with options instead of keys of a recipe with their values.

    Example:
        >>> in_options("set transforms: [], or data.tune.samples: 50 (data.allow_leakage: true)")
        'set --transforms none, or --set data.tune.samples=50 (--allow-leakage)'
    """
    from octobert.config.recipe import Recipe

    def option(found: re.Match[str]) -> str:
        key, value = found.groups()
        if key == "data.allow_leakage" and value == "true":
            return "--allow-leakage"
        if key not in _parameters():
            return f"--set {key}={value}"
        return f"{_option(key)} {'none' if value == '[]' else value}".removesuffix(" true")

    return re.sub(rf"\b((?:{'|'.join(Recipe.model_fields)})(?:\.\w+)*): (\[[^]]*\]|[^\s,;){{]+)", option, text)


def _option(key: str) -> str:
    """The option of a plain key."""
    name: str = _parameters()[key].annotation.__metadata__[0].default
    return name


@functools.cache
def _parameters() -> dict[str, inspect.Parameter]:
    """Recipe key → its option, for keys whose values fit on a command line."""
    from octobert.config.recipe import Choice, Recipe
    from octobert.config.schema import descriptions

    texts = {**descriptions(Recipe), **_HELP}
    parameters = {}
    for key, field in Recipe.model_fields.items():
        kinds = {t for t in _types(field.annotation) if t not in (type(None), Ellipsis, tuple)}
        kind = Choice if key == "metric" else next(iter(kinds)) if len(kinds) == 1 else None
        if key in _EXPLICIT or kind not in (bool, int, float, str, Choice):
            continue
        text, default = texts.get(key, ""), field.default
        several = tuple in _types(field.annotation)
        if kind is Choice:
            text += (
                f" {_YAML}{', several times; none for none' if several and default else ', several times' if several else ''}."
            )
        elif several:
            text += " Give it several times."
        if default is not None and default != () and not isinstance(default, bool):
            shown = [
                choice.name if isinstance(choice, Choice) else str(choice) for choice in (default if several else (default,))
            ]
            text += f" Default: {', '.join(shown)}."
        name = _SPELLINGS.get(key, ("--no-" if default is True else "--") + key.replace("_", "-"))
        option_type = list[str] if several else str if kind is Choice else kind
        parameters[key] = _parameter(key, option_type, name, text)
    return parameters


def _types(annotation: Any) -> list[Any]:
    """The plain types in an annotation: of `tuple[str, ...] | None`, tuple, str, Ellipsis and NoneType."""
    inner = get_args(annotation)
    own = [tuple] if getattr(annotation, "__origin__", None) is tuple else []
    return own + [t for argument in inner for t in _types(argument)] if inner else [annotation]


def _parameter(name: str, kind: Any, option: str, text: str, *, hidden: bool = False) -> inspect.Parameter:
    info = typer.Option(option, help=text.replace("[", r"\["), rich_help_panel=_show.RECIPE_PANEL, hidden=hidden)
    annotation = Annotated[kind, info] if kind is bool else Annotated[kind | None, info]
    default = False if kind is bool else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _hidden(old: str) -> inspect.Parameter:
    """The option of a key's old name, which still works, with a note."""
    return _parameter(old, list[str], f"--{old}", "", hidden=True)


def _value(key: str, value: Any) -> Any:
    """The value of an option as the recipe has it."""
    from octobert.config.recipe import RENAMED, Recipe, plugin_families

    field = Recipe.model_fields[RENAMED.get(key, key)]
    if isinstance(value, bool):
        return not field.default
    if key != "metric" and (RENAMED.get(key, key) not in plugin_families() or key == "targets"):
        return _show.split_names(value) if isinstance(value, list) else value
    name = _SPELLINGS.get(key, f"--{key}")
    return [yaml_of(text, name) for text in value if text != "none"] if isinstance(value, list) else yaml_of(value, name)


def recipe_of(
    model: str,
    task: str,
    data: list[str],
    keys: dict[str, Any],
    changes: list[str],
    *,
    samples: int | None = None,
    columns: list[str] | None = None,
    config: str | None = None,
    data_revision: str | None = None,
    max_length: int | None = None,
    allow_leakage: bool = False,
) -> Recipe:
    """The recipe that a command line describes.

    Raises:
        RecipeError: it is not valid.
    """
    import octobert

    rows: dict[str, Any] = {**_data_of(data), "columns": _show.split_names(columns), "allow_leakage": allow_leakage}
    rows |= {key: value for key, value in (("config", config), ("revision", data_revision)) if value is not None}
    if samples is not None:
        rows["calibrate"] = {"from": "train", "samples": samples}
    chosen = _with_option(yaml_of(task, "--task"), "max_length", max_length)
    return octobert.parse_recipe({"model": model, "task": chosen, "data": rows, **keys}, where="command line", changes=changes)


def tell(recipe: Recipe, save: Path | None) -> None:
    """Print a recipe on stderr, and write it to a file that can be in any folder."""
    from octobert.config import loading, paths
    from octobert.core.files import storage_errors

    _show.note(loading.as_file(recipe))
    if save is not None:
        with storage_errors(save):
            save.parent.mkdir(parents=True, exist_ok=True)
            save.write_text(loading.as_file(paths.with_absolute_paths(recipe)), encoding="utf-8")


def yaml_of(text: str, option: str) -> Any:
    """A name, or YAML flow with options.

    Raises:
        RecipeError: the text is neither, or empty.
    """
    from octobert.config import yaml_text
    from octobert.core.errors import RecipeError

    value = yaml_text.parse(text, where=option, what="the value is not a name or YAML")
    if value is None:
        raise RecipeError("the value is empty", where=option, fix="give a value, or leave the option out")
    return value


def _with_option(choice: Any, name: str, value: Any) -> Any:
    """A plugin in either spelling, with an option added."""
    if value is None:
        return choice
    if isinstance(choice, str):
        return {choice: {name: value}}
    if isinstance(choice, dict) and len(choice) == 1:
        plugin, options = next(iter(choice.items()))
        if options is None or isinstance(options, dict):
            return {plugin: {**(options or {}), name: value}}
    return choice


def _data_of(values: list[str]) -> dict[str, Any]:
    """Rows given as one source, or as a file for each split."""
    from octobert.config.recipe import SPLITS
    from octobert.core.errors import RecipeError, did_you_mean

    places: dict[str, Any] = {}
    for value in values:
        split, equals, path = value.partition("=")
        named = bool(equals) and not Path(value).exists()
        key, place = (split, path) if named else ("source", value)
        if key not in ("source", *SPLITS):
            raise RecipeError(f'--data names an unknown split "{key}"', got=value, fix=did_you_mean(key, SPLITS))
        if key in places:
            got = f"{places[key]} and {place}"
            raise RecipeError("--data is given twice for the same rows", got=got, fix="name their splits: --data train=FILE")
        places[key] = place
    return places
