"""`octobert compare`: who may ask, answers that equal those of `octobert predict`, rows, cancelling, packages that change."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import shutil
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

import octobert as library
from octobert.core import environment
from octobert.core.errors import DataError, ModelError, OctobertError, TargetError
from octobert.graph import operators
from octobert.inference.opened import FinishedModel, open_model
from octobert_compare import app, asking, jobs
from octobert_compare.asking import Ask, Lengths, Lookup
from octobert_compare.guard import Guard
from octobert_compare.models import Models, Pair, paired
from octobert_compare.server import Server
from tests.support.cli import octobert
from tests.support.flips import prefer
from tests.support.runs import TARGETS, pairs_of_sentences

PAIR = ("he was good", "<script>alert(1)</script> she ' \" & was \u202egood")
# Seconds until a server on a busy machine has done something small.
PATIENCE_S = 20
# Sums of the same float products in batches of other sizes.
ROUNDING = 1e-5
# OpenVINO rounds another batch or length otherwise, and a value between two codes then gets the other one.
OTHER_CODES = 0.01


class Client:
    """Asks a server as its page does."""

    def __init__(self, server: Server) -> None:
        parts = urlsplit(server.address)
        self.host, self.path = parts.netloc, parts.path

    @contextmanager
    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Any request, with the headers of a browser where none are given."""
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_S)
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        own = {"Host": self.host, "Origin": f"http://{self.host}"} | headers
        with closing(connection):
            connection.request(
                method,
                path,
                body=content,
                headers={key: value for key, value in own.items() if value},
            )
            with connection.getresponse() as answer:
                yield answer

    def events(self, path: str, body: Any) -> list[dict[str, Any]]:
        """All lines of an answer."""
        with self.ask("POST", self.path + path, body) as answer:
            assert answer.status == 200
            return [json.loads(line) for line in answer.read().splitlines()]


@pytest.fixture(scope="module")
def client(finished) -> Iterator[Client]:
    server = Server(finished[1])
    thread = threading.Thread(target=server.run)
    thread.start()
    yield Client(server)
    server.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def models(finished) -> Models:
    return Models(finished[1])


class One:
    """One model file, as a folder of packages would hold it."""

    def __init__(self, model: FinishedModel) -> None:
        self._pair = paired("m", model, "")

    def pair(self, name: str) -> Pair:
        return self._pair


def rows_of(count: int, start: int = 5000) -> bytes:
    lines = [
        f'"{first}","{second}",{label}' for first, second, label in pairs_of_sentences(count, start)
    ]
    return "\n".join(["sentence1,sentence2,label", *lines]).encode()


def parquet_of(count: int) -> bytes:
    table = pyarrow.csv.read_csv(io.BytesIO(rows_of(count)))
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {}),
        ("GET", "/models", {}),
        ("GET", "/wrong/models", {}),
        ("GET", "{token}", {}),
        ("GET", "{token}/models", {"Host": "rebound.example"}),
        ("GET", "{token}/models", {"Host": "127.0.0.1"}),
        ("POST", "{token}/ask", {"Origin": "https://rebound.example"}),
        ("POST", "{token}/ask", {"Origin": "null"}),
        ("POST", "{token}/ask", {"Origin": ""}),
    ],
)
def test_only_its_own_page_may_ask(client, method: str, path: str, headers: dict[str, str]) -> None:
    token = client.path.rstrip("/")
    with client.ask(
        method, path.format(token=token), {"model": "ort-cpu", "input": PAIR}, **headers
    ) as answer:
        assert answer.status == 403
        assert token[1:] not in answer.read().decode()


def test_the_page_may_do_nothing_but_show_itself(client) -> None:
    for name in ("", "main.js", "page.css", "plot.js", "d3.js"):
        with client.ask("GET", client.path + name) as answer:
            assert answer.status == 200
            policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe-eval" not in policy
    assert "Access-Control-Allow-Origin" not in answer.headers
    for name in ("../app.py", "%2e%2e/app.py", "octobert.json", "models/ort-cpu"):
        with client.ask("GET", client.path + name) as answer:
            assert answer.status == 404


@pytest.mark.parametrize(
    ("port", "host"),
    [(80, "127.0.0.1"), (80, "localhost"), (80, "127.0.0.1:80"), (8080, "localhost:8080")],
)
def test_a_browser_leaves_out_the_port_of_its_scheme(port: int, host: str) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def status(given: str) -> int:
        async def send(message: Any) -> None:
            sent.append(message)

        sent: list[Any] = []
        headers = [(b"host", given.encode()), (b"origin", f"http://{given}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/secret/ask", "headers": headers}
        await Guard(inner, token="secret", port=port)(scope, None, send)  # type: ignore[arg-type]
        return int(sent[0]["status"])

    assert asyncio.run(status(host)) == 200
    assert asyncio.run(status("127.0.0.1:8081")) == 403
    assert asyncio.run(status("rebound.example")) == 403


def test_a_browser_is_started_without_the_token(monkeypatch, finished) -> None:
    """The arguments of its process can be read by every user of the machine."""
    opened: list[str] = []

    def look(address: str) -> bool:
        file = Path(url2pathname(urlsplit(address).path))
        opened.extend((address, file.read_text(encoding="utf-8"), oct(file.stat().st_mode)[-3:]))
        opened.append(oct(file.parent.stat().st_mode)[-3:])
        return True

    monkeypatch.setattr("webbrowser.open", look)
    monkeypatch.setattr(
        Server, "run", lambda server: (opened.append(server.address), server._socket.close())
    )
    done = octobert("compare", finished[1], "--open")
    (given, content, mode, folder_mode, address) = opened
    assert done.returncode == 0
    assert address in done.stdout
    assert given.startswith("file:")
    assert urlsplit(address).path not in given
    assert f'content="0; url={address}"' in content
    assert (mode, folder_mode) == ("600", "700")
    assert not Path(url2pathname(urlsplit(given).path)).exists()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_connections_that_ask_nothing_keep_nobody_out(client, sent: bytes) -> None:
    """Any program of the machine may open some; those that are open longest are closed."""
    host, _, port = client.host.partition(":")
    with ExitStack() as stack:
        others = []
        for _ in range(200):
            others.append(socket.create_connection((host, int(port)), PATIENCE_S))
            stack.enter_context(closing(others[-1]))
            others[-1].sendall(sent)
        for _ in range(3):
            with client.ask("GET", f"{client.path}models") as answer:
                assert answer.status == 200
        first = b""
        with suppress(ConnectionResetError):
            first = b"".join(iter(lambda: others[0].recv(4096), b""))
        assert first.startswith(b"HTTP/1.1 403") or not first


def test_a_file_that_is_sent_is_never_on_the_disk(client, monkeypatch, tmp_path) -> None:
    """An end of the process could not leave it there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen: list[str] = []
    read = jobs.readers.rows_in
    monkeypatch.setattr(
        jobs.readers, "rows_in", lambda *given: (seen.extend(os.listdir(tmp_path)), read(*given))[1]
    )
    for name, content in (("rows.csv", rows_of(9)), ("rows.parquet", parquet_of(9))):
        assert client.events(f"rows?model=ort-cpu&name={name}", content)[-1]["done"] == 9
    assert [*seen, *os.listdir(tmp_path)] == []


def test_a_body_has_a_limit(client, monkeypatch) -> None:
    monkeypatch.setattr(app, "MOST_ASKED", 1000)
    with client.ask(
        "POST", client.path + "ask", {"model": "ort-cpu", "input": "a" * (8 << 20)}
    ) as answer:
        assert answer.status == 413
        assert "too large" in json.loads(answer.read())["error"]


@pytest.mark.parametrize("target", TARGETS)
def test_answers_equal_those_of_predict(client, finished, target: str) -> None:
    events = client.events("ask", {"model": target, "input": PAIR, "rounds": 2})
    found = next(event for event in events if "answers" in event)
    with library.load(finished[1] / target) as model:
        answer = model([PAIR])[0]
    assert found["answers"]["int8"]["label"] == answer["label"]
    assert found["answers"]["int8"]["score"] == pytest.approx(answer["score"], abs=OTHER_CODES)
    assert max(found["scores"]["int8"].values()) == pytest.approx(found["answers"]["int8"]["score"])
    assert [set(event["ms"]) for event in events if "ms" in event] == [{"float", "int8"}] * 3
    assert [event.get("warm", False) for event in events if "ms" in event] == [True, False, False]
    assert "Median of 2 rounds" in events[-1]["sentence"]


def test_the_float_answer_is_that_of_the_float_model(client, finished) -> None:
    events = client.events("ask", {"model": "ort-cpu", "input": PAIR, "rounds": 1})
    file = finished[1] / "ort-cpu" / "onnx" / "model.onnx"
    with library.load(file, task="text-classification", tokenizer=finished[1] / "ort-cpu") as model:
        expected = model([PAIR])[0]["score"]
    assert next(event for event in events if "answers" in event)["answers"]["float"][
        "score"
    ] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("head", "task", "given"),
    [
        (
            "question-answering",
            "question-answering",
            {"question": "who was good?", "context": "he was good in it"},
        ),
        ("token-classification", "token-classification", "he was good"),
        ("embedding", "embedding", "he was good"),
        ("masked-lm", "fill-mask", "he was [MASK]"),
    ],
)
def test_answers_of_other_tasks_equal_those_of_predict(
    captured, checkpoint, tmp_path, head: str, task: str, given: Any
) -> None:
    operators.save(captured("bert", head).model, tmp_path / "model.onnx")
    model = open_model(
        tmp_path / "model.onnx",
        task=task,
        tokenizer=checkpoint("bert", head),
        reference=tmp_path / "model.onnx",
    )

    answers = next(
        e for e in asking.ask(One(model), Ask(model="m", input=given, rounds=1)) if "answers" in e
    )["answers"]
    with library.load(
        tmp_path / "model.onnx", task=task, tokenizer=checkpoint("bert", head)
    ) as predictor:
        assert answers["int8"] == answers["float"] == predictor([given])[0]


def test_rows_are_judged_as_evaluate_judges_them(client, finished, tmp_path) -> None:
    content = rows_of(50)
    (tmp_path / "rows.csv").write_bytes(content)
    judged = library.evaluate(finished[1] / "ort-cpu", tmp_path / "rows.csv")
    begun, *events = client.events("rows?model=ort-cpu&name=rows.csv", content)
    assert begun["rows"] == events[-1]["done"] == 50
    assert [event["done"] for event in events] == sorted({event["done"] for event in events})
    changed = [row for event in events for row in event["changed"]]
    assert judged.comparison is not None
    assert (
        events[-1]["agreement"]
        == pytest.approx(judged.comparison.fidelity)
        == pytest.approx(1 - len(changed) / 50)
    )
    scores = {
        name: {s.metric: s.value for s in own}[begun["metric"]]
        for name, own in judged.scores.items()
    }
    assert list(events[-1]["metrics"].values()) == pytest.approx(
        [scores["ort-f32"], scores["ort-cpu"]]
    )


def test_rows_that_differ_have_both_answers(finished, tmp_path) -> None:
    package = Path(shutil.copytree(finished[1] / "ort-cpu", tmp_path / "ort-cpu"))
    names = library.manifest(package).task.labels
    answers = {}
    for index in (0, 1):
        prefer(package, index)
        events = list(jobs.compare_rows(Models(package), "ort-cpu", "rows.csv", rows_of(20)))
        assert (
            events[-1]["agreement"] == 1 - sum(len(event["changed"]) for event in events[1:]) / 20
        )
        answers[index] = [row for event in events[1:] for row in event["changed"]]
    assert sorted(row["row"] for rows in answers.values() for row in rows) == list(range(1, 21))
    for index, rows in answers.items():
        assert {(row["float"], row["int8"]) for row in rows} <= {(names[index], names[1 - index])}
        assert all(row["float_score"] > 0.99 and len(row["texts"]) == 2 for row in rows)


def test_rows_that_nobody_waits_for_are_not_answered(client, monkeypatch) -> None:
    steps, closed = [], threading.Event()
    real = jobs.compare_rows

    def watched(*arguments: Any) -> Iterator[dict[str, Any]]:
        try:
            for event in real(*arguments):
                steps.append(event)
                yield event
        finally:
            closed.set()

    monkeypatch.setattr(jobs, "compare_rows", watched)
    with client.ask(
        "POST", client.path + "rows?model=ort-cpu&name=rows.csv", rows_of(20_000)
    ) as answer:
        assert json.loads(answer.readline())["rows"] == 20_000
    assert closed.wait(PATIENCE_S)
    assert steps[-1].get("done", 0) < 20_000


def test_jobs_of_two_tabs_do_not_mix(client) -> None:
    with ThreadPoolExecutor(2) as pool:
        paths = [f"rows?model={target}&name=rows.csv" for target in (TARGETS[0], TARGETS[-1])]
        found = list(pool.map(client.events, paths, [rows_of(60), rows_of(90, 7000)]))
    assert [events[-1]["done"] for events in found] == [60, 90]
    assert [
        Counter(event["done"] for event in events if "done" in event).most_common(1)[0][1]
        for events in found
    ] == [1, 1]


def test_texts_are_searched_as_their_embeddings_say(captured, checkpoint, tmp_path) -> None:
    operators.save(captured("bert", "embedding").model, tmp_path / "model.onnx")
    options = {"task": "embedding", "tokenizer": checkpoint("bert", "embedding")}
    models = One(open_model(tmp_path / "model.onnx", reference=tmp_path / "model.onnx", **options))
    texts = [f"{first} {second}" for first, second, _ in pairs_of_sentences(40)]
    *progress, last = asking.search(models, Lookup(model="m", texts=tuple(texts), query=texts[7]))
    assert [event["done"] for event in progress[1:]] == [32, 40]
    with library.load(tmp_path / "model.onnx", **options) as model:
        vectors = np.array([answer["embedding"] for answer in model(texts)])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = sorted(vectors @ vectors[7], reverse=True)[:10]
    assert [hit["score"] for hit in last["nearest"]["int8"]] == pytest.approx(
        expected, abs=ROUNDING
    )
    assert last["nearest"]["float"][0] == {"text": texts[7], "score": pytest.approx(1), "other": 1}
    assert last["shared"] == 10
    # The list is kept: only the query is embedded.
    assert len(list(asking.search(models, Lookup(model="m", texts=tuple(texts), query="he")))) == 2
    done = list(jobs.compare_rows(models, "m", "rows.csv", rows_of(20)))[-1]
    assert (done["done"], done["likeness"], done["changed"]) == (20, "mean cosine", [])
    assert done["agreement"] == pytest.approx(1)


def test_lengths_are_those_that_the_model_reads(models, monkeypatch) -> None:
    monkeypatch.setattr(asking, "_ROUNDS", 2)
    first, *timed = asking.lengths(models, Lengths(model="ort-cpu", input=PAIR))
    assert [event["length"] for event in timed] == first["lengths"]
    assert first["lengths"][0] == 16
    assert first["lengths"][-1] == models.pair("ort-cpu").tokenizer.max_length
    assert all(
        len(times) == 2 and min(times) > 0 for event in timed for times in event["ms"].values()
    )


def test_a_package_that_changes_is_opened_again(golden, finished, tmp_path) -> None:
    package = Path(shutil.copytree(finished[1] / "ort-cpu", tmp_path / "out" / "ort-cpu"))
    models = Models(package.parent)
    first = models.pair("ort-cpu")
    assert models.pair("ort-cpu") is first
    shutil.copytree(package, tmp_path / "new")
    (tmp_path / "new" / "octobert.json").touch()
    package.rename(tmp_path / "old")
    (tmp_path / "new").rename(package)
    assert models.pair("ort-cpu") is not first
    shutil.rmtree(package)
    with golden.raises(ModelError):
        models.pair("ort-cpu")


def test_a_package_without_its_float_model_answers_alone(finished, tmp_path) -> None:
    package = Path(shutil.copytree(finished[1] / "ort-cpu", tmp_path / "ort-cpu"))
    (package / "onnx" / "model.onnx").unlink()
    events = list(asking.ask(Models(package), Ask(model="ort-cpu", input=PAIR, rounds=1)))
    assert set(events[1]["answers"]) == {"int8"}
    assert events[-1]["sentence"].startswith(
        "The package has no float model to compare with (--no-float left it out). Median of 1 round:"
    )
    assert (
        list(jobs.compare_rows(Models(package), "ort-cpu", "rows.csv", rows_of(9)))[-1]["done"] == 9
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("", "he"), "the input, text 1 of 2: the text is empty; write at least one word"),
        ("he was good", "the model reads pairs of texts"),
        (
            ("he", "a" * 1_300_000),
            "the text is too long (got 1,300,002 characters, expected at most 1,000,000)",
        ),
        ({"text": "he"}, "the input"),
    ],
)
def test_texts_that_cannot_be_asked(client, given: Any, words: str) -> None:
    (event,) = client.events("ask", {"model": "ort-cpu", "input": given})
    assert words in event["error"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.csv", b"text\nhe was good", "rows.csv: the model reads pairs of texts"),
        ("rows.csv", b"", "rows.csv: the file is empty"),
        (
            "rows.csv",
            b"sentence1,sentence2\na,b\nc",
            "rows.csv, line 3: the line has another number of columns",
        ),
        ("rows.csv", b"sentence1,sentence2\na,b\n,d", "rows.csv"),
        ("rows.parquet", b"PAR1", "rows.parquet: the file cannot be read"),
        ("../../rows.exe", b"MZ", "../../rows.exe: the format is not known"),
        ("rows.csv", b"\xff\xfe", "rows.csv: the file is not UTF-8"),
    ],
)
def test_files_that_are_no_rows(client, name: str, content: bytes, words: str) -> None:
    (event,) = client.events(f"rows?model=ort-cpu&name={quote(name)}", content)
    assert words in event["error"]
    assert "octobert-" not in event["error"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"rounds": 0}, "rounds"), ({"input": ("he", "\ud800")}, "hex escape"), ({"a": 1}, "a")],
)
def test_questions_of_another_form(client, wrong: dict[str, Any], words: str) -> None:
    with client.ask(
        "POST", client.path + "ask", {"model": "ort-cpu", "input": PAIR} | wrong
    ) as answer:
        assert answer.status == 400
        assert words in json.loads(answer.read())["error"]


def test_questions_to_other_models(client) -> None:
    (event,) = client.events("ask", {"model": "../ort-cpu", "input": PAIR})
    assert 'there is no package "../ort-cpu"' in event["error"]
    events = client.events("search", {"model": "ort-cpu", "texts": ["a"], "query": "b"})
    assert "the model makes no embeddings" in events[-1]["error"]


def test_folders_and_options_that_cannot_be_served(finished, tmp_path, monkeypatch) -> None:
    done = octobert("compare", tmp_path)
    assert (done.returncode, "not a package (expected octobert.json)" in done.stderr) == (
        ModelError.exit_code,
        True,
    )
    done = octobert("compare", finished[1], "--target", "tensorrt")
    assert done.returncode == TargetError.exit_code
    assert 'the folder has no package for the target "tensorrt"; known: ' in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = octobert("compare", finished[1], "--port", taken.getsockname()[1])
    assert "--port: the port cannot be had" in done.stderr
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = octobert("compare", finished[1])
    assert (done.returncode, environment.install("web") in done.stderr) == (
        TargetError.exit_code,
        True,
    )


def test_a_target_that_cannot_run_here_is_listed_with_the_reason(finished, tmp_path) -> None:
    folder = tmp_path / "out"
    for name in ("ort-cpu", "tensorrt"):
        shutil.copytree(finished[1] / "ort-cpu", folder / name)
    manifest = folder / "tensorrt" / "octobert.json"
    manifest.write_text(
        manifest.read_text()
        .replace('"target":"ort-cpu"', '"target":"tensorrt"')
        .replace('"target": "ort-cpu"', '"target": "tensorrt"')
    )
    with pytest.raises(TargetError, match="no package of the folder can be opened"):
        Models(folder, ["tensorrt"])
    problems = {each["name"]: each["problem"] for each in Models(folder).listed()}
    assert problems["ort-cpu"] is None
    assert "the target tensorrt cannot run here" in problems["tensorrt"]
    manifest.write_text("{")
    problems = {each["name"]: each["problem"] for each in Models(folder).listed()}
    assert problems["ort-cpu"] is None
    assert "octobert.json cannot be read" in problems["tensorrt"]


def test_an_error_ends_work_with_its_sentence(models) -> None:
    with pytest.raises(OctobertError):
        list(jobs.compare_rows(models, "ort-cpu", "rows.csv", b"sentence1\na"))
    with pytest.raises(DataError, match="the text is empty"):
        list(asking.lengths(models, Lengths(model="ort-cpu", input=("", ""))))


def test_tokens_are_those_that_the_model_reads(models) -> None:
    first = next(asking.ask(models, Ask(model="ort-cpu", input=PAIR)))
    assert not first["truncated"]
    assert [token["piece"] for token in first["tokens"]][:3] == ["[CLS]", "he", "was"]
    cut = next(asking.ask(models, Ask(model="ort-cpu", input=("he was on " * 300, "he"))))
    assert cut["truncated"]
    assert (cut["read"], cut["whole"]) == (cut["limit"], 901)
