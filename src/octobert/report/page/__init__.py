"""The page of a report: one HTML file without network access, from one run or several.

`page.html` is the frame, `page.css` the style, `page.js` what all sections use. A section is `sections/<name>.py`: its title,
the values of `<name>.html`, and the data of `<name>.js`, if it has a script; `<name>.css` has its style. `comparison` is on top
of several runs. Text and tables are in the HTML, so that the page reads and prints without scripts; charts, and long lists of
rows, are drawn from data, embedded as compressed JSON.

Nothing that comes from a model, a data set or a recipe becomes markup (Jinja escapes it) or script (the scripts are static, and
the page's content security policy allows only them, by their digests).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from octobert.report import choices, summary, times, vendor
from octobert.report.page import comparison
from octobert.report.page.runs import Run
from octobert.report.page.sections import ORDER, Section, load
from octobert.report.plans import quantizer_text

__all__ = ["Run", "is_page", "page"]

# At the end of a page: the digest of what is before, so that a page that somebody has edited is not taken for octobert's own.
_SEAL = "<!-- octobert sha256 {} -->\n"


def page(runs: Sequence[Run]) -> str:
    """Return the page of one or several runs.

    Args:
        runs: with different names.
    """
    environment = _environment()
    parts = [{name: section for name in ORDER if (section := load(name).section(run)) is not None} for run in runs]
    compared = comparison.section(runs) if len(runs) > 1 else None
    own = [f"sections/{name}" for name in ORDER if any(name in found for found in parts)] + ["comparison"] * bool(compared)
    scripts = [*vendor.scripts(), "\n".join(['"use strict";', _file("page.js"), *_own(own, "js"), "page.start();"])]
    shown = environment.get_template("page.html").render(
        comparison=compared and {"title": compared.title, "body": _body(environment, "comparison", compared)},
        runs=[
            {
                "run": run,
                "sections": [
                    {
                        "name": name,
                        "title": part.title,
                        "open": part.open,
                        "body": _body(environment, f"sections/{name}", part, run=run, report=run.report),
                    }
                    for name, part in found.items()
                ],
            }
            for run, found in zip(runs, parts, strict=True)
        ],
        style=Markup("\n".join([_file("page.css"), *_own(own, "css")])),
        scripts=[Markup(script) for script in scripts],
        digests=[_digest(script) for script in scripts],
        data=_packed(
            {
                "runs": [{name: part.data for name, part in found.items() if part.data is not None} for found in parts],
                "comparison": compared and compared.data,
            }
        ),
    )
    # Names of files may have characters that UTF-8 does not have.
    content = shown.encode("utf-8", "replace")
    return content.decode() + _seal(content)


def is_page(content: bytes) -> bool:
    """Whether a file is a page as `page` made it, and nobody has edited it."""
    start = content.rfind(_SEAL.partition("{}")[0].encode())
    return start >= 0 and content[start:] == _seal(content[:start]).encode()


def _seal(content: bytes) -> str:
    return _SEAL.format(hashlib.sha256(content).hexdigest())


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("octobert", "report/page"),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["quantizer"] = quantizer_text
    environment.filters["score"] = summary.score_text
    environment.filters["ms"] = times.ms
    environment.filters["speedup"] = times.speedup_text
    environment.filters["strongest"] = times.strongest
    environment.filters["search"] = summary.search_text
    environment.filters["state"] = choices.state_of
    return environment


def _body(environment: Environment, template: str, section: Section, **values: Any) -> Markup:
    return Markup(environment.get_template(f"{template}.html").render(**values, **section.values))


def _own(parts: Sequence[str], kind: str) -> list[str]:
    """The scripts or the styles of parts of the page, of those that have one; `<name>_<more>.js` comes before `<name>.js`."""
    texts = []
    for part in parts:
        folder, slash, name = part.rpartition("/")
        known = sorted((each.name for each in files(__name__).joinpath(folder).iterdir()), reverse=True)
        texts += [_file(f"{folder}{slash}{each}") for each in known if re.fullmatch(rf"{name}(_\w+)?\.{kind}", each)]
    return texts


def _file(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """A script as the content security policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _packed(data: Any) -> str:
    """Data for the scripts: JSON, compressed, in base64, which has no character that HTML reads."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode("utf-8", "replace"), mtime=0)).decode()


def _finite(data: Any) -> Any:
    """Data without what JSON cannot say: infinities and NaN become null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    return [_finite(each) for each in data] if isinstance(data, (list, tuple)) else data
