"""Inputs in, answers out, in order: reading, tokenization and inference at the same time, in bounded memory.

Inputs are taken in windows. While one window is in the model, the next is tokenized and the one after is read, so that at most
three are in memory, however long the source is. Within a window, rows run with rows of similar length, on all streams of the
session. If the source is slower than the model, the inputs read so far are answered before the next one is awaited.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from octobert.core.errors import DataError, ModelError, TargetError, TokenError
from octobert.core.session import Session
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.inference import forks
from octobert.inference.batching import Batch, collected, make_batches, most_tokens, shared_length
from octobert.inference.cost_model import CostModel
from octobert.tasks import Outputs, Result, Task, UserAnswer

# The first window is small, for early answers. Later ones are large, so that rows meet others of their length.
_FIRST, _LARGEST = 32, 1024
# Windows in work while the oldest is not yet awaited.
_AHEAD = 2
# A window is closed before it is full if reading its inputs takes longer.
_PATIENCE_S = 0.05

T = TypeVar("T")


@dataclass(frozen=True)
class _Window:
    """Tokenized inputs whose batches were submitted."""

    encoded: EncodedTexts
    batches: list[Batch]
    results: list[Future[Outputs]]

    def cancel(self) -> None:
        """Cancel the batches that have not started."""
        for result in self.results:
            result.cancel()


class Scheduler:
    """Feeds inputs to a session, with tokenization and inference on threads of their own.

    Args:
        task: parses inputs, tokenizes them, and turns outputs into answers.
        tokenizer: of the model.
        cost: decides which rows run together.
        tokens: most tokens of a batch, padding included.
        static: lengths, ascending, for which the session has models of a static shape: a single row is padded to the next.
        pads: pad single rows to shared lengths, where the runtime prepares each shape: padding does not change answers.
        alone: every row is a batch of its own, so that no answer depends on others.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: Tokenizer,
        session: Session,
        cost: CostModel,
        tokens: int,
        static: Sequence[int] = (),
        *,
        pads: bool = False,
        alone: bool = False,
    ) -> None:
        self._task, self._tokenizer, self._session = task, tokenizer, session
        self._cost, self._tokens = cost, tokens
        self._static = [length for length in static if length <= tokenizer.max_length]
        self._alone, self._shares = alone, pads and session.prepares_shapes
        self._seen = set[tuple[int, int]]()
        # For single rows, which come again and again: that a shape is slow at first does not count.
        self._steady, self._padded = cost.replaced(new_shape_ms=0.0), dict[int, int]()
        self._process, self._closed = os.getpid(), False
        self._tokenize_pool = ThreadPoolExecutor(1, "octobert-tokenize")
        self._run_pool = ThreadPoolExecutor(session.streams, "octobert-run")

    def answer_now(self, inputs: Sequence[Any]) -> list[UserAnswer]:
        """Answer a few inputs, on the calling thread where runtimes can use it."""
        encoded, batches = self._encoded(inputs, 0)

        def outputs(batch: Batch) -> Outputs:
            if forks.is_child():
                return self._submitted(self._run_pool, self._run, batch, encoded, 0).result()
            return self._run(batch, encoded, 0)

        return list(self._answers(inputs, encoded, ((batch, outputs(batch)) for batch in batches)))

    def answers(self, inputs: Iterable[Any]) -> Iterator[UserAnswer]:
        """Answer inputs in order. The source may be endless.

        An error in an input, or in the source, is raised after the answers to all windows before it.

        Raises:
            ModelError: the model was closed, or the stream began before a fork and is read by the child.
        """
        source, size, first = iter(inputs), _FIRST, 0
        started = deque[tuple[list[Any], Future[_Window]]]()
        failed: BaseException | None = None
        ended = False
        try:
            while started or not ended:
                # Before any use of a future: a thread of the parent may have held its lock.
                self._check_process()
                window: list[Any] = []
                slow = False
                if not ended:
                    try:
                        slow = _fill(window, source, size)
                        ended = not slow and len(window) < size
                    except Exception as error:  # noqa: BLE001  # raised below, after the answers to the inputs before it
                        failed, ended = error, True
                idle = all(_done(future) for _, future in started)
                if window:
                    self._check_process()
                    started.append(
                        (window, self._submitted(self._tokenize_pool, self._start, window, first))
                    )
                    first, size = first + len(window), min(2 * size, _LARGEST)
                while started and ((slow and idle) or ended or len(started) > _AHEAD):
                    self._check_process()
                    oldest, future = started.popleft()
                    yield from self._finish(oldest, future.result())
            if failed is not None:
                raise failed
        finally:
            for _, future in started if self._process == os.getpid() else ():
                if not future.cancel():
                    future.add_done_callback(_abandon)

    def padded(self, tokens: int) -> int:
        """Return the length to which a single row is padded."""
        if tokens not in self._padded:
            longest = self._tokenizer.max_length
            least = min(shared_length(tokens), longest) if self._shares else tokens
            if not self._alone:
                # Measured times differ from one process to the next, and so may the answers.
                (batch,) = make_batches([least], self._steady, max_length=longest)
                static = (length for length in self._static if length >= tokens)
                least = next(static, batch.length)
            self._padded[tokens] = least
        return self._padded[tokens]

    def close(self) -> None:
        """Finish the work in progress and end the threads."""
        self._closed = True
        self._tokenize_pool.shutdown()
        self._run_pool.shutdown()

    def _submitted(self, pool: Executor, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """Submit work to a pool.

        Raises:
            ModelError: the model was closed.
            TargetError: the pool has no thread yet, and none can be started.
        """
        try:
            return pool.submit(work, *arguments)
        except RuntimeError as error:
            if self._closed:
                raise forks.closed() from error
            raise TargetError(
                "no thread can be started",
                got=str(error),
                fix="give the process more memory or more threads",
            ) from error

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise ModelError(
                "the stream began before this process was forked, and its threads are those of the parent",
                fix="begin the stream in the process that reads it",
            )

    def _start(self, inputs: Sequence[Any], first: int) -> _Window:
        """Tokenize a window and submit its batches."""
        encoded, batches = self._encoded(inputs, first)
        results = [
            self._submitted(self._run_pool, self._run, batch, encoded, first) for batch in batches
        ]
        return _Window(encoded, batches, results)

    def _encoded(self, inputs: Sequence[Any], first: int) -> tuple[EncodedTexts, list[Batch]]:
        """Tokenize inputs, and decide which rows run together."""
        texts = [
            self._task.parse(item, where=f"input {first + i + 1}") for i, item in enumerate(inputs)
        ]
        try:
            encoded = self._task.encode(self._tokenizer, texts)
        except TokenError:
            encoded = self._others(texts, first)
        rows = encoded.flat
        if len(rows) == 1 or self._alone:
            return encoded, [Batch([i], self.padded(len(row))) for i, row in enumerate(rows)]
        batches = make_batches(
            [len(row) for row in rows],
            self._cost,
            max_length=self._tokenizer.max_length,
            streams=self._session.streams,
            tokens=most_tokens(rows, self._tokens),
            seen=self._seen,
        )
        self._seen.update(batch.shape for batch in batches)
        return encoded, batches

    def _run(self, batch: Batch, encoded: EncodedTexts, first: int) -> Outputs:
        """Run a batch of texts whose first one has this place among all inputs.

        Raises:
            DataError: the model does not take a text, which is named: the longest one.
        """
        try:
            return self._session.run(batch.feeds(encoded.flat, self._tokenizer.pad_id))
        except DataError as error:
            text = encoded.of_row(batch.rows[0])
            error.where = error.where or f"input {first + text + 1}"
            raise

    def _others(self, texts: Sequence[Text], first: int) -> EncodedTexts:
        """Tokenize the texts whose tokens the model knows."""
        known, refused = list[Text](), dict[int, TokenError]()
        for index, text in enumerate(texts):
            try:
                self._task.encode(self._tokenizer, [text])
                known.append(text)
            except TokenError as error:
                error.where, refused[index] = f"input {first + index + 1}", error
        return replace(self._task.encode(self._tokenizer, known), refused=refused)

    def _finish(self, inputs: Sequence[Any], window: _Window) -> Iterator[UserAnswer]:
        """Wait for the batches of a window, then yield its answers."""
        try:
            outputs = [
                (batch, result.result())
                for batch, result in zip(window.batches, window.results, strict=True)
            ]
        finally:
            window.cancel()
        yield from self._answers(inputs, window.encoded, outputs)

    def _answers(
        self,
        inputs: Sequence[Any],
        encoded: EncodedTexts,
        outputs: Iterable[tuple[Batch, Outputs]],
    ) -> Iterator[UserAnswer]:
        """Yield the answers to inputs.

        Args:
            outputs: batches with their outputs.
        """
        joined = collected(
            self._session.outputs, encoded.flat, outputs, per_token=self._task.per_token
        )
        for name, array in joined.items():
            # Of NaN both are false. A model may say -∞ of what it rules out.
            if array.dtype.kind == "f" and not (array < np.inf).all():
                raise ModelError(
                    "the model's answer has numbers that are not finite",
                    where=name,
                    fix="check its weights with octobert verify; a float16 file may need float_parts: float32",
                )
        result, indices = Result(joined, encoded), itertools.count()
        for place, item in enumerate(inputs):
            if place in encoded.refused:
                yield {"error": str(encoded.refused[place])}
                continue
            index = next(indices)
            answer = self._task.answer(result, index, item)
            truncated = any(row.truncated for row in encoded.rows[index])
            yield {**answer, "truncated": True} if truncated else answer


def _done(future: Future[_Window]) -> bool:
    return future.done() and (
        future.exception() is not None or all(result.done() for result in future.result().results)
    )


def _abandon(future: Future[_Window]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().cancel()


def _fill(window: list[Any], source: Iterator[Any], size: int) -> bool:
    """Read inputs into a window. Returns whether it was closed early because the source is slow.

    A window that is not full and was not closed early is the last.
    """
    opened = time.monotonic()
    for item in source:
        window.append(item)
        if len(window) == size:
            return False
        if time.monotonic() - opened > _PATIENCE_S:
            return True
    return False
