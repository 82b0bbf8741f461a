"""Read, check, change and write recipes. Every mistake in a recipe is reported at once.

A plugin is written as a name (`static`) or as a one-key object with its options (`{static: {placement: matmul}}`). Relative
paths are relative to the recipe's file. Which keys hold plugins, and of which family, is read from the recipe's models.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from octobert.config import yaml_text
from octobert.config.defaults import defaults_of
from octobert.config.measuring import EvaluateMetric
from octobert.config.recipe import PERMISSIONS, SPLITS, Choice, PlainRecipe, Recipe, plugin_families
from octobert.core import plugins
from octobert.core.errors import RecipeError, did_you_mean, shortened
from octobert.core.families import model_types
from octobert.core.files import looks_local
from octobert.core.user_code import names_code

SCHEMA_FILE = "recipe.schema.json"
# Keys that octobert had until 2026-11-28 → what to do instead.
_GONE = {
    "prune": "finetune: {layers: …} keeps fewer layers",
    "search.storage": "trials are in the store; several machines search with executor: ray",
    "search.study": "trials are in the store",
    "zip": "zip -r NAME.zip OUT/TARGET packs a package",
}
# Keys whose values may be paths, or code in a file → whether a value may be one.
_PATHS: dict[str, Callable[[str], bool]] = {
    **dict.fromkeys(("model", "tokenizer", "preprocess", "postprocess"), bool),
    **dict.fromkeys((f"data.{key}" for key in ("source", *SPLITS)), bool),
    **dict.fromkeys(
        (f"data.{key}.from" for key in ("calibrate", "evaluate", "tune", "finetune")),
        lambda name: bool(Path(name).suffix),
    ),
    "metric": names_code,
    **dict.fromkeys(
        ("metric.evaluate", "metric.evaluate.name"), lambda name: looks_local(name, (".py",))
    ),
    **dict.fromkeys(("finetune.code", "finetune.distill.teacher"), bool),
    **dict.fromkeys(("qat.code", "qat.distill.teacher", "qat.trained"), bool),
}
# Mistakes that an error lists.
_MOST_SHOWN = 20
M = TypeVar("M", bound=BaseModel)


def load(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe file.

    Args:
        path: The YAML or JSON file.
        changes: Keys to change, as `path=value` with a value in YAML: `benchmark.batch=[1, 8]`. Paths in a value are relative
            to the working directory.

    Returns:
        The recipe, with paths that can be opened from the working directory.

    Raises:
        RecipeError: The file is missing, is not YAML, or is not a valid recipe. The message lists every mistake.
    """
    raw = yaml_text.read(path)
    if not isinstance(raw, dict):
        raise RecipeError(
            "the recipe is not a mapping",
            where=str(path),
            expected="keys such as model, task and data",
        )
    return of_file(raw, changes, path)


def of_file(raw: Mapping[str, Any], changes: Sequence[str], path: Path) -> Recipe:
    """Check a recipe that was read from a file (see `load`).

    Raises:
        RecipeError: The recipe is not valid, or has keys that only the user gives.
    """
    for name, danger in PERMISSIONS.items():
        key, _, inner = name.partition(".")
        value = raw.get(key)
        if inner:
            value = value.get(inner) if isinstance(value, Mapping) else None
        if value and (inner or value != Recipe.model_fields[key].default):
            option = (
                f"--{key.replace('_', '-')}"
                if value is True
                else f"--set {shlex.quote(f'{name}={value}')}"
            )
            raise RecipeError(
                f"a recipe file cannot set this itself, because a file of somebody else could {danger}",
                where=f"{path}: {name}",
                got=str(value),
                fix=f"remove the key; if you want it, add {option} to the command",
            )
    return parse(changed(raw, changes), where=str(path), base=path.parent)


def changed(raw: Mapping[str, Any], changes: Sequence[str]) -> PlainRecipe:
    """A recipe as plain data, with some of its keys changed (see `load`).

    Raises:
        RecipeError: A change that cannot be read, or that names a key inside a plain value.

    Example:
        >>> changed({"task": "squad"}, ["task.squad.step=9"])
        {'task': {'squad': {'step': 9}}}
    """
    result = dict(raw)
    for change in changes:
        name, equals, text = change.partition("=")
        value = yaml_text.parse(text, where=f"--set {name}")
        path = name.strip().split(".")
        if not equals or not path[-1]:
            raise RecipeError(
                "a change is a key, an equals sign and a value",
                where="--set",
                got=change,
                expected="seed=1",
            )
        # A path on the command line is relative to the working directory, not to the recipe.
        _set_(result, path, _absolute(value) if isinstance(value, str) else value)
    return result


def _absolute(value: str) -> str:
    """The absolute path of a file, also in `file.py:function`; any other text unchanged."""
    file, _, function = value.rpartition(":") if names_code(value) else (value, "", "")
    is_path = (os.sep in file or Path(file).suffix) and Path(file).exists()
    return os.path.abspath(file) + (f":{function}" if function else "") if is_path else value


def _set_(raw: PlainRecipe, path: Sequence[str], value: Any) -> None:
    """Set one key of a recipe in place; missing objects on the way are created."""
    place = raw
    for index, part in enumerate(path[:-1]):
        # Plugin names may be written with dashes or underscores.
        part = next(
            (p for p in (part, part.replace("-", "_"), part.replace("_", "-")) if p in place), part
        )
        inner = place.get(part)
        # `task: squad` and `data: ./folder` are short forms of objects.
        if isinstance(inner, str):
            inner = {"source": inner} if part == "data" and index == 0 else {inner: {}}
        if inner is not None and not isinstance(inner, dict):
            raise RecipeError(
                "this part of the recipe has no keys",
                where=f"--set {'.'.join(path)}",
                got=f"{'.'.join(path[: index + 1])}: {inner!r}",
            )
        place[part] = inner = dict(inner or {})
        place = inner
    place[path[-1]] = value


def parse(raw: Mapping[str, Any], *, where: str = "recipe", base: Path | None = None) -> Recipe:
    """Check a recipe given as plain data.

    Args:
        raw: The recipe, as loaded from YAML or JSON.
        where: Name of the recipe in error messages.
        base: Folder that relative paths are relative to. None: paths stay unchanged.

    Returns:
        The recipe.

    Raises:
        RecipeError: The recipe is not valid. The message lists every mistake, one per line.

    Example:
        >>> parse({"model": "bert-base-uncased", "task": "mrpc", "data": "glue"}).quantize.name
        'static'
    """
    plain = dict(raw)
    problems: list[str] = []
    for key, family in plugin_families().items():
        if key in plain:
            before = len(problems)
            value = _plugins(plain.pop(key), key, family, problems)
            if len(problems) == before:
                plain[key] = value
    if isinstance(plain.get("data"), str):
        plain["data"] = {"source": plain["data"]}
    kind = plain.get("family")
    if isinstance(kind, str) and kind not in model_types():
        near = did_you_mean(kind, model_types())
        problems.append(f"family: there is no such model type; {near} (got {kind!r})")
    if {"quantize", "targets"} & plain.keys() == {"quantize", "targets"} & raw.keys():
        plain = {**defaults_of(plain), **plain}
    else:
        # Nothing follows from what is a mistake, neither values nor further mistakes.
        plain = {"transforms": (), "corrections": (), **plain}
    try:
        recipe = Recipe.model_validate(plain)
    except ValidationError as error:
        # A plugin key with a mistake is not missing.
        broken = raw.keys() - plain.keys()
        problems += [p for p in _sentences(error, Recipe) if p.split(":")[0] not in broken]
    if problems:
        count = f"{len(problems)} mistakes" if len(problems) > 1 else "1 mistake"
        shown = [shortened(problem) for problem in problems[:_MOST_SHOWN]]
        shown += [f"and {len(problems) - _MOST_SHOWN} more"] if len(problems) > _MOST_SHOWN else []
        raise RecipeError(f"the recipe has {count}:\n  - " + "\n  - ".join(shown), where=where)
    return with_paths(recipe, base)


def checked(model: type[M], raw: Mapping[str, Any], *, where: str) -> M:
    """Plain data as a model of the recipe, such as `Benchmark`.

    Raises:
        RecipeError: The data does not fit the model. The message lists every mistake.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise RecipeError("; ".join(_sentences(error, model)), where=where) from None


def choice_of(value: Any, key: str, family: str) -> Choice:
    """A plugin and its options, in any spelling of a recipe.

    Args:
        value: A name, or one name with its options.
        key: What it is, for errors, such as `task`.
        family: Of the plugin, such as `tasks`.

    Raises:
        RecipeError: There is no such plugin, or it has no such options.

    Example:
        >>> choice_of({"squad": {"max_length": 256}}, "task", "tasks").options
        {'max_length': 256}
    """
    mistakes: list[str] = []
    plain = _choice(value, key, family, mistakes)
    if mistakes:
        raise RecipeError("; ".join(map(shortened, mistakes)).removeprefix(f"{key}: "), where=key)
    return Choice.model_validate(plain)


def _plugins(value: Any, key: str, family: str, mistakes_: list[str]) -> Any:
    """The value of a plugin key in its full spelling. Mistakes in it are added to the list."""
    field = Recipe.model_fields[key]
    if field.annotation is Choice:
        return _choice(value, key, family, mistakes_)
    values = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    if Choice in get_args(field.annotation):
        return [_choice(item, key, family, mistakes_) for item in values]
    names, noun = plugins.names(family), family.removesuffix("s")
    mistakes_ += [
        f'{key}.{index}: there is no {noun} "{name}"; {did_you_mean(str(name), names)}'
        for index, name in enumerate(values)
        if name not in names
    ]
    return list(field.default) if value is None else values


def _choice(value: Any, key: str, family: str, mistakes_: list[str]) -> dict[str, Any]:
    """A plugin in either spelling as {name, options}. Mistakes in it are added to the list."""
    name, options = value, None
    if isinstance(value, dict) and set(value) <= {"name", "options"} and "name" in value:
        name, options = value["name"], value.get("options")
    elif isinstance(value, dict) and len(value) == 1:
        name, options = next(iter(value.items()))
    # Data sets are also spelled with underscores: squad_v2.
    name = name.replace("_", "-") if isinstance(name, str) else name
    names, choice = plugins.names(family), {"name": name, "options": options or {}}
    if name not in names:
        what = (
            f'there is no {key} "{name}"'
            if isinstance(name, str)
            else "write a name, or one name with its options"
        )
        mistakes_.append(f"{key}: {what}; {did_you_mean(str(name), names)}")
    else:
        model = type(plugins.values_of(family).load(name))
        try:
            model.model_validate(choice["options"])
        except ValidationError as error:
            mistakes_ += [f"{key}.{name}.{sentence}" for sentence in _sentences(error, model)]
    return choice


def _sentences(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """The mistakes that pydantic reports, as `path: what is wrong`."""
    sentences = []
    for mistake in error.errors():
        path = ".".join(str(part) for part in mistake["loc"]) or (
            "recipe" if model is Recipe else "options"
        )
        if path in _GONE:
            sentences.append(f"{path}: the key is gone; {_GONE[path]}")
        elif mistake["type"] == "extra_forbidden":
            keys = _keys(model, mistake["loc"][:-1])
            sentences.append(f"{path}: unknown key; {did_you_mean(str(mistake['loc'][-1]), keys)}")
        elif mistake["type"] == "missing":
            sentences.append(f"{path}: missing")
        else:
            message = mistake["msg"].removeprefix("Value error, ")
            got = f" (got {mistake['input']!r})" if mistake["loc"] else ""
            sentences.append(f"{path}: {message[0].lower()}{message[1:]}{got}"[:300])
    return sentences


def _keys(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    """The keys of the model at a path inside another model."""
    for part in path:
        annotation = (
            model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        )
        # Also inside `Finetune | None`.
        for inner in (annotation, *get_args(annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                model = inner
    return [field.alias or name for name, field in model.model_fields.items()]


def metrics_of(metric: Any, data: str, *, allow_code: bool) -> tuple[str | EvaluateMetric, ...]:
    """Metrics that a recipe could name, for rows that may come from code.

    Raises:
        RecipeError: A metric is not one, or code is not allowed.
    """
    raw = {
        "model": "",
        "task": {"name": "embedding"},
        "data": {"source": data},
        "metric": metric,
        "allow_code": True,
    }
    recipe = checked(Recipe, raw, where="evaluate")
    for key, text in () if allow_code else recipe.code.items():
        raise RecipeError(
            f"{text} runs that code",
            where=key.removesuffix(".source"),
            fix="allow it with --allow-code (in Python: allow_code=True)",
        )
    return recipe.metric


def as_written(recipe: Recipe) -> PlainRecipe:
    """The keys of a recipe that somebody has set, default values included, with absolute paths and without permissions.

    Example:
        >>> sorted(as_written(parse({"model": "m", "task": "mrpc", "data": "d", "seed": 0, "allow_pickle": True})))
        ['data', 'model', 'seed', 'task']
    """
    plain = with_absolute_paths(recipe).model_dump(mode="json", by_alias=True, exclude_unset=True)
    return without_permissions(plain)


def without_permissions(raw: Mapping[str, Any]) -> PlainRecipe:
    """A recipe as plain data without what only the user may allow."""
    plain = dict(raw)
    for name in PERMISSIONS:
        key, _, inner = name.partition(".")
        if not inner:
            plain.pop(key, None)
        elif isinstance(plain.get(key), Mapping) and inner in plain[key]:
            plain[key] = {other: value for other, value in plain[key].items() if other != inner}
            if not plain[key]:
                del plain[key]
    return plain


def as_plain(recipe: Recipe) -> PlainRecipe:
    """The recipe as plain data as a user would write it, without default values."""
    plain: PlainRecipe = json.loads(recipe.model_dump_json(by_alias=True, exclude_defaults=True))
    for key in plugin_families():
        if key in plain:
            plain[key] = (
                [_short(item) for item in plain[key]]
                if isinstance(plain[key], list)
                else _short(plain[key])
            )
    return plain


def as_stored(recipe: Recipe) -> PlainRecipe:
    """The recipe as reports and packages have it: with default values; where results are stored says nothing about them."""
    return recipe.model_dump(mode="json", by_alias=True, exclude={"cache", "log_level"})


def as_yaml(recipe: Recipe) -> str:
    """The recipe as a user would write it, without default values.

    Example:
        >>> print(as_yaml(parse({"model": "m", "task": {"squad": {"step": 64}}, "data": "d"})), end="")
        model: m
        task:
          squad:
            step: 64
        data:
          source: d
    """
    return _yaml(as_plain(recipe))


def as_file(recipe: Recipe) -> str:
    """The recipe as the text of a recipe file: without permissions, and with the line that lets editors check it."""
    return f"# yaml-language-server: $schema={SCHEMA_FILE}\n{_yaml(without_permissions(as_plain(recipe)))}"


def _yaml(plain: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def in_recipe(choice: Choice) -> str:
    """A plugin as YAML on one line, as a recipe or an option takes it.

    Example:
        >>> in_recipe(Choice(name="percentile", options={"keep": 99.9})), in_recipe(Choice(name="mse"))
        ('{percentile: {keep: 99.9}}', 'mse')
    """
    short = _short(choice.model_dump(mode="json"))
    return (
        short
        if isinstance(short, str)
        else str(yaml.safe_dump(short, default_flow_style=True, width=1000)).strip()
    )


def _short(choice: Any) -> Any:
    """A plugin in its short spelling."""
    if not isinstance(choice, dict):
        return choice
    return {choice["name"]: choice["options"]} if choice.get("options") else choice["name"]


def with_paths(recipe: Recipe, base: Path | None) -> Recipe:
    """The recipe with paths to read that can be opened: `~` expanded, relative paths taken from `base`."""

    def local(name: str) -> str:
        path = Path(os.path.expanduser(name))
        if base is None or path.is_absolute():
            return str(path) if name.startswith("~") else name
        return (
            os.path.normpath(base / path)
            if os.path.exists(base / path) or name.startswith(".")
            else name
        )

    return _with_moved(recipe, local)


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that its file can be in any folder."""
    return _with_moved(
        recipe, lambda name: str(Path(name).resolve()) if os.path.exists(name) else name
    )


def _with_moved(recipe: Recipe, move: Callable[[str], str]) -> Recipe:
    # As Python has it: options may hold what JSON does not.
    plain = recipe.model_dump(by_alias=True, exclude_unset=True)
    places = moved(plain, move)
    # The other keys stay as they are: defaults that depend on each other have been decided.
    return recipe.replaced(**{key: places[key] for key in plain if places[key] != plain[key]})


def moved(value: Any, move: Callable[[str], str], key: str = "") -> Any:
    """A recipe as plain data in its full spelling, or a part of it, with its paths moved.

    Args:
        value: The plain data.
        move: Path → its new path. It gets what may be a path: Hub ids and names of splits may look like one.
        key: Where the value is in the recipe, such as `data.source`.

    Example:
        >>> moved({"model": "m", "data": {"tune": {"from": "a.csv[:9]"}}, "seed": 1}, lambda path: f"in/{path}")
        {'model': 'in/m', 'data': {'tune': {'from': 'in/a.csv[:9]'}}, 'seed': 1}
    """
    if isinstance(value, dict):
        return {
            name: moved(inner, move, f"{key}.{name}" if key else name)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(moved(inner, move, key) for inner in value)
    if not isinstance(value, str) or key not in _PATHS:
        return value
    # A range of rows, and the name of a function, stay.
    name = value.rpartition("[")[0] if key.endswith(".from") and value.endswith("]") else value
    file = name.rpartition(":")[0] if names_code(name) and ":" in name else name
    is_path = _PATHS[key](name) and not value.startswith("package:")
    return move(file) + value.removeprefix(file) if is_path else value
