"""The first screen: what to ship, what that gains and loses, on which machine, and the command."""

from __future__ import annotations

from octobert.core.results import Report
from octobert.report import commands, summary
from octobert.report.page.runs import Run
from octobert.report.page.sections import Section
from octobert.report.verdict import STATES, verdict

PLACE = 10

# Packages that a badge names: those that run models.
_RUNTIMES = ("onnxruntime", "openvino", "torch")


def section(run: Run) -> Section | None:
    """The answer, in words, a colour and three figures."""
    report = run.report
    answer = verdict(report)
    icon, word = STATES[answer.state]
    values = {
        "verdict": answer,
        "icon": icon,
        "word": word,
        "command": _command(run, answer.use),
        "machine": _machine(report),
        "caveats": summary.caveats(report),
        # A search says why; where the answer is its sentence, once is enough.
        "chosen": report.choice.sentence if report.choice is not None and report.choice.sentence != answer.sentence else "",
    }
    return Section("", values)


def _command(run: Run, name: str) -> str:
    """The command for the model to use."""
    if not name:
        return ""
    found = (
        next((each.variant for each in run.report.choice.found if each.variant.name == name), None)
        if run.report.choice
        else None
    )
    return commands.of_variant(run.report, run.folder, found) if found else commands.of_candidate(run.report, run.folder, name)


def _machine(report: Report) -> list[str]:
    """The machine as short texts: CPU, cores, instruction sets, runtimes."""
    here = report.environment
    versions = [f"{name} {here.versions[name]}" for name in _RUNTIMES if name in here.versions]
    features = [", ".join(here.features)] if here.features else []
    return [here.cpu, f"{here.cores} core{'' if here.cores == 1 else 's'}", *features, *versions]
