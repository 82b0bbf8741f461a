"""Every shipped recipe parses, says what it reproduces, and runs on a tiny model and tiny data."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

import octobert
from octobert import targets
from octobert.config import loading
from octobert.core.capability import Probe
from octobert.core.results import Report
from octobert.engine.executors import inline
from octobert.graph import operators
from octobert.pipeline import planner, runner
from tests.support import cli
from tests.support.checkpoints import WORDS
from tests.support.runs import made_once, squad_file, warmed, write_pairs

RECIPES = Path(__file__).parents[2] / "recipes"
SHIPPED = sorted(RECIPES.rglob("*.yaml"))
# Those of workflows that others published: a header says what is reproduced, and what came of it.
WORKFLOWS = [
    *sorted((RECIPES / "olive").glob("*.yaml")),
    *(
        RECIPES / f"{name}.yaml"
        for name in ("migraphx-squad", "qdqbert-squad", "imdb-qat", "nncf-mrpc")
    ),
]


@pytest.mark.filterwarnings("error")  # old keys warn
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path: Path) -> None:
    recipe = loading.load(path, ["allow_code=true"])
    assert recipe.targets
    assert (
        loading.parse(recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)) == recipe
    )


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_headers_say_what_is_reproduced_and_how_to_run_it(path: Path) -> None:
    comments = [
        line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    ]
    header = "\n".join(comments)
    assert all(
        f"# {word}" in header
        for word in (
            "Reproduces: ",
            "Published",
            "Measured",
            "Differs: " if "Differs" in header else "",
        )
    )
    assert "MEASURED" not in header
    assert f"octobert run recipes/{path.relative_to(RECIPES).as_posix()}" in header


def questions(folder: Path) -> None:
    folder.mkdir()
    for split, count in (("train", 40), ("validation", 16)):
        rows = [
            {
                "query": f"{WORDS[i % 20]} x{i}",
                "document": f"{' '.join(WORDS[i % 9 :])} {split} x{i}",
            }
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def tags(folder: Path) -> None:
    folder.mkdir()
    for name, count in (("eng.train", 40), ("eng.testa", 16)):
        rows = [f"{WORDS[i % 20]} O\n{name}{i} B-PER\n" for i in range(count)]
        (folder / name).write_text("\n".join(rows))


def reviews(folder: Path) -> None:
    folder.mkdir()
    for split, count in (("train", 40), ("test", 16)):
        rows = [
            {
                "text": f"{WORDS[i % 20]} {split} x{i} {' '.join(WORDS[i % 7 : i % 7 + 9])}",
                "label": i % 2,
            }
            for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of tiny rows: `pairs`, `squad`, `reviews`, `questions`, `tags`."""

    def make(folder: Path) -> None:
        write_pairs(folder / "pairs")
        for write in (reviews, questions, tags):
            write(folder / write.__name__)
        (folder / "squad").mkdir()
        squad_file(folder / "squad" / "train-v1.1.json", 24, 0)
        squad_file(folder / "squad" / "dev-v1.1.json", 8, 100)

    return made_once(tmp_path_factory, "recipe-data", make)


@pytest.fixture(scope="session")
def out(finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One output directory for all recipes: what several of them need is made once."""
    return warmed(finished[1], tmp_path_factory.mktemp("recipes") / "out", "capture")


@pytest.fixture(scope="session")
def exported(
    captured, checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`exported("question-answering")` → an ONNX file of the tiny BERT, whose capture takes no seconds."""

    def get(head: str) -> Path:
        def make(folder: Path) -> None:
            for name in ("config.json", "tokenizer.json"):
                shutil.copyfile(checkpoint("bert", head) / name, folder / name)
            operators.save(captured("bert", head).model, folder / "model.onnx")

        return made_once(tmp_path_factory, f"exported-{head}", make) / "model.onnx"

    return get


# Recipe → its data, and what makes it small.
SQUAD = "task.squad.max_length=40", "task.squad.max_query_length=8"
# Searches and most trainings are planned; they run in tests of their own.
SEARCHED = ("accuracy=null", "tune=[]")
LEFT_OUT = (*SEARCHED, "finetune=null", "qat=null")
SMALL: dict[str, tuple[str, ...]] = {
    "migraphx-squad": ("squad", *SQUAD, "task.squad.step=8"),
    "qdqbert-squad": ("squad", *SQUAD, "task.squad.overlap=8", "finetune=null", "qat=null"),
    # ort-cuda takes heads of a multiple of 16 channels; the tiny model has 8.
    "imdb-qat": (
        "reviews",
        "task.imdb.max_length=32",
        "finetune=null",
        "qat=null",
        "targets=[ort-cpu, openvino-cpu]",
    ),
    "nncf-mrpc": ("pairs",),
    "ptq-cpu": ("pairs", *SEARCHED),
    "inc-accuracy": ("pairs", *SEARCHED),
    "inc-smoothquant": ("pairs", *SEARCHED),
    "features": ("pairs", "task={feature-extraction: {text: [sentence1]}}"),
    "next-sentence-qnn": (
        "pairs",
        "task={next-sentence: {text: [sentence1, sentence2], max_length: 64}}",
    ),
    "squad-finetune": ("squad", *SQUAD),
    "demo": ("questions",),
    "conll2003": ("tags",),
    "qat-loop": (
        "pairs",
        "qat.epochs=0.5",
        "qat.batch=8",
        "qat.learning_rate=1.0e-3",
        "data.finetune.samples=16",
    ),
}

# Their capture takes seconds, and the runs of other recipes have everything else: these are planned.
PLANNED = ("next-sentence-qnn",)
HEADS = {
    "features": "feature-extraction",
    "next-sentence-qnn": "next-sentence",
    "demo": "embedding",
    "conll2003": "embedding",
}


def head_of(path: Path) -> str:
    """Of the tiny model of a recipe."""
    answers = SMALL.get(path.stem, ("pairs",))[0] == "squad"
    return HEADS.get(path.stem, "question-answering" if answers else "sequence-classification")


def fitted(path: Path, model: Path, data: Path) -> list[str]:
    """What makes a recipe fit the tiny model and rows."""
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = data / SMALL.get(path.stem, ("pairs",))[0]
    changes = [f"model={model}", "allow_code=true"]
    if isinstance(raw["data"], str):
        changes += [f"data={rows}"]
    elif "source" in raw["data"]:
        changes += [f"data.source={rows}", "data.config=null"]
    else:
        changes += [f"data.{part}={rows / raw['data'][part]}" for part in ("train", "validation")]
    if "shape" in raw:
        changes += ["shape={batch: 1, sequence: 64}"]
    if "shape" in raw and "mrpc" in raw["task"]:
        changes += ["task={mrpc: {max_length: 64}}"]
    elif "mrpc" in raw["task"]:
        changes += ["task=mrpc"]
    return changes


@pytest.fixture
def cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has no devices but a CPU, and runtimes for it."""
    missing = Probe(available=False, missing="no device")
    for name in targets.names():
        if name not in ("ort-cpu", "openvino-cpu"):
            monkeypatch.setitem(vars(targets.load(name)), "probe", lambda: missing)


@pytest.mark.usefixtures("cpu_alone")
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_dry_run_tells_the_steps(
    golden, path: Path, data: Path, checkpoint: Any, tmp_path: Path
) -> None:
    _, *small = SMALL.get(path.stem, ("pairs",))
    changes = [
        *fitted(path, checkpoint("bert", head_of(path)), data),
        *(["benchmark.sequence=[data, 64]"] if "benchmark" in path.read_text() else []),
        *(change for change in small if change not in LEFT_OUT),
    ]
    given = [word for change in changes for word in ("--set", change)]
    done = cli.octobert("run", path, "--out", tmp_path / "out", "--dry-run", *given)
    assert done.returncode == 0, done.stderr
    # What is decided depends on the CPU.
    golden(re.sub(r"reduce_range: \w+", "reduce_range: …", done.stdout))


# What no shipped recipe asks for.
ASKED: dict[str, dict[str, Any]] = {
    "choose": {"choose": {"limits": {"max_drop": 1}, "minutes": 1}},
    "search": {
        "search": {"space": {"calibrate": ["minmax", "percentile"]}, "sampler": "exhaustive"}
    },
    "quick": {"quick": True, "sensitivity": True},
    "unmeasured": {"measure": False, "finetune": {"epochs": 1}, "qat": {"epochs": 1}},
}


@pytest.mark.usefixtures("cpu_alone")
@pytest.mark.parametrize("name", ASKED)
def test_a_dry_run_tells_the_steps_of_what_is_asked(
    golden, name: str, data: Path, checkpoint: Any, tmp_path: Path
) -> None:
    recipe = {
        "model": str(checkpoint("bert")),
        "task": "text-classification",
        "data": {"source": str(data / "pairs"), "calibrate": {"samples": 24}},
        "targets": ["ort-cpu", "openvino-cpu"],
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe | ASKED[name]))
    done = cli.octobert("run", tmp_path / "recipe.yaml", "--out", tmp_path / "out", "--dry-run")
    assert done.returncode == 0, done.stderr
    # What is decided depends on the CPU.
    golden(re.sub(r"reduce_range: \w+", "reduce_range: …", done.stdout))


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore::octobert.PublishedFileWarning"
)  # packages of the recipe before
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run(
    path: Path,
    data: Path,
    out: Path,
    checkpoint: Callable[[str, str], Path],
    exported: Callable[[str], Path],
) -> None:
    _, *changes = SMALL.get(path.stem, ("pairs",))
    head = head_of(path)
    small = [
        *fitted(path, checkpoint("bert", head), data),
        "data.calibrate.samples=8",
        "measure=false",
    ]
    planned = loading.load(
        path, [*small, *(change for change in changes if change not in LEFT_OUT)]
    )
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    long = [
        stage
        for key, stage in (("accuracy", "search"), ("finetune", "finetune"), ("qat", "qat"))
        if key in raw
    ]
    assert {"package", *long} <= {step.stage for step in planner.steps_of(planned)}
    if path.stem in PLANNED:
        return
    if head != "sequence-classification":
        changes.append(f"model={exported(head)}")
    changed = loading.load(path, [*small, *changes])
    report: Report = runner.run(changed, out, executor=inline.run)
    assert list(report.plans) == list(changed.targets)
    for target in changed.targets:
        graph = onnx.load(
            out / target / "onnx" / "model_quantized.onnx", load_external_data=False
        ).graph
        quantized = any("QuantizeLinear" in node.op_type for node in graph.node)
        assert quantized == (changed.quantize.name != "float"), target
        octobert.verify(out / target)
