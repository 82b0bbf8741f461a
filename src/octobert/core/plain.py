"""Text of other people for a terminal: names in a model file, labels, rows of data, file names.

A terminal obeys control characters: they move the cursor, hide text, change the title or the clipboard. Characters that
override the direction of text make a line read as another one. All are replaced by characters that only show.
"""

from __future__ import annotations

import re
import reprlib
from typing import Any

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


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = 20


def preview(value: Any, longest: int = 100) -> str:
    """Return what somebody gave in place of something else, as Python writes it, for an error.

    Example:
        >>> preview([None]), preview(10**5000)
        ('[None]', 'int')
    """
    try:
        return _REPR.repr(value)[:longest]
    except ValueError:  # Python writes no number of thousands of digits
        return type(value).__name__


# The part of a URL with a user's name and a password. A password in the URL of a database may have any character but spaces.
_PASSWORDS = (
    (
        re.compile(r"\b((?:postgres|mysql|mariadb|mssql|oracle|redis)[\w+]*://)[^\s'\"]*@"),
        r"\1***@",
    ),
    (re.compile(r"(://)[^\s/'\"]*@"), r"\1***@"),
    (re.compile(r"([?&]\w*password=)[^\s&'\"]*", re.IGNORECASE), r"\1***"),
)


def without_passwords(text: str) -> str:
    """Return a text with `***` in place of the passwords in its URLs.

    Example:
        >>> without_passwords("cannot open postgresql://me:secret@host/db")
        'cannot open postgresql://***@host/db'
    """
    if "://" not in text:
        return text
    for pattern, shown in _PASSWORDS:
        text = pattern.sub(shown, text)
    return text


def printable_json(text: str) -> str:
    """Return a JSON document that a terminal shows and does not obey, and that means the same.

    Example:
        >>> printable_json('"\\x9b31m"')
        '"\\\\u009b31m"'
    """
    return text.translate(_ESCAPED)
