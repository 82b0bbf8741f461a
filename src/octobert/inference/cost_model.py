"""The time that one inference takes on this machine, by its number of rows and its padded length.

The time does not grow evenly with the length: kernels work on blocks of 8 or 16 tokens, so that 53 tokens can take longer
than 64. A cost model is a measured curve with points on both sides of such steps. It is measured once for a machine, a setting
and a shape of model, in at most about five seconds, and stored in the user's cache folder. Batching uses it to decide
which rows run together and to which length they are padded.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import environment
from octobert.core.files import atomic_write, canonical_digest, content_of
from octobert.core.frozen import FrozenModel
from octobert.core.session import Feeds, Session
from octobert.inference.package_files import machine_id

# Shapes that are timed first, as (rows, tokens of a row): small ones for the constant cost of an inference, full ones, and one
# long row for the time of attention. Shapes take turns, because OpenVINO is faster at the shape that it ran last: in one order,
# because in another one a shape could end a round and begin the next.
_WIDTH, _LONG = 64, 384
_COARSE = (((1, 8), (1, _WIDTH)), ((1, 32), (4, _WIDTH)), ((16, _WIDTH), (1, _LONG)))
# Then single rows at multiples of the blocks of kernels, and one token before and beyond. AMX has tiles of 16 rows; vector
# kernels have blocks of 4, 6, 8 or 16. Each entry is timed if it fits into the time that is left.
_BLOCKS = (
    (16, range(0, 129, 16)),
    (8, range(8, 129, 16)),
    (16, range(144, 257, 16)),
    (32, range(288, 513, 32)),
)
# Numbers of timed runs of each shape; the least counts, because other programs only ever add time.
_LEAST_REPEATS, _MOST_REPEATS, _SECONDS = 3, 9, 2.5
# Then, for as long again, every step that seems to be worth padding is timed once more, the lengths of a block in turn. It
# counts if the padded row was faster in all of these rounds but one.
BLOCK, _ROUNDS = 16, 5
# A model that takes less at 64 tokens spends its time on overhead, which has no steps.
_OVERHEAD_MS = 1.0
# Least gain for which a row is padded. Single runs of one shape differ by 1 to 2 % on a quiet machine.
_LEAST_MARGIN = 0.03
# With more noise than this part of the time, other programs keep the machine busy: no steps are seen, and nothing is padded.
# Such a cost model is measured again after an hour.
_BUSY, _BUSY_S = 0.05, 3600
# Part of the stored key: raised when a stored cost model means something else.
_FORM = "steps-2"


class CostModel(FrozenModel):
    """The time of one inference, as a function of its shape.

    Args:
        tokens: tokens of an inference (rows times padded length), ascending.
        ms: milliseconds at each of these; interpolated linearly in between, extrapolated beyond the last. It may fall.
        square_ms: milliseconds for each row, times its length squared: the part of attention that linear layers lack.
        new_shape_ms: extra milliseconds of the first inference with a shape.
        lengths: ends of the steps of a single row, ascending: the lengths to which rows may be padded.
        margin: rows are padded to one of `lengths` only if it is faster by more than this part of the time.
    """

    tokens: tuple[int, ...]
    ms: tuple[float, ...]
    square_ms: float
    new_shape_ms: float = 0.0
    lengths: tuple[int, ...] = ()
    margin: float = _LEAST_MARGIN

    def batch_ms(self, rows: np.ndarray, length: int) -> np.ndarray:
        """Return the milliseconds of batches with these numbers of rows, all padded to one length.

        Args:
            rows: [N] numbers of rows.
            length: tokens of each row.

        Example:
            >>> cost = CostModel(tokens=(0, 100), ms=(5.0, 15.0), square_ms=0.0)
            >>> cost.batch_ms(np.array([1, 2]), 50).tolist()
            [10.0, 15.0]
        """
        tokens, ms = np.array(self.tokens, dtype=float), np.array(self.ms)
        total = rows * float(length)
        beyond = np.maximum(total - tokens[-1], 0.0) * (ms[-1] - ms[-2]) / (tokens[-1] - tokens[-2])
        batch_ms: np.ndarray = (
            np.interp(total, tokens, ms) + beyond + self.square_ms * rows * float(length) ** 2
        )
        return batch_ms


def default_cost_model(session: Session) -> CostModel:
    """Return a cost model for a session that was not measured.

    Its unit is not a millisecond but the cost of a token: an inference costs 16 on top of its tokens, and attention costs as
    much as the linear layers at a length of 4,096.
    """
    return CostModel(
        tokens=(0, 1024),
        ms=(16.0, 1040.0),
        square_ms=1 / 4096,
        new_shape_ms=64.0 if session.prepares_shapes else 0.0,
    )


def measure_cost_model(
    session: Session,
    max_length: int,
    *,
    clock: Callable[[], float] | None = None,
) -> CostModel:
    """Time a session on up to about seventy shapes, for at most about five seconds.

    Args:
        max_length: most tokens that a row may have.
        clock: in seconds. Default: `time.perf_counter`.
    """
    timed = _TimedShape(session, clock or time.perf_counter)
    for shapes in _COARSE:
        timed.add([(rows, min(width, max_length)) for rows, width in shapes])
        if timed.seconds > _SECONDS and len(timed.ms) > 1:
            break
    lengths: list[int] = []
    base = _fitted(timed.least())
    if (
        timed.least().get((1, min(_WIDTH, max_length)), 0.0) > _OVERHEAD_MS
        and timed.noise() <= _BUSY
    ):
        for block, ends in _BLOCKS:
            lengths_of = [
                length
                for end in ends
                for length in (end - 1, end, end + 1)
                if 0 < length <= max_length
            ]
            new = [(1, length) for length in lengths_of if (1, length) not in timed.ms]
            ms = sum(float(base.batch_ms(np.ones(1), length)[0]) for _, length in new) * (
                1 + _LEAST_REPEATS
            )
            if timed.seconds + (ms + len(new) * timed.new_shape_ms) / 1e3 > _SECONDS:
                break
            timed.add(new)
            lengths += [length for length in lengths_of if length % block == 0]
        timed.repeat()
    noise = timed.noise()
    margin, least = max(_LEAST_MARGIN, 2 * noise), timed.least()
    confirmed = _confirmed(timed, lengths, margin) if noise <= _BUSY else []
    for end, shorter in confirmed:
        # What was not confirmed is taken as level with the end of its block.
        least |= {
            (1, n): min(least[1, n], least[1, end]) for n in timed.singles(end) if n not in shorter
        }
    # The very first inference also reads the weights, so it does not count.
    new_shape_ms = timed.new_shape_ms if session.prepares_shapes else 0.0
    return _fitted(least).replaced(
        new_shape_ms=new_shape_ms,
        lengths=tuple(end for end, shorter in confirmed if shorter),
        margin=margin,
    )


def _confirmed(
    timed: _TimedShape, ends: Sequence[int], margin: float
) -> list[tuple[int, set[int]]]:
    """The ends of blocks, ascending, and the shorter lengths in the block that take longer, confirmed in further rounds."""
    least, confirmed, began = (
        timed.least(),
        {end: set[int]() for end in sorted(ends)},
        timed.seconds,
    )
    gains = {
        end: max((least[1, n] for n in timed.singles(end)), default=0.0) / least[1, end]
        for end in confirmed
    }
    for end in sorted(gains, key=lambda end: -gains[end]):
        block = [n for n in timed.singles(end) if least[1, n] > least[1, end] * (1 + margin)]
        round_s = sum(least[1, n] for n in (*block, end)) / 1e3
        if block and timed.seconds + _ROUNDS * round_s - began <= _SECONDS:
            rounds = [timed.padded_round(block, end) for _ in range(_ROUNDS)]
            confirmed[end] = {
                n for n in block if sorted(ms[n] / ms[end] for ms in rounds)[1] > 1 + margin
            }
    return list(confirmed.items())


class _TimedShape:
    """Shapes [B, S] of a session and the milliseconds of their runs; the first run of each shape is apart.

    Args:
        session: that is timed.
        clock: in seconds.
    """

    def __init__(self, session: Session, clock: Callable[[], float]) -> None:
        self._session, self._clock, self._started = session, clock, clock()
        self.ms: dict[tuple[int, int], list[float]] = {}
        self._first: list[float] = []

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._clock() - self._started

    @property
    def new_shape_ms(self) -> float:
        """The additional time of the first run of a shape, in milliseconds."""
        least = [min(times) for times in self.ms.values()]
        return (
            max(
                0.0,
                statistics.median(f - m for f, m in zip(self._first[1:], least[1:], strict=True)),
            )
            if least[1:]
            else 0.0
        )

    def add(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Time new shapes, in turn."""
        new = [shape for shape in dict.fromkeys(shapes) if shape not in self.ms]
        for shape in new:
            self._first.append(self._run(shape))
            self.ms[shape] = []
        for _ in range(_LEAST_REPEATS):
            for shape in new:
                self.ms[shape].append(self._run(shape))

    def repeat(self) -> None:
        """Time all shapes again, in turn, while there is time: what else the machine does then hits neighbours alike."""
        round_s = sum(map(min, self.ms.values())) / 1e3
        for _ in range(_MOST_REPEATS - _LEAST_REPEATS):
            if self.seconds + round_s > _SECONDS:
                break
            for shape, times in self.ms.items():
                times.append(self._run(shape))

    def singles(self, end: int) -> list[int]:
        """The timed lengths of a single row in the block that ends with one."""
        return [length for rows, length in self.ms if rows == 1 and end - BLOCK < length < end]

    def padded_round(self, block: Sequence[int], end: int) -> dict[int, float]:
        """Milliseconds of single rows of some lengths, and of one that is padded to the end of the block, in turn."""
        ms = {length: self._run((1, length)) for length in block}
        return ms | {end: self._run((1, end), real=block[0])}

    def least(self) -> dict[tuple[int, int], float]:
        """Milliseconds of the fastest run of each shape."""
        return {shape: min(times) for shape, times in self.ms.items()}

    def noise(self) -> float:
        """Return the median, over shapes, of the relative difference between the second fastest and the fastest run."""
        return float(
            statistics.median(
                sorted(times)[1] / max(min(times), 1e-9) - 1 for times in self.ms.values()
            )
        )

    def _run(self, shape: tuple[int, int], real: int | None = None) -> float:
        return run_ms(self._session, shape, real, self._clock)


def run_ms(
    session: Session, shape: tuple[int, int], real: int | None, clock: Callable[[], float]
) -> float:
    """Milliseconds of one inference.

    Args:
        shape: [B, S].
        real: tokens of each row before its padding; None for rows without padding.
        clock: in seconds.
    """
    ids = np.zeros(shape, dtype=np.int64)
    mask = ids.copy()
    mask[:, :real] = 1
    feeds: Feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids}
    started = clock()
    session.run(feeds)
    return 1e3 * (clock() - started)


def _fitted(least: dict[tuple[int, int], float]) -> CostModel:
    """The curve over tokens through single rows, and beyond the longest of them through batches.

    A long row takes more time than short rows with as many tokens; the difference is attention.
    """
    short = {
        rows * length: (ms, rows * length**2)
        for (rows, length), ms in least.items()
        if length <= _WIDTH
    }
    tokens = sorted(short)
    singles = {length: ms for (rows, length), ms in least.items() if rows == 1}
    long, square = max(singles), 0.0
    long = _LONG if _LONG in singles else long
    if tokens[-1] > long > _WIDTH:
        apart = long**2 - np.interp(long, tokens, [short[n][1] for n in tokens])
        square = max(
            0.0,
            (singles[long] - float(np.interp(long, tokens, [short[n][0] for n in tokens]))) / apart,
        )
    points = {n: ms - square * squares for n, (ms, squares) in short.items() if n > max(singles)}
    points |= {n: ms - square * n**2 for n, ms in singles.items()}
    ordered = sorted(points)
    return CostModel(
        tokens=tuple(ordered),
        ms=tuple(max(float(points[n]), 0.0) for n in ordered),
        square_ms=float(square),
    )


def read_cost_model(path: Path) -> CostModel | None:
    """Read a stored cost model. None if there is none."""
    try:
        return CostModel.of_json(content_of(path))
    except (OSError, ValueError):
        return None


def read_or_measure_cost_model(
    path: Path,
    opened: Callable[[], Session],
    max_length: int,
    *,
    only_if_stored: bool = False,
) -> CostModel | None:
    """Read a stored cost model, or measure it and store it.

    Args:
        path: where it is stored, `stored_path`.
        opened: returns the session to measure.
        max_length: that of `measure_cost_model`.
        only_if_stored: return None without measuring where nothing can be stored, because it would be measured every time.
    """
    cost = read_cost_model(path)
    if cost is None or (cost.margin > 2 * _BUSY and time.time() - path.stat().st_mtime > _BUSY_S):
        # Without a writable cache folder, the model is measured again next time.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        if only_if_stored and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            return None
        cost = measure_cost_model(opened(), max_length)
        with contextlib.suppress(OSError), atomic_write(path) as partial:
            partial.write_text(cost.model_dump_json(), encoding="utf-8")
    return cost


def stored_path(shape: Sequence[Any], session: Session, options: Any, max_length: int) -> Path:
    """Where the cost model of a session on this machine is stored.

    Args:
        shape: what times depend on in the model, as plain data.
        options: what the session was opened with, as plain data.
        max_length: most tokens that a row may have.
    """
    simulated = {name: os.environ.get(name) for name in environment.SIMULATING}
    depends_on = [
        _FORM,
        *shape,
        machine_id(),
        simulated,
        options,
        session.streams,
        session.threads,
        session.precision,
        max_length,
    ]
    return environment.cache_folder() / f"cost-{canonical_digest(depends_on)[:16]}.json"
