"""A config as a tree of nodes, which record the outcome of each field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from octobert.config.importers import Outcome, Verdict
from octobert.core.plain import printable

UNKNOWN = "not known to this importer"


@dataclass(frozen=True)
class Node:
    """A value of the config, its path, and the outcomes of its document.

    A field that is absent or null is a node that is false; what is recorded of an absent one has no effect.

    Args:
        outcomes: path of a leaf → its outcome, for the whole document. The first outcome of a leaf stays.
        groups: names of mappings that only group the fields of the mapping around them; `get` and `items` look through them.
        defaults: names of a field, separated by commas → the value that the config's tool takes where the field has none.
        is_default: this value is one of those.
    """

    value: Any
    path: str
    outcomes: dict[str, Outcome]
    groups: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    is_default: bool = False

    def __bool__(self) -> bool:
        return self.value is not None

    def get(self, *names: str) -> Node:
        """The first of these fields that has a value. A null before it is recorded as not needed."""
        for name in names:
            for node in [node for key, node in self.items() if key == name]:
                if node:
                    return node
                node.not_needed("null is the default")
        return self._inner(None, joined(self.path, names[0]))

    def items(self) -> Iterator[tuple[str, Node]]:
        """The fields of a mapping, those inside its groups and defaults included."""
        if not self.is_mapping:
            return
        named = set()
        for key, value in self.value.items():
            node = self._inner(value, joined(self.path, key))
            if key in self.groups and isinstance(value, Mapping) and value:
                inner = list(node.items())
            else:
                inner = [(str(key), node)]
            named |= {name for name, node in inner if node}
            yield from inner
        for names, value in self.defaults.items():
            first, *others = names.split(", ")
            if named.isdisjoint((first, *others)):
                node = self._inner(value, joined(self.path, first))
                yield first, replace(node, is_default=True)

    def elements(self) -> list[Node]:
        """The elements of a list; a single value is a list of one, and an absent one of none."""
        if isinstance(self.value, list):
            return [
                self._inner(value, f"{self.path}[{index}]")
                for index, value in enumerate(self.value)
            ]
        return [self] if self else []

    def _inner(self, value: Any, path: str) -> Node:
        return Node(value, path, self.outcomes, self.groups, is_default=self.is_default)

    @property
    def text(self) -> str:
        """A scalar as text."""
        return str(self.value).strip()

    @property
    def lower(self) -> str:
        """A scalar as text in lower case; of an absent field, none."""
        return self.text.lower() if self else ""

    @property
    def count(self) -> int:
        """The value if it is a whole number above 0, otherwise 0."""
        return self.value if type(self.value) is int and self.value > 0 else 0

    @property
    def is_mapping(self) -> bool:
        """Return whether the value has fields."""
        return isinstance(self.value, Mapping)

    @property
    def is_number(self) -> bool:
        """Return whether the value is a number."""
        return isinstance(self.value, int | float)

    def mapped(self, key: str, note: str = "") -> None:
        """Record that a recipe key has the meaning of this value."""
        self._record("mapped", note, key)

    def not_needed(self, why: str) -> None:
        """Record that octobert needs no key for this value; of a default there is then nothing to say."""
        if not self.is_default:
            self._record("not needed", why)

    def refused(self, why: str) -> None:
        """Record that octobert does not do what this value asks for."""
        self._record("refused", why)

    def _record(self, verdict: Verdict, note: str, key: str | None = None) -> None:
        for path, leaf in leaves(self.value, self.path):
            if path not in self.outcomes:
                self.outcomes[path] = Outcome(
                    field=path,
                    value=shown(leaf),
                    verdict=verdict,
                    key=key,
                    note=note,
                    default=self.is_default,
                )


ABSENT = Node(None, "", {})


def outcomes_of(document: Node) -> tuple[Outcome, ...]:
    """One outcome for each leaf of a document, in its order, and for each default. A leaf that nothing asked for is refused."""
    document.refused(UNKNOWN)
    of_leaves = {path: document.outcomes[path] for path, _ in leaves(document.value, "")}
    defaults = (outcome for outcome in document.outcomes.values() if outcome.default)
    return (*of_leaves.values(), *(each for each in defaults if each.field not in of_leaves))


def joined(path: str, key: object) -> str:
    """The path of a key inside a mapping."""
    name = printable(str(key)).replace("\n", " ").replace("\t", " ")
    return f"{path}.{name}" if path else name


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The (path, value) pairs that have an outcome: scalars, empty containers, and lists without mappings."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, joined(path, key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def shown(value: Any) -> str:
    """A value as JSON on one line, of a length that people read."""
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 120 else f"{text[:119]}…"
