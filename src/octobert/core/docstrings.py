"""Docstrings in Google style: the schema of recipes and the help of the command line take their texts from them."""

from __future__ import annotations

import inspect
import re
import textwrap


def arguments_of(doc: str | None) -> dict[str, str]:
    """Argument → its text in the `Args` section of a docstring.

    Example:
        >>> arguments_of("Sum.\\n\\nArgs:\\n    one, other: Numbers\\n        of any size.")
        {'one': 'Numbers of any size.', 'other': 'Numbers of any size.'}
    """
    section = inspect.cleandoc(doc or "").partition("Args:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^(\S.*?): (.*(?:\n .*)*)", textwrap.dedent(section), re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}
