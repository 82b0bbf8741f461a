"""Runs and their data: tiny files of rows, a short benchmark, folders that test processes share, and results of other runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from octobert import targets
from octobert.config.recipe import Recipe
from tests.support.checkpoints import WORDS

# A short benchmark, for tests that need one but do not read its times.
FAST = {"batch": [1], "sequence": ["data", 16], "repeats": 3}
# Targets that can run here.
TARGETS = [name for name in targets.names() if targets.load(name).probe().available]


def made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]
) -> Path:
    """A folder that all test processes of a session share. The first one that asks for it fills it."""
    folder = shared_folder(tmp_path_factory) / name
    folder.parent.mkdir(exist_ok=True, parents=True)
    with FileLock(folder.with_name(f"{name}.lock")):
        marker = folder.with_name(f"{name}.made")
        if not marker.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            marker.touch()
    return folder


def is_being_made(tmp_path_factory: pytest.TempPathFactory, name: str) -> bool:
    """Whether another process fills this folder of `made_once` now."""
    lock = shared_folder(tmp_path_factory) / f"{name}.lock"
    lock.parent.mkdir(exist_ok=True, parents=True)
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the folders of `made_once` lie."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "shared"


def pairs_of_sentences(count: int, start: int = 0) -> list[tuple[str, str, int]]:
    """Distinct pairs of sentences with a label."""
    rows = []
    for i in range(start, start + count):
        first = " ".join(WORDS[(i * 7 + k * 3) % len(WORDS)] for k in range(3 + i % 9))
        second = " ".join(WORDS[(i * 5 + k * 11) % len(WORDS)] for k in range(2 + i % 6))
        rows.append((f"{first} {WORDS[i % 13]}{i}", second, i % 2))
    return rows


def write_pairs(folder: Path) -> Path:
    """Write train.tsv (80 rows) and validation.tsv (40 rows) with columns sentence1, sentence2, label."""
    folder.mkdir()
    for name, rows in (
        ("train", pairs_of_sentences(80)),
        ("validation", pairs_of_sentences(40, 1000)),
    ):
        lines = ["sentence1\tsentence2\tlabel"] + [f"{a}\t{b}\t{c}" for a, b, c in rows]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def squad_file(path: Path, paragraphs: int, start: int) -> Path:
    """Write an official SQuAD file whose answers are single words."""
    content = []
    for number in range(start, start + paragraphs):
        context = (
            " ".join(WORDS[(number * 5 + i * 3) % len(WORDS)] for i in range(12 + number % 30))
            + f" x{number}"
        )
        answer = context.split()[number % 10]
        qas = [
            {
                "id": f"{number}",
                "question": f"{answer} of x{number}?",
                "answers": [{"text": answer, "answer_start": context.index(answer)}],
            }
        ]
        content.append({"context": context, "qas": qas})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": content}]}))
    return path


def warmed(source: Path, out: Path, *stages: str) -> Path:
    """An output directory whose store holds the results of some stages of another run, so that they are not run again."""
    for stage in stages:
        for artifact in (source / ".octobert" / "store").glob(f"{stage}-*"):
            shutil.copytree(artifact, out / ".octobert" / "store" / artifact.name)
    return out


def brief(recipe: Recipe) -> Recipe:
    """A recipe that only writes its models, from few calibration rows."""
    rows = recipe.data.calibrate.model_copy(update={"samples": 8})
    return recipe.model_copy(
        update={"measure": False, "data": recipe.data.model_copy(update={"calibrate": rows})}
    )
