"""What a user script says, read and never run: its data set, the head of its model, and what its functions compute.

A script that octobert can express by itself needs no permission to run code. Everything here returns None where the text of
the script leaves a doubt.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

# Larger files are not scripts that a person wrote.
_LARGEST = 1_000_000
# Calls of a function that takes the most likely class of each row and does nothing else.
_ARGMAX = {"argmax", "max", "torch.max", "torch.argmax", "torch.tensor", "torch.Tensor", "isinstance", "type", "ValueError"}
# Class of torchmetrics or function of scikit-learn → metric of octobert.
_METRICS = {"Accuracy": "accuracy", "accuracy_score": "accuracy", "F1Score": "f1", "f1_score": "f1"}
HEADS = {
    "AutoModelForNextSentencePrediction": "next-sentence",
    "BertForNextSentencePrediction": "next-sentence",
    "AutoModelForMaskedLM": "fill-mask",
    "BertForMaskedLM": "fill-mask",
    "AutoModelForSequenceClassification": "text-classification",
    "BertForSequenceClassification": "text-classification",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForQuestionAnswering": "question-answering",
    "AutoModel": "feature-extraction",
    "BertModel": "feature-extraction",
}


@dataclass(frozen=True)
class HubData:
    """The arguments of a call of `datasets.load_dataset`."""

    source: str
    config: str | None
    split: str | None


@dataclass(frozen=True)
class Script:
    """The syntax tree of a script.

    Args:
        name: of its file, for sentences.
        tree: its statements.
    """

    name: str
    tree: ast.Module

    def hub_data(self, function: str) -> HubData | None:
        """The data set of the Hub that a function loads, if it is one and its name is a literal."""
        found = []
        for scope, node in self._reached(function):
            if isinstance(node, ast.Call) and _called(node).rpartition(".")[2] == "load_dataset":
                arguments = [self._literal(argument, scope) for argument in node.args[:2]]
                named = {k.arg: self._literal(k.value, scope) for k in node.keywords if k.arg}
                source = arguments[0] if arguments else named.get("path")
                config = arguments[1] if len(arguments) > 1 else named.get("name")
                if source is None or (len(node.args) > 1 and config is None):
                    return None
                found.append(HubData(source, config, named.get("split")))
        return found[0] if len(set(found)) == 1 else None

    def takes_best_class(self, function: str) -> bool:
        """Whether a function only takes the most likely class of each row."""
        nodes = [node for _, node in self._reached(function)]
        calls = {_called(node) for node in nodes if isinstance(node, ast.Call)} - {"Registry.register_post_process"}
        return (
            bool(nodes)
            and any(c.rpartition(".")[2] in ("argmax", "max") for c in calls)
            and all(c in _ARGMAX or c.endswith(".argmax") for c in calls)
        )

    def metric(self, function: str) -> str | None:
        """The metric that a function computes, if it uses one that octobert has and no other."""
        names = {_called(node).rpartition(".")[2] for _, node in self._reached(function) if isinstance(node, ast.Call)}
        found = {_METRICS[name] for name in names & _METRICS.keys()}
        return found.pop() if len(found) == 1 else None

    def head(self, function: str) -> str | None:
        """The task of the class of transformers whose `from_pretrained` a function calls."""
        aliases = {
            alias.asname or alias.name: alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        calls = [_called(node) for _, node in self._reached(function) if isinstance(node, ast.Call)]
        owners = {call.removesuffix(".from_pretrained") for call in calls if call.endswith(".from_pretrained")}
        tasks = {HEADS[name] for owner in owners if (name := aliases.get(owner, owner).rpartition(".")[2]) in HEADS}
        return tasks.pop() if len(tasks) == 1 else None

    def defines(self, function: str) -> bool:
        """Whether the script defines a function."""
        return function in self._definitions()

    def _definitions(self) -> dict[str, ast.stmt]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        return {node.name: node for node in self.tree.body if isinstance(node, kinds)}

    def _reached(self, function: str) -> list[tuple[ast.stmt, ast.AST]]:
        """(definition, node) of a function, and of the functions and classes of the script that it names."""
        definitions, todo, seen = self._definitions(), [function], set()
        nodes = []
        while todo:
            name = todo.pop()
            if name in seen or name not in definitions:
                continue
            seen.add(name)
            inner = list(ast.walk(definitions[name]))
            nodes += [(definitions[name], node) for node in inner]
            todo += [node.id for node in inner if isinstance(node, ast.Name)]
        return nodes

    def _literal(self, node: ast.expr, scope: ast.stmt) -> str | None:
        """A text, a name that the module assigns a text once, or an attribute that the class assigns a text once."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        place = scope if isinstance(node, ast.Attribute) else self.tree
        if isinstance(node, ast.Name | ast.Attribute):
            wanted = ast.unparse(node)
            values = [
                statement.value
                for statement in ast.walk(place)
                if isinstance(statement, ast.Assign) and [ast.unparse(t) for t in statement.targets] == [wanted]
            ]
            if len(values) == 1 and isinstance(values[0], ast.Constant) and isinstance(values[0].value, str):
                return values[0].value
        return None


def read(path: Path) -> Script | None:
    """Read a script; None if there is no such file, or it is not Python."""
    try:
        if path.stat().st_size > _LARGEST:
            return None
        return Script(path.name, ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _called(node: ast.Call) -> str:
    """The name of a called function: `torch.max`; of a method of a result, the name alone."""
    try:
        return ast.unparse(node.func)
    except RecursionError:
        return ""
