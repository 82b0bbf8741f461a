"""The keys of a recipe as keyword arguments, for type checkers and editors. `Recipe` says what they mean and checks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from octobert.core.logs import Level
from octobert.core.settings import Goal

Options: TypeAlias = Mapping[str, Any]
# A name, or one name with its options.
Plugin: TypeAlias = str | Options


class RecipeKeys(TypedDict, total=False):
    """Keys of a recipe besides model, task and data, as plain data."""

    revision: str | None
    family: str | None
    allow_pickle: bool
    allow_code: bool
    preprocess: str | None
    postprocess: str | None
    metric: Plugin | Sequence[Plugin]
    finetune: Options | None
    qat: Options | None
    training: Options
    prune: Options | None
    transforms: Sequence[Plugin]
    calibrate: Plugin
    calibration_provider: str
    quantize: Plugin
    corrections: Sequence[Plugin]
    sensitivity: bool
    accuracy: Options | None
    choose: Options | None
    search: Options | None
    executor: Literal["local", "ray"]
    speed: Options | None
    repair: bool
    targets: Sequence[str]
    shape: Options | None
    format: Literal["auto", "qdq", "qoperator"]
    opset: int | None
    session: Mapping[str, Options]
    token_states: bool
    zip: bool
    float_model: bool
    measure: bool
    profile: bool
    quick: bool
    tune: Sequence[Goal]
    log_level: Level | None
    cache: str | None
    baselines: Sequence[str] | None
    benchmark: Options
    seed: int
