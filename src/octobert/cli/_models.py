"""Options of commands that take a package or a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

MODEL_HELP = "A package, OUT/TARGET, or an .onnx or .xml file."
_PANEL = "Model files (a package has its own)"


def _option(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=_PANEL)


Task = Annotated[str | None, _option("What a file is for: a task, or YAML with its options: '{squad: {max_length: 384}}'.")]
Target = Annotated[str | None, _option("Target that opens a file. Default: ort-cpu for .onnx, openvino-cpu for .xml.")]
Tokenizer = Annotated[
    Path | None, _option("Folder of a file's tokenizer and config. Default: the folder of the file, or the one above.")
]
Reference = Annotated[Path | None, _option("The float model of a file, to compare it with.")]


def given(task: str | None, target: str | None, tokenizer: Path | None, **others: Path | None) -> dict[str, Any]:
    """The options as arguments of the functions of octobert."""
    from octobert.cli._recipe import yaml_of

    found = {"task": None if task is None else yaml_of(task, "--task"), "target": target, "tokenizer": tokenizer, **others}
    return {name: value for name, value in found.items() if value is not None}
