"""Calibration tables: what is written is read back to the bit, here and by ONNX Runtime's own readers."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import onnxruntime.quantization as ort_quantization
import pytest
from onnxruntime.quantization.CalTableFlatBuffers.TrtTable import TrtTable

from octobert.core.errors import DataError, StorageError
from octobert.core.ranges import Interval
from octobert.quantization import tables

NAMES = (
    "encoder.layer.0.attention.self.query",
    "a name with spaces",
    "名前/é",
    "z",
    "Z",
    "zero",
    "tiny",
)


def interval(low: float, high: float, bound: float | None = None) -> Interval:
    return Interval(low=low, high=high, bound=max(-low, high) if bound is None else bound)


@pytest.fixture
def intervals() -> dict[str, Interval]:
    """One-sided, clipped, constant and very small ones among others; numbers that float32 rounds."""
    return dict(
        zip(
            NAMES,
            (
                interval(-10.0, 1.0),
                interval(-0.1, 1 / 3),
                interval(-7.0, -2.0, 7.0),
                interval(0.5, 2.0),
                interval(-3.0, 40.0, 12.3),
                interval(0.0, 0.0),
                interval(-1e-30, 1e-20),
            ),
            strict=True,
        )
    )


def rounded(number: float) -> float:
    return float(np.float32(number))


def bounds(table: dict[str, Interval]) -> dict[str, float]:
    return {name: entry.bound for name, entry in table.items()}


@pytest.mark.parametrize("name", [tables.FLATBUFFERS, tables.CACHE])
def test_bounds_come_back_to_the_bit(intervals, tmp_path: Path, name) -> None:
    tables.write(intervals, tmp_path)
    table = tables.read(tmp_path / name)
    assert bounds(table) == {n: rounded(i.bound) for n, i in intervals.items()}
    assert all(entry.low == -entry.bound and entry.high == entry.bound for entry in table.values())


def test_the_json_form_keeps_signs(intervals, tmp_path: Path) -> None:
    tables.write(intervals, tmp_path)
    expected = {
        n: Interval(low=rounded(i.low), high=rounded(i.high), bound=rounded(i.bound))
        for n, i in intervals.items()
    }
    assert tables.read(tmp_path / tables.JSON) == expected


def test_random_bounds_come_back_from_every_form(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    drawn = np.exp(generator.uniform(-40, 40, 2000)).astype(np.float32)
    tables.write(
        {f"v{n}": interval(-float(b), float(b)) for n, b in enumerate(drawn)},
        tmp_path,
        tensorrt=101401,
    )
    for name in (tables.FLATBUFFERS, tables.CACHE, tables.JSON):
        table = tables.read(tmp_path / name)
        assert np.array_equal(np.float32([table[f"v{n}"].bound for n in range(len(drawn))]), drawn)
    native = tables.read(tmp_path / tables.TENSORRT)
    table = np.float32([native[f"v{n}"].bound for n in range(len(drawn))])
    assert np.mean(table != drawn) < 0.01
    assert np.abs(table.view(np.int32) - drawn.view(np.int32)).max() <= 1


def test_onnx_runtime_reads_the_flatbuffers(intervals, tmp_path: Path) -> None:
    tables.write(intervals, tmp_path)
    table = TrtTable.GetRootAs((tmp_path / tables.FLATBUFFERS).read_bytes(), 0)
    entries = [table.Dict(i) for i in range(table.DictLength())]
    keys = [entry.Key() for entry in entries]
    # The schema's key is looked up by bisection, over bytes.
    assert keys == sorted(keys)
    assert len(keys) == len(intervals)
    theirs = {entry.Key().decode(): float(np.float32(entry.Value())) for entry in entries}
    assert theirs == {n: rounded(i.bound) for n, i in intervals.items()}
    # A range of (-10, 1) is a bound of 10; its greater end would be 1.
    assert theirs[NAMES[0]] == 10.0


def test_onnx_runtime_reads_the_json(intervals, tmp_path: Path) -> None:
    tables.write(intervals, tmp_path)
    data = ort_quantization.load_tensors_data(tmp_path / tables.JSON)
    assert data.calibration_method is ort_quantization.CalibrationMethod.MinMax
    for name, entry in intervals.items():
        low, high = data[name].range_value
        assert (low.dtype, float(low), float(high)) == (
            np.float32,
            rounded(entry.low),
            rounded(entry.high),
        )


def test_tables_of_onnx_runtime_are_read(tmp_path: Path) -> None:
    from onnxruntime.quantization.calibrate import TensorData

    ends = {"a": (-1.5, 2.5), "b": (0.25, 8.0)}
    arrays = {
        name: tuple(np.array(x, dtype=np.float32) for x in pair) for name, pair in ends.items()
    }
    ort_quantization.write_calibration_table(
        {n: TensorData(lowest=a, highest=b) for n, (a, b) in arrays.items()}, str(tmp_path)
    )
    expected = {name: interval(*pair) for name, pair in ends.items()}
    assert tables.read(tmp_path / "calibration.json") == expected
    assert bounds(tables.read(tmp_path / "calibration.flatbuffers")) == bounds(expected)
    assert bounds(tables.read(tmp_path / "calibration.cache")) == bounds(expected)
    saved = ort_quantization.calibrate.TensorsData(
        ort_quantization.CalibrationMethod.MinMax, arrays
    )
    ort_quantization.save_tensors_data(saved, tmp_path / "saved.json")
    assert tables.read(tmp_path / "saved.json") == expected


def test_the_cache_of_tensorrt(golden, tmp_path: Path) -> None:
    (tmp_path / "theirs.cache").write_text(
        "TRT-7103-EntropyCalibration2\ndata_0: 4000889d\ninput:0: 3caa54fc\nnothing: 0\n"
    )
    table = tables.read(tmp_path / "theirs.cache")
    # 4000889d is 2.008338; the range is 127 times the scale.
    assert table["data_0"].bound == pytest.approx(2.008338 * 127, rel=1e-6)
    assert set(table) == {"data_0", "input:0", "nothing"}
    paths = tables.write({"b": interval(-1, 127), "a": interval(0, 0)}, tmp_path, tensorrt=8601)
    assert paths[-1].read_text() == "TRT-8601-EntropyCalibration2\na: 00000000\nb: 3f800000\n"
    with golden.raises(DataError):
        tables.write({"x:0": interval(0, 1)}, tmp_path, tensorrt=8601)


def test_what_c_plus_plus_cannot_parse_is_zero(tmp_path: Path) -> None:
    tables.write({"subnormal": interval(0, 1e-40)}, tmp_path)
    assert (tmp_path / tables.CACHE).read_text() == "subnormal 0.0\n"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"x": interval(math.nan, 1, 1)},
        {"x": interval(0, math.inf)},
        {"x": interval(0, 1e39)},
        {"x": interval(2, 1)},
        {"x": interval(-2, 1, -1)},
        {"x\ny": interval(0, 1)},
    ],
    ids=repr,
)
def test_what_cannot_be_written_leaves_nothing(golden, tmp_path: Path, given) -> None:
    with golden.raises(DataError):
        tables.write(given, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


def test_a_failed_write_keeps_the_table_before(intervals, tmp_path: Path, monkeypatch) -> None:
    tables.write(intervals, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="the disk is full"):
        tables.write({"other": interval(0, 1)}, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_file_cut_short_is_never_believed(intervals, tmp_path: Path) -> None:
    tables.write(intervals, tmp_path)
    whole = (tmp_path / tables.FLATBUFFERS).read_bytes()
    expected = tables.read(tmp_path / tables.FLATBUFFERS)
    path = tmp_path / "cut.flatbuffers"
    refused = 0
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        try:
            # The very last bytes only end the last string, and fill up.
            assert tables.read(path) == expected
        except DataError:
            refused += 1
    assert refused >= len(whole) - 4


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.flatbuffers", b""),
        ("a.flatbuffers", b"\x00" * 64),
        ("a.flatbuffers", b"\xff" * 64),
        ("a.flatbuffers", json.dumps({"a": 1}).encode()),
        ("a.json", b""),
        ("a.json", b"[1, 2]"),
        ("a.json", b"{}"),
        ("a.json", b'{"a": [0, 1]}'),
        ("a.json", b'{"a": {"lowest": NaN, "highest": 1}}'),
        ("a.json", b'{"a": {"lowest": {"data": [1, 2], "dtype": "float32"}, "highest": 3}}'),
        ("a.json", b'{"a": {"lowest": 0, "highest": 1}, "a": {"lowest": 0, "highest": 2}}'),
        ("a.cache", b""),
        ("a.cache", b"alone\n"),
        ("a.cache", b"x 1.0\nx 2.0\n"),
        ("a.cache", b"x nan\n"),
        ("a.cache", b"x 1e400\n"),
        ("a.cache", b"x -1\n"),
        ("a.cache", b"\xff\xfe 1\n"),
        ("a.cache", b"TRT-8601-EntropyCalibration2\n"),
        ("a.cache", b"TRT-8601-EntropyCalibration2\nx: hello\n"),
        ("a.cache", b"TRT-8601-EntropyCalibration2\nx: 7fc00000\n"),
        ("a.cache", b"TRT-8601-EntropyCalibration2\nx: 13f800000\n"),
        ("a.cache", struct.pack("<IIII", 12, 0, 0, 0)),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("error")
def test_what_is_no_table_is_refused(golden, tmp_path: Path, name, content) -> None:
    (tmp_path / name).write_bytes(content)
    with golden.raises(DataError):
        tables.read(tmp_path / name)


def test_a_missing_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"the calibration table cannot be read \(got No such file"):
        tables.read(tmp_path / "none.cache")
