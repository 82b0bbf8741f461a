"""A candidate in a process of its own: it opens its model once and then answers requests, one at a time.

Messages are pickled, requests on the child's stdin and answers on its stdout.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, NamedTuple

from octobert.core import budget, processes
from octobert.core.environment import peak_memory_bytes
from octobert.core.errors import OctobertError, TargetError
from octobert.core.session import AsynchronousSession, Feeds, Session
from octobert.evaluation.candidates import Candidate, import_runtime, open_candidate
from octobert.inference.cost_model import measure_cost_model
from octobert.inference.forks import never_free

# Called with what is done, how much of it, and of how much.
OnProgress = Callable[[str, int, int], None]
_TIMEOUT_S = 600
_STOP_S = 5


class OpenInfo(NamedTuple):
    """The properties of an open session, and how long it took to open."""

    load_ms: float
    precision: str
    threads: int
    streams: int


class Saturated(NamedTuple):
    """The inferences of a candidate in one turn, several at the same time.

    Args:
        seconds: from the start of the first inference to the end of the last.
        runs: inferences of each batch.
        samples_ms: time of each inference.
    """

    seconds: float
    runs: list[int]
    samples_ms: list[float]


class Worker:
    """A candidate's process.

    Requests: `time` (feeds → ms of one run, after an untimed one), `work` (list of feeds → ms of all runs, on all streams),
    `saturate` ((list of feeds, runs of each request, inferences in flight, seconds; it ends with the runs or the seconds) →
    `Saturated`), `warm` (the same without the pause), `cost` (length limit in tokens → cost model), `device` (None →
    what really runs the model) and `peak` (None → peak memory in bytes).

    Args:
        candidate: what to open.
        threads: threads of one inference; 0 lets the runtime choose.
        streams: inferences at the same time; 0 lets the runtime choose.
        pause_ms: before each timing.
        limited: keep to a share of the machine's memory, as for a file of unknown origin.
    """

    def __init__(
        self,
        candidate: Candidate,
        threads: int = 0,
        *,
        streams: int = 1,
        pause_ms: float = 10,
        limited: bool = False,
    ) -> None:
        self.candidate = candidate
        self._process = processes.start(__name__)
        self._send((candidate, threads, streams, pause_ms / 1000, limited))

    def opened(self) -> OpenInfo:
        """Wait until the model is open.

        Raises:
            TargetError: it cannot be opened, or the process died.
        """
        facts: OpenInfo = self._receive()
        self.facts = facts
        return facts

    def ask(self, request: str, argument: Any) -> Any:
        """Send a request and return the answer.

        Raises:
            TargetError: the process died, or does not answer.
        """
        self._send((request, argument))
        return self._receive()

    @property
    def runs(self) -> bool:
        """True if the process still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process."""
        processes.end(self._process, _STOP_S)

    def _send(self, message: Any) -> None:
        # Where the process has died, `_receive` reads why, or says so.
        with contextlib.suppress(OSError):
            _write(self._process.stdin, message)

    def _receive(self) -> Any:
        timer = threading.Timer(_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            answer = pickle.load(self._process.stdout)  # type: ignore[arg-type]
        except (EOFError, OSError, pickle.UnpicklingError):
            raise self._died(silent=not timer.is_alive()) from None
        finally:
            timer.cancel()
        if isinstance(answer, dict) and "error" in answer:
            raise OctobertError.from_json(answer["error"])
        return answer

    def _died(self, *, silent: bool) -> TargetError:
        self.stop()
        where, code = self.candidate.title, self._process.returncode
        if silent:
            return TargetError(
                "a candidate does not answer", where=where, got=f"{_TIMEOUT_S} s of silence"
            )
        if code < 0:
            return TargetError(
                f"the candidate's process was killed by signal {-code}",
                where=where,
                fix="if memory ran out, use smaller batches or shorter sequences",
            )
        return TargetError("the candidate's process died", where=where, got=f"exit code {code}")


@contextlib.contextmanager
def working(
    candidates: Sequence[Candidate],
    threads: int,
    *,
    streams: int = 1,
    pause_ms: float,
    limited: bool = False,
    on_progress: OnProgress = lambda *_: None,
) -> Iterator[list[Worker]]:
    """The processes of candidates, with their models open; they end with the context.

    Args:
        threads, streams, pause_ms, limited: as of `Worker`.
        on_progress: called with what is opened, the candidates done, and all.

    Raises:
        TargetError: a candidate cannot be opened, or its process died.
    """
    workers: list[Worker] = []
    try:
        for number, candidate in enumerate(candidates):
            on_progress(f"opening {candidate.title}", number, len(candidates))
            workers.append(
                Worker(candidate, threads, streams=streams, pause_ms=pause_ms, limited=limited)
            )
            workers[-1].opened()
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def main() -> int:
    """The child's side: answer the requests on stdin until it closes."""
    # Ctrl-C goes to all processes of a terminal; this one ends when its parent does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = sys.stdin.buffer
    # What a runtime prints on stdout goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with contextlib.suppress(EOFError, BrokenPipeError), answers:
        _serve(requests, answers)
    return 0


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    candidate, threads, streams, pause_s, limited = pickle.load(requests)
    # Only PyTorch reads it, and models are compared with equal threads.
    os.environ.pop("OMP_NUM_THREADS", None)
    # Drivers of other devices reserve more addresses than there is memory.
    if limited and candidate.opener.is_on_cpu and candidate.chosen is None:
        budget.limit_process()
    try:
        import_runtime(candidate)
        started = time.perf_counter()
        session = open_candidate(candidate, threads, streams)
    except OctobertError as error:
        _write(answers, {"error": error.to_json()})
        return
    load_ms = (time.perf_counter() - started) * 1000
    # Freed by the end of the process only: see `AsynchronousSession.run_each` of OpenVINO.
    never_free(session)
    _write(answers, OpenInfo(load_ms, session.precision, session.threads, session.streams))
    with ThreadPoolExecutor(session.streams) as pool:
        while True:
            request, argument = pickle.load(requests)
            try:
                if request in ("time", "work", "saturate"):
                    time.sleep(pause_s)
                answer = _answer(session, pool, request, argument)
            except OctobertError as error:
                answer = {"error": error.to_json()}
            _write(answers, answer)


def _answer(session: Session, pool: ThreadPoolExecutor, request: str, argument: Any) -> Any:
    if request == "peak":
        return peak_memory_bytes()
    if request == "cost":
        return measure_cost_model(session, argument)
    if request == "device":
        return session.device
    if request in ("warm", "saturate"):
        batches, runs, requests, seconds = argument
        most, deadline = runs * requests, time.perf_counter() + seconds
        return _in_flight(
            session,
            batches,
            requests,
            lambda count: count < requests or (count < most and time.perf_counter() < deadline),
        )
    if request == "time":
        session.run(argument)
    started = time.perf_counter()
    if request == "time":
        session.run(argument)
    else:
        list(pool.map(session.run, argument))
    return (time.perf_counter() - started) * 1000


def _in_flight(
    session: Session, batches: Sequence[Feeds], requests: int, goes_on: Callable[[int], bool]
) -> Saturated:
    """Run batches in turn, with a number of inferences in flight.

    Args:
        goes_on: whether another inference is started after so many.
    """
    numbers, samples = itertools.takewhile(goes_on, itertools.count()), list[tuple[int, float]]()
    runs = (batches[number % len(batches)] for number in numbers)
    started = time.perf_counter()
    if isinstance(session, AsynchronousSession):
        session.run_each(runs, requests, lambda *sample: samples.append(sample))
    else:
        _run_in_threads(session, runs, requests, lambda *sample: samples.append(sample))
    seconds = time.perf_counter() - started
    counts = Counter(number % len(batches) for number, _ in samples)
    return Saturated(
        seconds, [counts[index] for index in range(len(batches))], [ms for _, ms in samples]
    )


def _run_in_threads(
    session: Session, batches: Iterator[Feeds], requests: int, on_done: Callable[[int, float], None]
) -> None:
    """As `AsynchronousSession.run_each`, by threads that wait for their results."""
    numbered, lock = enumerate(batches), threading.Lock()

    def request() -> None:
        while True:
            with lock:
                number, feeds = next(numbered, (0, None))
            if feeds is None:
                return
            begun = time.perf_counter()
            session.run(feeds)
            on_done(number, (time.perf_counter() - begun) * 1000)

    with ThreadPoolExecutor(requests) as pool:
        for done in [pool.submit(request) for _ in range(requests)]:
            done.result()


def _write(pipe: IO[bytes] | None, message: Any) -> None:
    if pipe is not None:
        pickle.dump(message, pipe, protocol=pickle.HIGHEST_PROTOCOL)
        pipe.flush()
