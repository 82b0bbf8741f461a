"""Text of other people for a terminal: names in a model file, labels, rows of data, file names.

A terminal obeys control characters: they move the cursor, hide text, change the title or the clipboard. Characters that
override the direction of text make a line read as another one. All are replaced by characters that only show.
"""

from __future__ import annotations

# Directions of text, and separators of lines and paragraphs that only some programs know.
_OTHERS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029)
_SHOWN = {
    # Unicode has pictures of the ASCII controls: ␛ for escape.
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\u2421",
    **dict.fromkeys((*range(0x80, 0xA0), *_OTHERS), "\ufffd"),
}
_ESCAPED = {code: f"\\u{code:04x}" for code in (0x7F, *range(0x80, 0xA0), *_OTHERS)}


def printable(text: str) -> str:
    """Return a text that a terminal shows and does not obey. Tabs and line breaks stay.

    Example:
        >>> printable("red \\x1b[31m, right to left \\u202e")
        'red ␛[31m, right to left �'
    """
    # Half characters stand for bytes of file names that are not UTF-8; no encoding of a terminal has them.
    return text.translate(_SHOWN).encode("utf-8", "replace").decode("utf-8")


def printable_json(text: str) -> str:
    """Return a JSON document that a terminal shows and does not obey, and that means the same.

    Example:
        >>> printable_json('"\\x9b31m"')
        '"\\\\u009b31m"'
    """
    return text.translate(_ESCAPED)
