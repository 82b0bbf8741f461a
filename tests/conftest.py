"""Fixtures made by code: tiny random checkpoints of every family and head, with tokenizers, and tiny data files."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib.util
import os
import pickle
import random
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# As many test processes as cores: threads of PyTorch that wait for each other would take half of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import onnx_ir as ir

from octobert.config.loading import parse
from octobert.config.recipe import Recipe
from octobert.core import families
from octobert.core.plan import Site
from octobert.core.ranges import Ranges, TensorStatistics
from octobert.core.results import Report
from octobert.engine.executors import inline
from octobert.graph import operators
from octobert.graph.capture import capture as capturing
from octobert.graph.capture.capture import Captured, capture
from octobert.models.source import resolve
from octobert.pipeline import runner
from tests.support.checkpoints import (
    PRETRAINED_HEADS,
    make_byte_level_tokenizer,
    make_checkpoint,
    make_tokenizer,
    pad_of,
    parity_feeds,
)
from tests.support.exports import exported_once
from tests.support.golden import Golden
from tests.support.graphs import ranges_of, sites_of, statistics_of
from tests.support.runs import (
    FAST,
    TARGETS,
    brief,
    is_being_made,
    made_once,
    shared_folder,
    warmed,
    write_pairs,
)

HAS_TORCH = importlib.util.find_spec("torch") is not None
SHARED = Path(__file__).resolve().parents[2] / "shared"
# The longest files start first, so that no process ends minutes after the others. They need nothing from each other; the fourth
# makes what most later ones wait for.
LONGEST = (
    "training/test_qat.py",
    "graph/capture/test_capture.py",
    "training/test_finetune.py",
    "pipeline/test_runner.py",
    "quantization/test_search.py",
    "models/test_families.py",
    "pipeline/test_workflows.py",
    "evaluation/test_tuning.py",
)


# What is slow: whatever uses a whole training or search that these fixtures make, and what is marked.
SLOW_FIXTURES = {
    "pipeline/test_simulated.py": {"simulated"},
    "pipeline/test_workflows.py": {"answered", "tagged"},
    "quantization/test_search.py": {"searched"},
    "test_plugins.py": {"package"},
    "test_real_models.py": {"minilm"},
    "training/test_finetune.py": {"finished"},
    "training/test_qat.py": {"finished"},
}
# Of the other families, `make test` runs nothing that captures a graph; `make test-slow` does. These differ most from each other.
QUICK_FAMILIES = ("albert", "bert", "deberta-v2", "modernbert", "qwen3", "roberta")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the texts that the tests see now into the golden files",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files, mark what is slow, and skip what needs the real data sets where they are absent."""
    here = Path(__file__).parent
    first = {here / name: place for place, name in enumerate(LONGEST)}
    slow = {here / name: fixtures for name, fixtures in SLOW_FIXTURES.items()}
    others = {*families.names()} - {*QUICK_FAMILIES}
    items.sort(key=lambda item: first.get(item.path, len(first)))
    for item in items:
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        of_others = others.intersection(value for value in given if isinstance(value, str))
        used = {*item.fixturenames}
        if ("captured" in used and of_others) or slow.get(item.path, set()) & used:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("needs_shared") and not SHARED.is_dir():
            item.add_marker(
                pytest.mark.skip(
                    reason="the real data sets and checkpoints are not beside the repository"
                )
            )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip what needs PyTorch where it is not installed (`make test-python`)."""
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, ModuleNotFoundError) and error.name == "torch" and not HAS_TORCH:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, "Skipped: torch is not installed")
    return report


def pytest_collection_finish() -> None:
    """Look for garbage less often: what PyTorch's exporter leaves behind made a tenth of the time of all tests."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(scope="session")
def shared() -> Path:
    return SHARED


@pytest.fixture
def golden(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Golden]:
    """`golden(text)` and `golden.raises(kind)` compare with the file of the test's module (see `tests.support.golden`)."""
    folders = {
        shared_folder(tmp_path_factory): "<shared>",
        tmp_path_factory.getbasetemp(): "<base>",
        Path(__file__).parents[1]: "<repo>",
    }
    if "tmp_path" in request.fixturenames:
        folders = {request.getfixturevalue("tmp_path"): "<tmp>", **folders}
    module, failed = request.path, request.session.testsfailed
    path = module.parent / "golden" / f"{module.stem.removeprefix('test_')}.txt"
    golden = Golden(request.node.name, path, folders, request.config.getoption("--update-golden"))
    yield golden
    if request.session.testsfailed == failed:
        golden.close()


@pytest.fixture(scope="session", autouse=True)
def _exported_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        kept = functools.partial(made_once, tmp_path_factory)
        patch.setattr(capturing, "export", exported_once(capturing.export, kept))
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """`checkpoint("bert", "sequence-classification")` → a folder, made once."""

    def get(family: str, head: str = "sequence-classification") -> Path:
        # What these heads read are the states of the last layer; layers are captured with other heads.
        sizes = {"num_hidden_layers": 1} if (family, head) in PRETRAINED_HEADS else {}
        return made_once(
            tmp_path_factory,
            f"{family}-{head}",
            lambda folder: make_checkpoint(folder, family, head, **sizes),
        )

    return get


@pytest.fixture(scope="session")
def captured(
    request, checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Captured]:
    """`captured("bert", "sequence-classification")` → the canonical graph, captured once; nobody may edit it."""
    loaded: dict[tuple[str, str], Captured] = {}
    later = [
        (item.callspec.params["family"], item.callspec.params["head"])
        for item in request.session.items
        if item.name.startswith("test_every_family_and_head")
    ]
    random.Random(os.environ.get("PYTEST_XDIST_WORKER")).shuffle(later)

    def folder_of(family: str, head: str) -> Path:
        def make(folder: Path) -> None:
            source = checkpoint(family, head)
            result = capture(resolve(source), head, parity_feeds(pad_of(source)))
            operators.save(result.model, folder / "model.onnx")
            assert result.family is families.load(family)
            (folder / "facts.pickle").write_bytes(
                pickle.dumps(dataclasses.replace(result, model=None, family=None))
            )

        return made_once(tmp_path_factory, f"captured-{family}-{head}", make)

    def get(family: str, head: str = "sequence-classification") -> Captured:
        if (family, head) not in loaded:
            # While another test process captures this model, capture one that a later test needs.
            while later and is_being_made(tmp_path_factory, f"captured-{family}-{head}"):
                name = later.pop()
                if not is_being_made(tmp_path_factory, "captured-{}-{}".format(*name)):
                    folder_of(*name)
            folder = folder_of(family, head)
            facts = pickle.loads((folder / "facts.pickle").read_bytes())
            model = ir.load(folder / "model.onnx")
            loaded[family, head] = dataclasses.replace(
                facts, model=model, family=families.load(family)
            )
        return loaded[family, head]

    return get


@pytest.fixture(scope="session")
def bert(captured) -> Captured:
    """The captured graph of the tiny BERT classifier; nobody may edit it."""
    return captured("bert")


@pytest.fixture(scope="session")
def float_path(bert, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The graph of `bert` in a file."""
    path = tmp_path_factory.mktemp("float") / "float.onnx"
    operators.save(bert.model, path)
    return path


@pytest.fixture(scope="session")
def bert_sites(bert) -> tuple[Site, ...]:
    """The places in `bert` that can be quantized."""
    return sites_of(bert)


@pytest.fixture(scope="session")
def bert_statistics(float_path, bert_sites) -> dict[str, TensorStatistics]:
    """What was observed of every activation of `bert`."""
    return statistics_of(float_path, bert_sites)


@pytest.fixture(scope="session")
def bert_ranges(bert_statistics) -> Ranges:
    """Minima and maxima of every activation of `bert`."""
    return ranges_of(bert_statistics)


@pytest.fixture(scope="session")
def wordpiece_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a WordPiece tokenizer."""
    found = tmp_path_factory.mktemp("wordpiece")
    make_tokenizer(found, pad_id=0)
    return found


@pytest.fixture(scope="session", params=["wordpiece", "byte-level"])
def tokenizer_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with a tokenizer: WordPiece, then byte-level BPE."""
    if request.param == "wordpiece":
        return request.getfixturevalue("wordpiece_folder")
    found = tmp_path_factory.mktemp(request.param)
    make_byte_level_tokenizer(found)
    return found


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A folder of its own with the rows of `write_pairs`."""
    return write_pairs(tmp_path / "data")


@pytest.fixture(scope="session")
def finished(checkpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path, Report]:
    """One whole run of the tiny classifier with everything in it: (recipe, output directory, report). Not to be written into."""
    model = str(checkpoint("bert"))

    def recipe_in(folder: Path) -> Recipe:
        return parse(
            plain
            | {
                "data": {
                    "source": str(folder / "data"),
                    "calibrate": {"from": "train", "samples": 24},
                }
            }
        )

    def make(folder: Path) -> None:
        write_pairs(folder / "data")
        runner.run(recipe_in(folder), folder / "out", executor=inline.run)

    plain: dict[str, Any] = {
        "model": model,
        "task": "text-classification",
        "sensitivity": True,
        "targets": TARGETS,
        "benchmark": FAST,
    }
    folder = made_once(tmp_path_factory, "run", make)
    report = Report.model_validate_json(
        (folder / "out" / "report.json").read_text(encoding="utf-8")
    )
    return recipe_in(folder), folder / "out", report


@pytest.fixture(scope="session")
def embedding_package(checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package of the tiny encoder, which embeds texts with ONNX Runtime. Not to be written into."""
    model = str(checkpoint("bert", "embedding"))

    def make(folder: Path) -> None:
        recipe = parse(
            {
                "model": model,
                "task": {"embedding": {"text": "sentence1"}},
                "data": str(write_pairs(folder / "data")),
                "targets": ["ort-cpu"],
            }
        )
        runner.run(brief(recipe), folder / "out", executor=inline.run)

    return made_once(tmp_path_factory, "embedding-ort", make) / "out" / "ort-cpu"


@pytest.fixture
def out(finished, tmp_path: Path) -> Path:
    """An output directory of its own in which the tiny classifier is captured already: seconds that most tests need not spend."""
    return warmed(finished[1], tmp_path / "out", "capture")
