"""Pages that are written from the code: a hook of mkdocs (see `mkdocs.yml`).

The recipe reference comes from the models of the recipe, the options from the plugins, and the commands from the parser.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from targets_page import page_of

import octobert
from octobert.cli.main import app
from octobert.config.recipe import Recipe
from octobert.config.schema import descriptions, recipe_schema
from octobert.core import plugins

Schema = dict[str, Any]
# Options of every command.
GENERAL = ("json", "verbose", "quiet", "help")

ROOT = Path(__file__).parents[1]
FAMILIES = ("tasks", "transforms", "calibrators", "methods", "corrections", "placements")
KEYS = {
    "tasks": "task",
    "transforms": "transforms",
    "calibrators": "calibrate",
    "methods": "quantize",
    "corrections": "corrections",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages: dict[str, Callable[[], str]] = {
        "reference/recipe.md": recipe_page,
        "reference/plugins.md": plugins_page,
        "reference/recipes.md": recipes_page,
        "reference/commands.md": commands_page,
        "reference/targets.md": targets_page,
        "notebook.md": notebook_page,
        "contributing.md": lambda: root_page("CONTRIBUTING.md"),
        "changelog.md": lambda: root_page("CHANGELOG.md"),
    }
    for name, page in pages.items():
        files.append(File.generated(config, name, content=page()))
    return files


def root_page(name: str) -> str:
    """A document of the repository's root, with links that work in the site."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return (
        text.replace("](docs/", "](")
        .replace("](CHANGELOG.md", "](changelog.md")
        .replace("](CONTRIBUTING.md", "](contributing.md")
    )


def notebook_page() -> str:
    """The cells of the notebook, with a link to the file."""
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    parts = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts]
    return "\n\n".join([*parts, "[Download the notebook](notebook.ipynb)."]) + "\n"


def recipe_page() -> str:
    """Every key of a recipe: type, default, meaning."""
    schema, described = Recipe.model_json_schema(), recipe_schema()
    definitions = schema["$defs"]
    texts = {
        name: definition.get("properties", {}) for name, definition in described["$defs"].items()
    }
    parts = [
        "# Recipe",
        "",
        "A recipe is a YAML or JSON file with these keys. Unknown keys are errors, and all errors are reported together.",
        "Relative paths are relative to the recipe file. A plugin is written as a name (`static`) or as a mapping from the",
        "name to its options (`static: {placement: matmul}`); [Plugins](plugins.md) lists them. `octobert schema` prints the",
        "JSON Schema.",
        "",
        *table(schema, definitions, meanings(described["properties"])),
    ]
    for name in reachable(schema, definitions):
        part = definitions[name]
        parts += ["", f"## {name}", "", summary(part.get("description", "")), ""]
        parts += table(part, definitions, meanings(texts.get(name, {})))
    return "\n".join(parts) + "\n"


def meanings(properties: Schema) -> dict[str, str]:
    """Key → its description in a JSON Schema."""
    return {name: field.get("description", "") for name, field in properties.items()}


def table(part: Schema, definitions: Schema, texts: dict[str, str]) -> list[str]:
    """The keys of one mapping."""
    lines = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    required = part.get("required", [])
    for name, field in part.get("properties", {}).items():
        default = (
            "required"
            if name in required
            else f"`{json.dumps(field['default'])}`"
            if "default" in field
            else ""
        )
        cells = (f"`{name}`", type_text(field, definitions), default, texts.get(name, ""))
        lines.append(
            "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
        )
    return lines


def type_text(field: Schema, definitions: Schema) -> str:
    """The type of a key, in words."""
    if "$ref" in field:
        name = field["$ref"].split("/")[-1]
        return (
            f"[{name}](#{name.lower()})"
            if "properties" in definitions[name]
            else type_text(definitions[name], definitions)
        )
    if "anyOf" in field or "oneOf" in field:
        texts = [type_text(option, definitions) for option in field.get("anyOf") or field["oneOf"]]
        return " or ".join(dict.fromkeys(texts))
    if "allOf" in field:
        return " and ".join(type_text(option, definitions) for option in field["allOf"])
    if "enum" in field or "const" in field:
        return ", ".join(
            f"`{json.dumps(value)}`" for value in field.get("enum", [field.get("const")])
        )
    if field.get("type") == "array":
        items = field.get("items") or {}
        return f"list of {type_text(items, definitions)}" if items else "list"
    bounds = [
        f"{sign} {field[key]}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in field
    ]
    return " ".join([str(field.get("type", "any")), *bounds])


def reachable(part: Schema, definitions: Schema) -> list[str]:
    """Names of the mappings below a key, in the order in which they are mentioned."""
    names: list[str] = []
    for name in re.findall(r'"#/\$defs/(\w+)"', json.dumps(part.get("properties", part))):
        below = [name, *reachable(definitions[name], definitions)]
        names += [n for n in below if n not in names and "properties" in definitions[n]]
    return list(dict.fromkeys(names))


def summary(docstring: str) -> str:
    """A docstring without its sections."""
    return re.split(r"\n\s*(?:Args|Example|Returns|Raises|Warns):", inspect.cleandoc(docstring))[
        0
    ].strip()


def plugins_page() -> str:
    """Every plugin of every family that a recipe names, with its options."""
    parts = ["# Plugins and their options", "", "[Targets](targets.md) have a page of their own."]
    for family in FAMILIES:
        key = (
            f", recipe key `{KEYS[family]}`"
            if family in KEYS
            else ", option `placement` of `static`"
        )
        parts += ["", f"## {family.capitalize()}{key}"]
        for name in plugins.names(family):
            module = plugins.load(family, name)
            parts += ["", f"### `{name}`", "", summary(module.__doc__ or "")]
            options = None if family == "placements" else type(plugins.values_of(family).load(name))
            schema = options.model_json_schema() if options else {}
            if schema.get("properties"):
                parts += ["", *table(schema, schema.get("$defs", {}), descriptions(options))]
    return "\n".join(parts) + "\n"


def targets_page() -> str:
    """The tables of all targets."""
    return page_of([capabilities for capabilities, _ in octobert.list_targets().values()]) + "\n"


def recipes_page() -> str:
    """The recipes of the repository, as they are."""
    parts = [
        "# Shipped recipes",
        "",
        "These files are in `recipes/`. `--set key=value` changes any part of them.",
    ]
    for path in sorted((ROOT / "recipes").rglob("*.yaml")):
        parts += [
            "",
            f"## {path.relative_to(ROOT / 'recipes').with_suffix('').as_posix()}",
            "",
            "```yaml",
            path.read_text(encoding="utf-8").rstrip(),
            "```",
        ]
    return "\n".join(parts) + "\n"


def commands_page() -> str:
    """The arguments and options of every command."""
    group: Any = typer.main.get_command(app)
    top = typer.Context(group, info_name="octobert")
    parts = [
        "# Command line",
        "",
        "Every command takes `--json` (one JSON document on stdout), `--verbose` (debug messages and full tracebacks) and",
        "`--quiet` (no progress and no notes). [Exit codes and variables](../robustness.md#exit-codes) are the same for all.",
    ]
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        shown = [
            p for p in command.params if not getattr(p, "hidden", False) and p.name not in GENERAL
        ]
        arguments = [p for p in shown if p.param_type_name == "argument"]
        usage = " ".join(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments)
        parts += [
            "",
            f"## octobert {name}",
            "",
            f"`octobert {name} {usage}`".replace(" `", "`"),
            "",
        ]
        parts += [inspect.cleandoc(command.help or ""), ""]
        if shown:
            parts += ["| argument or option | default | meaning |", "| --- | --- | --- |"]
        for parameter in shown:
            label = parameter.name.upper() if parameter in arguments else ", ".join(parameter.opts)
            default = (
                "required"
                if parameter.required
                else ""
                if parameter.default in (None, False)
                else f"`{parameter.default}`"
            )
            parts.append(
                f"| `{label}` | {default} | {(parameter.help or '').replace('|', '&#124;')} |"
            )
    return "\n".join(parts) + "\n"
