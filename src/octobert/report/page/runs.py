"""A run as the page shows it, and what a section of the page shows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from octobert.core.evidence import Evidence
from octobert.core.results import Report

# Suffixes of model files.
_FILES = (".onnx", ".xml", ".py")


def title_of(model: str) -> str:
    """The common name of a model: its name on the hub, or of its folder.

    Example:
        >>> title_of("/home/ada/out/minilm-mrpc/"), title_of("textattack/bert-base-uncased-MRPC"), title_of("../x/model.onnx")
        ('minilm-mrpc', 'textattack/bert-base-uncased-MRPC', 'x/model.onnx')
    """
    if re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", model):
        return model
    parts = [part for part in re.split(r"[/\\]", model) if part not in ("", ".", "..", "~")]
    # Of files, the name alone says little.
    return "/".join(parts[-2:] if parts and parts[-1].endswith(_FILES) else parts[-1:]) or model


def headline(report: Report) -> str:
    """The title of the page of one run."""
    return f"{title_of(str(report.recipe['model']))} in 8 bits"


def facts_of(report: Report) -> dict[str, str]:
    """Facts on a run for the head of its page: name → fact."""
    data = report.recipe.get("data") or {}
    source = title_of(str(data["source"])) if data.get("source") else report.data.source
    rows = f"{report.data.evaluation_rows:,} evaluation rows"
    return {
        "task": report.task.name,
        "data": f"{' '.join(filter(None, (source, data.get('config'))))}, {rows}",
        "measured": f"{report.date.day} {report.date:%B %Y}",
        "model": str(report.recipe["model"]),
    }


@dataclass(frozen=True)
class ShownRun:
    """What is known of a run.

    Args:
        name: that tells it from the other runs of a page; for people.
        report: `report.json`.
        evidence: `evidence.json`; empty where there is none.
        folder: output directory as the user wrote it, for commands that the page shows.
    """

    name: str
    report: Report
    evidence: Evidence = field(default_factory=Evidence)
    folder: str = "OUT"


# What a part of the page shows: plain data with keys that its template or its script knows.
Content = dict[str, Any]


@dataclass(frozen=True)
class Section:
    """What a section shows.

    Args:
        title: heading; empty for a section without one.
        values: of the template, which sees `run`, `report` and the data too.
        data: for the script, as JSON can say it; None where nothing is drawn.
        open: shown unfolded. A section that is folded needs a title.
    """

    title: str
    values: Content = field(default_factory=dict)
    data: Content | None = None
    open: bool = True
