"""Texts in, answers out, in order: reading, tokenizing and inference at the same time, in bounded memory.

Texts are taken in windows. While one window is in the model, the next is being tokenized and the one after is being read,
so that no more than three are in memory, however long the input is. Within a window, rows run with rows of their own
length, on as many streams as the session has. Where the source is slower than the model, what it has given is answered
before it is asked for more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from octobert.core.session import Session
from octobert.data.tokenization import Asked, Encoded, TextEncoder
from octobert.inference.batching import Cost, Outputs, Run, runs_of
from octobert.tasks._task import Task

# The first window is small, so that the first answers come soon; later ones are large, so that rows find rows of their length.
_FIRST, _LARGEST = 32, 1024
# Windows that are begun before the oldest is waited for.
_AHEAD = 2
_PATIENCE_S = 0.05


@dataclass(frozen=True)
class _Begun:
    """A window whose rows are on their way."""

    asked: Asked
    runs: list[Run]
    results: list[Future[dict[str, Any]]]

    def cancel(self) -> None:
        """Leave out what has not started."""
        for result in self.results:
            result.cancel()


class Flow:
    """A session that is asked with texts.

    Args:
        cost: by which rows are put together.
        tokens: the most of a run.
    """

    def __init__(self, task: Task, encoder: TextEncoder, session: Session, cost: Cost, tokens: int) -> None:
        self._task, self._encoder, self._session = task, encoder, session
        self._cost, self._tokens = cost, tokens
        self._seen: set[tuple[int, int]] = set()
        self._reads = ThreadPoolExecutor(1, "octobert-tokenize")
        self._runs = ThreadPoolExecutor(session.streams, "octobert-run")

    def at_once(self, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """Answers to a few texts, on this thread alone."""
        return list(self._finish(inputs, self._begin(inputs, 0, _INLINE)))

    def answers(self, inputs: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Answers in the order of the inputs, which may never end.

        An error in an input, or in the source of inputs, is raised after the answers to all that came before its window.
        """
        source, begun, size, first = iter(inputs), deque[tuple[list[Any], Future[_Begun]]](), _FIRST, 0
        failed: BaseException | None = None
        ended = False
        try:
            while begun or not ended:
                window: list[Any] = []
                slow = False
                if not ended:
                    try:
                        slow = _fill(window, source, size)
                        ended = not slow and len(window) < size
                    except Exception as error:  # noqa: BLE001  # raised below, behind the answers to what came before it
                        failed, ended = error, True
                idle = all(_done(future) for _, future in begun)
                if window:
                    begun.append((window, self._reads.submit(self._begin, window, first, self._runs)))
                    first, size = first + len(window), min(2 * size, _LARGEST)
                while begun and ((slow and idle) or ended or len(begun) > _AHEAD):
                    texts, future = begun.popleft()
                    yield from self._finish(texts, future.result())
            if failed is not None:
                raise failed
        finally:
            for _, future in begun:
                if not future.cancel():
                    future.add_done_callback(_abandon)

    def close(self) -> None:
        """End the threads; what has been asked is answered first."""
        self._reads.shutdown()
        self._runs.shutdown()

    def _begin(self, inputs: Sequence[Any], first: int, executor: Executor) -> _Begun:
        """Tokenize a window and hand its runs to an executor."""
        texts = [self._task.parse(one, where=f"input {first + i + 1}") for i, one in enumerate(inputs)]
        asked = self._task.encode(self._encoder, texts)
        rows, streams, longest = asked.flat, self._session.streams, self._encoder.max_length
        lengths = [len(row) for row in rows]
        runs = runs_of(lengths, self._cost, longest=longest, parts=streams, tokens=self._tokens, seen=self._seen)
        self._seen.update(run.shape for run in runs)
        return _Begun(asked, runs, [executor.submit(self._run, run, rows) for run in runs])

    def _run(self, run: Run, rows: Sequence[Encoded]) -> dict[str, Any]:
        return self._session.run(run.feeds(rows, self._encoder.pad_id))

    def _finish(self, inputs: Sequence[Any], begun: _Begun) -> Iterator[dict[str, Any]]:
        """Wait for the runs of a window, and give its answers."""
        collected = Outputs(self._session.outputs, begun.asked.flat, per_token=self._task.per_token)
        try:
            for run, result in zip(begun.runs, begun.results, strict=True):
                collected.put(run, result.result())
        finally:
            begun.cancel()
        outputs = collected.joined()
        for index, one in enumerate(inputs):
            answer = self._task.answer(outputs, begun.asked, index, one)
            cut = any(row.truncated for row in begun.asked.rows[index])
            yield {**answer, "truncated": True} if cut else answer


class _Inline(Executor):
    """Does everything on the thread that asks."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*args, **kwargs))
        return done


_INLINE = _Inline()


def _done(future: Future[_Begun]) -> bool:
    return future.done() and (future.exception() is not None or all(one.done() for one in future.result().results))


def _abandon(future: Future[_Begun]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().cancel()


def _fill(window: list[Any], source: Iterator[Any], size: int) -> bool:
    """Put inputs into a window; whether it was closed because the source is slow.

    A window that is not full without that is the last.
    """
    opened = time.monotonic()
    for one in source:
        window.append(one)
        if len(window) == size:
            return False
        if time.monotonic() - opened > _PATIENCE_S:
            return True
    return False
