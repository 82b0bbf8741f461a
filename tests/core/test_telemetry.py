"""Nothing is sent anywhere: not by octobert, and not by the packages that it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octobert.core import telemetry
from tests.support.connections import connections, left_in, trapped

CODE = """
import socket, sys
import octobert
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.worker import Worker
from octobert import targets
for target in ("ort-cpu", "openvino-cpu"):
    package = sys.argv[1] + "/" + target
    octobert.load(package)([("the of", "and a")])
    path = str(targets.load(target).model_file(__import__("pathlib").Path(package)))
    worker = Worker(Candidate(name=target, path=path, head="sequence-classification"))
    worker.opened()
    worker.stop()
try:
    socket.getaddrinfo("control.invalid", 443)
except OSError:
    print("trapped")
"""


def test_predicting_and_timing_send_nothing_and_leave_no_queue(finished, tmp_path: Path) -> None:
    """In this process, whose last line shows that the trap works, and in those that it starts."""
    home = tmp_path / "home"
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(finished[1])],
        env=trapped(home),
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["trapped"], done.stderr
    assert connections(home) == ["control.invalid"]
    assert left_in(home) == []


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and `openvino_telemetry` neither imported nor forbidden."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delitem(sys.modules, "openvino_telemetry", raising=False)
    (tmp_path / "intel").mkdir()
    return tmp_path


def test_an_answer_of_the_user_is_kept(home: Path, monkeypatch) -> None:
    (home / "intel" / "openvino_telemetry").write_text("1")
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    telemetry.switch_off()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"
    assert "openvino_telemetry" not in sys.modules


@pytest.mark.parametrize("answer", ["0", "", None])
def test_without_an_answer_it_is_off(home: Path, monkeypatch, answer: str | None) -> None:
    if answer is not None:
        (home / "intel" / "openvino_telemetry").write_text(answer)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    telemetry.switch_off()
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    assert sys.modules["openvino_telemetry"] is None
