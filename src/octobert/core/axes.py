"""Axes and forms that a search for the best model may vary, declared by plugins as data.

An axis is a recipe key with the values that are worth trying. It says what another value can change (the model's numbers, its
time, or both) and from which step on the model has to be made again, so that a search tries cheap and promising values first. A
form is a precision that a method makes, where a search begins.

Methods declare both by `offer`, transforms and corrections by `axes`, calibrators by `sweep` and `prior`. A plugin without
these declarations is used where a recipe names it, and not varied.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from octobert.core.frozen import FrozenModel

# What another value of an axis can change.
Effect = Literal["numbers", "time"]
# First step that runs again for another value, from the most work to the least. Everything before it is shared.
BuildStep = Literal["transform", "calibrate", "quantize", "export", "open"]
# What a model of a form can save.
Saving = Literal["time", "size", "memory"]


class Axis(FrozenModel):
    """One thing that a search may vary.

    Args:
        key: recipe key, or an option of the plugin that is chosen there: `calibrate`, `quantize.static.placement`.
        values: worth trying, as a recipe has them, the most promising first. The recipe's own value may be among them.
        names: short texts of the values; empty where the values speak for themselves.
        changes: what another value can change.
        invalidates: first step that runs again for another value.
        gain: largest factor by which another value has made a model faster in our measurements; 1 where none has, and the
            values are tried for accuracy only. A model that is slower than the fastest one by more than this is not varied
            along the axis.
        prior: from 0 to 1, how likely another value brings back lost accuracy. It orders what a search tries.
        requires: other keys → values that these values are good with.

    Example:
        >>> Axis(key="calibrate", values=("mse",), changes=("numbers",), invalidates="calibrate").gain
        1.0
    """

    key: str
    values: tuple[Any, ...] = Field(min_length=1)
    names: tuple[str, ...] = ()
    changes: tuple[Effect, ...] = Field(min_length=1)
    invalidates: BuildStep
    gain: float = Field(default=1.0, ge=1.0)
    prior: float = Field(default=0.1, ge=0, le=1)
    requires: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_fit(self) -> Axis:
        if self.names and len(self.names) != len(self.values):
            raise ValueError("an axis has one name per value, or none")
        return self


class Form(FrozenModel):
    """A precision that a method makes.

    Args:
        precision: of most products: `f32`, `bf16`, `f16`, or 8 or 4 bits: `int8`, `int8 dynamic`, `int4 weights`.
        options: of the method, which ask for it.
        saves: what its models can save, compared with float32. A search for something else does not try it.
        why_not: one sentence: why the target does not gain anything by it on this machine; None where it is worth trying.
    """

    precision: str
    options: dict[str, Any] = Field(default_factory=dict)
    saves: tuple[Saving, ...] = ("time", "size", "memory")
    why_not: str | None = None


class Offer(FrozenModel):
    """The forms and axes of a method in a search, for one target on one machine.

    Args:
        forms: where a search begins.
        axes: options of the method, and keys of the recipe, that are worth varying.
        varies: recipe keys of other plugins that change models of the method: `transforms`, `calibrate`, `corrections`.
        falls_back: single layers of its models can fall back to float (`accuracy` in a recipe).
    """

    forms: tuple[Form, ...]
    axes: tuple[Axis, ...] = ()
    varies: tuple[Literal["transforms", "calibrate", "corrections"], ...] = ()
    falls_back: bool = False
