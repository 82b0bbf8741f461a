"""Options that describe a recipe. Options for plain recipe keys are generated from the recipe's models."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

import octobert
from octobert.api._arguments import Positive, column_options
from octobert.cli import _options, _show
from octobert.cli._options import yaml_of
from octobert.core.errors import OctobertError, RecipeError, did_you_mean
from octobert.core.files import storage_errors

if TYPE_CHECKING:
    import inspect

    from octobert.config.recipe import Recipe

MODEL_HELP = "Hub id, folder, package:NAME/PATH, an .onnx file next to its tokenizer, or a .zip file or URL of one of these."
TASK_HELP = "The task: a name, or YAML with its options: '{squad: {max_length: 384}}'."
DATA_HELP = (
    "File, folder, Hub id (glue/mrpc), or SPLIT=FILE. Give it several times for several splits."
)
# Keys with options of another name.
_SPELLINGS = {
    "quantize": "--method",
    "targets": "--target",
    "float_model": "--no-float",
}
# Options that switch something off, which the text of their key describes.
_HELP = {
    "float_model": "Leave the float graph, several times larger than the model in 8 bits, out of the packages. Then evaluate, "
    "benchmark, compare and inspect have nothing to hold the model against.",
    "measure": "Only write the models. Do not evaluate or time them.",
    "profile": "Do not run the measured models under their runtime's profiler: the report does not show what ran in 8 bits.",
    "sensitivity": "Do not estimate the output error of each quantized value: no layer stays in float because of it.",
    "token_states": "For embeddings: write no states of tokens beside the vector. A model that reads the first token only "
    "computes only that in its last layer.",
}
_YAML = "A name, or YAML with its options"
# Keys that commands have arguments or options of their own for.
_EXPLICIT = ("model", "task", "data")


def recipe_options(*without: str) -> Callable[[_options.Command], _options.Command]:
    """Add the options of `recipe_of`, which the command gets as `rows`, and one for each plain key of the recipe, as `keys`.

    Args:
        without: Arguments and keys that mean nothing to the command.
    """

    def decorate(command: _options.Command) -> _options.Command:
        texts = {"task": TASK_HELP, "model": MODEL_HELP}
        rows = _options.from_function(
            recipe_of, without=("keys", *without), texts=texts, panels={"task": "Options"}
        )
        keys = {key: p for key, p in _parameters().items() if key not in without}
        return _options.filled(rows=rows, keys=_options.Options(keys, _value))(
            _options_in_errors(command)
        )

    return decorate


def _options_in_errors(command: _options.Command) -> _options.Command:
    """The command, whose errors name options where they name keys of a recipe, which its user has not written."""

    @functools.wraps(command)
    def wrapped(**values: Any) -> Iterator[Any]:
        try:
            yield from command(**values)
        except OctobertError as error:
            if error.where in _parameters():
                error.where = _option(error.where)
            error.fix = error.fix and in_options(error.fix)
            raise

    return wrapped


def in_options(text: str) -> str:
    """A text with options instead of keys of a recipe with their values.

    Example:
        >>> in_options("set transforms: [], or data.tune.samples: 50 (data.allow_leakage: true)")
        'set --transforms none, or --set data.tune.samples=50 (--allow-leakage)'
    """
    from octobert.config.recipe import Recipe

    def option(setting: re.Match[str]) -> str:
        key, value = setting.groups()
        if key == "data.allow_leakage" and value == "true":
            return "--allow-leakage"
        if key not in _parameters():
            return f"--set {key}={value}"
        return f"{_option(key)} {'none' if value == '[]' else value}".removesuffix(" true")

    return re.sub(
        rf"\b((?:{'|'.join(Recipe.model_fields)})(?:\.\w+)*): (\[[^]]*\]|[^\s,;){{]+)", option, text
    )


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
            times = ", several times" if several else ""
            text += f" {_YAML}{times}{'; none for none' if several and default else ''}."
        elif several:
            text += " Give it several times."
        if default is not None and default != () and not isinstance(default, bool):
            names = [
                str(getattr(choice, "name", choice))
                for choice in (default if several else (default,))
            ]
            text += f" Default: {', '.join(names)}."
        name = _SPELLINGS.get(key, ("--no-" if default is True else "--") + key.replace("_", "-"))
        info = typer.Option(
            name, help=_options.escaped(text), rich_help_panel=_options.RECIPE_PANEL
        )
        if kind is bool:
            parameters[key] = _options.parameter(key, Annotated[bool, info], False)
        else:
            value: Any = str if kind is Choice else kind
            parameters[key] = _options.parameter(
                key, Annotated[(list[str] if several else value) | None, info], None
            )
    return parameters


def _types(annotation: Any) -> list[Any]:
    """The plain types in an annotation: of `tuple[str, ...] | None`, tuple, str, Ellipsis and NoneType."""
    inner = get_args(annotation)
    outer = [tuple] if get_origin(annotation) is tuple else []
    return outer + [t for argument in inner for t in _types(argument)] if inner else [annotation]


def _value(key: str, value: Any) -> Any:
    """The value of an option as the recipe has it; None for an empty text."""
    from octobert.config.recipe import Recipe, plugin_families

    field = Recipe.model_fields[key]
    if isinstance(value, bool):
        return not field.default
    if value == "":
        return None
    if key != "metric" and (key not in plugin_families() or key == "targets"):
        return _options.split_names(value) if isinstance(value, list) else value
    name = _SPELLINGS.get(key, f"--{key}")
    return (
        [yaml_of(text, name) for text in value if text != "none"]
        if isinstance(value, list)
        else yaml_of(value, name)
    )


def recipe_of(
    model: str,
    task: str,
    data: list[str],
    keys: dict[str, Any],
    changes: list[str] | None = None,
    *,
    samples: Positive | None = None,
    columns: Sequence[str] = (),
    config: str | None = None,
    data_revision: str | None = None,
    text_column: list[str] | None = None,
    label_column: str | None = None,
    max_length: int | None = None,
    allow_leakage: bool = False,
) -> Recipe:
    """The recipe that a command line describes.

    Args:
        model: A model.
        task: Name of the task, or YAML with its options.
        data: File, folder, Hub id (glue/mrpc), or SPLIT=FILE. Give it several times for several splits.
        keys: Other keys of the recipe.
        changes: Set any key of the recipe, as KEY=VALUE with a value in YAML.
        samples: Number of calibration rows. Default: 256.
        columns: Column names, for files without a header.
        config: Configuration of a Hub data set, such as mrpc of GLUE.
        data_revision: Branch, tag or commit of a Hub data set.
        text_column: Columns with the texts: one, or two of a pair.
        label_column: Column with the labels or scores.
        max_length: Maximum sequence length of the task, in tokens.
        allow_leakage: Accept calibration rows that are also evaluated.

    Raises:
        RecipeError: it is not valid.
    """
    rows: dict[str, Any] = {**_data_of(data), "columns": columns, "allow_leakage": allow_leakage}
    rows |= {"config": config} if config is not None else {}
    rows |= {"revision": data_revision} if data_revision is not None else {}
    if samples is not None:
        rows["calibrate"] = {"from": "train", "samples": samples}
    choice = _with_options(yaml_of(task, "--task"), text_column, label_column, max_length)
    raw = {"model": model, "task": choice, "data": rows, **keys}
    return octobert.parse_recipe(raw, where="command line", changes=changes or ())


def tell(recipe: Recipe, save: Path | None) -> None:
    """Print a recipe on stderr, and write it to a file that can be in any folder."""
    from octobert.config import loading

    _show.note(loading.as_file(recipe))
    if save is not None:
        with storage_errors(save):
            save.parent.mkdir(parents=True, exist_ok=True)
            save.write_text(loading.as_file(loading.with_absolute_paths(recipe)), encoding="utf-8")


def _with_options(
    task: Any, texts: list[str] | None, label: str | None, max_length: int | None
) -> Any:
    """A task in either spelling, with its columns and its length. What is no task is refused with the recipe."""
    is_whole = isinstance(task, dict) and len(task) == 1
    name, options = next(iter(task.items())) if is_whole else (task, {})
    if not isinstance(name, str) or not isinstance(options, dict | None):
        return task
    added = column_options(name, texts or (), label) if texts or label else {}
    if max_length is not None:
        added["max_length"] = max_length
    return {name: {**(options or {}), **added}} if added else task


def _data_of(values: list[str]) -> dict[str, Any]:
    """Rows given as one source, or as a file for each split."""
    from octobert.config.recipe import SPLITS

    places: dict[str, Any] = {}
    for value in values:
        split, equals, path = value.partition("=")
        named = bool(equals) and not Path(value).exists()
        key, place = (split, path) if named else ("source", value)
        if key not in ("source", *SPLITS):
            raise RecipeError(
                f'--data names an unknown split "{key}"', got=value, fix=did_you_mean(key, SPLITS)
            )
        if key in places:
            raise RecipeError(
                "--data is given twice for the same rows",
                got=f"{places[key]} and {place}",
                fix="name their splits: --data train=FILE",
            )
        places[key] = place
    return places
