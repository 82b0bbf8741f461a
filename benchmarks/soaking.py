"""What the soak harnesses share: tiny models and rows, commands to disturb, and what a command left behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from octobert.core.files import file_digest

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = ".octobert"
REPORTS = ("report.json", "evidence.json", "report.html")
# Longest time that a command may take.
LIMIT_S = 600
# Keys of results, process ids and random parts of names differ from run to run.
_VARIES = re.compile(r"(?<=-)[0-9a-f]{16}\b")
_MARK = "OCTOBERT_SOAK"


def make_inputs(folder: Path) -> Path:
    """Write tiny checkpoints (`classifier`, `encoder`) and rows (`data`) into a folder, unless they are there."""
    if not (folder / "made").is_file():
        sys.path.insert(0, str(ROOT))
        from tests.support.checkpoints import make_checkpoint
        from tests.support.runs import write_pairs

        folder.mkdir(parents=True, exist_ok=True)
        make_checkpoint(folder / "classifier", "bert", "sequence-classification")
        make_checkpoint(folder / "encoder", "bert", "embedding")
        write_pairs(folder / "data")
        (folder / "made").touch()
    return folder


def write_recipe(path: Path, inputs: Path, **changes: Any) -> Path:
    """Write the recipe of the tiny classifier, with changes."""
    recipe = {
        "model": str(inputs / "classifier"),
        "task": "text-classification",
        "data": {"source": str(inputs / "data"), "calibrate": {"from": "train", "samples": 24}},
        "targets": ["ort-cpu"],
        "baselines": ["ort-f32"],
        "benchmark": {"batch": [1], "sequence": [16], "repeats": 3},
        **changes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(recipe, indent=1))
    return path


def octobert(*arguments: object) -> list[str]:
    """A command line of octobert in this environment."""
    return [sys.executable, "-m", "octobert", *map(str, arguments)]


def private(folder: Path, mark: str = "") -> dict[str, str]:
    """Environment variables with a home and a folder for temporary files below a folder.

    Args:
        mark: inherited by every process of the command; `survivors` finds them by it.
    """
    home, temporary = folder / "home", folder / "tmp"
    for path in (home, temporary):
        path.mkdir(parents=True, exist_ok=True)
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("XDG_", "PYTHONPATH"))
    }
    return kept | {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        _MARK: mark,
    }


def survivors(mark: str) -> list[psutil.Process]:
    """Processes that a command started, directly or not, and that still run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def wait_for_end(mark: str, seconds: float = 30.0) -> tuple[float, list[psutil.Process]]:
    """Wait until no process of a command runs: (seconds, those that still run; they are ended)."""
    started = time.monotonic()
    while (left := survivors(mark)) and time.monotonic() - started < seconds:
        time.sleep(0.05)
    for process in left:
        process.kill()
    return time.monotonic() - started, left


def names_below(folder: Path) -> set[str]:
    """Names of everything below a folder, without the parts of names that vary."""
    return {_VARIES.sub("*", str(path.relative_to(folder))) for path in folder.rglob("*")}


def litter(folder: Path, reference: set[str]) -> list[str]:
    """What is below a folder beyond the names that an undisturbed run leaves.

    A second result of a step in the store is none: after a search that took another plan, its later steps have other keys.
    """
    return sorted(f"{folder.name}/{name}" for name in names_below(folder) - reference)


def published(out: Path) -> dict[str, str]:
    """Relative path → digest, for every file that is published in an output directory; empty for a link to nothing."""
    digests: dict[str, str] = {}
    for folder, inner, files in os.walk(out, followlinks=True):
        if Path(folder) == out and HIDDEN in inner:
            inner.remove(HIDDEN)
        digests |= {
            str((Path(folder) / name).relative_to(out)): file_digest(Path(folder) / name)
            if (Path(folder) / name).exists()
            else ""
            for name in files
        }
    return digests


def events(out: Path) -> list[dict[str, Any]]:
    """Events of an output directory; a last line that was cut short is left out."""
    path = out / HIDDEN / "events.jsonl"
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


@dataclass
class Flow:
    """A command that is killed.

    Args:
        arguments: of `octobert`; OUT stands for the output directory.
        start: folder that the output directory is a copy of when a burst begins; nothing by default.
        unequal: published files that depend on times.
        own: steps that other flows do not have.
        seconds: what the undisturbed run took.
        steps: step → seconds that it took, of the undisturbed run.
        expected: published files and their digests.
        names: below the output directory, the home folder and the folder for temporary files.
        answer: what the command printed, where that is its result.
        changes: of files, in one run of the command from now on; an estimate.
    """

    name: str
    arguments: tuple[str, ...]
    folder: Path
    start: Path | None = None
    unequal: tuple[str, ...] = REPORTS
    own: tuple[str, ...] = ()
    seconds: float = 0.0
    steps: dict[str, float] = field(default_factory=dict)
    expected: dict[str, str] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)
    answer: str = ""
    changes: int = 0

    @property
    def reference(self) -> Path:
        """The output directory of the undisturbed run."""
        return self.folder / "reference"

    @property
    def out(self) -> Path:
        """The output directory of the killed runs."""
        return self.folder / "killed"

    def command(self, out: Path) -> list[str]:
        """The command line."""
        return octobert(*(argument.replace("OUT", str(out)) for argument in self.arguments))

    def begin(self, out: Path) -> None:
        """Make the output directory and the folder for temporary files as they are before the command."""
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        (self.folder / "tmp").mkdir(parents=True)
        if self.start is not None:
            shutil.copytree(self.start, out, symlinks=True)

    def comparable(self, out: Path) -> dict[str, str]:
        """Published files that must be the same."""
        return {
            name: digest
            for name, digest in published(out).items()
            if not name.endswith(self.unequal)
        }

    def places(self) -> dict[str, Path]:
        """Folders in which nothing may be left behind."""
        return {"home": self.folder / "home", "tmp": self.folder / "tmp"}


def flows_in(folder: Path) -> dict[str, Flow]:
    """All flows. Those that need a package use that of `run` or `embed`."""
    inputs = make_inputs(folder / "inputs")
    data = inputs / "data"
    rows = {"source": str(data), "calibrate": {"from": "train", "samples": 24}}
    often = {"checkpoint_minutes": 0.001}
    recipes: dict[str, dict[str, Any]] = {
        "run": {},
        "before": {"targets": ["ort-cpu", "openvino-cpu"], "measure": False},
        "publish": {
            "targets": ["ort-cpu", "openvino-cpu"],
            "measure": False,
            "calibrate": {"percentile": {"keep": 99}},
        },
        "search": {
            "accuracy": {"max_drop": 0.0, "minutes": 1},
            "data": {**rows, "tune": {"from": "train", "samples": 40}},
        },
        "qat": {"qat": {"epochs": 1, "batch": 8}, "training": often},
        # What is the smallest does not depend on times.
        "auto": {
            "choose": {
                "goal": "size",
                "limits": {"max_drop": 0.2},
                "minutes": 5,
                "vary": ["calibrate"],
            },
            "data": {**rows, "tune": {"from": "train", "samples": 40}},
        },
        "embed": {"model": str(inputs / "encoder"), "task": {"embedding": {"text": "sentence1"}}},
    }
    paths = {
        name: str(write_recipe(folder / f"{name}.yaml", inputs, **changes))
        for name, changes in recipes.items()
    }
    found = {
        name: Flow(name, ("run", path, "--out", "OUT"), folder / name)
        for name, path in paths.items()
    }
    found["publish"].start = found["before"].reference
    found["search"].own, found["qat"].own = (
        ("search/ort-cpu",),
        ("qat", "simulate/ort-cpu"),
    )
    found["auto"].unequal = (*REPORTS, "octobert.json")
    found["search"].unequal = (*REPORTS, "octobert.json", "model_quantized.onnx")
    trained = (
        "--task",
        "text-classification",
        "--data",
        str(data),
        "--set",
        "training.checkpoint_minutes=0.001",
    )
    arguments = ("finetune", str(inputs / "classifier"), *trained, "--out", "OUT", "--epochs", "1")
    found["finetune"] = Flow("finetune", arguments, folder / "finetune", own=("finetune",))
    texts = tuple(f"the {word} is on it" for word in ("one", "of", "that", "was", "they"))
    embedding, classifier = found["embed"].reference / "ort-cpu", found["run"].reference / "ort-cpu"
    found["predict"] = Flow(
        "predict", ("predict", "OUT", *texts, "--json"), folder / "predict", start=embedding
    )
    search = (
        "--data",
        str(data / "train.tsv"),
        "--goal",
        "latency",
        "--trials",
        "3",
        "--minutes",
        "0.1",
    )
    found["tune"] = Flow(
        "tune", ("tune", "OUT", *search), folder / "tune", start=classifier, unequal=("tuned.json",)
    )
    return found


def prepare(flow: Flow) -> None:
    """Run a flow undisturbed, and note what it leaves."""
    shutil.rmtree(flow.folder / "home", ignore_errors=True)
    flow.begin(flow.reference)
    started = time.monotonic()
    done = run(flow, flow.reference)
    flow.seconds = time.monotonic() - started
    if done.returncode:
        raise SystemExit(
            f"{flow.name}: the undisturbed run failed with exit code {done.returncode}: {done.stderr[-2000:]}"
        )
    flow.answer = done.stdout if flow.name == "predict" else ""
    told = [event for event in events(flow.reference) if event["event"] in ("started", "finished")]
    flow.steps = {event["step"]: event["seconds"] for event in told if event["event"] == "finished"}
    if flow.name == "auto":
        flow.own = tuple(step for step in flow.steps if step.startswith(("race/", "judge/")))
    flow.expected = flow.comparable(flow.reference)
    flow.names = {name: names_below(place) for name, place in flow.places().items()}
    flow.names["out"] = names_below(flow.reference)


def half_published(flow: Flow, before: dict[str, str]) -> list[tuple[str, str]]:
    """Packages, checkpoints and reports that are neither as they were before a disturbance nor as they will be: (name, how)."""
    now = published(flow.out)
    found = []
    for name in sorted({Path(file).parts[0] for file in [*before, *now]}):
        got, was, fresh = (
            {
                file: digest
                for file, digest in files.items()
                if Path(file).parts[0] == name and not file.endswith(flow.unequal)
            }
            for files in (now, before, flow.expected)
        )
        # The mark of a folder that was put into its place a moment ago.
        if got not in (was, fresh):
            missing = sorted((set(was) | set(fresh)) - set(got))
            found.append((name, f"{len(got)} files; missing {missing[:3]}"))
    return found


def run(flow: Flow, out: Path) -> subprocess.CompletedProcess[str]:
    """Run a flow to its end."""
    environment = private(flow.folder, mark=f"{flow.folder}-end")
    return subprocess.run(
        flow.command(out),
        capture_output=True,
        text=True,
        env=environment,
        cwd=flow.folder,
        timeout=LIMIT_S,
    )
