"""The page of a report: one HTML file without network access, from one run or several.

`page.html` is the frame, `page.css` the style, `page.js` what all sections use. A section is a function of `sections`, which
gives its title, its values and its data, with `sections/<name>.html`, its style, template and scripts. `comparison` is on top
of several runs. Text and tables are in the HTML, so that the page reads and prints without scripts; charts, and long lists of
rows, are drawn from data, embedded as compressed JSON.

Nothing that comes from a model, a data set or a recipe becomes markup (Jinja escapes it) or script (the scripts are static, and
the page's content security policy allows only them, by their digests).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from octobert.core import wording
from octobert.core.files import is_page, page_seal
from octobert.core.frozen import as_html
from octobert.core.plain import as_json
from octobert.core.results import Report
from octobert.report import contents, summary, vendor
from octobert.report.page import comparison
from octobert.report.page.runs import Section, ShownRun, facts_of, headline
from octobert.report.page.sections import SECTIONS
from octobert.report.plans import quantizer_text
from octobert.report.tables import MAIN, plain
from octobert.report.verdict import STATES, verdict

__all__ = ["ShownRun", "headline", "html_of", "is_page", "page", "show_reports"]

# The style and a script of a section: their tags stand alone on a line.
_BLOCK = re.compile(r"^<(style|script)>\n(.*?)^</\1>\n", re.DOTALL | re.MULTILINE)


def page(runs: Sequence[ShownRun]) -> str:
    """Return the page of one or several runs.

    Args:
        runs: with different names.
    """
    environment = _environment()
    sections = [
        {name: part for name, section in SECTIONS.items() if (part := section(run)) is not None}
        for run in runs
    ]
    compared = comparison.section(runs) if len(runs) > 1 else None
    panels = {
        name: _panel(f"sections/{name}")
        for name in SECTIONS
        if any(name in parts for parts in sections)
    }
    if compared:
        panels["comparison"] = _panel("comparison")
    panel_scripts = [script for panel in panels.values() for script in panel.scripts]
    scripts = [
        *vendor.scripts(),
        "\n".join(['"use strict";', _file("page.js"), *panel_scripts, "page.start();"]),
    ]

    def body(name: str, section: Section, run: ShownRun | None = None) -> Markup:
        """The template of a section with its values, and its data where these are not the same in another form."""
        values = {**(section.data or {}), **section.values}
        template = environment.from_string(panels[name].template)
        return Markup(template.render(run=run, report=run and run.report, **values))

    shown = environment.get_template("page.html").render(
        comparison=compared,
        runs=[
            {"run": run, "facts": facts_of(run.report), "sections": parts}
            for run, parts in zip(runs, sections, strict=True)
        ],
        body=body,
        style=Markup(
            "\n".join(
                [_file("page.css"), *(panel.style for panel in panels.values() if panel.style)]
            )
        ),
        scripts=[Markup(script) for script in scripts],
        digests=[_digest(script) for script in scripts],
        data=_packed(
            {
                "runs": [
                    {name: part.data for name, part in parts.items() if part.data is not None}
                    for parts in sections
                ],
                "comparison": compared and compared.data,
            }
        ),
    )
    # Names of files may have characters that UTF-8 does not have.
    content = shown.encode("utf-8", "replace")
    return content.decode() + page_seal(content)


def show_reports() -> None:
    """From now on reports show themselves in notebooks as here, and not as plain tables."""
    as_html.register(Report, html_of)


def html_of(report: Report) -> str:
    """A report for a notebook: the verdict and the tables. Notebooks that are not trusted run no scripts."""
    answer = verdict(report)
    shown = (
        _environment()
        .get_template("notebook.html")
        .render(
            icon=STATES[answer.state][0],
            answer=answer,
            tables=contents.tables(report),
            main=MAIN,
        )
    )
    return shown.removesuffix("\n")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("octobert", "report/page"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quantizer"] = quantizer_text
    environment.filters["plain"] = plain
    environment.filters["ms"] = wording.ms
    environment.filters["search"] = summary.search_text
    return environment


@dataclass(frozen=True)
class _Panel:
    """A file of a section, taken apart.

    Args:
        style: CSS; empty where it has none of its own.
        template: Jinja.
        scripts: in order.
    """

    style: str
    template: str
    scripts: list[str]


def _panel(name: str) -> _Panel:
    text = _file(f"{name}.html")
    blocks = _BLOCK.findall(text)
    styles, scripts = (
        [block for tag, block in blocks if tag == kind] for kind in ("style", "script")
    )
    return _Panel("".join(styles), _BLOCK.sub("", text), scripts)


def _file(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """A script as the content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _packed(data: Any) -> str:
    """Data for the scripts: JSON, compressed, in base64, which has no character that HTML reads."""
    text = as_json(data, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()
