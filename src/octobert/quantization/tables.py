"""Calibration tables: intervals in the files that other runtimes read, and back.

    calibration.flatbuffers   value → bound                 ONNX Runtime's TensorRT and MIGraphX providers
    calibration.cache         lines of `value bound`        the same as text, for people
    calibration.json          value → lowest and highest    `onnxruntime.quantization.load_tensors_data`
    tensorrt.cache            value → bound / 127           TensorRT itself, and ONNX Runtime's provider as its "native" table

A bound is what the calibrator chose for symmetric int8, which stands for [-bound, bound]: it is never negative, also where all
values are. The names are those of the float graph, so a table goes with the float model: one with Q/DQ has its ranges inside.

Numbers are float32 in every form, and are read back to the bit. The exception is `tensorrt.cache`, which holds the bound's
127th part: one bound in 200 is no float32's 127-fold, and comes back as the float32 beside it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.errors import DataError
from octobert.core.files import atomic_write, storage_errors
from octobert.core.ranges import Interval

FLATBUFFERS, JSON, CACHE, TENSORRT = "calibration.flatbuffers", "calibration.json", "calibration.cache", "tensorrt.cache"
Intervals = Mapping[str, Interval]

# Below this a float32 is subnormal, and C++'s `std::stof`, which the providers read numbers with, throws.
_TINY, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_INT8_STEPS = np.float32(127)
_HEADER = "TRT-"
# Fields of a FlatBuffers table lie behind the vtable's two sizes, two bytes each: KeyValue {key, value}, TrtTable {dict}.
_FIRST, _SECOND = 4, 6


def write(intervals: Intervals, folder: Path, *, tensorrt: int | None = None) -> list[Path]:
    """Write the tables; each file appears whole or not at all.

    Args:
        intervals: of at least one value.
        tensorrt: the version that shall read `tensorrt.cache`, as its headers give it: 8601 is 8.6.1, 101401 is 10.14.1.
            TensorRT ignores a table of any other version, silently; without a version that file is not written.

    Raises:
        DataError: no intervals, one that is not finite or is empty, or a name that a form cannot hold.
        StorageError: the folder cannot be written.
    """
    bounds = _bounds(intervals)
    contents = {FLATBUFFERS: _to_flatbuffers(bounds), JSON: _to_json(intervals), CACHE: _to_cache(bounds)}
    if tensorrt is not None:
        contents[TENSORRT] = _to_tensorrt(bounds, tensorrt)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with atomic_write(folder / name) as partial:
                partial.write_bytes(content)
    return [folder / name for name in contents]


def read(path: Path) -> dict[str, Interval]:
    """The intervals in a table of any of the four forms, recognized by the ending and by the first line.

    Where a form has bounds alone, low and high are -bound and bound.

    Raises:
        DataError: no such file, not a table, cut short, a name twice, or a number that is not finite.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError("the calibration table cannot be read", where=str(path), got=error.strerror) from error
    try:
        found = list(_reader(path.suffix, content)(content))
        if not found:
            raise ValueError("no values")
        _once(found)
        for name, interval in found:
            _checked(name, interval)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise DataError(
            "this is not a whole calibration table",
            where=str(path),
            got=str(error) or type(error).__name__,
            expected=f"{FLATBUFFERS}, {JSON}, {CACHE} or TensorRT's own cache",
            fix="write it again, or give it the ending of its form",
        ) from error
    return dict(found)


def _reader(suffix: str, content: bytes) -> Callable[[bytes], Iterable[tuple[str, Interval]]]:
    if suffix == ".flatbuffers":
        return _from_flatbuffers
    if suffix == ".json":
        return _from_json
    return _from_tensorrt if content.startswith(_HEADER.encode()) else _from_cache


def _bounds(intervals: Intervals) -> dict[str, np.float32]:
    """Bounds in order of the names' bytes, which is the order that FlatBuffers look keys up in."""
    if not intervals:
        raise DataError("there are no intervals to write", fix="calibrate first")
    for name, interval in intervals.items():
        try:
            _checked(name, interval)
        except ValueError as error:
            raise DataError(
                "the interval cannot be written", where=f'"{name}"', got=str(error), fix="calibrate again"
            ) from error
    return {name: _normal(intervals[name].bound) for name in sorted(intervals, key=str.encode)}


def _checked(name: str, interval: Interval) -> None:
    """Raises ValueError for an interval that means nothing, or does not fit float32."""
    numbers = (interval.low, interval.high, interval.bound)
    if not all(abs(number) <= _LARGEST for number in numbers):
        raise ValueError(f'"{name}" is not finite: low {interval.low}, high {interval.high}, bound {interval.bound}')
    if interval.low > interval.high or interval.bound < 0:
        raise ValueError(f'"{name}" is no interval: low {interval.low}, high {interval.high}, bound {interval.bound}')


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dictionary; raises ValueError for a name that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f'"{next(n for n in names if names.count(n) > 1)}" twice')
    return found


def _normal(number: float) -> np.float32:
    return np.float32(number if abs(number) >= _TINY else 0.0)


def _symmetric(bound: float | np.floating[Any]) -> Interval:
    return Interval(low=-float(bound), high=float(bound), bound=float(bound))


def _to_flatbuffers(bounds: Mapping[str, np.float32]) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    pairs = []
    for name, bound in bounds.items():
        key, value = builder.CreateString(name), builder.CreateString(str(bound))
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(0, key, 0)
        builder.PrependUOffsetTRelativeSlot(1, value, 0)
        pairs.append(builder.EndObject())
    builder.StartVector(4, len(pairs), 4)
    # A buffer is written from its end.
    for pair in reversed(pairs):
        builder.PrependUOffsetTRelative(pair)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _from_flatbuffers(content: bytes) -> Iterable[tuple[str, Interval]]:
    """Read with every offset checked, which the generated classes do not do: they make up values from a file cut short."""

    def number(kind: str, at: int) -> int:
        if at < 0:
            raise ValueError("an offset before the file's beginning")
        return int(struct.unpack_from(kind, content, at)[0])

    def follow(at: int) -> int:
        return at + number("<I", at)

    def field(table: int, slot: int) -> int:
        vtable = table - number("<i", table)
        offset = number("<H", vtable + slot) if slot < number("<H", vtable) else 0
        if not offset:
            raise ValueError("a field is missing")
        return follow(table + offset)

    def text(at: int) -> str:
        end = at + 4 + number("<I", at)
        if end > len(content):
            raise ValueError("the file is cut short")
        return content[at + 4 : end].decode()

    entries = field(follow(0), _FIRST)
    for index in range(number("<I", entries)):
        pair = follow(entries + 4 + 4 * index)
        yield text(field(pair, _FIRST)), _symmetric(np.float32(text(field(pair, _SECOND))))


def _to_json(intervals: Intervals) -> bytes:
    """Lowest and highest with their signs, as `TensorsData.to_dict` has them; `bounds` is ours, and is ignored there."""

    def array(number: float) -> dict[str, Any]:
        return {"data": float(np.float32(number)), "dtype": "float32", "CLS": "numpy.array"}

    data = {n: {"lowest": array(i.low), "highest": array(i.high), "CLS": "TensorData"} for n, i in intervals.items()}
    table = {
        "CLS": "TensorsData",
        "data": data,
        # Of ONNX Runtime's methods the one whose tables are an interval and nothing else.
        "calibration_method": {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"},
        "smooth_quant": False,
        "bounds": {name: float(np.float32(interval.bound)) for name, interval in intervals.items()},
    }
    return json.dumps(table, indent=1).encode()


def _from_json(content: bytes) -> Iterable[tuple[str, Interval]]:
    """Ours, `save_tensors_data`'s, and `write_calibration_table`'s, which has the values without the frame around them."""
    table = json.loads(content, object_pairs_hook=_once)
    data = table["data"] if table.get("CLS") == "TensorsData" else table
    bounds = table.get("bounds", {}) if data is not table else {}
    for name, entry in data.items():
        low, high = _one_number(entry["lowest"]), _one_number(entry["highest"])
        bound = float(np.float32(bounds[name])) if name in bounds else max(abs(low), abs(high))
        yield name, Interval(low=low, high=high, bound=bound)


def _one_number(entry: Any) -> float:
    array = np.asarray(entry["data"] if isinstance(entry, dict) else entry, dtype=np.float32)
    if array.size != 1:
        raise ValueError(f"{array.size} numbers where one interval a value is known")
    return float(array.reshape(-1)[0])


def _to_cache(bounds: Mapping[str, np.float32]) -> bytes:
    return "".join(f"{_line_name(name)} {bound}\n" for name, bound in bounds.items()).encode()


def _from_cache(content: bytes) -> Iterable[tuple[str, Interval]]:
    for line in content.decode().split("\n"):
        if line.strip():
            # From the right: a name may have spaces, a number has none.
            name, _, bound = line.rpartition(" ")
            if not name:
                raise ValueError(f'the line "{line[:80]}"')
            yield name, _symmetric(np.float32(bound))


def _to_tensorrt(bounds: Mapping[str, np.float32], version: int) -> bytes:
    lines = [f"{_HEADER}{version}-EntropyCalibration2"]
    for name, bound in bounds.items():
        if ":" in name:
            raise DataError("a name with a colon cannot stand in TensorRT's cache", where=f'"{name}"', fix="rename the value")
        lines.append(f"{_line_name(name)}: {_pattern(bound):08x}")
    return "\n".join([*lines, ""]).encode()


def _from_tensorrt(content: bytes) -> Iterable[tuple[str, Interval]]:
    for line in content.decode().split("\n")[1:]:
        if line.strip():
            name, _, digits = line.rpartition(": ")
            if not name:
                raise ValueError(f'the line "{line[:80]}"')
            scale = np.array(int(digits, 16), dtype=np.uint32).view(np.float32)
            yield name, _symmetric(np.float32(scale * _INT8_STEPS))


def _pattern(bound: np.float32) -> int:
    """The bits of the float32 scale whose 127-fold is nearest to a bound; 8 hexadecimal digits, the sign's first."""
    return int(np.float32(np.float64(bound) / 127).view(np.uint32))


def _line_name(name: str) -> str:
    if "\n" in name or "\r" in name:
        raise DataError("a name with a line break cannot stand in a table of lines", where=repr(name), fix="rename the value")
    return name
