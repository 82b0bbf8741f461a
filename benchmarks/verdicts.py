"""How often the words of a report are wrong: simulated models whose true loss is known, judged by the code that judges runs.

    python benchmarks/verdicts.py [--samples 200] [--metrics accuracy f1 …] [--rows 10 40 100 400] [--tables counts times …]

Tables, as Markdown:

1. Each metric, with a limit that is just the true loss of the 8-bit model: how often its limit is called kept, and how often
   clearly missed. Each is an error, and must be at most 2.5 %; `bootstrap` is what the percentile bootstrap would call kept.
2. The words of a report about accuracy with a limit of one point, for several true losses. "Ship" is wrong where the loss is
   above one point, "no" where it is below.
3. Speeds: how often a model that is as fast as float is called faster, and slower, for several numbers of rounds.
4. Counts: of rows that only get worse, how many may be worse where a limit is kept, and how often a model whose true loss is
   the limit has so few, by the binomial distribution.
5. Times: how often a percentile is below the true one with its whole interval, so that a limit just below is called kept.
6. Timing that ends when the speedup is known to 5 %: how often the interval of the speedup misses the true one, beside that of
   all 30 rounds, and how many rounds are timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter
from scipy.stats import binom

from octobert.core.estimate import Estimate, quantile
from octobert.core.limits import EXACT, Limit, check
from octobert.core.measurements import Latency
from octobert.core.results import ModelMetadata, Report
from octobert.evaluation import statistics
from octobert.evaluation.interleaving import interleave, until_narrow
from octobert.report.judged import figure_of
from octobert.tasks import Task, load
from octobert.tasks.embedding import EmbeddingOptions
from octobert.tasks.token_classification import EXPECTED, PREDICTED, RIGHT

Generator = np.random.Generator
Pair = tuple[np.ndarray, np.ndarray]
# Of the sample that stands for all rows.
_MANY = 300_000


@dataclass(frozen=True)
class Case:
    """A metric, and how rows of two models come about.

    Args:
        name: of the case.
        task: with the metric.
        metric: its name.
        draw: (number of rows, generator) → items of the 8-bit model, items of the float model.
    """

    name: str
    task: Task
    metric: str
    draw: Callable[[int, Generator], Pair]

    def true_loss(self) -> float:
        """Of all rows."""
        metric = self.task.metrics[self.metric]
        ours, theirs = self.draw(_MANY, np.random.default_rng(99))
        return metric(theirs) - metric(ours)


def classes(
    share: float, right: float, worse: float, better: float, only: int | None = None
) -> Callable[[int, Generator], Pair]:
    """Rows of two classes.

    Args:
        share: of class 1.
        right: accuracy of the float model.
        worse, better: share of the rows that the 8-bit model alone gets wrong, and right.
        only: the class that changes for the worse; None for both.
    """

    def draw(rows: int, generator: Generator) -> Pair:
        gold = (generator.random(rows) < share).astype(np.int64)
        correct = generator.random(rows) < right
        before = np.where(correct, gold, 1 - gold)
        open_to = correct if only is None else correct & (gold == only)
        part = 1.0 if only is None else share if only else 1 - share
        lost = open_to & (generator.random(rows) < worse / (right * part))
        won = ~correct & (generator.random(rows) < (better / (1 - right) if right < 1 else 0.0))
        after = np.where(lost, 1 - gold, np.where(won, gold, before))
        return np.stack([after, gold], axis=1), np.stack([before, gold], axis=1)

    return draw


def entities(rows: int, generator: Generator) -> Pair:
    """Sentences with some entities; the 8-bit model loses some, and a few sentences wholly."""
    theirs = np.zeros((rows, 7))
    theirs[:, EXPECTED] = theirs[:, PREDICTED] = generator.poisson(1.7, rows)
    theirs[:, RIGHT] = generator.binomial(theirs[:, EXPECTED].astype(int), 0.88)
    ours = theirs.copy()
    ours[:, RIGHT] -= generator.binomial(
        theirs[:, RIGHT].astype(int), np.where(generator.random(rows) < 0.01, 0.9, 0.01)
    )
    return ours, theirs


def questions(rows: int, generator: Generator) -> Pair:
    """F1 of answers: most are all right or all wrong."""
    theirs = np.zeros((rows, 10))
    theirs[:, 2] = 1.0
    theirs[:, 1] = np.where(
        generator.random(rows) < 0.6,
        1.0,
        np.where(generator.random(rows) < 0.5, generator.random(rows), 0.0),
    )
    ours = theirs.copy()
    ours[:, 1] *= generator.random(rows) > 0.025
    return ours, theirs


def ranks(rows: int, generator: Generator) -> Pair:
    """Ranks among 500 documents; some fall."""
    before = np.minimum(np.floor(generator.pareto(0.8, rows)) + 1, 500)
    after = np.where(generator.random(rows) < 0.05, np.minimum(before * 3, 500), before)
    return np.stack([after, np.full(rows, 500.0)], axis=1), np.stack(
        [before, np.full(rows, 500.0)], axis=1
    )


def scores(rare: float, noise: float) -> Callable[[int, Generator], Pair]:
    """Scores with a rank correlation of 0.85; the 8-bit model adds noise to all, or spoils a few."""

    def draw(rows: int, generator: Generator) -> Pair:
        gold = generator.normal(size=rows)
        before = gold + 0.6 * generator.normal(size=rows)
        spoiled = generator.random(rows) < rare
        after = np.where(
            spoiled, generator.normal(size=rows), before + noise * generator.normal(size=rows)
        )
        return np.stack([after, gold], axis=1), np.stack([before, gold], axis=1)

    return draw


def cases() -> list[Case]:
    """All metrics, with rare and with frequent changes."""
    two = load("text-classification").build(ModelMetadata(labels=("no", "yes")))
    tags = load("token-classification").build(ModelMetadata(labels=("O", "B-X", "I-X")))
    answers = load("squad").build()
    search = EmbeddingOptions(query="query", document="document").build()
    return [
        Case("accuracy, only losses", two, "accuracy", classes(0.5, 0.85, 0.02, 0.0)),
        Case("accuracy, losses and gains", two, "accuracy", classes(0.5, 0.85, 0.04, 0.02)),
        Case("accuracy, float always right", two, "accuracy", classes(0.5, 1.0, 0.02, 0.0)),
        Case("F1, 3 in 10 positive", two, "f1", classes(0.3, 0.88, 0.02, 0.005, only=1)),
        Case("F1, 1 in 10 positive", two, "f1", classes(0.1, 0.95, 0.01, 0.0, only=1)),
        Case("macro F1", two, "macro_f1", classes(0.3, 0.88, 0.03, 0.01)),
        Case("Matthews correlation", two, "matthews", classes(0.3, 0.85, 0.02, 0.005)),
        Case("F1 of entities", tags, "f1", entities),
        Case("F1 of answers", answers, "f1", questions),
        Case("MRR@10", search, "mrr@10", ranks),
        Case(
            "Spearman, noise in all rows", load("embedding").build(), "spearman", scores(0.0, 0.25)
        ),
        Case(
            "Spearman, few rows spoiled", load("embedding").build(), "spearman", scores(0.02, 0.02)
        ),
    ]


def judged(case: Case, pair: Pair, limit: float, seed: int) -> tuple[str, bool]:
    """(`kept`, `unclear`, `missed` or `clearly missed`; whether the ordinary bootstrap would say kept)."""
    metric, (ours, theirs) = case.task.metrics[case.metric], pair
    value, low, high, _ = statistics.paired(
        metric, ours, theirs, case.task.extremes(theirs), seed=seed
    )
    generator = np.random.default_rng(seed)
    draws = [
        metric(ours[i]) - metric(theirs[i])
        for i in generator.integers(0, len(ours), (300, len(ours)))
    ]
    ordinary = bool(np.nanpercentile(draws, 2.5) >= -limit - 1e-9)
    drop = None
    if low is not None and high is not None:
        drop = Estimate(value=-value, low=-high, high=-low)
    (found,) = check(Limit(max_drop=limit), None, drop=drop, reference=float(metric(theirs)))
    return "clearly missed" if found.is_clear else found.state, ordinary


def shares(case: Case, rows: int, limit: float, samples: int) -> dict[str, float]:
    """How often each is said."""
    generator = np.random.default_rng(rows)
    said: dict[str, float] = {}
    for seed in range(samples):
        state, ordinary = judged(case, case.draw(rows, generator), limit, seed)
        for name in (state, *(["bootstrap"] if ordinary else [])):
            said[name] = said.get(name, 0.0) + 100 / samples
    return said


def errors_table(names: Sequence[str], rows: Sequence[int], samples: int) -> None:
    """Print the first table."""
    print(
        f"\n| kept / clearly missed (bootstrap: kept), % of {samples} | true loss | {' | '.join(f'{n:,} rows' for n in rows)} |"
    )
    print(f"| --- | ---: |{' ---: |' * len(rows)}")
    for case in cases():
        if names and not any(name.lower() in case.name.lower() for name in names):
            continue
        loss, cells = case.true_loss(), []
        for count in rows:
            said = shares(case, count, loss, samples)
            cells.append(
                f"{said.get('kept', 0):.1f} / {said.get('clearly missed', 0):.1f} ({said.get('bootstrap', 0):.0f})"
            )
        print(f"| {case.name} | {loss:.4f} | {' | '.join(cells)} |", flush=True)


def words_table(rows: Sequence[int], samples: int) -> None:
    """Print the second table."""
    two = load("text-classification").build(ModelMetadata(labels=("no", "yes")))
    print(
        f"\n| ship / not clear / no, % of {samples}; limit: 1 point | {' | '.join(f'{n:,} rows' for n in rows)} |"
    )
    print(f"| --- |{' ---: |' * len(rows)}")
    for loss in (0.0, 0.005, 0.01, 0.02, 0.05):
        case, cells = Case("", two, "accuracy", classes(0.5, 0.85, loss + 0.01, 0.01)), []
        for count in rows:
            said = shares(case, count, 0.01, samples)
            ship, no = said.get("kept", 0), said.get("clearly missed", 0)
            cells.append(f"{ship:.0f} / {100 - ship - no:.0f} / {no:.0f}")
        print(f"| true loss {100 * loss:g} points | {' | '.join(cells)} |", flush=True)


def speed_table(samples: int) -> None:
    """Print the third table: two models of the same speed, with noise that has a long tail."""
    print("\n| rounds | called faster, % | called slower, % | called at least 5 % faster, % |")
    print("| ---: | ---: | ---: | ---: |")
    for rounds in (6, 12, 30, 100):
        generator, wrong = np.random.default_rng(rounds), np.zeros(3)
        for _ in range(20 * samples):
            ours, theirs = 1 + generator.exponential(0.1, (2, rounds)) * (
                1 + 4 * (generator.random((2, rounds)) < 0.05)
            )
            ratio = quantile((theirs / ours).tolist())
            wrong += (ratio.low > 1, ratio.high < 1, ratio.low > 1.05)
        print(
            f"| {rounds} | {' | '.join(f'{100 * each / (20 * samples):.1f}' for each in wrong)} |",
            flush=True,
        )


def early_table(samples: int) -> None:
    """Print the sixth table: ratios of independent rounds, and of rounds of which each is partly as the one before."""
    print("\n| noise of a round | spread | missed, % | missed by all 30 rounds, % | rounds |")
    print("| --- | ---: | ---: | ---: | ---: |")
    generator, most = np.random.default_rng(0), 30
    noises: dict[str, Callable[[int], np.ndarray]] = {
        "normal": generator.standard_normal,
        "long tail": lambda n: generator.standard_t(2, n),
        "skewed": lambda n: generator.exponential(1, n),
        "two modes": lambda n: (
            2 * (generator.random(n) < 0.45) + 0.3 * generator.standard_normal(n)
        ),
        "as the round before, 0.4": lambda n: lfilter(
            [(1 - 0.4**2) ** 0.5], [1, -0.4], generator.standard_normal(n)
        ),
    }
    for name, noise in noises.items():
        median = np.median(noise(1_000_000))
        for spread in (0.02, 0.05, 0.1):
            missed, all_missed, rounds = 0, 0, 0
            for _ in range(20 * samples):
                drawn = np.exp(spread * (noise(most) - median))
                ours, theirs = interleave(
                    ([1.0] * most, drawn.tolist()),
                    lambda times, number: times[number],
                    most,
                    stays=until_narrow([(0, 1)], 0.05),
                )
                ratio, whole = quantile(theirs), quantile(drawn.tolist())
                missed += not ratio.low <= 1 <= ratio.high
                all_missed += not whole.low <= 1 <= whole.high
                rounds += len(ours)
            of = 20 * samples
            print(
                f"| {name} | {spread} | {100 * missed / of:.1f} | {100 * all_missed / of:.1f} | {rounds / of:.1f} |",
                flush=True,
            )


def counts_table(rows: Sequence[int]) -> None:
    """Print the fourth table."""

    def kept(worse: int, count: int, limit: float) -> bool:
        theirs, ours = np.ones(count), np.ones(count)
        ours[:worse] = 0
        extremes = (np.zeros(count), np.ones(count))
        low = statistics.paired(lambda items: float(items.mean()), ours, theirs, extremes, seed=0)[
            1
        ]
        return low is not None and low >= -limit - EXACT

    print(f"\n| at most so many worse (wrong, %) | {' | '.join(f'{n:,} rows' for n in rows)} |")
    print(f"| --- |{' ---: |' * len(rows)}")
    for limit in (0.01, 0.05, 0.1, 0.3):
        cells = []
        for count in rows:
            # The interval is about that wide, and a few rows fewer are within it for sure.
            worse = max(0, int(binom.ppf(0.02, count, limit)) - 3)
            if not kept(worse, count, limit):
                cells.append("never (0)")
                continue
            while kept(worse + 1, count, limit):
                worse += 1
            cells.append(f"{worse} ({100 * binom.cdf(worse, count, limit):.1f})")
        print(f"| limit {100 * limit:g} points | {' | '.join(cells)} |", flush=True)


def times_table(samples: int) -> None:
    """Print the fifth table: exponential times."""
    rounds = (6, 12, 30, 60, 100, 300, 1000)
    print(f"\n| kept, % | {' | '.join(f'{n:,} rounds' for n in rounds)} |")
    print(f"| --- |{' ---: |' * len(rounds)}")
    generator = np.random.default_rng(0)
    for percent in (50, 90, 95, 99):
        true, cells = -np.log(1 - percent / 100), []
        for count in rounds:
            wrong = 0
            for times in generator.exponential(size=(20 * samples, count)).tolist():
                timed = Latency(
                    candidate="ours", batch=1, sequence="data", samples_ms=times, rows=1, tokens=1
                )
                report = Report.model_construct(latencies=(timed,))
                found = figure_of(report, "ours", f"latency@p{percent}", None)
                wrong += found is not None and found.high < true
            cells.append(f"{100 * wrong / (20 * samples):.1f}")
        print(f"| p{percent} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 40, 100, 400])
    parser.add_argument("--metrics", nargs="*", default=[], help="parts of the names of cases")
    tables: dict[str, Callable[[argparse.Namespace], None]] = {
        "speeds": lambda given: speed_table(given.samples),
        "errors": lambda given: errors_table(given.metrics, given.rows, given.samples),
        "words": lambda given: words_table(given.rows, given.samples),
        "counts": lambda given: counts_table(given.rows),
        "times": lambda given: times_table(given.samples),
        "early": lambda given: early_table(given.samples),
    }
    parser.add_argument("--tables", nargs="+", choices=tables, default=list(tables))
    arguments = parser.parse_args()
    for name in arguments.tables:
        tables[name](arguments)


if __name__ == "__main__":
    main()
