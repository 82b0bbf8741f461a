"""Variants are made, timed in turn and judged. Every result is an artifact in the store, so that a search that was interrupted
finds them again, and parts that variants have in common are made once.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from octobert.core import environment
from octobert.core.errors import KilledError, OctobertError
from octobert.core.estimate import Estimate
from octobert.core.files import canonical_digest
from octobert.core.limits import UNITS, Limit, objective_named
from octobert.core.measurements import Load
from octobert.core.selection import Variant, VariantResult
from octobert.core.session import GOALS, Goal
from octobert.engine.contract import Step, StepResult
from octobert.engine.executors import ConcurrentExecutor
from octobert.engine.store import Artifact
from octobert.engine.work import Work
from octobert.evaluation.statistics import percentile
from octobert.pipeline import making
from octobert.pipeline.artifacts import TargetFiles
from octobert.pipeline.choosing import budget, limits, space
from octobert.pipeline.run import Run
from octobert.pipeline.stages import judge, race
from octobert.pipeline.stages.race import RaceTimes

# Latency is timed in rounds, throughput for seconds of each model.
_SECONDS_PER_ROUND = 0.2
# Memory of a process that runs a model: several times its file, and the runtime. Races take at most half of the machine's.
_COPIES, _RUNTIME_BYTES, _SHARE = 4, 300e6, 0.5
_FEWEST = 4
# Seconds of a round of a small model, with what comes between two rounds.
_LEAST_ROUND = 0.05
# Shares of the time limit that the final run, tuning and one race may take.
_FINAL_SHARE, _TUNED_SHARE, _RACE_SHARE = 0.5, 0.25, 0.25
# Keys of a recipe that change nothing about a search.
_ELSEWHERE = {"executor", "cache", "log_level"}
# Figures of models that have run.
TIMED = UNITS.keys() - {"size"}


@functools.lru_cache(maxsize=512)
def statistic(samples: tuple[float, ...], q: float) -> Estimate:
    """A percentile of times."""
    return percentile(np.array(samples), q, seed=0)


@dataclass
class _State:
    """What is known of one variant.

    Args:
        draft: files without weight corrections. They take as long, and are made in a fraction of the time.
    """

    variant: Variant
    made: dict[str, Artifact] = field(default_factory=dict)
    draft: dict[str, Artifact] = field(default_factory=dict)
    run: Run | None = None
    problem: str | None = None
    races: list[int] = field(default_factory=list)
    verdict: judge.Judged | None = None


class VariantTrials:
    """Variants of one recipe.

    Args:
        run: of the recipe.
        work: carries out steps.
        reference: the float model that all variants are compared with.
        goals: figures that are optimized, and those that decide between equals.
        limits: that a model must keep.

    Attributes:
        metric: the main metric.
        about_time: whether the goal or a limit is known only of a model that has run.
        killed: whether a process died; the same search then tries its variant again.
    """

    def __init__(
        self,
        run: Run,
        work: Work,
        reference: Variant,
        *,
        goals: Sequence[str],
        limits: Sequence[Limit],
    ) -> None:
        self.run, self.reference, self.limits = run, reference, tuple(limits)
        self._work, self._goals = work, tuple(goals)
        named = {objective_named(name).name for name in (goals[0], *(limit.of for limit in limits))}
        self.about_time = bool(named & TIMED)
        self.killed = False
        self._states: dict[str, _State] = {}
        self._races: list[race.Race] = []
        self._ratios: dict[tuple[str, str, int], Estimate] = {}
        self._began, self._earlier, self._counted = time.monotonic(), 0.0, set[str]()
        self.metric = run.scored.build().primary
        self._metric_limits = tuple(limit for limit in limits if limit.objective.name not in UNITS)
        self._shared: dict[str, Artifact] = {}
        self._kinds = space.observed_kinds(run)
        self._carry_out(making.data_step(run), self._shared)
        self.make([reference])
        if (problem := self._states[reference.name].problem) is not None:
            raise OctobertError("the float model cannot be made", where=reference.name, got=problem)
        # The capture is that of every variant; transforms come after it.
        artifacts = self._states[reference.name].made
        self._shared |= {
            name: artifacts[name] for name in ("capture", "finetune") if name in artifacts
        }
        judging = self._judging(reference, None)
        self._carry_out(judging, self._shared)
        result = self._work.results(self._shared)[judging.name]
        self._states[reference.name].verdict = result.read(judge.JUDGED, judge.Judged)

    @property
    def expected(self) -> dict[str, float]:
        """Seconds of trials before the first one of their kind, from those of the float model: `judge` one variant, `race` one
        model for one round."""
        return {
            "judge": self._shared["judge/float"].seconds,
            "race": max(_LEAST_ROUND, 2 * self._row_seconds),
        }

    @property
    def _row_seconds(self) -> float:
        """Of the float model, for one row."""
        timed = self.found(self.reference).time_ms
        return (
            timed.value / 1000
            if timed is not None
            else self._shared["judge/float"].seconds / max(1, self.rows)
        )

    @property
    def final_seconds(self) -> float:
        """About how long the final run takes, with its search for options of the runtime where there is time for one."""
        tuning = budget.tuning_seconds(self.run, self._row_seconds) if self.tunes else 0.0
        return self._measuring_seconds(lean=self.lean) + tuning

    @property
    def lean(self) -> bool:
        """Whether the final run measures less, because all of it would take most of the time."""
        limit = self._minutes()
        return limit is not None and self._measuring_seconds(lean=False) > _FINAL_SHARE * 60 * limit

    def _measuring_seconds(self, *, lean: bool) -> float:
        rows = int(self._shared["data"].summary["evaluation_rows"])
        return budget.measuring_seconds(self.run, self._row_seconds, rows, lean=lean)

    @property
    def tunes(self) -> bool:
        """Whether the final run looks for the fastest options of the runtime: where it is wanted and takes a small part."""
        settings = self.run.recipe.choose
        if (
            settings is None
            or not settings.tune
            or self.lean
            or objective_named(settings.goal).name not in GOALS
        ):
            return False
        return (
            budget.tuning_seconds(self.run, self._row_seconds)
            <= _TUNED_SHARE * 60 * settings.minutes
        )

    @property
    def seconds(self) -> float:
        """Seconds that the search has taken, in earlier runs as well."""
        return time.monotonic() - self._began + self._earlier

    def known(self, variants: Sequence[Variant]) -> int:
        """How many of these variants were timed or judged, or cannot be made."""
        states = [self._states[v.name] for v in variants if v.name in self._states]
        return sum(bool(state.races or state.verdict or state.problem) for state in states)

    @property
    def at_once(self) -> int:
        """How many variants are made at the same time."""
        executor = self._work.executor
        return executor.concurrency if isinstance(executor, ConcurrentExecutor) else 1

    @property
    def load(self) -> Load | None:
        """What else the machine did in the race in which it did most; None without races."""
        return max(
            (race.load for race in self._races),
            key=lambda load: load.others + load.stolen,
            default=None,
        )

    @property
    def key(self) -> str:
        """Of everything that a search depends on: the recipe, the model, the rows, the metrics, the machine."""
        recipe = self.run.recipe.model_dump(mode="json", by_alias=True, exclude=_ELSEWHERE)
        return canonical_digest(
            [recipe, sorted(artifact.key for artifact in self._shared.values())]
        )

    @property
    def rows(self) -> int:
        """Number of tuning rows."""
        verdict = self._states[self.reference.name].verdict
        return 0 if verdict is None else verdict.of

    def run_of(self, variant: Variant) -> Run:
        """The run of one variant's recipe.

        Raises:
            OctobertError: it is not a valid recipe.
        """
        recipe = space.recipe_of(self.run.recipe, variant)
        baselines = tuple(
            name for name in self.run.candidates if name not in self.run.recipe.targets
        )
        return replace(
            self.run, recipe=recipe, candidates=(*baselines, variant.target), kinds=self._kinds
        )

    def make(self, variants: Sequence[Variant], *, draft: bool = False) -> list[Variant]:
        """Make the files of variants.

        Args:
            draft: to be timed only.

        Returns:
            Those that could be made.
        """
        chains: dict[str, list[Step]] = {}
        for variant in variants:
            state = self._states.setdefault(variant.name, _State(variant))
            if state.problem or state.made or (draft and state.draft):
                continue
            try:
                state.run = self.run_of(variant)
                run = state.run
                if draft:
                    run = replace(
                        run,
                        recipe=run.recipe.replaced(corrections=(), accuracy=None),
                    )
                chains[variant.name] = making.model_steps(run)
            except OctobertError as error:
                state.problem = str(error)
        for name, artifacts in self._carry_out_chains(chains, self._shared).items():
            state = self._states[name]
            if isinstance(artifacts, OctobertError):
                state.problem = str(artifacts)
            elif draft:
                state.draft = artifacts
            else:
                state.made = artifacts
        return [variant for variant in variants if self._states[variant.name].problem is None]

    def race(self, variants: Sequence[Variant], rounds: int, number: int | None = None) -> None:
        """Time variants in turn, together with the reference, in groups that fit into the memory.

        Args:
            variants: to be timed.
            rounds: of the race.
            number: by which its rows are drawn, and an earlier run of it is found. Default: of the races so far.
        """
        fit = [v for v in self.make(variants, draft=True) if v.name != self.reference.name]
        sizes = [self._size(v) for v in (*fit, self.reference)]
        memory = _COPIES * max(sizes) + _RUNTIME_BYTES
        most = max(_FEWEST, int(_SHARE * environment.memory().total / memory)) - 1
        leader = fit[:1]
        groups = [
            fit[:most],
            *([*leader, *fit[i : i + most - 1]] for i in range(most, len(fit), most - 1)),
        ]
        for group in groups:
            self._race([self.reference, *group], rounds, number)

    def _race(self, variants: Sequence[Variant], rounds: int, drawn: int | None) -> None:
        number, goal = len(self._races), objective_named(self._goals[0])
        kind: Goal = "throughput" if goal.name == "throughput" else "latency"
        exports = {v.name: f"{v.name}|export/{v.target}" for v in variants}
        artifacts = dict(self._shared)
        artifacts |= {exports[v.name]: self._exported(v) for v in variants}
        entrants = {
            v.name: race.Entrant(target=v.target, entries=self._run_of(v).entries(v.target))
            for v in variants
        }
        timed = race.run.step(
            f"race/{number + 1}",
            capture=making.CAPTURED,
            data=making.ROWS,
            exports={n: TargetFiles(step=s) for n, s in exports.items()},
            entrants=entrants,
            goal=kind,
            rounds=rounds,
            seconds=rounds * _SECONDS_PER_ROUND,
            number=number if drawn is None else drawn,
            machine=self.run.machine,
            spec=self.run.spec,
            seed=self.run.recipe.seed,
            most_seconds=_RACE_SHARE * 60 * limit
            if (limit := self._minutes()) is not None
            else race.MOST_SECONDS,
        )
        self._carry_out(timed, artifacts)
        result = self._work.results(artifacts)[timed.name].read(race.TIMES, race.Race)
        self._races.append(result)
        for variant in variants:
            if (problem := result.problems.get(variant.name)) is not None:
                self._states[variant.name].problem = problem
            else:
                self._states[variant.name].races.append(number)

    def judge(self, variants: Sequence[Variant]) -> None:
        """Judge variants on the tuning rows."""
        waiting = [v for v in self.make(variants) if self._states[v.name].verdict is None]
        chains, artifacts = {}, dict(self._shared)
        for variant in waiting:
            export = f"{variant.name}|export/{variant.target}"
            artifacts[export] = self._states[variant.name].made[f"export/{variant.target}"]
            chains[variant.name] = [self._judging(variant, TargetFiles(step=export))]
        for name, judged in self._carry_out_chains(chains, artifacts).items():
            if isinstance(judged, OctobertError):
                self._states[name].problem = str(judged)
            else:
                result = self._work.results(judged)[f"judge/{name}"]
                self._states[name].verdict = result.read(judge.JUDGED, judge.Judged)

    def _judging(self, variant: Variant, export: TargetFiles | None) -> Step:
        """The step that judges a variant; without files, the one that keeps the float model's outputs."""
        run = self.run if export is None else self._run_of(variant)
        return judge.run.step(
            "judge/float" if export is None else f"judge/{variant.name}",
            capture=making.CAPTURED,
            data=making.ROWS,
            reference=None if export is None else StepResult(step="judge/float"),
            export=export,
            target=variant.target,
            entries=run.entries(variant.target),
            limits=self._metric_limits,
            machine=self.run.machine,
            scored=self.run.scored,
            seed=self.run.recipe.seed,
        )

    def found(self, variant: Variant) -> VariantResult:
        """What is known of a variant. Its state is `excluded` where it misses a limit by what is known, else `admissible`, or
        `not tried` where something is missing."""
        state = self._states.get(variant.name, _State(variant))
        verdict = state.verdict
        metrics = verdict.metrics if verdict else {}
        timed = self._timed(state, state)
        result = VariantResult(
            variant=variant,
            state="not tried",
            ratio=None if timed is None else self.ratio(variant, self.reference),
            time_ms=None
            if timed is None
            else statistic(timed.samples_ms, objective_named(self._goals[0]).percentile or 50),
            figures=self._figures(state, state),
            rounds=len(timed.samples_ms) if timed else 0,
            drops={name: change.drop for name, change in metrics.items()},
            values={name: change.value for name, change in metrics.items()},
            rows=verdict.rows if verdict else 0,
            size_bytes=self._size(variant) if state.made or state.draft else None,
            peak_memory_bytes=timed.footprint.peak_memory_bytes if timed else None,
            seconds=sum(
                artifact.seconds
                for name, artifact in state.made.items()
                if name not in self._shared
            ),
            number=1 + list(self._states).index(variant.name)
            if variant.name in self._states
            else 0,
        )
        if state.problem is not None:
            return result.replaced(state="excluded", reason=state.problem)
        reference = result
        if variant != self.reference:
            # Its times are those beside the variant.
            beside = self._figures(self._states[self.reference.name], state)
            reference = self.found(self.reference).replaced(figures=beside)
        missed = limits.missed(self.limits, result, reference, self.metric)
        if missed:
            return result.replaced(state="excluded", checks=missed)
        is_complete = verdict is not None and (
            timed is not None or variant == self.reference or not self.about_time
        )
        return result.replaced(state="admissible") if is_complete else result

    def find(self, variant: Variant, rounds: int = 40, *, number: int) -> VariantResult:
        """Make, time and judge one variant; `number` as for `race`."""
        self.race([variant], rounds, number)
        self.judge([variant])
        return self.found(variant)

    def ratio(self, variant: Variant, other: Variant) -> Estimate:
        """Time of one variant divided by the time of another, from the last race that timed both."""
        if variant == other:
            return Estimate.exactly(1.0)
        both = [n for n in self._states[variant.name].races if n in self._states[other.name].races]
        if not both:
            return self.ratio(variant, self.reference).over(self.ratio(other, self.reference))
        key = (variant.name, other.name, both[-1])
        if key not in self._ratios:
            times = self._races[both[-1]].times
            pairs = zip(times[variant.name].samples_ms, times[other.name].samples_ms, strict=False)
            ours, theirs = np.array(list(pairs)).T
            q = objective_named(self._goals[0]).percentile
            # Without a percentile each text is compared with itself.
            if q is None:
                self._ratios[key] = percentile(ours / theirs, 50.0, seed=0)
            else:
                self._ratios[key] = percentile(ours, q, seed=0, over=theirs)
        return self._ratios[key]

    def _timed(self, state: _State, beside: _State) -> RaceTimes | None:
        """The times of a variant in the last race of another one, or of itself."""
        return self._races[beside.races[-1]].times[state.variant.name] if beside.races else None

    def _figures(self, state: _State, beside: _State) -> dict[str, Estimate]:
        """All figures but metrics that goals and limits name; the arguments are those of `_timed`."""
        names = dict.fromkeys((*self._goals, *(limit.of for limit in self.limits)))
        timed, figures = self._timed(state, beside), dict[str, Estimate]()
        for name in names:
            figure = objective_named(name)
            if figure.name == "size" and (state.made or state.draft):
                figures[name] = Estimate.exactly(self._size(state.variant) / 1e6)
            elif timed is None or figure.name not in UNITS:
                continue
            elif figure.name == "latency":
                figures[name] = statistic(timed.samples_ms, figure.percentile or 50)
            elif figure.name == "throughput":
                figures[name] = statistic(timed.samples_ms, 50).inverse().times(1000)
            elif figure.name == "speedup":
                figures[name] = self.ratio(state.variant, self.reference).inverse()
            elif figure.name == "memory":
                figures[name] = Estimate.exactly(timed.footprint.peak_memory_bytes / 1e6)
            elif figure.name == "load":
                figures[name] = Estimate.exactly(timed.footprint.load_ms)
        return figures

    def _minutes(self) -> float | None:
        """The time limit of the recipe."""
        settings = self.run.recipe.searches
        return settings.minutes if settings is not None else None

    def _run_of(self, variant: Variant) -> Run:
        run = self._states[variant.name].run
        return self.run if run is None else run

    def _size(self, variant: Variant) -> int:
        return int(self._exported(variant).summary["size_bytes"])

    def _exported(self, variant: Variant) -> Artifact:
        """The files of a variant, or a draft of them."""
        state = self._states[variant.name]
        return (state.made or state.draft)[f"export/{variant.target}"]

    def _carry_out(self, one: Step, artifacts: dict[str, Artifact]) -> None:
        """Make or reuse a step, whose artifact is added."""
        result = self._carry_out_chains({one.name: [one]}, artifacts)[one.name]
        if isinstance(result, OctobertError):
            raise result
        artifacts.update(result)

    def _carry_out_chains(
        self, chains: Mapping[str, Sequence[Step]], artifacts: Mapping[str, Artifact]
    ) -> dict[str, dict[str, Artifact] | OctobertError]:
        """Carry out chains of steps; the time of results of earlier runs counts."""
        results = self._work.carry_out_chains(chains, artifacts)
        self.killed |= any(isinstance(result, KilledError) for result in results.values())
        used = {
            a.key: a.seconds
            for result in results.values()
            if isinstance(result, dict)
            for a in result.values()
        }
        self._earlier += sum(
            seconds for key, seconds in used.items() if key in self._work.reused - self._counted
        )
        self._counted |= set(used)
        return results
