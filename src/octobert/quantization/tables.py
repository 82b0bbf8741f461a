"""Calibration tables: write intervals to the files that other runtimes read, and read them back.

    calibration.flatbuffers   value → bound                 ONNX Runtime's TensorRT and MIGraphX providers
    calibration.cache         lines of `value bound`        the same as text, for people
    calibration.json          value → lowest and highest    `onnxruntime.quantization.load_tensors_data`
    tensorrt.cache            value → bound / 127           TensorRT itself, and ONNX Runtime's provider as its "native" table

A bound is the calibrator's bound for symmetric int8, which covers [-bound, bound]; it is never negative. Names are those of the
float graph, so a table belongs to the float model: a model with Q/DQ contains its ranges.

Numbers are float32 and are read back exactly. The exception is `tensorrt.cache`, which stores bound / 127: one bound in 200
comes back as a neighbouring float32.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.errors import DataError
from octobert.core.files import atomic_write, content_of, storage_errors
from octobert.core.plain import parsed_json
from octobert.core.ranges import Interval

FLATBUFFERS, JSON, CACHE, TENSORRT = (
    "calibration.flatbuffers",
    "calibration.json",
    "calibration.cache",
    "tensorrt.cache",
)
Intervals = Mapping[str, Interval]

# The providers read numbers with C++'s `std::stof`, which throws for subnormal float32.
_TINY, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_INT8_STEPS = np.float32(127)
_HEADER = "TRT-"
# Offsets of the fields in a FlatBuffers vtable, behind its two sizes of two bytes: KeyValue {key, value}, TrtTable {dict}.
_FIRST, _SECOND = 4, 6


def write(intervals: Intervals, folder: Path, *, tensorrt: int | None = None) -> list[Path]:
    """Write all tables. Each file is written atomically.

    Args:
        intervals: name of a value → interval; at least one.
        folder: where the files go.
        tensorrt: version of TensorRT that will read `tensorrt.cache`, as in its headers: 8601 is 8.6.1, 101401 is 10.14.1.
            TensorRT silently ignores a table of another version. None: that file is not written.

    Returns:
        The paths of the files.

    Raises:
        DataError: there are no intervals, an interval is not finite or empty, or a format cannot hold a name.
        StorageError: the folder cannot be written.
    """
    bounds = _bounds(intervals)
    contents = {
        FLATBUFFERS: _to_flatbuffers(bounds),
        JSON: _to_json(intervals),
        CACHE: _to_cache(bounds),
    }
    if tensorrt is not None:
        contents[TENSORRT] = _to_tensorrt(bounds, tensorrt)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            with atomic_write(folder / name) as partial:
                partial.write_bytes(content)
    return [folder / name for name in contents]


def read(path: Path) -> dict[str, Interval]:
    """Read a table in any of the four formats, which the suffix and the first line tell apart.

    For formats that hold bounds only, low and high are -bound and bound.

    Returns:
        Name of a value → interval.

    Raises:
        DataError: the file is missing, truncated or not a table, has a name twice, or a number that is not finite.
    """
    try:
        content = content_of(path)
    except OSError as error:
        raise DataError(
            "the calibration table cannot be read", where=str(path), got=error.strerror
        ) from error
    try:
        if path.suffix == ".flatbuffers":
            pairs = list(_from_flatbuffers(content))
        elif path.suffix == ".json":
            pairs = list(_from_json(content))
        elif content.startswith(_HEADER.encode()):
            pairs = list(_from_tensorrt(content))
        else:
            pairs = list(_from_cache(content))
        if not pairs:
            raise ValueError("no values")
        _once(pairs)
        for name, interval in pairs:
            _checked(name, interval)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, struct.error) as error:
        raise DataError(
            "not a valid calibration table",
            where=str(path),
            got=str(error) or type(error).__name__,
            expected=f"{FLATBUFFERS}, {JSON}, {CACHE} or TensorRT's own cache",
            fix="write the table again, or use the suffix of its format",
        ) from error
    return dict(pairs)


def _bounds(intervals: Intervals) -> dict[str, np.float32]:
    """Return name → bound, sorted by the bytes of the names: FlatBuffers looks keys up in this order."""
    if not intervals:
        raise DataError("no intervals to write", fix="calibrate first")
    for name, interval in intervals.items():
        try:
            _checked(name, interval)
        except ValueError as error:
            raise DataError(
                "the interval cannot be written",
                where=f'"{name}"',
                got=str(error),
                fix="calibrate again",
            ) from error
    bounds = {name: intervals[name].bound for name in sorted(intervals, key=str.encode)}
    return {name: np.float32(bound if bound >= _TINY else 0.0) for name, bound in bounds.items()}


def _checked(name: str, interval: Interval) -> None:
    """Raise ValueError for an interval that is empty or does not fit float32."""
    numbers = (interval.low, interval.high, interval.bound)
    if not all(abs(number) <= _LARGEST for number in numbers):
        raise ValueError(
            f'"{name}" is not finite: low {interval.low}, high {interval.high}, bound {interval.bound}'
        )
    if interval.low > interval.high or interval.bound < 0:
        raise ValueError(
            f'"{name}" is not an interval: low {interval.low}, high {interval.high}, bound {interval.bound}'
        )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return pairs as a dictionary. Raise ValueError for a name that occurs twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f'"{next(n for n in names if names.count(n) > 1)}" twice')
    return table


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
    # A buffer is built from its end.
    for pair in reversed(pairs):
        builder.PrependUOffsetTRelative(pair)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _from_flatbuffers(content: bytes) -> Iterable[tuple[str, Interval]]:
    """Read with bounds checks. The generated classes have none and return wrong values from a truncated file."""

    def number(kind: str, at: int) -> int:
        if at < 0:
            raise ValueError("an offset before the start of the file")
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
            raise ValueError("the file is truncated")
        return content[at + 4 : end].decode()

    entries = field(follow(0), _FIRST)
    for index in range(number("<I", entries)):
        pair = follow(entries + 4 + 4 * index)
        yield text(field(pair, _FIRST)), _symmetric(np.float32(text(field(pair, _SECOND))))


def _to_json(intervals: Intervals) -> bytes:
    """Write lowest and highest in the form of `TensorsData.to_dict`. The key `bounds` is ours; ONNX Runtime ignores it."""

    def array(number: float) -> dict[str, Any]:
        return {"data": float(np.float32(number)), "dtype": "float32", "CLS": "numpy.array"}

    data = {
        n: {"lowest": array(i.low), "highest": array(i.high), "CLS": "TensorData"}
        for n, i in intervals.items()
    }
    table = {
        "CLS": "TensorsData",
        "data": data,
        # The calibration method of ONNX Runtime whose tables hold intervals only.
        "calibration_method": {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"},
        "smooth_quant": False,
        "bounds": {name: float(np.float32(interval.bound)) for name, interval in intervals.items()},
    }
    return json.dumps(table, indent=1).encode()


def _from_json(content: bytes) -> Iterable[tuple[str, Interval]]:
    """Read our form, that of `save_tensors_data`, and that of `write_calibration_table`, which has the values only."""
    table = parsed_json(content, object_pairs_hook=_once)
    data = table["data"] if table.get("CLS") == "TensorsData" else table
    bounds = table.get("bounds", {}) if data is not table else {}
    for name, entry in data.items():
        low, high = _scalar(entry["lowest"]), _scalar(entry["highest"])
        bound = float(np.float32(bounds[name])) if name in bounds else max(abs(low), abs(high))
        yield name, Interval(low=low, high=high, bound=bound)


def _scalar(entry: Any) -> float:
    array = np.asarray(entry["data"] if isinstance(entry, dict) else entry, dtype=np.float32)
    if array.size != 1:
        raise ValueError(f"{array.size} numbers per value, expected one")
    return float(array.reshape(-1)[0])


def _to_cache(bounds: Mapping[str, np.float32]) -> bytes:
    return "".join(f"{_line_name(name)} {bound}\n" for name, bound in bounds.items()).encode()


def _from_cache(content: bytes) -> Iterable[tuple[str, Interval]]:
    for name, bound in _pairs(content.decode().split("\n"), " "):
        yield name, _symmetric(np.float32(bound))


def _pairs(lines: Iterable[str], separator: str) -> Iterable[tuple[str, str]]:
    """Split lines at the last separator: names may contain it. Empty lines are left out."""
    for line in filter(str.strip, lines):
        name, _, number = line.rpartition(separator)
        if not name:
            raise ValueError(f'the line "{line[:80]}"')
        yield name, number


def _to_tensorrt(bounds: Mapping[str, np.float32], version: int) -> bytes:
    lines = [f"{_HEADER}{version}-EntropyCalibration2"]
    for name, bound in bounds.items():
        if ":" in name:
            raise DataError(
                "TensorRT's cache cannot hold a name with a colon",
                where=f'"{name}"',
                fix="rename the value",
            )
        # The bits of the float32 scale closest to bound / 127.
        bits = int(np.float32(np.float64(bound) / 127).view(np.uint32))
        lines.append(f"{_line_name(name)}: {bits:08x}")
    return "\n".join([*lines, ""]).encode()


def _from_tensorrt(content: bytes) -> Iterable[tuple[str, Interval]]:
    for name, digits in _pairs(content.decode().split("\n")[1:], ": "):
        scale = np.array(int(digits, 16), dtype=np.uint32).view(np.float32)
        yield name, _symmetric(np.float32(scale * _INT8_STEPS))


def _line_name(name: str) -> str:
    if "\n" in name or "\r" in name:
        raise DataError(
            "the table cannot hold a name with a line break",
            where=repr(name),
            fix="rename the value",
        )
    return name
