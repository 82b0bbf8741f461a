"""The options of a command: those of a public function, of the recipe, of every command, and its own.

A command is a function: keyword-only parameters are its options, others its arguments, and its docstring describes them.
`filled` gives it the options of a public function as well: their types, defaults, least values and texts are those of the
function's signature and docstring. What stands in this file is what the command line has in words of its own.

A command that yields has `--json`: what it yields is the document then, and what it prints for people is not printed.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import typer
from typer.models import ParameterInfo

from octobert.api._arguments import DataLike, Least, MetricLike, Names, PathLike, TaskLike
from octobert.cli import _show
from octobert.core.docstrings import arguments_of
from octobert.core.errors import RecipeError

Command = Callable[..., Any]
# What a command gets of `filled`: arguments of a public function.
Arguments = dict[str, Any]
# (value of an option, the option) → the argument.
Reader = Callable[[Any, str], Any]
# Groups of options.
RECIPE_PANEL, GENERAL_PANEL = "Recipe keys", "General"
_MODEL_FILES = "Model files (a package has its own)"

# Options that a function calls by another name.
_NAMES = {
    "revision": "data-revision",
    "targets": "target",
    "goals": "goal",
    "client": "for",
    "changes": "set",
    "settings": "set",
    "every": "all",
    "format_": "format",
    "open_": "open",
    "for_": "for",
}
_SHORT = {"verbose": ("-v",), "quiet": ("-q",)}
_PANELS = {
    **dict.fromkeys(("task", "target", "tokenizer", "reference"), _MODEL_FILES),
    "changes": RECIPE_PANEL,
}
# Arguments that are plain data in Python, and YAML or repeated options here.
_TEXTS = {
    "task": "What a file is for: a task, or YAML with its options: '{squad: {max_length: 384}}'.",
    "metric": "Metrics, the main one first: auroc, '{evaluate: NAME}', or file.py:function. Default: those of the task.",
    "text_column": "Column with the texts, where it has no usual name; for pairs twice.",
    "targets": "Target. Give it several times for several. Default: the package's own; ort-cpu for a file.",
}


def yaml_of(text: str, option: str) -> Any:
    """A name, or YAML flow with options.

    Raises:
        RecipeError: the text is neither, or empty.
    """
    from octobert.config import yaml_text

    value = yaml_text.parse(text, where=option, what="the value is not a name or YAML")
    if value is None:
        raise RecipeError(
            "the value is empty", where=option, fix="give a value, or leave the option out"
        )
    return value


def split_names(values: Sequence[str], option: str = "") -> list[str]:
    """Names from options that are given several times or with commas."""
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def _goal(name: str, option: str) -> str:
    from octobert.core.session import goal_named

    return goal_named(name, where=option)


def _count(text: str, option: str) -> int | Literal["auto"]:
    """A number of streams or requests, or `auto`."""
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not int(text):
        raise RecipeError(
            "not a number of inferences",
            where=option,
            got=repr(text),
            expected="1 or more, or auto",
        )
    return int(text)


def _as_it_is(value: Any, option: str) -> Any:
    return value


def _list_of(read: Callable[[str, str], Any]) -> Callable[[list[str], str], Any]:
    return lambda values, option: [read(value, option) for value in values]


# Stands for the name of a goal, whose module takes long to import.
_Goal = NewType("_Goal", str)
# Type of an argument → type of its option, and how the option's value becomes the argument.
_FORMS: dict[Any, tuple[Any, Reader]] = {
    **{kind: (kind, _as_it_is) for kind in (bool, int, float, str, list[str])},
    PathLike: (Path, _as_it_is),
    PathLike | Sequence[PathLike]: (list[Path], _as_it_is),
    DataLike: (str, _as_it_is),
    TaskLike: (str, yaml_of),
    MetricLike | Sequence[MetricLike]: (list[str], _list_of(yaml_of)),
    _Goal: (str, _goal),
    Sequence[_Goal]: (list[str], _list_of(_goal)),
    int | Literal["auto"]: (str, _count),
    Sequence[int]: (list[int], _as_it_is),
    Sequence[str]: (list[str], split_names),
    Names: (list[str], split_names),
    str | Sequence[str]: (list[str], _as_it_is),
}


@dataclass(frozen=True)
class Options:
    """Options that a command gets as one mapping.

    Args:
        parameters: name → the option, as a parameter that typer reads.
        read: (name, value of the option) → the argument; None where it counts as not given.
    """

    parameters: Mapping[str, inspect.Parameter]
    read: Callable[[str, Any], Any]


def from_function(
    function: Command,
    *,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
    optional: Sequence[str] = (),
    metavar: str | None = None,
    texts: Mapping[str, str] | None = None,
    panels: Mapping[str, str | None] | None = None,
) -> Options:
    """The options of a function: its first parameter is the argument of the command, and each other one an option.

    Args:
        function: The function. Its docstring describes the parameters.
        only: Parameters that become options. Default: all but `progress`.
        without: Parameters that become none.
        optional: Parameters that the command asks for only where it needs them.
        metavar: Name of the argument in the help.
        texts: Parameter → its text, where it is not that of the docstring.
        panels: Parameter → the group of its option.
    """
    parameters = inspect.signature(function).parameters
    described = {**_descriptions(function), **_TEXTS, **(texts or {})}
    grouped = {**_PANELS, **(panels or {})}
    options, readers = {}, {}
    for name in only or parameters:
        if name in ("progress", *without):
            continue
        # The annotations are our own source.
        kind = eval(parameters[name].annotation, {**function.__globals__, "Goal": _Goal})
        default = None if name in optional else parameters[name].default
        info = _option(name, default, grouped.get(name))
        if name == next(iter(parameters)) and default is inspect.Parameter.empty:
            info = typer.Argument(metavar=metavar)
        readers[name] = _FORMS[bare(kind)[0]][1]
        options[name] = parameter(name, kind, default, described[name], info)
    return Options(options, lambda name, value: readers[name](value, option_of(name)))


def filled(**groups: Options) -> Callable[[Command], Command]:
    """Add options to a command. It gets the given ones of each group as one mapping, without those that it has itself."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command).parameters
        added = {
            mapping: {name: p for name, p in group.parameters.items() if name not in own}
            for mapping, group in groups.items()
        }

        @functools.wraps(command)
        def wrapped(**values: Any) -> Any:
            for mapping, parameters in added.items():
                given = {name: values.pop(name) for name in parameters}
                # An option that may be given several times is [] where it is not given.
                arguments = {
                    name: groups[mapping].read(name, value)
                    for name, value in given.items()
                    if value is not parameters[name].default and value != []
                }
                values[mapping] = {name: a for name, a in arguments.items() if a is not None}
            return command(**values)

        _give_signature(wrapped, command, added)
        return wrapped

    return decorate


def complete(command: Command) -> Callable[..., None]:
    """The command with `--verbose`, `--quiet` and, where it yields, `--json`."""
    yields = inspect.isgeneratorfunction(inspect.unwrap(command))
    names = ("json", "verbose", "quiet") if yields else ("verbose", "quiet")
    panels = dict.fromkeys(names, GENERAL_PANEL)

    @filled(general=from_function(_show.set_verbosity, only=names, panels=panels))
    @functools.wraps(command)
    def wrapped(general: dict[str, bool], **options: Any) -> None:
        _show.set_verbosity(**general)
        for document in command(**options) or ():
            if _show.verbosity.json:
                _show.document(document)

    wrapped.__doc__ = (inspect.getdoc(command) or "").partition("Args:\n")[0]
    return wrapped


def _give_signature(
    wrapped: Command, command: Command, groups: Mapping[str, Mapping[str, inspect.Parameter]]
) -> None:
    """Give a wrapper the signature of its command with the parameters of each group in its place; typer makes options of it."""
    texts = _descriptions(command)
    options = [p for parameters in groups.values() for p in parameters.values()]
    for own in inspect.signature(command, eval_str=True).parameters.values():
        marks = getattr(own.annotation, "__metadata__", ())
        if own.name in texts and not any(isinstance(mark, ParameterInfo) for mark in marks):
            is_option = own.kind is inspect.Parameter.KEYWORD_ONLY
            info = _option(own.name, own.default) if is_option else typer.Argument()
            options.append(parameter(own.name, own.annotation, own.default, texts[own.name], info))
        elif own.name not in groups:
            options.append(own.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    signature = inspect.Signature(sorted(options, key=_place))
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}


def _place(option: inspect.Parameter) -> tuple[bool, int]:
    """Where an option stands in the help: required ones first, then those without a group, and the recipe's last."""
    info = getattr(option.annotation, "__metadata__", (option.default,))[0]
    order = {None: 0, GENERAL_PANEL: 2, RECIPE_PANEL: 3}
    return option.default is not inspect.Parameter.empty, order.get(
        getattr(info, "rich_help_panel", None), 1
    )


def parameter(name: str, kind: Any, default: Any, text: str, info: Any) -> inspect.Parameter:
    """A parameter as typer reads it.

    Args:
        name: Its name.
        kind: Its type in a function.
        default: Its default; None where the function has its own.
        text: What it is.
        info: An option, or an argument.
    """
    kind, info.min = bare(kind)
    kind, _ = _FORMS.get(kind, (kind, None))
    # Without markup.
    info.help = text.replace("[", r"\[")
    if default is None or (default is not inspect.Parameter.empty and get_origin(kind) is list):
        # The function has its own default, where that is several values.
        kind, default = kind | None, None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _option(name: str, default: Any, panel: str | None = None) -> Any:
    """An option for an argument."""
    option = f"{option_of(name)}/--no-{name}" if default is True else option_of(name)
    return typer.Option(option, *_SHORT.get(name, ()), rich_help_panel=panel)


def option_of(name: str) -> str:
    """The option for an argument."""
    return f"--{_NAMES.get(name, name).replace('_', '-')}"


def bare(kind: Any) -> tuple[Any, float | None]:
    """A type without None and without the least value of a number, and that value."""
    if NoneType in get_args(kind):
        kind = Union[tuple(inner for inner in get_args(kind) if inner is not NoneType)]  # noqa: UP007  # made of a tuple
    number: Any = get_args(kind)[0] if get_origin(kind) is Sequence else kind
    least = next(
        (mark.value for mark in getattr(number, "__metadata__", ()) if isinstance(mark, Least)),
        None,
    )
    if least is not None:
        kind = Sequence[number.__origin__] if number is not kind else number.__origin__
    return kind, least


def _descriptions(function: Command) -> dict[str, str]:
    """Argument → its text in the docstring, with options where it names arguments."""
    texts = arguments_of(function.__doc__)

    def named(code: re.Match[str]) -> str:
        return option_of(code[1]) if code[1] in texts else code[1]

    return {name: re.sub("`([^`]*)`", named, text) for name, text in texts.items()}
