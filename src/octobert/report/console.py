"""The console for everything that is drawn: it shows text of other people as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from octobert.core.plain import printable


class PlainConsole(Console):
    """A console of rich without markup in strings, whose texts hold no control characters.

    Args:
        **options: of rich's console.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of something to draw. Those that rich itself controls the terminal with stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
