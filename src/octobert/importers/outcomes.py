"""What became of each field of another tool's config: mapped to a recipe key, not needed, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from octobert.core.frozen import FrozenModel
from octobert.core.plain import printable

Verdict = Literal["mapped", "not needed", "refused"]
UNKNOWN = "not known to this importer"


class Outcome(FrozenModel):
    """What became of one field.

    Args:
        field: its path in the config, such as `passes.conversion.target_opset`.
        value: its value, as JSON.
        verdict: `mapped`, `not needed`, or `refused`.
        key: the recipe key of a mapped field.
        note: why it is not needed or refused, or what differs from the source.
    """

    field: str
    value: str
    verdict: Verdict
    key: str | None = None
    note: str = ""

    def sentence(self) -> str:
        """The outcome on one line.

        Example:
            >>> Outcome(field="passes.q.per_channel", value="false", verdict="mapped", key="quantize").sentence()
            'passes.q.per_channel = false: mapped to quantize'
        """
        what = f"mapped to {self.key}" if self.key else self.verdict
        return f"{self.field} = {self.value}: {what}{'; ' if self.key and self.note else ': ' if self.note else ''}{self.note}"


class Ledger:
    """The outcomes of the leaves of a config. The first outcome of a leaf stays."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}

    def record(self, value: Any, path: str, verdict: Verdict, *, key: str | None = None, note: str = "") -> None:
        """Give every leaf of a value that has no outcome yet this one."""
        for place, leaf in leaves(value, path):
            if place not in self._outcomes:
                self._outcomes[place] = Outcome(field=place, value=shown(leaf), verdict=verdict, key=key, note=note)

    def outcomes(self, document: Mapping[str, Any]) -> tuple[Outcome, ...]:
        """One outcome for each leaf of a document, in its order. A leaf that nothing asked for is refused."""
        self.record(document, "", "refused", note=UNKNOWN)
        return tuple(self._outcomes[place] for place, _ in leaves(document, ""))


@dataclass(frozen=True)
class Node:
    """A value of the config, its path, and the ledger of its document.

    Args:
        nests: names of mappings that only group the fields of the mapping around them; `get` and `items` look through them.
    """

    value: Any
    path: str
    ledger: Ledger
    nests: tuple[str, ...] = ()

    def get(self, name: str) -> Node | None:
        """A field, or None if it is absent or null; a null is recorded as not needed."""
        for key, node in self.items():
            if key == name:
                if node.value is None:
                    node.not_needed("null is the default")
                    return None
                return node
        return None

    def items(self) -> Iterator[tuple[str, Node]]:
        """The fields of a mapping, those inside its groups included."""
        if not isinstance(self.value, Mapping):
            return
        for key, value in self.value.items():
            node = Node(value, joined(self.path, key), self.ledger, self.nests)
            if key in self.nests and isinstance(value, Mapping):
                yield from node.items()
            else:
                yield str(key), node

    def inside(self, name: str) -> Node:
        """The field of that name, wherever it stands inside of this mapping."""
        found = next((node for key, node in self._deep() if key == name), None)
        assert found is not None, name
        return found

    def _deep(self) -> Iterator[tuple[str, Node]]:
        for key, node in self.items():
            yield key, node
            yield from node._deep()

    def elements(self) -> list[Node]:
        """The elements of a list; a single value is a list of one."""
        if not isinstance(self.value, list):
            return [self]
        return [Node(value, f"{self.path}[{index}]", self.ledger, self.nests) for index, value in enumerate(self.value)]

    @property
    def text(self) -> str:
        """A scalar as text."""
        return str(self.value).strip()

    def mapped(self, key: str, note: str = "") -> None:
        """Record that a recipe key has the meaning of this value."""
        self.ledger.record(self.value, self.path, "mapped", key=key, note=note)

    def not_needed(self, why: str) -> None:
        """Record that octobert needs no key for this value."""
        self.ledger.record(self.value, self.path, "not needed", note=why)

    def refused(self, why: str) -> None:
        """Record that octobert does not do what this value asks for."""
        self.ledger.record(self.value, self.path, "refused", note=why)


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
