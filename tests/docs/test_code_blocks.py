"""Code blocks of README, CONTRIBUTING and docs: Python runs, commands are parsed and the fast ones run, YAML is a recipe.

The cells of the notebook run like the blocks of a page.

Every document runs in a folder of its own, in which `my-model`, `my-data` and `out` are a tiny checkpoint, tiny data files and the
output of a run over both, for the task that the document is about.
"""

from __future__ import annotations

import functools
import json
import pkgutil
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from octobert.api.clients import CLIENTS as CLIENT_TABLE
from octobert.api.clients import Model, snippet
from octobert.cli.main import app
from octobert.config import loading
from octobert.core.onnx_files import TensorInfo
from octobert.engine.executors import inline
from octobert.pipeline import runner
from tests.docs import markdown
from tests.docs.markdown import ROOT, Block
from tests.support.runs import brief

LANGUAGES = ("bash", "python", "javascript", "yaml", "json", "toml", "text")
# Blocks for other programs, which have environments of their own.
CLIENTS = "`make test-clients`"
# Blocks for clusters: tests/inference/test_engines.py.
CLUSTERS = "`make test-cluster`"
# Blocks with a comment `<!-- not run: reason -->`. Raise this number only with a reason.
NOT_RUN = 0
# These commands take milliseconds on a tiny package; they run as they stand, except under a profiler (`--runtime`).
FAST = (
    "predict",
    "inspect",
    "evaluate",
    "check",
    "tables",
    "targets",
    "tasks",
    "placements",
    "doctor",
    "schema",
)
# These are planned with `--dry-run` where their model and data are in the workspace. All others are only parsed.
PLANNED = ("quantize", "run")
MINIMAL: dict[str, Any] = {
    "model": "./my-model",
    "task": "text-classification",
    "data": "./my-data",
    "allow_code": True,
}

# Of BERT.
INPUTS = tuple(
    TensorInfo(name=name, dtype="int64", shape=(-1, -1))
    for name in ("input_ids", "attention_mask", "token_type_ids")
)
BLOCKS = [block for block in markdown.blocks() if block.reason is None]


def of(*languages: str) -> list[Any]:
    return [pytest.param(block, id=str(block)) for block in BLOCKS if block.language in languages]


def test_every_block_names_its_language() -> None:
    assert [str(block) for block in markdown.blocks() if block.language not in LANGUAGES] == []


def test_few_blocks_are_not_run() -> None:
    assert (
        sum(block.reason not in (None, CLIENTS, CLUSTERS) for block in markdown.blocks()) == NOT_RUN
    )


def test_blocks_for_other_programs_are_what_octobert_prints() -> None:
    printed = {
        snippet(
            name,
            Model(
                f"out/{target}-{name}",
                kind,
                target == "openvino-cpu",
                384,
                activation,
                prompts=prompts,
                inputs=INPUTS,
            ),
        )
        for name, client in CLIENT_TABLE.items()
        for target in ("ort-cpu", "openvino-cpu")
        for kind in client.kinds
        for activation in ("Identity", "Sigmoid")
        for prompts in ({}, {"query": "query: ", "passage": "passage: "})
    }
    shown = [block for block in markdown.blocks() if block.reason == CLIENTS]
    assert len(shown) >= len(CLIENT_TABLE)
    assert [str(block) for block in shown if block.text not in printed] == []


def test_links_lead_somewhere() -> None:
    generated = {
        "recipe.md",
        "plugins.md",
        "recipes.md",
        "commands.md",
        "targets.md",
        "contributing.md",
        "changelog.md",
    }
    assert [
        f"{d.name}: {t}"
        for d, t in markdown.links()
        if not (d.parent / t).exists() and Path(t).name not in generated
    ] == []


def test_anchors_lead_to_headings() -> None:
    assert markdown.missing_anchors() == []


# --- YAML and JSON ---


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_is_a_recipe_or_a_part_of_it(block: Block) -> None:
    loading.parse({**MINIMAL, **yaml.safe_load(block.text)}, where=str(block))


@pytest.mark.parametrize("block", of("json"))
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


# --- Commands ---


GROUP: Any = typer.main.get_command(app)


def parsed(arguments: list[str], where: str) -> str:
    """Check the arguments of `octobert …` against the program's own parser.

    Returns:
        The command's name.
    """
    if arguments[0].startswith("-"):
        assert takes(GROUP, arguments[0]), f"{where}: {arguments[0]}"
        return ""
    command = command_named(arguments[0])
    assert command is not None, f"{where}: there is no command {arguments[0]}"
    command.make_context(arguments[0], list(arguments[1:]), parent=typer.Context(GROUP))
    return arguments[0]


def command_named(name: str) -> Any:
    return GROUP.get_command(typer.Context(GROUP), name)


def takes(command: Any, option: str) -> bool:
    return option == "--help" or any(option in (*p.opts, *p.secondary_opts) for p in command.params)


@pytest.mark.parametrize("block", of("bash"))
def test_commands_are_right(
    block: Block, workspace: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = re.findall(
        r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    monkeypatch.chdir(workspace(block.document))
    monkeypatch.setattr(runner, "dry_run", functools.partial(runner.dry_run, executor=inline.run))
    for line in markdown.commands(block.text):
        words = shlex.split(line, comments=True)
        if words[0] == "octobert":
            run_octobert(words[1:], str(block))
        elif words[0] == "make":
            assert set(words[1:]) <= set(targets), line
        elif words[0].endswith("python"):
            assert (ROOT / words[1]).is_file() or words[1] == "-m", line
        else:
            assert words[0].removeprefix(".venv/bin/") in (
                "pip",
                "git",
                "cd",
                "mkdocs",
                "pre-commit",
                "ruff",
                "mypy",
            ), line


def run_octobert(words: list[str], where: str) -> None:
    """Parse a command; if the files that it names are there, run it if it is fast, plan it if it can be planned."""
    standard_input = None
    if "<" in words:
        words, (_, name) = words[: words.index("<")], words[words.index("<") :]
        standard_input = Path(name).read_text(encoding="utf-8")
    named = [word for word in words if word.startswith("./") or word.endswith(".onnx")]
    name = parsed(words, where)
    if not all(Path(word).exists() for word in named):
        return
    if name in PLANNED and named:
        words = [*words, "--dry-run"]
    elif name not in FAST or "--runtime" in words:
        return
    result = CliRunner().invoke(app, words, input=standard_input, catch_exceptions=False)
    assert result.exit_code == 0, f"{where}: {' '.join(words)}\n{result.output}"


def test_commands_in_the_text_exist() -> None:
    for document, line in markdown.inline_commands():
        words = line.replace("…", " ").split()[1:]
        if not words or words[0].startswith("-"):
            continue
        command = command_named(words[0])
        assert command is not None, f"{document}: {line}"
        for option in re.findall(r"(?<![\w-])--[a-z-]+", line):
            assert takes(command, option), f"{document}: {line}: {option}"


# --- Python ---


def run_brief(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Work in a folder, with short runs in this process."""
    run = runner.run
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        runner,
        "run",
        lambda recipe, out, listener, _: run(brief(recipe), out, listener, inline.run),
    )


@pytest.mark.parametrize("document", sorted({b.document for b in BLOCKS if b.language == "python"}))
def test_python_runs(
    document: str, workspace: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks of a document run one after another and share their names."""
    run_brief(monkeypatch, workspace(document))
    names: dict[str, Any] = {"__name__": "document"}
    for block in BLOCKS:
        if block.document == document and block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / document), "exec"), names)


def test_the_notebook_runs(
    workspace: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cells share their names, and are stored without outputs."""
    path = ROOT / "docs" / "notebook.ipynb"
    cells = [
        cell
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    run_brief(monkeypatch, workspace("docs/notebook.ipynb"))
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in cells:
        exec(compile("".join(cell["source"]), str(path), "exec"), names)
    assert names["plan"].quantized
    assert names["reasons"]


def test_the_api_reference_names_what_exists() -> None:
    for path in markdown.documents():
        for name in re.findall(r"^::: (\S+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert pkgutil.resolve_name(name) is not None
