"""What a search for the best model may vary: axes, declared by plugins as data.

An axis is a recipe key with the values that are worth trying. It says what another value can change (the model's numbers, its
time, or both) and from which step on the model has to be made again, so that a search tries cheap and promising values first.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from octobert.core.frozen import FrozenModel

# What another value of an axis can change.
Effect = Literal["numbers", "time"]
# First step that runs again for another value, from the most work to the least. Everything before it is shared.
Again = Literal["transform", "calibrate", "quantize", "export", "open"]


class Axis(FrozenModel):
    """One thing that a search may vary.

    Args:
        key: recipe key, or an option of the plugin that is chosen there: `calibrate`, `quantize.static.placement`.
        values: worth trying, as a recipe has them. The first one is what a recipe without the key gets.
        changes: what another value can change.
        again: first step that runs again for another value.
        gain: largest factor by which another value than the first has made a model faster in our measurements. A model that is
            slower than the fastest one by more than this is not varied along the axis.

    Example:
        >>> Axis(key="calibrate", values=("minmax", "mse"), changes=("numbers",), again="calibrate").gain
        1.0
    """

    key: str
    values: tuple[Any, ...] = Field(min_length=1)
    changes: tuple[Effect, ...] = Field(min_length=1)
    again: Again
    gain: float = Field(default=1.0, ge=1.0)
