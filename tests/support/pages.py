"""Pages of reports, and what they say."""

from __future__ import annotations

import html
import re

from octobert.core.evidence import Evidence
from octobert.core.results import Report
from octobert.report.page import ShownRun, page


def page_of(report: Report, evidence: Evidence | None = None) -> str:
    """The page of one run."""
    return page([ShownRun("model", report, evidence or Evidence())])


def markup_of(page: str) -> str:
    """A page without its own scripts and its compressed data, whose texts no browser reads as markup."""
    return re.sub(r"<script( [^>]*)?>.*?</script>", "", page, flags=re.DOTALL)


def text_of(page: str) -> str:
    """What a reader without JavaScript sees of a page: one line for each block of it."""
    text = re.sub(r"<(style|svg)[ >].*?</\1>", "", markup_of(page), flags=re.DOTALL)
    blocks = "br|p|tr|li|h[1-6]|div|section|summary|table|caption|button|option|label|dt|dd|pre"
    text = re.sub(rf"</?({blocks})\b[^>]*>", "\n", text)
    lines = html.unescape(re.sub(r"<[^>]+>", " ", text)).split("\n")
    return "\n".join(line for line in (" ".join(line.split()) for line in lines) if line)
