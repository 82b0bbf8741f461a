"""Processes of candidates: a model that fails, and a process that is killed, each end in one sentence."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from octobert import targets
from octobert.core.errors import TargetError
from octobert.evaluation.candidates import Candidate
from octobert.evaluation.worker import Worker


@pytest.fixture
def worker(finished):
    path = targets.load("ort-cpu").model_file(finished[1] / "ort-cpu")
    started = Worker(
        Candidate(name="ort-cpu", path=str(path), head="sequence-classification", label="mine")
    )
    started.opened()
    yield started
    started.stop()


def test_what_a_candidate_says_and_how_it_ends(worker: Worker) -> None:
    ids = np.ones((1, 4), dtype=np.int64)
    with pytest.raises(TargetError, match="onnxruntime cannot run the model"):
        worker.ask("time", {"input_ids": ids, "attention_mask": ids[:, :3], "token_type_ids": ids})
    # It still answers.
    assert worker.ask("time", {"input_ids": ids, "attention_mask": ids, "token_type_ids": ids}) > 0
    os.kill(worker._process.pid, signal.SIGKILL)
    with pytest.raises(TargetError) as error:
        worker.ask("peak", None)
    said = "mine: the candidate's process was killed by signal 9; if memory ran out, use smaller batches or shorter sequences."
    assert str(error.value) == said
