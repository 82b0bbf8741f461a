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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import typer
from typer.models import ParameterInfo

from octobert.api._arguments import DataLike, Least, MetricLike, Names, PathLike, TaskLike
from octobert.cli import _show
from octobert.core.errors import RecipeError

Command = Callable[..., Any]
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
    "zip_": "zip",
    "for_": "for",
}
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
_FORMS: dict[Any, tuple[Any, Callable[[Any, str], Any]]] = {
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
    metavar: str | None = None,
    texts: Mapping[str, str] | None = None,
    panels: Mapping[str, str] | None = None,
) -> Options:
    """The options of a function: its first parameter is the argument of the command, and each other one an option.

    Args:
        function: The function. Its docstring describes the parameters.
        only: Parameters that become options. Default: all but `progress`.
        without: Parameters that become none.
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
        kind, least = _bare(
            eval(parameters[name].annotation, {**function.__globals__, "Goal": _Goal})
        )
        kind, readers[name] = _FORMS[kind]
        default, text = parameters[name].default, described[name]
        if name == next(iter(parameters)):
            info = typer.Argument(help=escaped(text), metavar=metavar)
        else:
            info = _info(name, default, text, least, grouped.get(name))
        if default is not inspect.Parameter.empty and (default is None or get_origin(kind) is list):
            # The function has its own default, where that is several values.
            kind, default = kind | None, None
        options[name] = parameter(name, Annotated[kind, info], default)
    return Options(options, lambda name, value: readers[name](value, option_of(name)))


def filled(**groups: Options) -> Callable[[Command], Command]:
    """Add options to a command. It gets the given ones of each group as one mapping, without those that it has itself."""

    def decorate(command: Command) -> Command:
        own_names = inspect.signature(command).parameters
        added = {
            name: p
            for group in groups.values()
            for name, p in group.parameters.items()
            if name not in own_names
        }

        @functools.wraps(command)
        def wrapped(**values: Any) -> Any:
            options = {name: values.pop(name) for name in added}
            # An option that may be given several times is [] where it is not given.
            unset = {
                name
                for name, value in options.items()
                if value is added[name].default or value in (None, [])
            }
            for mapping, group in groups.items():
                names = [name for name in group.parameters if name in options and name not in unset]
                arguments = {name: group.read(name, options[name]) for name in names}
                values[mapping] = {
                    name: argument for name, argument in arguments.items() if argument is not None
                }
            return command(**values)

        return with_parameters(wrapped, command, list(added.values()), without=groups)

    return decorate


def complete(command: Command) -> Callable[..., None]:
    """The command with `--verbose`, `--quiet` and, where it yields, `--json`."""
    texts = {
        "json": "Print one JSON document on stdout.",
        "verbose": "Print debug messages, and full tracebacks of errors.",
        "quiet": "Print no progress and no notes.",
    }
    if not inspect.isgeneratorfunction(inspect.unwrap(command)):
        del texts["json"]
    added = []
    for name, text in texts.items():
        short = () if name == "json" else (f"-{name[0]}",)
        option = typer.Option(f"--{name}", *short, help=text, rich_help_panel=GENERAL_PANEL)
        added.append(parameter(name, Annotated[bool, option], default=False))

    @functools.wraps(command)
    def wrapped(*, verbose: bool, quiet: bool, json: bool = False, **options: Any) -> None:
        _show.set_verbosity(verbose=verbose, quiet=quiet, json=json)
        for document in command(**options) or ():
            if json:
                _show.document(document)

    wrapped.__doc__ = (inspect.getdoc(command) or "").partition("Args:\n")[0]
    return with_parameters(wrapped, command, added)


def with_parameters(
    wrapped: Command,
    command: Command,
    added: Sequence[inspect.Parameter],
    without: Collection[str] = (),
) -> Command:
    """Give a wrapper the signature of its command, with parameters added and left out; typer makes options of it."""
    texts, named = _descriptions(command), []
    for option in inspect.signature(command, eval_str=True).parameters.values():
        kind = option.annotation
        if option.name in texts and not isinstance(
            getattr(kind, "__metadata__", (None,))[0], ParameterInfo
        ):
            kind, least = _bare(kind)
            info = _info(option.name, option.default, texts[option.name], least)
            if option.kind is not inspect.Parameter.KEYWORD_ONLY:
                info = typer.Argument(help=escaped(texts[option.name]))
            kind = Annotated[kind | None if option.default is None else kind, info]
        if option.name not in without:
            named.append(parameter(option.name, kind, option.default))
    signature = inspect.Signature(sorted([*added, *named], key=_place))
    wrapped.__signature__ = signature  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return wrapped


def _place(option: inspect.Parameter) -> tuple[bool, int]:
    """Where an option stands in the help: required ones first, then those without a group, and the recipe's last."""
    info = getattr(option.annotation, "__metadata__", (option.default,))[0]
    order = {None: 0, "Options": 0, GENERAL_PANEL: 2, RECIPE_PANEL: 3}
    return option.default is not inspect.Parameter.empty, order.get(
        getattr(info, "rich_help_panel", None), 1
    )


def parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """An option as a parameter that typer reads."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def option_of(name: str) -> str:
    """The option for an argument."""
    return f"--{_NAMES.get(name, name).replace('_', '-')}"


def _info(name: str, default: Any, text: str, least: float | None, panel: str | None = None) -> Any:
    """The description of an option for typer."""
    option = f"{option_of(name)}/--no-{name}" if default is True else option_of(name)
    return typer.Option(option, min=least, help=escaped(text), rich_help_panel=panel)


def escaped(text: str) -> str:
    """A text without markup."""
    return text.replace("[", r"\[")


def _bare(kind: Any) -> tuple[Any, float | None]:
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
    section = (inspect.getdoc(function) or "").partition("Args:\n")[2].partition("\n\n")[0]
    texts = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE))

    def named(code: re.Match[str]) -> str:
        return option_of(code[1]) if code[1] in texts else code[1]

    return {
        name: re.sub("`([^`]*)`", named, " ".join(text.split())) for name, text in texts.items()
    }
