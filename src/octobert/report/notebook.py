"""A report in a notebook: the verdict and a table of the models. It has no scripts: notebooks that are not trusted run none."""

from __future__ import annotations

from jinja2 import Environment, select_autoescape

from octobert.core import wording
from octobert.core.frozen import as_html
from octobert.core.measurements import shapes
from octobert.core.results import Report
from octobert.report import summary
from octobert.report.verdict import STATES, verdict

_TEMPLATE = """<div style="max-width: 60rem">
<p style="font-size: 1.1em"><b>{{ icon }} {{ answer.sentence }}</b>{% if answer.reason %}<br>{{ answer.reason }}{% endif %}</p>
{% if models %}
<table>
<thead><tr><th>model</th><th>precision</th>{% for name in metrics %}<th>{{ name }} [95 % interval]</th>{% endfor %}
<th>ms (median{% if shape %}, {{ shape }}{% endif %})</th><th>× float</th><th>MB</th></tr></thead>
<tbody>
{% for model in models %}
<tr><td>{{ model.name }}</td><td>{{ model.precision }}</td>
{% for name in metrics %}
<td>{% for score in model.scores if score.metric == name %}{{ score|score }}{% endfor %}</td>
{% endfor %}
<td>{{ model.timing.latencies[shape].statistics_ms.p50|ms }}</td>
<td>{% if shape in model.timing.baseline %}{{ model.timing.baseline[shape].ratio|estimate }}{% endif %}</td>
<td>{{ "%.1f"|format(model.footprint.size_bytes / 1e6) }}</td></tr>
{% endfor %}
</tbody>
</table>
{% endif %}
<p>All charts, and the rows that changed: <code>report.html</code> in the output directory
(<code>octobert report OUT --open</code>).</p>
</div>"""


def show_reports() -> None:
    """From now on reports show themselves in notebooks as here, and not as plain tables."""
    as_html.register(Report, html_of)


def html_of(report: Report) -> str:
    """A report as HTML for a notebook."""
    environment = Environment(
        autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        score=wording.score_text, ms=wording.ms, estimate=wording.estimate_text
    )
    answer = verdict(report)
    return environment.from_string(_TEMPLATE).render(
        icon=STATES[answer.state][0],
        answer=answer,
        models=summary.model_results(report),
        metrics=summary.main_metrics(report),
        shape=next(iter(shapes(report.latencies)), None),
    )
