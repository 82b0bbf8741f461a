"""How a package is opened: the settings that tuning found for a goal, kept beside the model for each machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from octobert.core import environment
from octobert.core.errors import ModelError
from octobert.core.files import canonical_digest, storage_errors, whole
from octobert.core.frozen import FrozenModel
from octobert.core.session import RuntimeOption, SessionOptions

Goal = Literal["latency", "throughput"]
GOALS: tuple[Goal, ...] = ("latency", "throughput")
FILE = "tuned.json"
# The most tokens of a run, padding included: beyond this activations leave the caches of any CPU, and memory grows.
TOKENS = 2048


class Setting(FrozenModel):
    """One way to open a model and to ask it.

    Args:
        streams, threads, knobs: see `SessionOptions`.
        tokens: the most of a run, padding included.
    """

    streams: int = 1
    threads: int = 0
    tokens: int = TOKENS
    runtime_options: Mapping[str, RuntimeOption] = Field(default_factory=dict)

    def options(self, **others: Any) -> SessionOptions:
        """As the options of a session."""
        return SessionOptions(streams=self.streams, threads=self.threads, runtime_options=self.runtime_options, **others)


class Tried(FrozenModel):
    """A candidate.

    Args:
        ratio: median of its time over that of the defaults; None where it could not be opened.
        problem: why not.
    """

    setting: Setting
    ratio: float | None
    problem: str | None = None


class Tuned(FrozenModel):
    """What came of a search.

    Args:
        setting: the winner; the defaults where nothing was faster beyond doubt.
        ratio, low, high: its time over that of the defaults, and the 95 % interval.
        default_ms: median time of the work with the defaults.
        tried: every candidate, in order.
    """

    goal: Goal
    setting: Setting
    ratio: float
    low: float
    high: float
    default_ms: float
    rows: int
    tried: tuple[Tried, ...]


def default_setting(goal: Goal) -> Setting:
    """All cores for one inference, or an inference for every core."""
    return Setting(streams=environment.cores() if goal == "throughput" else 1)


def kept(folder: Path) -> dict[str, Tuned]:
    """What a package was tuned to on this machine: goal → result; nothing for another machine, or another runtime."""
    if not (folder / FILE).is_file():
        return {}
    try:
        return {goal: Tuned.model_validate(one) for goal, one in _read(folder).get(machine(), {}).items()}
    except (ValueError, AttributeError) as error:
        raise ModelError(
            "what the model was tuned to cannot be read", where=str(folder / FILE), got=str(error)[:200], fix="remove the file"
        ) from error


def keep(folder: Path, tuned: Tuned) -> None:
    """Store a result with the package, beside those of other goals and other machines.

    Raises:
        StorageError: it cannot be written.
    """
    every = _read(folder) if (folder / FILE).is_file() else {}
    every.setdefault(machine(), {})[tuned.goal] = tuned.model_dump(mode="json")
    with storage_errors(folder), whole(folder / FILE) as unfinished:
        unfinished.write_text(json.dumps(every, indent=1), encoding="utf-8")


def _read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / FILE).read_text(encoding="utf-8"))


def machine() -> str:
    """What times belong to: a CPU, the cores of it that this process may use, and the runtimes."""
    here = environment.current()
    runtimes = {name: here.versions.get(name) for name in ("onnxruntime", "openvino", "torch")}
    return canonical_digest([here.cpu, here.cores, here.features, runtimes])[:16]
