"""Texts that would do harm where a text becomes markup, script, or a command of a terminal."""

from __future__ import annotations

# A script that ends the page's own, an event handler, a link, a title, a template, an override of the direction, NUL and others.
ENEMIES = (
    "</script><script>window.x=1</script>",
    '<img src=x onerror="window.x=1">',
    "'\"><svg onload=window.x=1>",
    "javascript:window.x=1",
    "{{ 7*7 }}${window.x=1}</style></textarea><!--",
    "\u202egnp.exe\u202c \u0000\u0007\u001b[31m 😀 \ufeff\u2028",
    "long " + "x" * 10_000,
)
