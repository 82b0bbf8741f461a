"""Options that describe a recipe: those of `recipe_of`, and one for each key whose value fits on a command line."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_origin

import typer

import octobert
from octobert.api._arguments import Positive, column_options
from octobert.cli import _options, _show
from octobert.cli._options import yaml_of
from octobert.core.errors import OctobertError, RecipeError, did_you_mean

if TYPE_CHECKING:
    from octobert.config.recipe import Recipe

TEXTS = {
    "model": "Hub id, folder, package:NAME/PATH, an .onnx file next to its tokenizer, or a .zip file or URL of one of these.",
    "task": "The task: a name, or YAML with its options: '{squad: {max_length: 384}}'.",
}
# Keys with options of another name.
_SPELLINGS = {"quantize": "--method", "targets": "--target", "float_model": "--no-float"}
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
# Keys that commands have arguments or options of their own for.
_EXPLICIT = ("model", "task")


def recipe_options(
    *without: str, optional: Sequence[str] = ()
) -> Callable[[_options.Command], _options.Command]:
    """Add the options of `recipe_of`, which the command gets as `rows`, and one for each plain key of the recipe, as `keys`.

    Args:
        without: Arguments and keys that mean nothing to the command.
        optional: Arguments that the command itself asks for where it needs them.
    """

    def decorate(command: _options.Command) -> _options.Command:
        @functools.wraps(command)
        def wrapped(**values: Any) -> Iterator[Any]:
            try:
                yield from command(**values)
            except OctobertError as error:
                # The user of options has written no keys.
                error.where = spellings().get(str(error.where), error.where)
                error.fix = error.fix and in_options(error.fix)
                raise

        rows = _options.from_function(
            recipe_of,
            without=("keys", *without),
            optional=optional,
            texts=TEXTS,
            panels={"task": None},
        )
        return _options.filled(rows=rows, keys=keys(without=without))(wrapped)

    return decorate


def in_options(text: str) -> str:
    """A text with options instead of keys of a recipe with their values.

    Example:
        >>> in_options("set transforms: [], or data.tune.samples: 50 (data.allow_leakage: true)")
        'set --transforms none, or --set data.tune.samples=50 (--allow-leakage)'
    """
    from octobert.config.recipe import Recipe

    def option(setting: re.Match[str]) -> str:
        key, value = setting.groups()
        spelled = spellings().get(key)
        if spelled is None:
            return f"--set {key}={value}"
        if value in ("true", "false"):
            return spelled
        return f"{spelled} {'none' if value == '[]' else value}"

    return re.sub(
        rf"\b((?:{'|'.join(Recipe.model_fields)})(?:\.\w+)*): (\[[^]]*\]|[^\s,;){{]+)", option, text
    )


def spellings() -> dict[str, str]:
    """Key → its option."""
    plain = {key: _spelling(key) for key in keys().parameters}
    return {**plain, "data.allow_leakage": "--allow-leakage"}


def _spelling(key: str) -> str:
    """The option of a plain key."""
    from octobert.config.recipe import Recipe

    prefix = "--no-" if Recipe.model_fields[key].default is True else "--"
    return _SPELLINGS.get(key, prefix + key.replace("_", "-"))


@functools.cache
def keys(*, only: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> _options.Options:
    """An option for every key of the recipe whose value fits on a command line, for these only, or without these."""
    from octobert.config.measuring import EvaluateMetric
    from octobert.config.recipe import Choice, Recipe
    from octobert.config.schema import descriptions

    yaml = " A name, or YAML with its options"
    # Type of a key → type of its option, how the option's value becomes that of the key, and what the help says about it.
    forms: dict[Any, tuple[Any, _options.Reader, str]] = {
        bool: (bool, lambda value, option: not option.startswith("--no-"), ""),
        int: (int, lambda value, option: value, ""),
        str: (str, lambda text, option: text or None, ""),
        tuple[str, ...]: (list[str], _options.split_names, " Give it several times."),
        Choice: (str, lambda text, option: yaml_of(text, option) if text else None, f"{yaml}."),
        tuple[Choice, ...]: (list[str], _choices, f"{yaml}, several times; none for none."),
        tuple[str | EvaluateMetric, ...]: (list[str], _choices, f"{yaml}, several times."),
    }
    texts = {**descriptions(Recipe), **_HELP}
    parameters, readers = {}, {}
    for key, field in Recipe.model_fields.items():
        form = forms.get(_options.bare(field.annotation)[0])
        if form is None or key in (*_EXPLICIT, *without) or (only and key not in only):
            continue
        kind, readers[key], text = form
        if kind is not bool and field.default not in (None, ()):
            defaults = field.default if get_origin(kind) is list else (field.default,)
            text += f" Default: {', '.join(str(getattr(d, 'name', d)) for d in defaults)}."
        info = typer.Option(_spelling(key), rich_help_panel=_options.RECIPE_PANEL)
        parameters[key] = _options.parameter(
            key, kind, False if kind is bool else None, texts.get(key, "") + text, info
        )
    return _options.Options(parameters, lambda key, value: readers[key](value, _spelling(key)))


def _choices(texts: list[str], option: str) -> list[Any]:
    return [yaml_of(text, option) for text in texts if text != "none"]


def recipe_of(
    model: str,
    task: str,
    data: list[str],
    keys: _options.Arguments,
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
        allow_leakage: Accept calibration or training rows that are also evaluated.

    Raises:
        RecipeError: it is not valid.
    """
    others = {
        "columns": columns,
        "config": config,
        "revision": data_revision,
        "calibrate": samples and {"samples": samples},
        "allow_leakage": allow_leakage,
    }
    rows = {**_data_of(data), **{key: value for key, value in others.items() if value}}
    choice = _with_options(yaml_of(task, "--task"), text_column, label_column, max_length)
    raw = {"model": model, "task": choice, "data": rows, **keys}
    return octobert.parse_recipe(raw, where="command line", changes=changes or ())


def tell(recipe: Recipe, save: Path | None = None) -> None:
    """Print a recipe on stderr, and write it to a file that can be in any folder."""
    from octobert.config import loading

    _show.note(loading.as_file(recipe))
    if save is not None:
        _show.write(save, loading.as_file(loading.with_absolute_paths(recipe)))


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
