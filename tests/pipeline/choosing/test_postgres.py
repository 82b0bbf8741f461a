"""Several processes on one study in a real PostgreSQL server, which is started in a folder of its own."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from octobert.config.loading import as_yaml
from octobert.core.errors import StorageError
from octobert.core.selection import Variant, VariantResult
from octobert.pipeline.choosing import claims, storage
from tests.pipeline.choosing import studies
from tests.pipeline.choosing.studies import found_of, names, searched

pytestmark = pytest.mark.needs_cluster
PASSWORD = secrets.token_hex(8)


@dataclass(frozen=True)
class Server:
    """A server that asks for a password: its URL without it, and what starts and stops it."""

    url: str
    start: Callable[[], None]
    stop: Callable[[], None]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip(
        "psycopg", reason="the driver is not installed: pip install 'octobert[postgres]'"
    )
    programs = [
        *sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True),
        Path(shutil.which("initdb") or "/none"),
    ]
    found = next((path.parent for path in programs if path.is_file()), None)
    if found is None:
        pytest.skip(
            "no PostgreSQL server is installed: initdb is neither on the path nor in /usr/lib/postgresql"
        )
    # The server refuses to run as root.
    user = _other_user() if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        folder = Path(name)
        (folder / "password").write_text(PASSWORD)
        if user is not None:
            for path in (folder, folder / "password"):
                shutil.chown(path, user)
        data = folder / "data"

        def run(*command: str | Path) -> None:
            done = subprocess.run(command, user=user, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr

        run(
            found / "initdb",
            "-D",
            data,
            "-U",
            "me",
            "-A",
            "scram-sha-256",
            f"--pwfile={folder / 'password'}",
            "-E",
            "UTF8",
        )
        options = f"-p {port} -h 127.0.0.1 -k {folder}"

        def start() -> None:
            run(found / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")

        def stop() -> None:
            run(found / "pg_ctl", "-D", data, "-m", "immediate", "stop")

        start()
        try:
            yield Server(f"postgresql://me@127.0.0.1:{port}/postgres", start, stop)
        finally:
            stop()


@pytest.fixture
def database(server: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database; the environment has the password."""
    import psycopg

    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    name = f"study{time.monotonic_ns()}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
    return f"{server.url.removesuffix('/postgres')}/{name}"


@pytest.mark.parametrize("sampler", ["tpe", "random", "exhaustive"])
@pytest.mark.parametrize("order", ["joint", "one-pass-at-a-time"])
def test_processes_on_one_study_try_no_combination_twice(
    tmp_path: Path, database: str, sampler: str, order: str
) -> None:
    """The tables are made by all of them at the same time."""
    tried, results = studies.together(
        tmp_path, database, {"sampler": sampler, "order": order, "trials": 10}, processes=4
    )
    assert max(Counter(tried).values()) == 1
    assert sorted(tried) == sorted(results[0])
    assert results[1:] == results[:1] * 3
    assert len(tried) == (10 if order == "joint" else len(set(tried)))


def test_the_combination_of_a_killed_process_is_tried_again(tmp_path: Path, database: str) -> None:
    log = tmp_path / "tried"
    worker = studies.FORK.Process(
        target=studies.work, args=(database, str(log), 60.0, {"sampler": "tpe"})
    )
    worker.start()
    ends = time.monotonic() + 60
    while not (log.exists() and log.stat().st_size) and time.monotonic() < ends:
        time.sleep(0.01)
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    tried = []
    result = searched(
        tmp_path,
        lambda variant: (tried.append(variant.name), found_of(variant))[1],
        storage=database,
    )
    assert log.read_text().splitlines() == tried[:1]
    assert sorted(names(result)) == sorted(tried)
    assert result == searched(tmp_path / "alone")


def test_a_server_that_stops_is_a_sentence_and_the_search_goes_on_later(
    tmp_path: Path, database: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It crashes while a trial is made, and while it says that its process lives."""
    monkeypatch.setattr(claims, "BEAT_S", 0.05)
    monkeypatch.setattr(storage, "_PAUSE_S", 0.01)
    tried: list[str] = []

    def find(variant: Variant) -> VariantResult:
        tried.append(variant.name)
        if len(tried) == 3:
            server.stop()
            time.sleep(0.3)
        return found_of(variant)

    with pytest.raises(StorageError, match="the trials of the search cannot be stored") as raised:
        searched(tmp_path, find, storage=database, sampler="exhaustive")
    assert "\n" not in str(raised.value)
    with pytest.raises(StorageError, match="the trials of the search cannot be stored"):
        storage.check(database)
    server.start()
    result = searched(tmp_path, find, storage=database, sampler="exhaustive")
    assert result == searched(tmp_path / "alone", sampler="exhaustive")
    assert max(Counter(tried).values()) == 2
    assert len(tried) == len(result.found) + 1


def test_races_for_one_combination_have_one_winner(tmp_path: Path, database: str) -> None:
    """Four processes claim the same combinations at the same time."""
    storage.opened(database, tmp_path)
    workers = [
        studies.FORK.Process(target=_claim, args=(database, str(tmp_path / str(index))))
        for index in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 4
    won = [line for index in range(4) for line in (tmp_path / str(index)).read_text().splitlines()]
    assert sorted(won) == sorted(str(key) for key in range(20))


def _claim(url: str, log: str) -> None:
    opened = claims.Claims(storage.opened(url, Path(log)), url, "races", [False], {}, alone=False)
    space = {"x": tuple(str(key) for key in range(20))}
    with open(log, "w", encoding="utf-8") as file:
        for key in range(20):
            # More trials than combinations: a search tries again where claims that are about to be given up fill the number.
            trial = opened.claim({"x": str(key)}, str(key), space, 80)
            if trial is not None:
                file.write(f"{key}\n")
                opened.finish(trial, found_of(studies.variant_of({})), claims.Values((1.0,), 0.0))


def test_passwords_come_from_the_environment_and_are_shown_nowhere(
    tmp_path: Path,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    searched(tmp_path, storage=database, trials=1)
    wrong = secrets.token_hex(8)
    monkeypatch.setenv("PGPASSWORD", wrong)
    with pytest.raises(StorageError) as raised:
        searched(tmp_path, storage=database, trials=1)
    assert "PGPASSWORD" in str(raised.value)
    assert "\n" not in str(raised.value)
    text = (
        str(raised.value)
        + json.dumps(raised.value.to_json())
        + as_yaml(studies.recipe_of(storage=database))
        + "".join(capfd.readouterr())
    )
    assert wrong not in text
    assert PASSWORD not in text


def _other_user() -> str:
    return next(
        name for name in ("postgres", "nobody") if name in {each.pw_name for each in pwd.getpwall()}
    )
