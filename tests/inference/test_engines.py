"""The examples for Ray Data and Spark in docs/guides/embeddings.md, as programs, while a node or a process of the engine is killed.

Before the kill a process that computes is stopped, and all others finish. So there is work that only the killed one had.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import octobert
from tests.docs import markdown
from tests.support.checkpoints import WORDS

pytestmark = [pytest.mark.needs_cluster, pytest.mark.filterwarnings("ignore")]
PAGE = "docs/guides/embeddings.md"
FILES, ROWS = 16, 250
# Of vectors with a length of about 5, whose 8-bit scales are fixed: float32 sums in another order, because other texts are in a
# batch. 5e-7 is the most that 80,000 texts differed by in batches of 7 to 1000.
OTHER_BATCH = 2e-6
# Until a process has started or ended, on a busy machine; and until one that could go on would have.
SECONDS, QUIET = 90.0, 4.0
# Blocks of Ray Data with about 200 rows, so that there are many of them.
SMALL_BLOCKS = "import ray\nray.data.DataContext.get_current().target_max_block_size = 20_000\n"
# A Spark of two cores, which tries a task up to four times, with a task for each file, because none has so many bytes.
SPARK = (
    "--master local[2,4] --conf spark.ui.enabled=false --conf spark.sql.files.openCostInBytes=100000 "
    "--conf spark.sql.files.maxPartitionBytes=100000 pyspark-shell"
)


@pytest.fixture
def texts() -> list[str]:
    """Texts that are nearly all different."""
    chosen = random.Random(0)
    return [" ".join(chosen.choices(WORDS, k=1 + i % 12)) for i in range(FILES * ROWS)]


@pytest.fixture
def shared(embedding_package, texts, tmp_path: Path) -> Path:
    """The folder that all machines see."""
    shared = tmp_path / "shared"
    (shared / "corpus").mkdir(parents=True)
    (shared / "out").mkdir()
    (shared / "out" / "ort-cpu").symlink_to(embedding_package)
    for number, first in enumerate(range(0, len(texts), ROWS)):
        write(shared / "corpus" / f"{number:02}.parquet", texts[first : first + ROWS], first)
    return shared


def write(path: Path, texts: list[str | None], first: int = 0) -> None:
    ids = range(first, first + len(texts))
    columns = {"id": ids, "passage": pa.array(texts, pa.string()), "tags": [[i % 3] for i in ids]}
    pq.write_table(pa.table(columns), path)


def example(engine: str, shared: Path) -> str:
    """The block of the page for an engine, with other paths."""
    (block,) = (
        block.text
        for block in markdown.blocks()
        if block.document == PAGE and block.language == "python" and f"{engine}.read" in block.text
    )
    assert block.count('"/shared/') == 3
    return block.replace('"/shared/', f'"{shared}/')


@contextmanager
def started(code: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A program. What it prints is in the file `log`; nothing of it runs on after the context."""
    (folder / "example.py").write_text(code)
    with (folder / "log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "example.py"], cwd=folder, text=True, stdout=log, stderr=log
        )
    try:
        yield driver
    finally:
        for process in [*below(driver.pid), driver]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        driver.wait()


def below(pid: int, words: str = "") -> list[psutil.Process]:
    """The descendants of a process with some words in their command lines."""
    found = []
    with suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            if words in " ".join(process.as_dict(["cmdline"])["cmdline"] or ()):
                found.append(process)
    return found


def log_of(driver: subprocess.Popen[str], folder: Path) -> str:
    """What a program has printed, at its end."""
    driver.wait(SECONDS)
    return (folder / "log").read_text(errors="replace")


def waited(driver: subprocess.Popen[str], folder: Path, found: Callable[[], Any]) -> Any:
    """What is found in the end, while a program runs."""
    last = time.monotonic() + SECONDS
    while not (it := found()):
        assert driver.poll() is None, log_of(driver, folder)
        assert time.monotonic() < last, (folder / "log").read_text(errors="replace")
        time.sleep(0.02)
    return it


def stop(driver: subprocess.Popen[str], folder: Path, process: psutil.Process) -> None:
    """Stop a process, and wait until the others have written all that they can."""
    process.suspend()
    vectors, before, since = folder / "shared" / "vectors", -1, time.monotonic()
    while time.monotonic() - since < QUIET:
        assert driver.poll() is None, "nothing depends on what was stopped"
        if (now := len(list(vectors.rglob("*.parquet")))) != before:
            before, since = now, time.monotonic()
        time.sleep(0.1)


def check(shared: Path, package: Path, texts: list[str]) -> None:
    """Every row is there once, with its own columns and the vector that one process computes."""
    table = pq.read_table(shared / "vectors").sort_by("id")
    assert table["id"].to_pylist() == list(range(len(texts)))
    assert table["passage"].to_pylist() == texts
    assert table["tags"].to_pylist() == [[i % 3] for i in range(len(texts))]
    assert table.schema.field("embedding").type.value_type == pa.float32()
    vectors = np.stack(table["embedding"].to_numpy())
    expected = octobert.Embedder(package).vectors(texts)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=OTHER_BATCH)
    assert len(np.unique(expected.round(3), axis=0)) == len(set(texts)) > len(texts) // 2


# --- Ray Data ---


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head without CPUs, so that all actors are on the two others; one of these has enough CPUs for two actors and what reads."""
    pytest.importorskip("ray", reason="the extra octobert[ray] is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    for _ in range(2):
        cluster.add_node(num_cpus=3)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


def test_ray_data_writes_every_row_once_while_a_node_is_killed(
    cluster, embedding_package, shared, texts, tmp_path
) -> None:
    raylets = {node.all_processes["raylet"][0].process.pid: node for node in cluster.worker_nodes}
    title = "MapWorker(MapBatches(Embedder)).submit"

    def computing() -> list[tuple[Any, psutil.Process]]:
        """Nodes, and actors there that have rows."""
        return [(node, actor) for pid, node in raylets.items() for actor in below(pid, title)]

    with started(SMALL_BLOCKS + example("ray.data", shared), tmp_path) as driver:
        (node, actor), *_ = waited(driver, tmp_path, computing)
        stop(driver, tmp_path, actor)
        cluster.remove_node(node, allow_graceful=False)
        log = log_of(driver, tmp_path)
    assert driver.returncode == 0, log
    assert len(cluster.worker_nodes) == 1
    assert not actor.is_running()
    check(shared, embedding_package, texts)


@pytest.mark.parametrize(
    ("column", "sentence"),
    [
        ("passage", "DataError: row 3: the input is not a text or a pair of texts (got None)."),
        ("body", 'the batch: there is no column "body"; known: id, passage, tags.'),
    ],
)
def test_ray_data_ends_with_the_error(column, sentence, cluster, shared, tmp_path) -> None:
    write(shared / "corpus" / "00.parquet", ["he was", "in it", None, "that is"])
    for other in sorted((shared / "corpus").iterdir())[1:]:
        other.unlink()
    code = example("ray.data", shared).replace('"passage"', f'"{column}"')
    with started(code, tmp_path) as driver:
        log = log_of(driver, tmp_path)
    assert driver.returncode == 1, log
    assert sentence in log


# --- Spark ---


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes a program a driver of Spark on this machine."""
    pytest.importorskip("pyspark", reason="the extra octobert[spark] is not installed")
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        pytest.skip("Spark needs Java, and there is none: neither java in PATH nor JAVA_HOME")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", SPARK)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def test_spark_writes_every_row_once_while_a_worker_is_killed(
    spark, embedding_package, shared, texts, tmp_path
) -> None:
    vectors = shared / "vectors"

    def tasks_done() -> list[Path]:
        return list(vectors.glob("_temporary/0/task_*"))

    def computing() -> list[psutil.Process]:
        """Python workers, which are children of Spark's daemon, while tasks are done."""
        daemons = below(driver.pid, "pyspark.daemon") if tasks_done() else []
        return [worker for daemon in daemons for worker in below(daemon.pid)]

    with started(example("spark", shared), tmp_path) as driver:
        worker, *_ = waited(driver, tmp_path, computing)
        stop(driver, tmp_path, worker)
        assert len(tasks_done()) == FILES - 1
        worker.kill()
        log = log_of(driver, tmp_path)
    assert driver.returncode == 0, log
    assert log.count("Lost task") == 1, log
    assert "Python worker exited unexpectedly" in log
    check(shared, embedding_package, texts)
    # The same texts together have the same vectors, to the last bit.
    table = pq.read_table(next(vectors.glob("part-*")))
    assert len(table) == ROWS
    again = octobert.Embedder(embedding_package).vectors(table["passage"].to_pylist())
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), again)


def test_spark_ends_with_the_error(spark, shared, tmp_path) -> None:
    for other in (shared / "corpus").iterdir():
        other.unlink()
    write(shared / "corpus" / "00.parquet", ["he was", "in it", None, "that is"])
    with started(example("spark", shared), tmp_path) as driver:
        log = log_of(driver, tmp_path)
    assert driver.returncode == 1, log
    assert "DataError: row 3: the input is not a text or a pair of texts (got nan)." in log
