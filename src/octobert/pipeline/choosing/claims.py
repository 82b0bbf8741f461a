"""The trials of a study that several processes, on several machines, work on: no combination is tried twice.

A trial is written with its combination in one transaction, so whoever sees the trial sees what it tries. Then its process looks
at the trials with lower numbers. If one of them tries the same, or if there are enough of them, it gives its own up. So the
lowest number has a combination, whatever happens in between.

A trial is done when it has what was found. Until then its process writes a number into it every few seconds. A process that
died is found by its id, on the same machine, or because that number stays the same; clocks of machines are not compared.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, FiniteFloat, Json, ValidationError

from octobert.core.errors import RecipeError, StorageError
from octobert.core.frozen import FrozenModel, first_problem
from octobert.core.selection import VariantResult
from octobert.pipeline.choosing import storage as storages
from octobert.pipeline.choosing.combinations import Combination

# Seconds between signs of life, and after which a process without one is taken for dead.
BEAT_S, SILENT_S = 10.0, 120.0
# Starts of one process differ by what computing them rounds.
_SAME_START_S = 5.0


@dataclass(frozen=True)
class Tried:
    """A trial that is running or done.

    Args:
        number: of the trial.
        id: of the trial in the storage.
        combination: that it tries.
        key: digest of the variant.
        found: what was found; None while it is running.
    """

    number: int
    id: int
    combination: Combination
    key: str
    found: VariantResult | None


@dataclass(frozen=True)
class Values:
    """What a storage keeps of a result besides the result.

    Args:
        goals: figures in the order of the goals; None where there are none.
        misses: by how much limits are missed; 0 where all are kept.
    """

    goals: tuple[float, ...] | None
    misses: float


class _Owner(FrozenModel):
    """The process of a trial.

    Args:
        machine: on which it runs.
        process: its id there.
        started: when it was started, in seconds since the machine was.
    """

    machine: str
    process: int = Field(ge=0, lt=2**31)
    started: FiniteFloat | None


class _Said(BaseModel):
    """What a trial says: its parameters, and attributes under the names of these fields. Others are ignored.

    Args:
        params: recipe key → value as JSON.
        beat: the last sign of life.
    """

    params: Combination
    key: str
    owner: _Owner
    facts: dict[str, str]
    beat: Any = None
    found: Json[VariantResult] | None = None


class Claims:
    """A study in a storage.

    Args:
        storage: of Optuna.
        where: it is, for errors.
        name: of the study.
        maximize: of each goal, whether more is better.
        facts: what all trials of the study must agree in: name → value.
        alone: no other process uses the storage.

    Raises:
        RecipeError: the study was started with other facts, or by another program.
        StorageError: the storage failed, or what is in it is damaged.
    """

    def __init__(
        self,
        storage: Any,
        where: str,
        name: str,
        maximize: Sequence[bool],
        facts: Mapping[str, str],
        *,
        alone: bool,
    ) -> None:
        self._optuna = storages.optuna()
        self._storage = storage
        self._where = where
        self._name = name
        self._facts = dict(facts)
        self._alone = alone
        self._mine = set[int]()
        # Trial → its last sign of life, and when it was first seen here.
        self._seen: dict[int, tuple[Any, float]] = {}
        directions = ["maximize" if more else "minimize" for more in maximize]
        with storages.optuna_errors(where):
            study = self._optuna.create_study(
                storage=storage, study_name=name, directions=directions, load_if_exists=True
            )
            self._id = study._study_id
            stored = [direction.name.lower() for direction in study.directions]
        if stored != directions:
            raise self._other("goals")
        self.tried()

    def tried(self) -> list[Tried]:
        """Trials that are running or done, by number. Those of dead processes are given up.

        Raises:
            RecipeError: the study was started with other facts, or by another program.
            StorageError: the storage failed.
        """
        with storages.optuna_errors(self._where):
            trials = self._storage.get_all_trials(self._id, deepcopy=False)
        states, tried = self._optuna.trial.TrialState, list[Tried]()
        for trial in sorted(trials, key=lambda trial: trial.number):
            attributes = self._said(trial)
            if not tried:
                # The first trial decides, also where two processes have started at the same time.
                names = dict.fromkeys((*self._facts, *attributes.facts))
                different = [
                    name for name in names if self._facts.get(name) != attributes.facts.get(name)
                ]
                if different:
                    raise self._other(", ".join(different))
            if attributes.found is None and (
                trial.state != states.RUNNING or self._is_dead(trial._trial_id, attributes)
            ):
                if trial.state == states.RUNNING:
                    self.give_up(trial._trial_id)
                continue
            tried.append(
                Tried(
                    trial.number,
                    trial._trial_id,
                    attributes.params,
                    attributes.key,
                    attributes.found,
                )
            )
        return tried

    def _said(self, trial: Any) -> _Said:
        """What a trial says, checked: anybody may have written it.

        Raises:
            RecipeError: it is of another program, or damaged.
        """
        try:
            return _Said.model_validate({**trial.user_attrs, "params": trial.params})
        except ValidationError as error:
            raise RecipeError(
                f'trial {trial.number} of the study "{self._name}" is of another program, or damaged',
                where="search.study",
                got=first_problem(error),
                fix="give another name, or leave it out",
            ) from None

    def claim(
        self, combination: Combination, key: str, space: Mapping[str, Sequence[str]], most: int
    ) -> Tried | None:
        """Start a trial of a combination.

        Args:
            combination: to be tried.
            key: digest of its variant.
            space: key of a recipe → its values.
            most: trials of the study.

        Returns:
            The trial, or None where another process was faster.

        Raises:
            StorageError: the storage failed.
        """
        template = self._optuna.trial.create_trial(
            state=self._optuna.trial.TrialState.RUNNING,
            params=combination,
            distributions={
                name: self._optuna.distributions.CategoricalDistribution(space[name])
                for name in combination
            },
            user_attrs={"key": key, "owner": _owner().model_dump(), "facts": self._facts},
        )
        with storages.optuna_errors(self._where):
            created = self._storage.create_new_trial(self._id, template_trial=template)
        self._mine.add(created)
        tried = self.tried()
        claimed = next((trial for trial in tried if trial.id == created), None)
        before = [trial for trial in tried if claimed is not None and trial.number < claimed.number]
        if claimed is None or len(before) >= most or any(trial.key == key for trial in before):
            self.give_up(created)
            return None
        return claimed

    def finish(self, trial: Tried, result: VariantResult, values: Values) -> None:
        """Store what was found. A trial that another process has taken over meanwhile stays as it is.

        Raises:
            StorageError: the storage failed.
        """
        states = self._optuna.trial.TrialState
        with (
            storages.optuna_errors(self._where),
            suppress(self._optuna.exceptions.UpdateFinishedTrialError),
        ):
            if values.goals is not None:
                # Optuna's name for constraints, so that its own tools show which trials keep the limits.
                self._storage.set_trial_system_attr(trial.id, "constraints:limits", values.misses)
            self._storage.set_trial_user_attr(trial.id, "found", result.model_dump_json())
            state = states.FAIL if values.goals is None else states.COMPLETE
            self._storage.set_trial_state_values(trial.id, state, values.goals)
        self._mine.discard(trial.id)

    def give_up(self, trial: int) -> None:
        """Free the combination of a trial.

        Raises:
            StorageError: the storage failed.
        """
        with (
            storages.optuna_errors(self._where),
            suppress(self._optuna.exceptions.UpdateFinishedTrialError),
        ):
            self._storage.set_trial_state_values(trial, self._optuna.trial.TrialState.FAIL)
        self._mine.discard(trial)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Give signs of life of own trials; those that are not done at the end are given up."""
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            for trial in list(self._mine):
                with suppress(StorageError):
                    self.give_up(trial)

    def _beat(self, ended: threading.Event) -> None:
        count = 0
        while not ended.wait(BEAT_S):
            count += 1
            for trial in list(self._mine):
                # A storage that fails for a while may work again; if it does not, the end of the trial says so.
                with (
                    suppress(StorageError, self._optuna.exceptions.UpdateFinishedTrialError),
                    storages.optuna_errors(self._where),
                ):
                    self._storage.set_trial_user_attr(trial, "beat", count)

    def _is_dead(self, trial: int, attributes: _Said) -> bool:
        """Whether the process of a running trial is gone."""
        if trial in self._mine:
            return False
        owner, here = attributes.owner, _owner()
        if self._alone or owner == here:
            return True
        if owner.machine == here.machine:
            started = _started(owner.process)
            return (
                started is None
                or owner.started is None
                or abs(started - owner.started) > _SAME_START_S
            )
        sign, now = attributes.beat, time.monotonic()
        last, since = self._seen.setdefault(trial, (sign, now))
        if last != sign:
            self._seen[trial] = sign, now
            return False
        return now - since > SILENT_S

    def _other(self, what: str) -> RecipeError:
        return RecipeError(
            f'the study "{self._name}" was started with other inputs, whose trials do not compare with these: {what}',
            where="search.study",
            fix="give another name, or leave it out",
        )


def _owner() -> _Owner:
    """This process, so that others can see whether it is alive."""
    return _Owner(machine=_machine(), process=os.getpid(), started=_started(os.getpid()))


def _started(process: int) -> float | None:
    """When a process of this machine was started, in seconds since the machine was; None where there is none."""
    import psutil

    # Both are computed from the clock, which may be set meanwhile; their difference is not.
    booted = psutil.boot_time()
    try:
        return float(psutil.Process(process).create_time() - booted)
    except psutil.Error:
        return None


def _machine() -> str:
    """This machine since its start, or this container: where ids of processes mean the same."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
