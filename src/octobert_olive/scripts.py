"""Facts about a user script, read and never run: its data set, the head of its model, and what its functions compute.

A script that octobert can express by itself needs no permission to run code. Everything here returns None where the text of
the script leaves a doubt.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from octobert.core.files import content_of
from octobert_olive.nodes import Node
from octobert_olive.rules import Draft, names

# Larger files are not scripts that a person wrote.
_LARGEST = 1_000_000
# Calls of a function that takes the most likely class of each row and does nothing else.
_ARGMAX = {
    "argmax",
    "max",
    "torch.max",
    "torch.argmax",
    "torch.tensor",
    "torch.Tensor",
    "isinstance",
    "type",
    "ValueError",
}
_REGISTERS = "Registry.register_post_process"


@dataclass(frozen=True)
class LoadedData:
    """The arguments of a call of `datasets.load_dataset`."""

    source: str
    config: str | None
    split: str | None


@dataclass(frozen=True)
class Script:
    """A script that a config names.

    Args:
        path: relative to the config.
        tree: its syntax tree; an empty one of a file that is not there, or is not Python.
    """

    path: str
    tree: ast.Module

    def hub_data(self, function: str) -> LoadedData | None:
        """The data set of the Hub that a function loads, if it is one and its name is a literal."""
        loaded = set()
        for scope, call in self._calls(function):
            if _last(_name(call)) == "load_dataset":
                arguments = [self._literal(argument, scope) for argument in call.args[:2]]
                named = {k.arg: self._literal(k.value, scope) for k in call.keywords if k.arg}
                source = arguments[0] if arguments else named.get("path")
                config = arguments[1] if len(arguments) > 1 else named.get("name")
                if source is None or (len(arguments) > 1 and config is None):
                    return None
                loaded.add(LoadedData(source, config, named.get("split")))
        return loaded.pop() if len(loaded) == 1 else None

    def takes_best_class(self, function: str) -> bool:
        """Return whether a function only takes the most likely class of each row."""
        names_called = self._called(function) - {_REGISTERS}
        takes = any(_last(name) in ("argmax", "max") for name in names_called)
        return takes and all(name in _ARGMAX or name.endswith(".argmax") for name in names_called)

    def metric(self, function: str) -> str | None:
        """The metric that a function computes, if it uses one that octobert has and no other."""
        return _only("metric_calls", map(_last, self._called(function)))

    def head(self, function: str) -> str | None:
        """The task of the class of transformers whose `from_pretrained` a function calls."""
        imports = [node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)]
        aliases = {
            alias.asname or alias.name: alias.name for node in imports for alias in node.names
        }
        called = [name.rpartition(".") for name in self._called(function)]
        return _only(
            "heads",
            (
                _last(aliases.get(owner, owner))
                for owner, _, name in called
                if name == "from_pretrained"
            ),
        )

    def _called(self, function: str) -> set[str]:
        """The names of what a function calls."""
        return {_name(call) for _, call in self._calls(function)}

    def _calls(self, function: str) -> list[tuple[ast.stmt, ast.Call]]:
        """(definition, call) of a function, and of the functions and classes of the script that it names."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        definitions: dict[str, ast.stmt] = {
            node.name: node for node in self.tree.body if isinstance(node, kinds)
        }
        todo, calls = [function], []
        while todo:
            definition = definitions.pop(todo.pop(), None)
            if definition is not None:
                nodes = list(ast.walk(definition))
                calls += [(definition, node) for node in nodes if isinstance(node, ast.Call)]
                todo += [node.id for node in nodes if isinstance(node, ast.Name)]
        return calls

    def _literal(self, node: ast.expr, scope: ast.stmt) -> str | None:
        """A text, a name that the module assigns a text once, or an attribute that the class assigns a text once."""
        if isinstance(node, ast.Name | ast.Attribute):
            name = ast.unparse(node)
            assigned = [
                statement.value
                for statement in ast.walk(scope if isinstance(node, ast.Attribute) else self.tree)
                if isinstance(statement, ast.Assign)
                and [ast.unparse(target) for target in statement.targets] == [name]
            ]
            if len(assigned) != 1:
                return None
            node = assigned[0]
        return (
            node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
        )


def script_of(draft: Draft, node: Node, field: Node) -> Script:
    """The script that a field names, in the folder of scripts that the mapping around it names."""
    folder, path = node.get("script_dir"), field.text
    if not folder or folder.text in (".", ""):
        folder.not_needed("scripts are found beside the config")
    else:
        folder.mapped("model" if field.path.endswith("model_script") else "data")
        path = f"{folder.text}/{path}"
    try:
        return Script(path, ast.parse(content_of(draft.config.folder / path, _LARGEST)))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return Script(path, ast.Module([], []))


def _only(table: str, words: Iterable[str]) -> str | None:
    """The entry of a table for the words, if there is only one."""
    entries = names(table)
    meanings: set[str] = {entries[word] for word in words if word in entries}
    return meanings.pop() if len(meanings) == 1 else None


def _last(name: str) -> str:
    """`torch.max` → `max`."""
    return name.rpartition(".")[2]


def _name(call: ast.Call) -> str:
    """The name of a called function: `torch.max`; of a method of a result, the name alone."""
    try:
        return ast.unparse(call.func)
    except RecursionError:
        return ""
