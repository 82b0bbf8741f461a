"""Folders of data as people have them: saved by `datasets`, in parts, cloned, cached, linked, compressed."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import datasets
import pandas
import pyarrow
import pytest
from pyarrow import ipc

from octobert.config.rows import Data
from octobert.core.errors import DataError
from octobert.core.files import files_in
from octobert.data import readers, sources

FEATURES = datasets.Features(
    {
        "text": datasets.Value("string"),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-X"])),
    }
)


def dataset(count: int, start: int = 0) -> datasets.Dataset:
    numbers = range(start, start + count)
    texts = ["007" if index == 0 else f"text {index}" for index in numbers]
    columns = {"text": texts, "label": [i % 2 for i in numbers], "tags": [[i % 2] for i in numbers]}
    return datasets.Dataset.from_dict(columns, features=FEATURES)


def rows(count: int, start: int = 0) -> list[dict[str, object]]:
    """What `dataset` holds, with names of classes."""
    names, tags = ("no", "yes"), ("O", "B-X")
    return [
        {
            "text": "007" if i == 0 else f"text {i}",
            "label": names[i % 2],
            "tags": [tags[i % 2]],
        }
        for i in range(start, start + count)
    ]


def read(place: str | None) -> list[dict[str, object]]:
    assert place is not None
    return list(map(dict, readers.read_file(Path(place))))


def both(folder: Path) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """(rows to calibrate on, rows to evaluate); the folder stays as it is."""
    before = {file: file.stat().st_mtime_ns for file in files_in(folder)}
    found = sources.places(Data(source=str(folder)))
    assert len(found.content().digest) == 64
    parts = read(found.calibrate), read(found.evaluate)
    assert {file: file.stat().st_mtime_ns for file in files_in(folder)} == before
    return parts


def saved(folder: Path) -> None:
    splits = {"train": dataset(7), "validation": dataset(4, 7)}
    datasets.DatasetDict(splits).save_to_disk(str(folder), num_shards={"train": 3, "validation": 1})


def parts(folder: Path) -> None:
    folder.mkdir(parents=True)
    for index in range(3):
        part = dataset(7).shard(3, index, contiguous=True)
        part.to_parquet(str(folder / f"train-0000{index}-of-00003.parquet"))
    dataset(4, 7).to_parquet(str(folder / "validation-00000-of-00001.parquet"))


def cloned(folder: Path) -> None:
    parts(folder / "data")
    (folder / ".git").mkdir()
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")


def cached(folder: Path) -> None:
    """As `load_dataset` writes its cache: a stream of Arrow for each split."""
    inner = folder / "default" / "0.0.0" / "abc"
    inner.mkdir(parents=True)
    for split, part in (("train", dataset(7)), ("validation", dataset(4, 7))):
        table = part.data.table
        with ipc.new_stream(inner / f"name-{split}.arrow", table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    (inner / "dataset_info.json").write_text("{}")


def setfit(folder: Path) -> None:
    folder.mkdir()
    for split, start, count in (("train", 0, 7), ("test", 7, 4)):
        frame = pandas.DataFrame(rows(count, start)).assign(label_text="x")
        frame.to_json(folder / f"{split}.jsonl", orient="records", lines=True)


@pytest.mark.parametrize("write", [saved, parts, cloned, cached, setfit])
def test_folders_that_are_read(tmp_path: Path, write: Callable[[Path], None]) -> None:
    write(tmp_path / "data set")
    found = both(tmp_path / "data set")
    for part in found:
        for row in part:
            row.pop("label_text", None)
    assert found == (rows(7), rows(4, 7))


def test_what_datasets_itself_reads(tmp_path: Path) -> None:
    saved(tmp_path / "d")
    theirs = datasets.load_from_disk(str(tmp_path / "d"))
    for split in ("train", "validation"):
        ours = readers.read_file(tmp_path / "d" / split)
        assert [row["text"] for row in ours] == theirs[split]["text"]


def test_one_saved_data_set_and_what_it_has_cached(tmp_path: Path) -> None:
    dataset(9).save_to_disk(str(tmp_path / "d"))
    loaded = datasets.load_from_disk(str(tmp_path / "d"))
    loaded.map(
        lambda row: {"text": "changed"}, cache_file_name=str(tmp_path / "d" / "cache-1.arrow")
    )
    found = sources.places(Data(source=str(tmp_path / "d")))
    assert found.alone
    assert read(found.calibrate) == rows(9)


def test_saved_splits_of_any_name(tmp_path: Path) -> None:
    splits = {"unsupervised": dataset(2), "train": dataset(3), "test": dataset(2, 3)}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "d"))
    found = sources.places(Data(source=str(tmp_path / "d"), calibrate={"from": "unsupervised[:1]"}))
    where, own = readers.read(found.calibrate, hub=None, revision=None, columns=())
    assert where.endswith("unsupervised[:1]")
    assert [row["text"] for row in own] == ["007"]
    assert read(found.evaluate) == rows(2, 3)


def test_another_file_of_a_saved_data_set_is_another_data_set(tmp_path: Path) -> None:
    saved(tmp_path / "d")
    settings = Data(source=str(tmp_path / "d"))
    before = sources.places(settings).content()
    dataset(7, 1).save_to_disk(str(tmp_path / "other"), num_shards=3)
    name = "data-00001-of-00003.arrow"
    (tmp_path / "d" / "train" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    assert sources.places(settings).content().digest != before.digest


@pytest.mark.parametrize("form", ["stream", "file"])
def test_an_arrow_file_alone(tmp_path: Path, form: str) -> None:
    table, path = dataset(5).data.table, tmp_path / "rows.arrow"
    with {"stream": ipc.new_stream, "file": ipc.new_file}[form](path, table.schema) as stream:
        stream.write_table(table)
    assert sources.places(Data(source=str(path))).alone
    assert read(str(path)) == rows(5)


def test_an_arrow_file_that_is_none(golden, tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b"\x80\x04\x95pickle")
    with golden.raises(DataError):
        readers.read_file(tmp_path / "a.arrow")


def test_parts_that_are_missing(golden, tmp_path: Path) -> None:
    parts(tmp_path / "d")
    (tmp_path / "d" / "train-00001-of-00003.parquet").unlink()
    with golden.raises(DataError):
        sources.places(Data(source=str(tmp_path / "d")))
    # One that is named is a file.
    one = tmp_path / "d" / "train-00000-of-00003.parquet"
    assert read(sources.places(Data(source=str(one))).calibrate) == rows(3)


def hub(kind: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        cache = folder / f"{kind}s--org--some-name"
        for name in ("blobs", "refs", "snapshots/abc/data"):
            (cache / name).mkdir(parents=True)
        (cache / "snapshots/abc/data/train.csv").write_text("text\nx\n")
        return cache

    return write


def dead(folder: Path) -> Path:
    for split in ("train", "validation"):
        (folder / f"{split}.csv").symlink_to("../../blobs/0123")
    return folder


def dead_folder(folder: Path) -> Path:
    (folder / "d").symlink_to("nowhere")
    return folder / "d"


def pointers(folder: Path) -> Path:
    for split in ("train", "validation"):
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        (folder / f"{split}.csv").write_text(pointer)
    return folder


def packed(folder: Path) -> Path:
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}'))
    return folder


def packed_file(folder: Path) -> Path:
    return packed(folder) / "train.jsonl.gz"


def packed_csv(folder: Path) -> Path:
    (folder / "rows.csv.zip").write_bytes(b"PK")
    return folder / "rows.csv.zip"


def readme(folder: Path) -> Path:
    (folder / ".git").mkdir()
    (folder / "README.md").write_text("a data set")
    return folder


def configurations(folder: Path) -> Path:
    for name in ("de", "en"):
        parts(folder / name)
    return folder


def loop(folder: Path) -> Path:
    (folder / "d").mkdir()
    (folder / "d" / "data").symlink_to(".")
    return folder / "d"


FOREIGN = [
    hub("dataset"),
    hub("model"),
    dead,
    dead_folder,
    pointers,
    packed,
    packed_file,
    packed_csv,
]
FOREIGN += [readme, configurations, loop]


@pytest.mark.parametrize("write", FOREIGN, ids=lambda write: write.__qualname__.split(".")[0])
def test_folders_that_are_named_as_what_they_are(
    golden, tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    with golden.raises(DataError):
        found = sources.places(Data(source=str(write(tmp_path))))
        read(found.calibrate)


def test_a_text_of_a_folder_that_leads_to_nothing(golden, tmp_path: Path) -> None:
    for name in ("neg", "pos"):
        (tmp_path / "train" / name).mkdir(parents=True)
        (tmp_path / "train" / name / "1.txt").write_text("a text")
    (tmp_path / "train" / "pos" / "2.txt").symlink_to("/nowhere/2.txt")
    with golden.raises(DataError):
        readers.read_file(tmp_path / "train")


def test_batches_are_counted_before_they_are_kept(golden, tmp_path: Path, monkeypatch) -> None:
    table = pyarrow.table({"text": ["x" * 1_000_000]})
    with ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
        for _ in range(30):
            stream.write_table(table)
    monkeypatch.setattr(readers.formats, "MOST_BYTES", 20 * 2**20)
    with golden.raises(DataError):
        readers.read_file(tmp_path / "a.arrow")
