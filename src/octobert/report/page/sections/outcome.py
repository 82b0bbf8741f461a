"""Sections of what a run came to: verdict, notes, speed, quality, the choice of a search, trainings, how models were made."""

from __future__ import annotations

import math
from itertools import accumulate

from octobert.config.loading import as_yaml
from octobert.config.recipe import Recipe
from octobert.core.measurements import in_order
from octobert.core.results import AccuracySearch, Report
from octobert.core.selection import Selection
from octobert.core.wording import metric_text
from octobert.report import choices, commands, contents, summary, times
from octobert.report import verdict as verdicts
from octobert.report.page.runs import Content, Section, ShownRun
from octobert.report.words import criterion, words_of_choice

# Statistics that are marked among the samples.
_MARKED = ("p50", "p90", "p99")
# Times that span more are on a logarithmic axis.
_WIDE = 10.0
# Bars of the histogram of lengths.
_BARS = 40
# Packages that a badge names: those that run models.
_RUNTIMES = ("onnxruntime", "openvino", "torch")


def verdict(run: ShownRun) -> Section | None:
    """The answer, in words, a colour and three figures."""
    report = run.report
    answer = verdicts.verdict(report)
    icon, word = verdicts.STATES[answer.state]
    values = {
        "verdict": answer,
        "icon": icon,
        "word": word,
        "command": _command(run, answer.use),
        "machine": _machine(report),
        "caveats": summary.caveats(report),
        # A search says why; where the answer is its sentence, once is enough.
        "chosen": report.choice.sentence
        if report.choice is not None and report.choice.sentence != answer.sentence
        else "",
    }
    return Section("", values)


def _command(run: ShownRun, name: str) -> str:
    """The command for the model to use."""
    if not name:
        return ""
    variants = run.report.choice.found if run.report.choice else ()
    variant = next((result.variant for result in variants if result.variant.name == name), None)
    if variant is not None:
        return commands.of_variant(run.report, run.folder, variant)
    return commands.of_candidate(run.report, run.folder, name)


def _machine(report: Report) -> list[str]:
    """The machine as short texts: CPU, cores, instruction sets, runtimes."""
    here = report.environment
    versions = [f"{name} {here.versions[name]}" for name in _RUNTIMES if name in here.versions]
    features = [", ".join(here.features)] if here.features else []
    return [here.cpu, f"{here.cores} core{'' if here.cores == 1 else 's'}", *features, *versions]


def notes(run: ShownRun) -> Section | None:
    """All sentences that do not change what the first screen says."""
    sentences = [*summary.verdicts(run.report), *summary.limitations(run.report)]
    return Section("", {"sentences": sentences}) if sentences else None


def quality(run: ShownRun) -> Section | None:
    """The tables of scores, where models were measured."""
    tables = contents.quality_tables(run.report)
    title = f"Quality on {run.report.data.evaluation_rows} evaluation rows"
    stored = any(figures.stored for figures in run.report.models)
    return Section(title, {"tables": tables, "stored": stored}) if tables else None


def speed(run: ShownRun) -> Section | None:
    """Charts and the table of times, where models were timed."""
    report = run.report
    if not report.timed:
        return None
    benchmark = Recipe.model_validate(report.recipe).benchmark
    together = [one for figures in report.models for one in figures.throughputs]
    values = {"table": contents.times_table(report), "how": times.how(benchmark, together)}
    return Section("Speed", values, {"shapes": _distributions(run), "costs": _costs(run)})


def _distributions(run: ShownRun) -> list[Content]:
    """The samples of each model at each shape, with the ends of their axis."""
    shapes = []
    for shape in in_order(run.report.times):
        timed = [latency for latency in run.report.times if latency.shape == shape]
        samples = [_finite(latency.samples_ms) for latency in timed]
        all_ms = [ms for values in samples for ms in values]
        if not all_ms:
            continue
        low, high = min(all_ms), max(all_ms)
        models = [
            {
                **_model(run, latency.candidate),
                "ms": values,
                "tokens": latency.sample_tokens,
                "marks": {name: _short(latency.statistics_ms[name]) for name in _MARKED},
            }
            for latency, values in zip(timed, samples, strict=True)
            if values
        ]
        shapes.append(
            {"name": str(shape), "logarithmic": low > 0 and high > _WIDE * low, "models": models}
        )
    return shapes


def _costs(run: ShownRun) -> Content | None:
    """Time against tokens, one text at a time: each timed row of the data, and the median of each fixed length; beside them
    the lengths of the rows. None where there are no two lengths."""
    points: list[Content] = []
    for latency in run.report.times:
        if latency.batch != 1:
            continue
        model = _model(run, latency.candidate)
        # Samples of one fixed length have no tokens of their own.
        for tokens, ms in zip(latency.sample_tokens, latency.samples_ms, strict=False):
            if math.isfinite(ms):
                points.append({**model, "tokens": tokens, "ms": _short(ms), "fixed": False})
        if isinstance(latency.sequence, int) and _finite(latency.samples_ms):
            ms = _short(latency.percentile_ms(50))
            points.append({**model, "tokens": latency.sequence, "ms": ms, "fixed": True})
    if len({point["tokens"] for point in points}) < 2:
        return None
    lengths = run.evidence.lengths
    longest = max([*(point["tokens"] for point in points), *lengths])
    times_ms = [point["ms"] for point in points]
    return {
        "points": points,
        "lengths": lengths,
        "longest": longest,
        "bar": max(1, math.ceil(longest / _BARS)),
        "logarithmic": 0 < min(times_ms) < max(times_ms) / _WIDE,
    }


def _model(run: ShownRun, name: str) -> Content:
    """A model in the charts; its number picks the colour."""
    names = [figures.model for figures, _ in run.report.timed]
    return {"name": name, "int8": name in run.report.plans, "number": names.index(name)}


def _finite(samples: tuple[float, ...]) -> list[float]:
    return [_short(ms) for ms in samples if math.isfinite(ms)]


def _short(ms: float) -> float:
    """A time with four digits that matter: more are noise, and make the page larger."""
    return float(f"{ms:.4g}")


# More variants than this are folded.
_MANY = 12


def choice(run: ShownRun) -> Section | None:
    """The table of variants, where a model was chosen."""
    choice = run.report.choice
    if choice is None:
        return None
    values = {
        "table": contents.choice_table(choice, None),
        "search_facts": choices.facts(choice),
    }
    title = f"All {len(choice.found)} variants of the search"
    return Section(title, values, open=len(choice.found) <= _MANY)


def trials(run: ShownRun) -> Section | None:
    """Trial by trial, and the best so far."""
    searches, choice = run.report.searches, run.report.choice
    charts = [_of_plans(target, search) for target, search in searches.items()]
    if choice is not None:
        charts.append(_of_variants(choice))
    # One trial has not converged to anything: its sentence says all.
    charts = [chart for chart in charts if len(chart["trials"]) > 1]
    if not searches and not charts:
        return None
    tables = {target: contents.trials_table(search) for target, search in searches.items()}
    values = {"searches": searches, "tables": tables}
    return Section("Trials of the search", values, {"charts": charts})


def _of_plans(target: str, search: AccuracySearch) -> Content:
    """Trials for a plan: more saved time is better, as long as the criterion is met."""
    spent = accumulate(trial.seconds for trial in search.trials)
    trials = [
        {
            "number": number,
            "seconds": seconds,
            "value": trial.saved_ms,
            "met": trial.met,
            "name": f"{metric_text(search.metric)} {trial.value:.4f} ({-trial.drop:+.4f}) on {trial.rows} rows; float: "
            f"{', '.join(trial.fallback) or 'nothing'}",
        }
        for number, (trial, seconds) in enumerate(zip(search.trials, spent, strict=True), start=1)
    ]
    return {
        "title": f"Plan for {target}: {criterion(search)}",
        "file": f"trials-{target}.csv",
        "label": "ms saved by 8 bits",
        "more": True,
        "trials": trials,
    }


def _of_variants(choice: Selection) -> Content:
    """Variants that were timed, as they were tried: less time, or more rows per second, is better where the limits are kept."""
    tried = sorted(
        (result for result in choice.found if result.number), key=lambda result: result.number
    )
    timed = [
        (result, speed)
        for result in tried
        if (speed := choices.speed_of(choice, result)) is not None
    ]
    spent = accumulate(result.seconds for result, _ in timed)
    trials = [
        {
            "number": number,
            "seconds": seconds,
            "value": speed.value,
            "met": choices.is_admissible(result),
            "name": f"{result.variant.name}: {choices.state_of(result)}; {result.reason}",
        }
        for number, ((result, speed), seconds) in enumerate(zip(timed, spent, strict=True), start=1)
    ]
    throughput, words = choice.goal == "throughput", words_of_choice(choice)
    return {
        "title": f"Variants, {'; '.join(map(words.limit, choice.limits)) or 'without limits'}",
        "file": "variants.csv",
        "label": "rows/s" if throughput else "ms",
        "more": throughput,
        "trials": trials,
    }


TITLES = {
    "finetune": "Fine-tuning",
    "qat": "Quantization-aware training",
}


def training(run: ShownRun) -> Section | None:
    """The sentences, and the curves where the steps are known."""
    sentences = summary.trainings(run.report)
    curves = [curve for curve in run.evidence.curves if curve.steps]
    if not sentences and not curves:
        return None
    drawn = [
        {"title": TITLES.get(curve.name, curve.name), **curve.model_dump()} for curve in curves
    ]
    data = {"curves": drawn} if drawn else None
    return Section("Training", {"sentences": sentences}, data)


def how(run: ShownRun) -> Section | None:
    """Sources of everything on the page."""
    recipe = as_yaml(Recipe.model_validate(run.report.recipe))
    return Section("How this was made", {"recipe": recipe})
