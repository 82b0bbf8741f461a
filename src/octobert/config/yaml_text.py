"""Read YAML that somebody else may have written.

Only plain data comes out: no tag makes an object. Refused, with the line: a key that is given twice, an alias inside of its own
anchor, and aliases that make much of little (ten lines of nine aliases each stand for more values than fit into memory).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from octobert.core.errors import RecipeError, reason
from octobert.core.files import content_of

# Recipes have some kilobytes.
MAX_BYTES = 200_000
# With aliases written out.
MAX_CHARACTERS = 1_000_000


def read(path: Path) -> Any:
    """Read a file.

    Raises:
        RecipeError: it does not exist, cannot be read, is too large or is not YAML.
    """
    return parse(text_of(path), where=str(path), what="the recipe is not valid YAML")


def text_of(path: Path, noun: str = "recipe") -> str:
    """The text of a file of somebody else.

    Args:
        path: the file.
        noun: what it is, in errors.

    Raises:
        RecipeError: it does not exist, cannot be read, is too large or is not UTF-8.
    """
    try:
        data = content_of(path, MAX_BYTES)
    except FileNotFoundError:
        raise RecipeError(
            f"the {noun} file does not exist", where=str(path.absolute()), fix="check the path"
        ) from None
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"the {noun} cannot be read",
            where=str(path),
            got=getattr(error, "strerror", None) or str(error),
        ) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"the {noun} is not UTF-8", where=str(path), got=f"{error.reason} at byte {error.start}"
        ) from error


def parse(text: str, *, where: str, what: str = "the value is not valid YAML") -> Any:
    """The data in a text.

    Args:
        where: name of the text, for the error.
        what: the error of a text that is not YAML.

    Raises:
        RecipeError: the text is not YAML, or YAML that this module refuses.

    Example:
        >>> parse("{keep: 99.9}", where="--set calibrate")
        {'keep': 99.9}
    """
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Checked(where).size_of(node)
        return loader.construct_document(node)
    except RecursionError:
        raise RecipeError("the YAML is nested too deeply", where=where) from None
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: numbers of thousands of digits, and dates that do not exist.
        raise RecipeError(what, where=where, got=reason(error)) from error


class _Checked:
    """Checks a tree of YAML nodes. An alias is the node of its anchor, so a node may be in the tree more than once."""

    def __init__(self, where: str) -> None:
        self._where = where
        # Node → its size; 0 while it is computed.
        self._sizes: dict[int, int] = {}

    def size_of(self, node: yaml.Node) -> int:
        """The number of characters and values in a node, with aliases written out."""
        cached_size = self._sizes.get(id(node))
        if cached_size is not None:
            if not cached_size:
                raise self._error("an alias stands inside of its own anchor", node)
            return cached_size
        self._sizes[id(node)] = 0
        size = 1
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            size += sum(self.size_of(key) + self.size_of(value) for key, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            size += sum(self.size_of(item) for item in node.value)
        else:
            size += len(node.value)
        if size > MAX_CHARACTERS:
            raise self._error(
                "aliases make too much of the text",
                node,
                expected=f"at most {MAX_CHARACTERS:,} characters with all aliases written out",
            )
        self._sizes[id(node)] = size
        return size

    def _check_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = (key.tag, key.value)
                if name in lines:
                    raise self._error(
                        f'the key "{key.value}" is given twice',
                        key,
                        got=f"first in line {lines[name]}",
                        fix="remove one of them",
                    )
                lines[name] = key.start_mark.line + 1

    def _error(self, what: str, node: yaml.Node, **more: str) -> RecipeError:
        return RecipeError(what, where=f"{self._where}, line {node.start_mark.line + 1}", **more)
