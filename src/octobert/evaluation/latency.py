"""Interleaved timing: every candidate in a process of its own, asked in turn, so that drift of the machine hits all alike.

Each candidate's process is started once, opens its model, and then answers requests; only one works at a time. A request is
one untimed run (which also brings caches and clocks back after another candidate's turn) and one timed run of the same feeds.
The order of candidates changes from round to round.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from octobert.config.recipe import Benchmark
from octobert.core.environment import peak_memory_bytes
from octobert.core.errors import ModelError, OctobertError, TargetError
from octobert.core.measurements import Footprint, Latency
from octobert.core.session import Feeds
from octobert.data.tokenization import Encoded, feeds_of
from octobert.evaluation.candidates import Candidate, import_runtime, open_candidate
from octobert.inference.batching import measure_cost

# Rounds that are timed before the rest is fitted into the time limit, and the fewest that are worth a median.
_FIRST_ROUNDS = 3
_MIN_ROUNDS = 5
_START_TIMEOUT_S = 600
# Idle runtimes keep their threads spinning for some milliseconds after a run; the next candidate waits that out.
_SETTLE_S = 0.01


@dataclass(frozen=True)
class Shape:
    """What is run in each round: `rounds[r]` are the feeds of round r, the same for every candidate.

    Args:
        sequence: tokens of a row, or "data".
        rounds: one batch a round; later rounds start over.
    """

    batch: int
    sequence: int | str
    rounds: tuple[Feeds, ...]


def fixed_shape(batch: int, sequence: int, vocabulary: int, seed: int) -> Shape:
    """Random token ids, no padding."""
    ids = np.random.default_rng(seed).integers(0, vocabulary, (batch, sequence), dtype=np.int64)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return Shape(batch, sequence, (feeds,))


def shapes_of(settings: Benchmark, rows: Sequence[Encoded], pad_id: int, vocabulary: int, seed: int) -> list[Shape]:
    """The shapes that the settings ask for; `data` takes rows of the user's own, each round others."""
    found: list[Shape] = []
    for batch in settings.batch:
        for sequence in settings.sequence:
            if sequence != "data":
                found.append(fixed_shape(batch, int(sequence), vocabulary, seed))
                continue
            groups = [rows[i : i + batch] for i in range(0, len(rows) - batch + 1, batch)] or [rows]
            # Rows are fewer than one batch only on tiny data; then the batch is what there is.
            found.append(Shape(batch, "data", tuple(feeds_of(g, pad_id) for g in groups)))
    return found


def within(settings: Benchmark, longest: int) -> Benchmark:
    """Settings whose default lengths fit the model; lengths that were asked for are left, and checked by `check_lengths`."""
    if "sequence" in settings.model_fields_set:
        return settings
    fitting = tuple(s if s == "data" else min(int(s), longest) for s in settings.sequence)
    return settings.model_copy(update={"sequence": fitting})


def check_lengths(settings: Benchmark, longest: int) -> None:
    """Refuse sequences that the model has no positions for.

    Raises:
        ModelError: with the limit.
    """
    too_long = [s for s in settings.sequence if s != "data" and int(s) > longest]
    if too_long:
        raise ModelError(
            "the sequence is longer than the model allows",
            where="benchmark.sequence",
            got=str(too_long[0]),
            expected=f"at most {longest}",
            fix="remove it",
        )


def measure(
    candidates: Sequence[Candidate],
    shapes: Sequence[Shape],
    *,
    repeats: int,
    threads: int,
    seconds_per_shape: float = 60.0,
    seed: int = 0,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> tuple[list[Latency], list[Footprint]]:
    """Time all candidates on all shapes, interleaved.

    Args:
        repeats: rounds of each shape; fewer, but at least five, where they would take longer than `seconds_per_shape`.
        threads: of one inference; 0 lets each runtime choose.

    Raises:
        TargetError: a candidate cannot be opened, or its process died.
    """
    workers: list[Worker] = []
    opened = []
    try:
        for candidate in candidates:
            workers.append(Worker(candidate, threads))
            opened.append(workers[-1].opened())
        latencies: list[Latency] = []
        for shape in shapes:
            latencies += _one_shape(workers, shape, repeats, seconds_per_shape, seed, on_progress)
        peaks = [worker.ask("peak", None) for worker in workers]
    finally:
        for worker in workers:
            worker.stop()
    footprints = [
        Footprint(candidate=c.title, size_bytes=c.size_bytes, peak_memory_bytes=peak, **facts)
        for c, facts, peak in zip(candidates, opened, peaks, strict=True)
    ]
    return latencies, footprints


def _one_shape(
    workers: list[Worker],
    shape: Shape,
    repeats: int,
    seconds: float,
    seed: int,
    on_progress: Callable[[str, int, int], None] | None,
) -> list[Latency]:
    generator = np.random.default_rng(seed)
    samples: dict[str, list[float]] = {w.candidate.title: [] for w in workers}
    rows = tokens = 0
    label = f"timing {shape.batch} × {shape.sequence}"
    started, total, done = time.perf_counter(), repeats, 0
    while done < total:
        feeds = shape.rounds[done % len(shape.rounds)]
        for index in generator.permutation(len(workers)):
            samples[workers[index].candidate.title].append(workers[index].ask("time", feeds))
        rows, tokens = rows + len(feeds["input_ids"]), tokens + int(feeds["attention_mask"].sum())
        done += 1
        if done == _FIRST_ROUNDS:
            per_round = (time.perf_counter() - started) / done
            total = min(repeats, max(_MIN_ROUNDS, int(seconds / per_round)))
        if on_progress:
            on_progress(label, done, total)
    return [
        Latency(candidate=n, batch=shape.batch, sequence=shape.sequence, samples_ms=tuple(s), rows=rows, tokens=tokens)
        for n, s in samples.items()
    ]


class Worker:
    """A candidate's process, and the pipe to it.

    Requests are `time` (feeds → ms of a run, after one that is not timed), `work` (list of feeds → ms of all runs, on as many
    streams as there are), `cost` (longest row → what runs cost) and `peak` (→ bytes).
    """

    def __init__(self, candidate: Candidate, threads: int = 0) -> None:
        self.candidate = candidate
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, candidate, threads), daemon=True)
        self._process.start()
        theirs.close()

    def opened(self) -> dict[str, Any]:
        """Load time, precision and threads, once the model is open."""
        return self._receive()

    def ask(self, what: str, given: Any) -> Any:
        """One request and its answer."""
        self._pipe.send((what, given))
        return self._receive()

    def stop(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _receive(self) -> Any:
        try:
            if not self._pipe.poll(_START_TIMEOUT_S):
                raise TargetError(
                    "a candidate does not answer", where=self.candidate.title, got=f"{_START_TIMEOUT_S} s of silence"
                )
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(timeout=5)
            raise TargetError(
                "the candidate's process died", where=self.candidate.title, got=f"exit code {self._process.exitcode}"
            ) from None
        if isinstance(answer, dict) and "error" in answer:
            raise OctobertError.from_json(answer["error"])
        return answer


def _serve(pipe: Connection, candidate: Candidate, threads: int) -> None:
    try:
        import_runtime(candidate)
        started = time.perf_counter()
        session = open_candidate(candidate, threads)
    except OctobertError as error:
        pipe.send({"error": error.to_json()})
        return
    load_ms = (time.perf_counter() - started) * 1000
    pipe.send({"load_ms": load_ms, "precision": session.precision, "threads": session.threads})
    pool = ThreadPoolExecutor(session.streams)
    while True:
        try:
            what, given = pipe.recv()
        except (EOFError, ConnectionError):
            return
        if what == "peak":
            pipe.send(peak_memory_bytes())
            continue
        if what == "cost":
            pipe.send(measure_cost(session, given))
            continue
        time.sleep(_SETTLE_S)
        if what == "time":
            session.run(given)
        begun = time.perf_counter()
        if what == "time":
            session.run(given)
        else:
            list(pool.map(session.run, given))
        pipe.send((time.perf_counter() - begun) * 1000)
