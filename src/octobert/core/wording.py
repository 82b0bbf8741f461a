"""Numbers as people read them: intervals, ratios, times, differences in points, counts. The one place that formats them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from octobert.core.estimate import Estimate
from octobert.core.measurements import Comparison, Score

# How people write the names of metrics; all others are words.
_METRICS = {
    "auroc": "AUROC",
    "f1": "F1",
    "mae": "MAE",
    "map": "MAP",
    "matthews": "Matthews",
    "mrr": "MRR",
    "mse": "MSE",
    "ndcg": "nDCG",
    "pearson": "Pearson",
    "spearman": "Spearman",
}


def estimate_text(estimate: Estimate | Score, form: str = ".2f", ends: str = "") -> str:
    """A value with its interval.

    Args:
        form: of the value.
        ends: form of the ends of the interval, if it is another one.

    Example:
        >>> estimate_text(Estimate(value=1.31, low=1.28, high=1.34))
        '1.31 [1.28, 1.34]'
    """
    return f"{estimate.value:{form}} {interval(estimate.low, estimate.high, ends or form)}"


def interval(low: float | None, high: float | None, form: str) -> str:
    """Format a confidence interval, which a metric that is undefined on all resamples lacks.

    Example:
        >>> interval(0.25, 0.5, ".2f"), interval(None, None, ".2f")
        ('[0.25, 0.50]', '[no interval]')
    """
    return "[no interval]" if low is None or high is None else f"[{low:{form}}, {high:{form}}]"


def between(figure: Estimate, form: Callable[[float], str]) -> str:
    """The interval of a figure in a sentence, behind its value; empty where it has none.

    Args:
        form: of its ends.

    Example:
        >>> between(Estimate(value=-1.0, low=-2.0, high=0.5), "{:.1f}".format)
        ' (−2.0 to 0.5)'
    """
    if figure.low == figure.high:
        return ""
    return f" ({form(figure.low)} to {form(figure.high)})".replace("-", "−").replace("inf", "∞")


def metric_text(name: str) -> str:
    """A metric as people write it; the name of a user's own metric without underscores.

    Example:
        >>> metric_text("ndcg@10"), metric_text("macro_f1"), metric_text("accuracy")
        ('nDCG@10', 'macro F1', 'accuracy')
    """
    words = name.replace("_", " ")
    return re.sub(r"[a-z]+1?", lambda word: _METRICS.get(word[0], word[0]), words)


def score_text(score: Score) -> str:
    """Format a score with its confidence interval.

    Example:
        >>> score_text(Score(metric="f1", value=0.8186, low=0.7791, high=0.8552, rows=408))
        '0.8186 [0.779, 0.855]'
    """
    return estimate_text(score, ".4f", ".3f")


def change_text(change: Estimate | None) -> str:
    """Format a difference with its confidence interval; nothing without one.

    Example:
        >>> change_text(Estimate(value=-0.0123, low=-0.02, high=0.001))
        '-0.0123 [-0.020, +0.001]'
    """
    return "" if change is None else estimate_text(change, "+.4f", "+.3f")


def probability(p_value: float | None) -> str:
    """Format a p-value.

    Example:
        >>> probability(0.151), probability(0.0004), probability(None)
        ('p = 0.15', 'p < 0.01', '')
    """
    return "" if p_value is None else "p < 0.01" if p_value < 0.01 else f"p = {p_value:.2f}"


def ms(value: float) -> str:
    """Format milliseconds with three significant digits or so.

    Example:
        >>> ms(1.234), ms(12.34), ms(1234.5)
        ('1.23', '12.3', '1234')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def threads_text(threads: Sequence[int]) -> str:
    """Format numbers of threads.

    Example:
        >>> threads_text([1]), threads_text([4, 4, 1])
        ('1 thread', '4 or 1 threads')
    """
    numbers = list(dict.fromkeys(threads))
    return f"{' or '.join(map(str, numbers))} thread{'' if numbers == [1] else 's'}"


def duration(seconds: float) -> str:
    """Format a time for people.

    Example:
        >>> duration(7.2), duration(83), duration(3700)
        ('0:07', '1:23', '1:01:40')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def numbers_text(vector: Sequence[float]) -> str:
    """The first numbers of a vector.

    Example:
        >>> numbers_text([0.25, -0.5])
        '0.2500, -0.5000'
    """
    return ", ".join(f"{number:.4f}" for number in vector[:6])


def rows_text(rows: int) -> str:
    """A number of rows.

    Example:
        >>> rows_text(1), rows_text(1200)
        ('1 row', '1,200 rows')
    """
    return "1 row" if rows == 1 else f"{rows:,} rows"


def span(low: float, high: float) -> str:
    """The ends of an interval, with the digits that tell them apart.

    Example:
        >>> span(2.31, 2.52), span(2.41, 2.43)
        ('2.3–2.5', '2.41–2.43')
    """
    digits = next((n for n in (1, 2, 3) if f"{low:.{n}f}" != f"{high:.{n}f}"), 3)
    return f"{low:.{digits}f}–{high:.{digits}f}"


def signed(text: str) -> str:
    """A number as text with its sign.

    Example:
        >>> signed("-0.1"), signed("0.3"), signed("0.0")
        ('−0.1', '+0.3', '0.0')
    """
    return (
        text.replace("-", "−") if text.startswith("-") else f"+{text}" if text.strip("0.") else text
    )


def times_text(ratio: float) -> str:
    """A ratio with the digits that matter.

    Example:
        >>> times_text(12.3), times_text(2.41), times_text(1.042)
        ('12', '2.4', '1.04')
    """
    return f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1.15 else f"{ratio:.2f}"


def points(share: float) -> str:
    """A share in points, with two digits behind the point where one would be 0.

    Example:
        >>> points(0.0142), points(-0.0003), points(0.0)
        ('1.4', '-0.03', '0.0')
    """
    value = 100 * share
    text = f"{value:.1f}" if abs(value) >= 0.05 or abs(value) < 0.005 else f"{value:.2f}"
    return text.replace("-0.0", "0.0") if text == "-0.0" else text


def speed_text(reference: str, ratio: Estimate, *, throughput: bool = False) -> str:
    """How fast a model is, compared with a float model: `2.4 × faster than openvino-f32 (2.3–2.5)`.

    Args:
        reference: name of the float model.
        ratio: of their speeds; above 1 is faster.
        throughput: the ratio is that of throughputs.
    """
    if ratio.low <= 1 <= ratio.high:
        return f"as fast as {reference} within the noise ({ratio.low:.2f}–{ratio.high:.2f} ×)"
    if ratio.value < 1:
        slower = ratio.inverse()
        return f"{times_text(slower.value)} × slower than {reference} ({span(slower.low, slower.high)})"
    what = "the throughput of" if throughput else "faster than"
    return f"{times_text(ratio.value)} × {what} {reference} ({span(ratio.low, ratio.high)})"


def fidelity_text(compared: Comparison) -> str:
    """How closely a model follows the float model: agreement is a share, a cosine is none."""
    return f"{compared.fidelity:.2%}" if compared.is_share else f"{compared.fidelity:.5f}"


def quality_text(comparison: Comparison) -> str:
    """How a model answers, compared with its float baseline."""
    parts = []
    if comparison.difference is not None:
        certain = "no confidence interval: the metric is undefined on all resamples"
        if comparison.low is not None:
            ends = f"{comparison.low:+.4f} to {comparison.high:+.4f}"
            certain = f"95 % confidence interval {ends}, {probability(comparison.p_value)}"
        change = f"{metric_text(comparison.metric or '')} {comparison.difference:+.4f}"
        parts.append(f"{change} compared with {comparison.reference} ({certain})")
    against = "" if parts else f" with {comparison.reference}"
    parts.append(f"{comparison.fidelity_name}{against} {fidelity_text(comparison)}")
    if comparison.divergence is not None:
        parts.append(f"KL divergence {comparison.divergence:.5f} nats")
    return "; ".join(parts)
