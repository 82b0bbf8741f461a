"""A report as rows and sentences, the content of both the terminal and the HTML page. Reads results and measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octobert.core import wording
from octobert.core.limits import Check
from octobert.core.measurements import (
    RESAMPLES,
    Comparison,
    Figures,
    Score,
    score_named,
)
from octobert.core.results import AccuracySearch, Report, TaskFacts
from octobert.core.session import Tuned
from octobert.core.wording import metric_text
from octobert.report import judged, plans, times, words
from octobert.tasks._tags import mark_entities

# With more metrics than this, they get a table of their own.
_METRICS_IN_MAIN_TABLE = 4
# What commands say that compare a model with its float model, where there is none.
NO_FLOAT = (
    "There is no float model to compare with: package the model without --no-float (float_model: true), "
    "or name one with --reference."
)
# How the figures of a target were made whose device is not here.
SIMULATED = "simulated on the CPU, not run on the device"
# Tuning rows of which one is less than a point.
_FINE_ROWS = 100


def metrics(report: Report) -> list[str]:
    """Return the names of all metrics, in order."""
    return list(
        dict.fromkeys(score.metric for figures in report.models for score in figures.scores)
    )


def main_metrics(report: Report) -> list[str]:
    """Return the metrics of the main table: all, or only the first where many have a table of their own."""
    names = metrics(report)
    return names if len(names) <= _METRICS_IN_MAIN_TABLE else names[:1]


def is_simulated(report: Report, figures: Figures) -> bool:
    """Whether a target's device is not here, and the answers are those of its file on the CPU."""
    compared = figures.against_float
    return compared is not None and compared.simulated and figures.model in report.plans


def precision(report: Report, figures: Figures) -> str:
    """Return the arithmetic of a model; 8 bits come first."""
    plan = report.plans.get(figures.model)
    measured = "f32" if figures.footprint is None else figures.footprint.precision
    return measured if plan is None else plan.precision(measured)


def timings(report: Report) -> list[times.Timing]:
    """Return the times of each timed model, float baselines first."""
    return times.timings(report.models, _precisions(report))


def throughputs(report: Report) -> list[times.Timing]:
    """Return the times of each model with inferences at the same time; none where they were not measured."""
    return times.timings(report.models, _precisions(report), together=True)


def _precisions(report: Report) -> dict[str, str]:
    return {figures.model: precision(report, figures) for figures in report.models}


def verdicts(report: Report) -> list[str]:
    """Return sentences on each target: speed and accuracy compared with float, goals, and how the model was changed."""
    return [*comparisons(report), *outcomes(report), *exports(report)]


def comparisons(report: Report) -> list[str]:
    """Return sentences on what changed answers have in common, and on the speed and the accuracy of each target."""
    directions = [
        f"{comparison.candidate}: {comparison.direction}"
        for comparison in report.compared
        if comparison.direction
    ]
    compared = [
        sentence
        for timing in timings(report)
        if timing.quantized
        for sentence in _compared(report, timing)
    ]
    probed = [
        f"{comparison.candidate}, {comparison.probe}."
        for comparison in report.compared
        if comparison.probe is not None and comparison.candidate in report.plans
    ]
    return [
        *directions,
        *compared,
        *probed,
        *([f"Ranges: {report.ranges.exceeded}."] if report.ranges.exceeded else ()),
        *plans.expected(report.sensitivities),
        *(
            f"{figures.model}, {SIMULATED}: {wording.quality_text(figures.against_float)}."
            for figures in report.models
            if is_simulated(report, figures) and figures.against_float is not None
        ),
        *(sentence for timing in throughputs(report) for sentence in times.speed(timing)),
        *sizes(report),
    ]


def sizes(report: Report) -> list[str]:
    """Return a sentence on the size of each target's files, compared with the weights as the user has them."""
    source_bytes, sentences = report.model.source_bytes, []
    for figures, footprint in report.timed:
        size = footprint.size_bytes
        if not source_bytes or not figures.speedups:
            continue
        ratio, change = source_bytes / size, "as large as"
        if ratio > 1.05:
            change = f"{ratio:.1f} × smaller than"
        elif ratio <= 0.95:
            change = f"{1 / ratio:.1f} × larger than"
        weights = f"the weights of your model ({source_bytes / 1e6:.3g} MB)"
        sentences.append(f"{figures.model}: {size / 1e6:.3g} MB, {change} {weights}.")
    return sentences


def outcomes(report: Report) -> list[str]:
    """Return sentences on what the recipe asks for: goals of speed and accuracy, training, fast settings."""
    searches = [f"{target}: {search_text(search)}." for target, search in report.searches.items()]
    goals = [
        goal_text(report, target, check)
        for target in report.plans
        for check in judged.speed_checks(report, target)
    ]
    asked = [*goals, *searches, *_crossed(report)]
    return [*asked, *_simulated(report), *_tuned(report)]


def _crossed(report: Report) -> list[str]:
    """Sentences on the rows that cross the user's threshold."""
    return [
        f"{pair.candidate}: {pair.crossed.rows:,} of {wording.rows_text(report.data.evaluation_rows)} cross the threshold of "
        f"{pair.crossed.threshold:g}, compared with {pair.reference}: {pair.crossed.fell:,} fall below it, "
        f"{pair.crossed.rose:,} reach it."
        for pair in report.compared
        if pair.crossed is not None and pair.candidate in report.plans
    ]


def exports(report: Report) -> list[str]:
    """Return sentences on what the export of each target has changed for speed."""
    sentences = []
    for target in report.plans:
        stage, changes = report.stages.get(f"export/{target}"), []
        done = stage.summary if stage is not None else {}
        if done.get("opset"):
            changes.append(f"the ONNX file was converted to another opset, {done['opset']}.")
        if len(done.get("lengths", ())) > 1:
            lengths = ", ".join(map(str, done["lengths"]))
            changes.append(
                f"there is a file for rows of each of {lengths} tokens, and a row takes the next longer one."
            )
        opened = report.recipe.get("session", {}).get(target)
        if opened is not None:
            options = ", ".join(
                f"{name} {value}" for entries in opened.values() for name, value in entries.items()
            )
            changes.append(f"every session was opened with the options of the recipe: {options}.")
        if done.get("first_token"):
            changes.append(
                "the head reads only the first token, so the last layer computes only that token "
                f"({done['first_token']} matrix products; same results; the float baseline computes all tokens)."
            )
        if done.get("fast_norms"):
            changes.append(
                f"{done['fast_norms']} LayerNormalization operators are written as InstanceNormalization, which is faster "
                f"on {report.environment.cores} cores (same results; for a machine with many cores, run octobert there)."
            )
        sentences += [f"{target}: {change}" for change in changes]
    return sentences


def _compared(report: Report, timing: times.Timing) -> list[str]:
    sentences, comparison = times.speed(timing), report.of(timing.name).against_float
    if comparison is None:
        return sentences
    rival = report.of(times.rival_of(timing)).against_float
    gains = any(speedup.ratio.low > 1 for speedup in times.strongest(timing).values())
    if rival is not None and not gains and rival.output_error < comparison.output_error:
        errors = f"{rival.output_error:.4f}, not {comparison.output_error:.4f}"
        sentences[-1] += f" {rival.candidate} is also closer to float (output error {errors})."
    return [*sentences, f"{timing.name}: {wording.quality_text(comparison)}."]


def chance(scores: Mapping[str, Sequence[Score]], comparison: Comparison) -> list[str]:
    """Return sentences on a float model that has learned nothing that the rows show, or whose classes they number otherwise.

    Args:
        scores: model → its metrics.
        comparison: of a quantized model with the float model.
    """
    sentences, name = [], comparison.reference
    score = score_named(comparison.metric, scores.get(name, ()))
    if score is not None and (better := than_chance(score)):
        sentences.append(
            f"The float model {name} scores {better}: that 8 bits score as much says nothing."
        )
    if score is not None and score.order:
        sentences.append(f"The float model {name}: {score.order}.")
    if comparison.fidelity_chance is not None and comparison.fidelity_chance >= 1:
        sentences.append(
            f"The float model {name} gives the same answer to every row, so {comparison.fidelity_name} "
            f"{comparison.fidelity:.2%} says nothing."
        )
    return sentences


def too_good(phrasing: words.Phrasing, comparisons: Sequence[Comparison]) -> list[str]:
    """Return a sentence that doubts quantized models which beat their float model by more than the noise."""
    gains = [
        f"{each.candidate} against {each.reference}, {phrasing.change(each.metric or '', each.drop)}"
        for each in comparisons
        if each.drop is not None and each.drop.high < 0
    ]
    if not gains:
        return []
    return [
        f"Doubt this gain: a quantized model should not beat its float model ({'; '.join(gains)}). Check "
        "whether the evaluation rows are few or were seen in training, whether the float model ran in another precision, and "
        "whether both models got the same padding and prompts."
    ]


def than_chance(score: Score) -> str:
    """How a score is no better, or not clearly better, than that of a model that reads nothing; empty where it is."""
    if score.chance is None or (score.low is not None and score.low > score.chance):
        return ""
    better = "no better" if score.value <= score.chance else "not clearly better"
    constant = (
        "one that always gives the most frequent answer"
        if score.metric == "accuracy"
        else "one that reads no input"
    )
    found = f"{metric_text(score.metric)} {wording.score_text(score)}"
    return f"{better} than {constant} ({found}, the other {score.chance:.4f})"


def _simulated(report: Report) -> list[str]:
    sentences = []
    for target, result in report.simulations.items():
        primary = score_named(report.task.primary, result.scores)
        score = f"{metric_text(primary.metric)} {primary.value:.4f} in PyTorch; " if primary else ""
        sentences.append(
            f"{target}: the exported model compared with the fake-quantized PyTorch model that was trained, on "
            f"{result.rows:,} rows: {score}{result.name} {result.agreement:.2%}, root mean square difference of outputs "
            f"{result.error:.4f}."
        )
    return sentences


def trainings(report: Report) -> list[str]:
    """Return a sentence on each training: rows, steps, loss, time and settings."""
    sentences = []
    for name, what in (("finetune", "Fine-tuned in float"), ("qat", "Quantization-aware training")):
        settings, stage = report.recipe.get(name), report.stages.get(name)
        if settings is None or stage is None:
            continue
        done = stage.summary
        if settings.get("trained"):
            sentences.append(
                f"Quantization-aware training in a loop of its own ({settings['trained']}): bounds of ranges moved by "
                f"{done['moved']:.1%} of their width (median)."
            )
            continue
        steps = (
            f"{done['steps']:,} steps, final loss {done['loss']:.4f}"
            if "steps" in done
            else f"by {settings['code']}"
        )
        parts = [f"{what} on {done['texts']:,} texts: {steps}, {stage.seconds:.0f} s"]
        parts.append(
            f"learning rate {settings['learning_rate']:g}, {settings['epochs']:g} epochs, batch size {settings['batch']}"
        )
        if settings.get("layers"):
            layers = settings["layers"]
            names = (
                f"{layers}" if isinstance(layers, int) else f"numbers {', '.join(map(str, layers))}"
            )
            parts.append(f"kept encoder layers: {names}")
        if settings.get("distill"):
            parts.append(f"distillation is {settings['distill']['share']:.0%} of the loss")
        if name == "qat":
            parts.append(
                f"{settings['ranges']} ranges, whose bounds moved by {done['moved']:.1%} of their width (median)"
            )
        sentences.append("; ".join(parts) + ".")
    return sentences


def _tuned(report: Report) -> list[str]:
    """Sentences on the results of the search for fast settings, target by target."""
    if not report.recipe.get("tune"):
        return []
    sentences = [
        f"{target}: {tuned_text(result)}."
        for target, results in report.tuned.items()
        for result in results
    ]
    absent = [target for target in report.plans if target not in report.tuned]
    cannot = "not tuned, because it cannot run here"
    return sentences + [f"{target}: {cannot}: {report.of(target).absent}." for target in absent]


def tuned_text(result: Tuned) -> str:
    """Return the result of a search for fast settings as a sentence without a full stop."""
    if result.ratio.value >= 1:
        return f"tuned for {result.goal}: the default setting stays, no other of {len(result.tried)} is significantly faster"
    setting = result.setting
    parts = [f"streams {setting.streams}"]
    if setting.threads:
        parts.append(f"threads {setting.threads}")
    parts += [f"{name} {value}" for name, value in setting.runtime_options.items()]
    interval = wording.estimate_text(result.ratio, ".3f")
    return f"tuned for {result.goal}: {', '.join(parts)} takes {interval} × the default time, and is stored beside the model"


def goal_text(report: Report, target: str, check: Check) -> str:
    """Return whether a target is as fast as the recipe wants, as a sentence.

    Args:
        check: of the speed, at the timed shape that decides.
    """
    subject = f"{target}: the goal of a speedup in latency of at least {check.limit.at_least:g}"
    if check.figure is None:
        return f"{subject} was not measured here."
    reference = report.of(target).speedups[0].reference
    state = "is met" if check.state == "kept" else "is not clearly met"
    state = "is MISSED" if check.is_clear else state
    over = f"{wording.estimate_text(check.figure)} × {reference}"
    return f"{subject} {state}: it is {over} at {check.shape}."


def search_text(search: AccuracySearch) -> str:
    """Return the result of an accuracy-aware search as a sentence without a full stop."""
    count, tried = len(search.taken.fallback), len(search.trials)
    fallback = f"{count or 'no'} {'parts fall' if count > 1 else 'part falls'} back to float"
    return (
        f"“{words.criterion(search)}” {'met' if search.met else 'NOT met'} on {search.taken.rows} tuning rows "
        f"({metric_text(search.metric)} {search.taken.value:.4f}, float {search.float_value:.4f}) "
        f"after {tried} trial{'' if tried == 1 else 's'} in {search.seconds:.0f} s; {fallback}; {search.ended}"
    )


def _few_resamples(report: Report) -> list[str]:
    """Sentences on intervals of slow metrics."""
    least: dict[str, int] = {}
    for figures in report.models:
        for score in figures.scores:
            least[score.metric] = min(least.get(score.metric, RESAMPLES), score.resamples)
    return [
        f"The interval of {metric_text(name)} comes from {count:,} resamples, not {RESAMPLES:,}: "
        "it is slow, or undefined on the others."
        for name, count in least.items()
        if count < RESAMPLES
    ]


def caveats(report: Report) -> list[str]:
    """Return sentences on what changes the meaning of the results: few rows, leakage, chance, noise."""
    data, sentences = report.data, []
    if report.model.wrapped:
        sentences.append(
            "The names of the checkpoint's weights have parts of a wrapper, which were left out to read them: "
            f"{', '.join(report.model.wrapped)}."
        )
    if report.model.left_out:
        sentences.append(
            f"The embeddings are means of the encoder's token states: the language-model head of the checkpoint "
            f"({report.model.left_out}) is left out. If it is a sparse encoder (SPLADE), whose vectors that head makes, they "
            "mean nothing; its language model is quantized by the task fill-mask."
        )
    if unread := report.model.unread:
        sentences.append(
            f"The tokenizer has tokens ({len(unread):,}) that the model has no embedding for, and texts with them are "
            f"refused: {', '.join(unread[:8])}{', …' if unread[8:] else ''}."
        )
    if report.model.family == "graph":
        rest = report.model.rest or "nothing that takes time"
        sentences.append(
            f"{report.model.sizes.layers} encoder layers were found and quantized. What else the graph computes stays as it "
            f"is, in float: {rest}."
        )
    if report.recipe.get("quick") and report.times:
        rounds = max(len(latency.samples_ms) for latency in report.times)
        sentences.append(
            f"This run was quick (quick: true): {data.evaluation_rows:,} evaluation rows and {rounds} rounds of timing, so "
            "intervals are wider than those of a full run. The models are the same."
        )
    sentences += tagging(report.task)
    if data.leaked_rows:
        sentences.append(
            f"{data.leaked_rows} calibration rows are also evaluation rows (allow_leakage: true), so the scores are too good."
        )
    quantized = [
        comparison for comparison in report.compared if comparison.candidate in report.plans
    ]
    scores = {figures.model: figures.scores for figures in report.models}
    sentences += dict.fromkeys(
        sentence for comparison in quantized for sentence in chance(scores, comparison)
    )
    # Quantization-aware training trains on, so its model may be better.
    sentences += [] if report.recipe.get("qat") else too_good(words.words_of(report), quantized)
    return [*sentences, *times.noise(report.times, report.load)]


def tagging(task: TaskFacts) -> list[str]:
    """Return a sentence on a model that tags every word as something."""
    labels = task.options.get("labels") or task.labels
    if task.head != "token-classification" or not labels or mark_entities(labels):
        return []
    return [
        "None of the model's tags is O, so the accuracy of tags is the figure to look at, and each run of words with one "
        "tag counts as an entity. If one of them stands for no entity, name the tags in the order of the logits: "
        "task: {token-classification: {labels: [O, B-…, I-…]}}."
    ]


def _tuning_rows(report: Report) -> list[str]:
    """Return sentences on the rows that a search was judged on: how few they are, and that the model may know them."""
    data = report.data
    samples = report.recipe.get("data", {}).get("calibrate", {}).get("samples") or 0
    if not data.tuning_rows:
        return []
    rows = f"{data.tuning_rows:,} tuning rows"
    sentences = []
    if data.calibration_rows < samples:
        shared = f"{data.calibration_rows:,} calibration rows and {rows}"
        sentences.append(
            f"The rows are fewer than the {samples:,} that calibration may take and the search needs: {shared}."
        )
    if data.tuning_rows < _FINE_ROWS:
        sentences.append(
            f"One of {rows} is {100 / data.tuning_rows:.3g} points: the search saw no smaller drop."
        )
    if data.tuning_split.partition("[")[0] == "train":
        sentences.append(
            f"The {rows} are from the training split. If the model was trained on them, it is surer of them than of new rows, "
            "and loses less; the scores are of evaluation rows. data.tune.from takes other rows."
        )
    return sentences


def limitations(report: Report) -> list[str]:
    """Return sentences on what else limits the results: rows and models that are left out, slow metrics."""
    data, sentences = report.data, []
    if data.dropped_rows:
        sentences.append(
            f"{data.dropped_rows} calibration rows were dropped because they are also evaluation rows."
        )
    sentences += _tuning_rows(report)
    if data.left_out_rows:
        sentences.append(f"preprocess left out {data.left_out_rows} rows.")
    counts = [
        stage.summary.get("truncated")
        for name, stage in report.stages.items()
        if name.startswith("evaluate/")
    ]
    truncated = max((count for count in counts if isinstance(count, int)), default=0)
    if truncated:
        sentences.append(
            f"{truncated} evaluation texts were longer than the model accepts and were truncated."
        )
    sentences += _few_resamples(report)
    applied = report.transforms.transforms if report.transforms is not None else ()
    sentences += [
        f"The transform {transform.name} was left out: {transform.summary.removeprefix('none: ')}."
        for transform in applied
        if transform.summary.startswith("none: ")
    ]
    for target, plan in report.plans.items():
        for name, why in list(plan.unfit.items())[:1]:
            sentences.append(
                f"{target}: what reads or makes one of {len(plan.unfit)} values stays float32 beside the float16 of "
                f"others: {name} {why}."
            )
    for figures in report.models:
        exported = figures.model in report.plans
        what = "was exported but not measured" if exported else "was not measured"
        if is_simulated(report, figures):
            what = f"was {SIMULATED}"
        if figures.absent:
            sentences.append(f"{figures.model} {what}: {figures.absent}.")
    return sentences
