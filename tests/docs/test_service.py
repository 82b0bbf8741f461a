"""The program of docs/guides/service.md, run by uvicorn and asked by eight clients at the same time."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
import yaml

import octobert
from octobert.config import loading
from octobert.core.session import SessionOptions
from octobert.targets.runtimes import openvino
from tests.docs import markdown
from tests.support.checkpoints import WORDS

PAGE = "docs/guides/service.md"
CLIENTS, REQUESTS = 8, 12
PATIENCE_S = 60.0
# A text alone has a model of its own length, which rounds elsewhere than that for lists: by 0.001 here. Scores of different
# texts are 0.03 apart.
TOLERANCE = 0.005


def block(language: str) -> str:
    """The only block of the page in a language."""
    (text,) = (b.text for b in markdown.blocks() if (b.document, b.language) == (PAGE, language))
    return text


Ask = Callable[[Any], tuple[int, Any]]


@pytest.fixture
def ask(workspace: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Run the program. `ask(document)` → (status, answer)."""
    monkeypatch.chdir(workspace(PAGE))
    names: dict[str, Any] = {"__name__": "service"}
    exec(compile(block("python"), PAGE, "exec"), names)
    server = uvicorn.Server(uvicorn.Config(names["app"], port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]

    def ask(document: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/answers", json.dumps(document), headers)
        answer = connection.getresponse()
        found = answer.status, json.loads(answer.read())
        connection.close()
        return found

    yield ask
    server.should_exit = True
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_eight_clients_get_the_answers_to_their_own_texts(ask: Ask) -> None:
    generator = random.Random(0)
    lists = [
        [" ".join(generator.choices(WORDS, k=generator.randint(1, 30))) for _ in range(number)]
        for number in generator.choices(range(1, 9), k=CLIENTS * REQUESTS)
    ]
    with ThreadPoolExecutor(CLIENTS) as pool:
        given = list(pool.map(lambda texts: ask({"texts": texts}), lists))
    with octobert.load("out/openvino-cpu") as model:
        expected = [[model(text)[0] for text in texts] for texts in lists]
    assert {status for status, _ in given} == {200}
    assert [len(answers) for _, answers in given] == [len(texts) for texts in lists]
    for (_, answers), own in zip(given, expected, strict=True):
        for answer, alone in zip(answers, own, strict=True):
            assert answer.keys() == alone.keys()
            assert scores(answer) == pytest.approx(scores(alone), abs=TOLERANCE)


def scores(answer: dict[str, Any]) -> float:
    """The score of one label, whichever was the better one."""
    return answer["score"] if answer["label"] == "LABEL_0" else 1 - answer["score"]


def test_what_cannot_be_answered_is_refused_and_the_service_goes_on(ask: Ask) -> None:
    status, answer = ask({"texts": ["a", "\ud800"]})
    assert (status, answer["detail"]) == (
        422,
        "input 2: the text is not Unicode (got '\\ud800'); decode it from its own encoding first.",
    )
    assert ask({"texts": ["a"] * 65})[0] == 422
    assert ask({"texts": "a"})[0] == 422
    assert ask({"texts": []}) == (200, [])
    assert ask({"texts": [""]})[0] == 200


def test_the_bound_of_kernels_is_octoberts_or_that_of_the_recipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OpenVINO takes the property, but does not tell its value."""
    name, part = "CPU_RUNTIME_CACHE_CAPACITY", yaml.safe_load(block("yaml"))
    recipe = loading.parse({"model": "m", "task": "text-classification", "data": "d", **part})
    entries = recipe.session["openvino-cpu"]
    openvino.OpenvinoRuntime().check_entries(entries, "CPU")
    assert openvino.settings_of(SessionOptions(entries=entries))[name] == 100
    assert name not in openvino.settings_of(SessionOptions())
    defaults: dict[str, Any] = {}
    core = SimpleNamespace(set_property=lambda device, values: defaults.update(values))
    monkeypatch.setattr("openvino.Core", lambda: core)
    assert openvino.new_core() is core
    assert f"| {defaults[name]:,} (octobert) |" in (markdown.ROOT / PAGE).read_text("utf-8")
