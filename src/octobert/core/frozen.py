"""The base class of data: frozen, with a JSON form."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """Frozen data with a JSON form; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
