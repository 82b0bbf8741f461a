"""Pages of reports."""

from __future__ import annotations

import re

from octobert.core.evidence import Evidence
from octobert.core.results import Report
from octobert.report.page import Run, page


def page_of(report: Report, evidence: Evidence | None = None) -> str:
    """The page of one run."""
    return page([Run("model", report, evidence or Evidence())])


def markup_of(page: str) -> str:
    """A page without its own scripts and its compressed data, whose texts no browser reads as markup."""
    return re.sub(r"<script( [^>]*)?>.*?</script>", "", page, flags=re.DOTALL)
