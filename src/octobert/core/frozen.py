"""The base class of data: frozen, with a JSON form."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from octobert.core.plain import preview


class FrozenModel(BaseModel):
    """Frozen data with a JSON form; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def first_problem(error: ValueError) -> str:
    """Return what is wrong with data, in one line: where in the data, and what is expected there."""
    if not isinstance(error, ValidationError):
        return str(error)[:200]
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part)[:60] for part in first["loc"])
    got = (
        ""
        if first["type"] in ("missing", "json_invalid")
        else f", not {preview(first['input'], 60)}"
    )
    return f"{place}: {first['msg'][:200]}{got}".removeprefix(": ")
