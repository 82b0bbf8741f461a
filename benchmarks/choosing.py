"""How good the choice of `octobert auto` is, and what it costs: regret against an exhaustive grid.

    python benchmarks/choosing.py regret --case mrpc --seed 0 [--shared ../shared] [--out runs/choosing]
    python benchmarks/choosing.py simulated --isa AVX2      # OpenVINO with fewer instructions than this CPU has
    python benchmarks/choosing.py outliers                  # channels times 100, SmoothQuant not allowed
    python benchmarks/choosing.py kills --case mrpc         # ten SIGKILLs of the process group, then to the end
    python benchmarks/choosing.py table                     # everything that is stored, as Markdown

grid      every variant of the space that the search has: the forms of all methods on all targets, each with every other value
          of one axis that changes times, and the variants that may be more accurate (all but the search for layers that stay
          float). Each is made, judged on the tuning rows, and timed for ROUNDS rounds, in groups whose processes take turns
          and have the float reference in common. It is measured once for each case, with seed 0, and resumes.
regret    time of the variant that `octobert auto` chose, divided by that of the fastest variant of the grid that keeps the
          limit on the tuning rows, minus one. The chosen one and the FINALISTS fastest of the grid are timed once more, in one
          race: times of different groups differ by the state of their processes, by up to a half.
share     seconds of the search, divided by the seconds of the grid. Both begin with an empty store, and both include the
          steps that variants have in common. Also of CPU seconds, which other programs on the machine change less; those of
          the search include the final run of the chosen model.

Tuning rows are the same in all runs; calibration rows, orders and resamples follow the seed. `bert-base` has random weights: no
variant changes its answers, so all keep the limit, and only the race of times is tested. The cases differ in the keys that
may vary (VARY), and grid and search of a case vary the same ones.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from choosing_cases import CASES, Spent, auto, make_model, recipe_for
from soaking import events, octobert, table

from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core.estimate import Estimate
from octobert.core.progress import ignore
from octobert.core.results import Report
from octobert.core.selection import Variant, VariantResult
from octobert.engine.executors import local
from octobert.engine.work import at_work
from octobert.pipeline.choosing import space
from octobert.pipeline.choosing.trials import VariantTrials
from octobert.pipeline.resolve import resolve

# Rounds of timing, and variants that are judged at a time.
ROUNDS, CHUNK = 100, 8
# Variants of the grid that are timed once more beside the chosen one.
FINALISTS = 8
KILLS = 10


@dataclass
class Grid:
    """All variants of a case, measured.

    Args:
        trials: makes, judges and times them; what is stored is not done again.
        folder: of the case.
        spent: on the grid, earlier runs included.
    """

    trials: VariantTrials
    folder: Path
    spent: Spent

    def measure(self, variants: Sequence[Variant]) -> None:
        """Make, judge and time all variants."""
        for start in range(0, len(variants), CHUNK):
            chunk = variants[start : start + CHUNK]
            with self._spending():
                self.trials.judge(chunk)
            print(
                f"{start + len(chunk)}/{len(variants)} variants are judged, {self.spent.seconds:.0f} s",
                flush=True,
            )
        with self._spending():
            self.trials.race(variants, ROUNDS)
        rows = [self.trials.found(variant).model_dump(mode="json") for variant in variants]
        (self.folder / "grid.json").write_text(json.dumps(rows, indent=1))

    def regret(self, chosen: Variant, variants: Sequence[Variant]) -> tuple[Variant, Estimate]:
        """The fastest variant that keeps the limit, and the time of the chosen one divided by its time, in one race."""
        found = [self.trials.found(variant) for variant in variants]
        kept = [each for each in found if each.state == "admissible"]
        fastest = sorted(kept, key=lambda each: ratio_of(each).value)[:FINALISTS]
        finalists = {each.variant.name: each.variant for each in fastest}
        self.trials.race(
            [chosen, *(v for n, v in finalists.items() if n != chosen.name)], 3 * ROUNDS
        )
        finalists[chosen.name] = chosen
        best = min(finalists.values(), key=lambda variant: self.trials.ratio(variant, chosen).value)
        return best, self.trials.ratio(chosen, best)

    @contextmanager
    def _spending(self) -> Iterator[None]:
        began = Spent.now()
        yield
        self.spent = self.spent.plus(Spent.now().minus(began))
        (self.folder / "grid-spent.json").write_text(json.dumps(self.spent))


@contextmanager
def grid_of(recipe: Recipe, folder: Path) -> Iterator[Grid]:
    """The grid of a case."""
    assert recipe.choose is not None
    stored = folder / "grid-spent.json"
    spent = Spent(*json.loads(stored.read_text())) if stored.is_file() else Spent(0.0, 0.0)
    began = Spent.now()
    with at_work(recipe, folder / "grid", ignore, local.run) as (work, _):
        reference = space.first(recipe)[0]
        trials = VariantTrials(
            resolve(recipe, tune=True),
            work,
            reference,
            goals=("latency",),
            limits=recipe.choose.limits,
        )
        grid = Grid(trials, folder, spent.plus(Spent.now().minus(began)))
        yield grid


def ratio_of(found: VariantResult) -> Estimate:
    """Time of a variant divided by that of the float reference."""
    assert found.ratio is not None
    return found.ratio


def variants_of(recipe: Recipe) -> list[Variant]:
    """All variants of the grid: see above."""
    first = space.first(recipe)
    more = [
        other
        for each in first
        for other in (*space.faster(recipe, each), *space.nearer(recipe, each))
    ]
    return list(
        {each.name: each for each in (*first, *more) if "accuracy" not in each.changes}.values()
    )


def regret(options: argparse.Namespace) -> None:
    """Choose, and compare with the grid."""
    case, folder = options.case, options.out / options.case.name
    make_model(case.model, options.shared, options.out)
    recipe, report = parse(recipe_for(case, options.shared, options.out, 0)), None
    if options.seed is not None:
        raw = recipe_for(case, options.shared, options.out, options.seed)
        report, spent = auto(raw, folder / f"seed-{options.seed}")
    with grid_of(recipe, folder) as grid:
        variants = variants_of(recipe)
        grid.measure(variants)
        if report is None:
            return
        choice, of_grid = report.choice, grid.spent
        assert choice is not None
        own = grid.trials.found(choice.best.variant)
        if own.ratio is None:
            # Layers that stay float are not in the grid, nor are values of several axes together.
            own = grid.trials.find(choice.best.variant, ROUNDS, number=0)
        best, regret = grid.regret(own.variant, variants)
        result = {
            "case": case.name,
            "seed": options.seed,
            "winner": own.variant.name,
            "best": best.name,
            "regret": regret.model_dump(),
            "drop": own.drops[str(choice.metric)].value,
            "met": choice.met,
            "speedup": 1 / ratio_of(own).value,
            "seconds": choice.seconds,
            "grid_seconds": of_grid.seconds,
            "command_seconds": spent.seconds,
            "cpu_seconds": spent.cpu_seconds,
            "grid_cpu_seconds": of_grid.cpu_seconds,
            "tried": len([each for each in choice.found if each.state != "not tried"]),
            "grid": len(variants),
            "ended": choice.ended,
            "sentence": choice.sentence,
        }
    (folder / f"regret-{options.seed}.json").write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


def simulated(options: argparse.Namespace) -> None:
    """Choose while OpenVINO and PyTorch may use fewer instructions."""
    case, folder = (
        options.case,
        options.out / "-".join((options.case.name, options.isa, *options.case.targets)),
    )
    make_model(case.model, options.shared, options.out)
    report, _ = auto(
        recipe_for(case, options.shared, options.out, 0),
        folder,
        {"ONEDNN_MAX_CPU_ISA": options.isa},
    )
    show(report, folder)


def outliers(options: argparse.Namespace) -> None:
    """Choose for a model with planted outliers that SmoothQuant may not take back."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from tests.support.checkpoints import plant_outliers

    model, folder = options.out / "models" / "outliers", options.out / "outliers"
    if not model.is_dir():
        plant_outliers(
            options.shared / "checkpoints" / "minilm-mrpc", model, factor=100.0, channels=8
        )
    raw = recipe_for(options.case, options.shared, options.out, 0, vary=["calibrate", "accuracy"])
    report, _ = auto({**raw, "model": str(model), "transforms": []}, folder)
    show(report, folder)


def kills(options: argparse.Namespace) -> None:
    """Kill a choice at random moments, end it, and compare it with the undisturbed one."""
    case, generator = options.case, random.Random(0)
    raw = recipe_for(case, options.shared, options.out, 0)
    expected, spent = auto(raw, options.out / case.name / "seed-0")
    folder = options.out / f"{case.name}-kills"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps(raw, indent=1))
    for _ in range(KILLS):
        command = subprocess.Popen(
            octobert("-q", "run", str(folder / "recipe.json"), "--out", str(folder / "out")),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(generator.uniform(0.02, 0.2) * spent.seconds)
        over = command.poll() is not None
        if not over:
            os.killpg(command.pid, signal.SIGKILL)
        command.wait()
        at: dict[str, object] = next(
            (event for event in reversed(events(folder / "out")) if "step" in event), {}
        )
        print(
            "over before the kill" if over else f"killed; last: {at.get('event')} {at.get('step')}",
            flush=True,
        )
    report, _ = auto(raw, folder, fresh=False)
    for each in (expected, report):
        assert each.choice is not None
        print(
            f"{each.choice.winner}, met: {each.choice.met}, {each.choice.seconds:.0f} s: {each.choice.sentence}"
        )
    print("unfinished results:", [path.name for path in folder.glob("out/.octobert/store/work-*")])


def show(report: Report, folder: Path) -> None:
    """Print the choice, and store it."""
    assert report.choice is not None
    rows = [
        [f"{value:.3f}" if isinstance(value, float) else value for value in row.values()]
        for row in report.choice.to_rows()
    ]
    text = f"{report.choice.sentence}\n\n{table(list(report.choice.to_rows()[0]), rows)}\n"
    (folder / "choice.md").write_text(text)
    print(text)


def print_table(options: argparse.Namespace) -> None:
    """Print all stored results."""
    head = [
        "case",
        "seed",
        "chosen",
        "best of the grid",
        "regret",
        "drop",
        "search, s",
        "grid, s",
        "share",
        "CPU share",
    ]
    rows = []
    for file in sorted(options.out.glob("*/regret-*.json")):
        each = json.loads(file.read_text())
        value, low, high = (each["regret"][key] - 1 for key in ("value", "low", "high"))
        rows.append(
            [
                *(each[key] for key in ("case", "seed", "winner", "best")),
                f"{value:+.1%} ({low:+.1%} to {high:+.1%})",
                f"{each['drop']:.4f}",
                f"{each['seconds']:.0f} ({each['tried']})",
                f"{each['grid_seconds']:.0f} ({each['grid']})",
                f"{each['seconds'] / each['grid_seconds']:.0%}",
                f"{each['cpu_seconds'] / each['grid_cpu_seconds']:.0%}",
            ]
        )
    print(table(head, rows))


COMMANDS = {
    "regret": regret,
    "simulated": simulated,
    "outliers": outliers,
    "kills": kills,
    "table": print_table,
}


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--case", choices=CASES, default="mrpc")
    parser.add_argument(
        "--seed", type=int, help="of the choice; without it only the grid is measured"
    )
    parser.add_argument("--isa", default="AVX2", help="value of ONEDNN_MAX_CPU_ISA")
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--out", type=Path, default=Path("runs/choosing"))
    parser.add_argument(
        "--vary", help="keys that may vary, separated by commas, instead of those of the case"
    )
    parser.add_argument("--rows", type=int, help="tuning rows, instead of those of the case")
    parser.add_argument("--targets", help="separated by commas, instead of those of the case")
    options = parser.parse_args()
    options.out, options.shared = options.out.resolve(), options.shared.resolve()
    case = CASES[options.case]
    vary = case.vary if options.vary is None else tuple(options.vary.split(","))
    chosen = case.targets if options.targets is None else tuple(options.targets.split(","))
    options.case = replace(case, vary=vary, tune=options.rows or case.tune, targets=chosen)
    COMMANDS[options.what](options)


if __name__ == "__main__":
    main()
