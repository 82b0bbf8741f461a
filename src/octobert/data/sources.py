"""Rows of the user's data: found, read, split, and kept apart.

Sources are a file, a folder whose files are recognised by split name, or a hub id; formats are CSV, TSV, JSONL and Parquet,
read by `datasets`, and those of `formats`. A folder with a folder of texts for each class may stand for a file. Files are
first looked at as text, because the sets that people have are not plain: official MRPC and GLUE files hold raw quotes, a byte
order mark, and sometimes no header.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octobert.config.recipe import AUTO, SPLITS, Data, looks_local
from octobert.core.errors import DataError, did_you_mean
from octobert.core.files import canonical_digest, file_digest, is_disk_error
from octobert.data import formats
from octobert.data.rows import ROW_NUMBER, Row
from octobert.data.tokenization import Text

FORMATS = {".csv": "csv", ".tsv": "tsv", ".jsonl": "json", ".json": "json", ".parquet": "parquet"}
FORMATS |= dict.fromkeys(formats.COLUMN_SUFFIXES, "columns")
# CoNLL-2003 calls its development set testa.
SPLIT_WORDS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev", "testa"), "test": ("test",)}
# Official files without a header, by their number of columns.
_COLA = ("source", "label", "original_label", "sentence")
_STSB = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")


_Read = tuple[str, list[Row]]


def read_file(path: Path, columns: Sequence[str] = ()) -> list[Row]:
    """All rows of a file, or of a folder of texts.

    Args:
        columns: names, for a file without a header.

    Raises:
        DataError: not there, empty, of an unknown format, or malformed.
    """
    if path.is_dir():
        return formats.text_folder(path)
    if not path.is_file():
        raise DataError("there is no such file", where=str(path), fix="check the path")
    form = FORMATS.get(path.suffix.lower())
    if form is None:
        known = ", ".join(FORMATS)
        raise DataError("the format is not known", where=str(path), got=path.suffix or "no suffix", expected=known)
    if path.stat().st_size == 0:
        raise DataError("the file is empty", where=str(path), expected="rows", fix="check how it was written")
    from datasets import Dataset, disable_progress_bars
    from datasets.exceptions import DatasetGenerationError

    disable_progress_bars()
    # The reader keeps an Arrow copy of what it reads; it goes to a folder that ends with this call.
    cache = tempfile.TemporaryDirectory(prefix="octobert-")
    kept: dict[str, Any] = {"keep_in_memory": True, "cache_dir": cache.name}
    try:
        if form in ("csv", "tsv"):
            rows = _read_delimited(path, "," if form == "csv" else "\t", tuple(columns), cache.name)
        elif form == "columns":
            rows = formats.column_file(path, columns)
        elif form == "json":
            questions = formats.squad(path)
            rows = _named(Dataset.from_json(str(path), **kept)) if questions is None else questions
        else:
            rows = _named(Dataset.from_parquet(str(path), **kept))
    except (DatasetGenerationError, ValueError, OSError) as error:
        cause = error.__cause__ or error
        if is_disk_error(cause):
            raise cause from error
        raise DataError("the file cannot be read", where=str(path), got=str(cause).strip()[:200]) from error
    finally:
        cache.cleanup()
    if not rows:
        raise DataError("the file has no rows", where=str(path), expected="at least one row below the header")
    return rows


def find_splits(source: str) -> dict[str, list[Path]]:
    """Split name → the files or folders of texts that look like it, in a folder; a single file is the split `all`.

    Raises:
        DataError: no such path, or no recognised file.
    """
    path = Path(source)
    if path.is_file():
        return {"all": [path]}
    if not path.is_dir():
        raise DataError("there is no such file or folder", where=source, fix="check the path")
    found: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        for split in _splits_in(file.name):
            if formats.texts_in(file) if file.is_dir() else file.suffix.lower() in FORMATS:
                found.setdefault(split, []).append(file)
    if not found:
        raise DataError(
            "no file in the folder is recognised by its name",
            where=source,
            got=", ".join(sorted(f.name for f in path.iterdir())[:8]) or "an empty folder",
            expected="train*, validation* or dev*, test* as .csv, .tsv, .jsonl, .json, .parquet or .conll, "
            "or as folders with a folder of .txt files for each class",
            fix="name the files: train=… validation=…",
        )
    return found


def pick_split(found: Mapping[str, list[Path]], wanted: str, *, where: str, prefer: Sequence[str] = ()) -> Path:
    """The file, or folder of texts, of a split.

    Args:
        prefer: of several, the one that has one of these words in its name.

    Raises:
        DataError: there is none, or more than one.
    """
    if wanted not in found:
        raise DataError(f'there is no split "{wanted}"', where=where, fix=did_you_mean(wanted, found))
    files = found[wanted]
    preferred = [file for file in files if any(word in file.name for word in prefer)]
    files = preferred if len(preferred) == 1 else files
    if len(files) > 1:
        raise DataError(
            f"more than one file looks like the {wanted} split",
            where=where,
            got=", ".join(f.name for f in files),
            fix=f"name the one you mean: {wanted}={files[0]}",
        )
    return files[0]


@dataclass(frozen=True)
class Places:
    """Where the rows of a run come from.

    Args:
        calibrate, evaluate: a file, a folder of texts, or the name of a split on the hub.
        tune: the same, where rows to search on are wanted.
        train: the same, where a model is fine-tuned.
        hub: the data set's id, when it is one.
        alone: both are one file, whose rows are to be held apart.
        how: the choice in words, for the report.
    """

    calibrate: str
    evaluate: str
    tune: str | None
    train: str | None
    hub: str | None
    alone: bool
    how: str

    def content(self, revision: str | None) -> list[str]:
        """What the rows depend on: digests of the files, or the exact revision on the hub."""
        named = [place for place in (self.calibrate, self.evaluate, self.tune, self.train) if place is not None]
        if self.hub is not None:
            return [self.hub, hub_revision(self.hub, revision), *named]
        digests = {place: _content(Path(place)) for place in dict.fromkeys(named)}
        return [digests[place] for place in named]


def _content(place: Path) -> str:
    """The digest of a file, or of all texts in a folder and their classes."""
    try:
        if place.is_file():
            return file_digest(place)
        return canonical_digest({str(file.relative_to(place)): file_digest(file) for file in formats.texts_in(place)})
    except OSError as error:
        raise formats.unreadable(error) from error


def places(settings: Data, *, tune: bool = False, train: bool = False, prefer: Sequence[str] = ()) -> Places:
    """Find the rows that a recipe asks for, before anything is read.

    Args:
        tune: rows to search on are wanted too.
        train: rows to fine-tune on are wanted too.
        prefer: words in the names of files that a task prefers.

    Raises:
        DataError: a file, folder or split is not there, or is ambiguous.
    """
    source = settings.source
    local = source is not None and (Path(source).exists() or looks_local(source, FORMATS))
    found = find_splits(source) if source is not None and local else {}
    for split in SPLITS:
        named = getattr(settings, split)
        if named:
            found[split] = [Path(named)]
    wanted = {"calibrate": settings.calibrate.from_, "evaluate": settings.evaluate.from_}
    if tune:
        wanted["tune"] = settings.tune.from_
    if train:
        wanted["train"] = settings.finetune.from_
    alone = set(found) == {"all"} and wanted["calibrate"] == "train" and wanted["evaluate"] in (AUTO, "validation")
    if alone and train:
        raise DataError(
            "fine-tuning needs rows of its own",
            where="data",
            got=f"one file, {found['all'][0]}",
            fix="give train=… and validation=… as two files",
        )
    if alone:
        how = "one file: calibration rows drawn at random, all other rows evaluated"
        only = str(found["all"][0])
        return Places(only, only, only if tune else None, None, None, True, how)
    hub, note = None if local or found else source, ""
    if AUTO in wanted.values():
        known = list(found) if hub is None else hub_splits(hub, settings.config, settings.revision)
        usual = "test" if "test" in known and "validation" not in known else "validation"
        wanted = {key: usual if name == AUTO else name for key, name in wanted.items()}
        note = ", as there is no validation split" if usual == "test" else ""
    if hub is not None:
        how = f"{hub} on the hub: calibrated from {wanted['calibrate']}, evaluated on {wanted['evaluate']}{note}"
        return Places(wanted["calibrate"], wanted["evaluate"], wanted.get("tune"), wanted.get("train"), hub, False, how)
    chosen = {}
    for key, name in wanted.items():
        is_file = Path(name).suffix.lower() in FORMATS and name not in found
        chosen[key] = Path(name) if is_file else pick_split(found, name, where=f"data.{key}.from", prefer=prefer)
        if not chosen[key].exists():
            raise DataError("there is no such file or folder", where=str(chosen[key]), fix="check the path")
    how = f"calibrated from {chosen['calibrate'].name}, evaluated on {chosen['evaluate'].name}{note}"
    files = {key: str(path) for key, path in chosen.items()}
    return Places(files["calibrate"], files["evaluate"], files.get("tune"), files.get("train"), None, False, how)


def hub_splits(name: str, config: str | None, revision: str | None) -> list[str]:
    """The splits of a hub data set; none when the hub cannot be asked."""
    import datasets

    try:
        return list(datasets.get_dataset_split_names(name, config, revision=revision))
    except Exception:  # noqa: BLE001  # as below: reading the rows will say what is wrong
        return []


def hub_revision(name: str, revision: str | None) -> str:
    """The commit that a hub data set's revision stands for; the revision itself when the hub cannot be asked."""
    try:
        from huggingface_hub import HfApi

        return str(HfApi().dataset_info(name, revision=revision).sha)
    except Exception:  # noqa: BLE001  # the hub client raises many unrelated types; reading the rows will say what is wrong
        return str(revision)


def read(place: str, *, hub: str | None, config: str | None, revision: str | None, columns: Sequence[str]) -> _Read:
    """The rows of a place that `places` found: (where they are, for messages; the rows, numbered).

    Args:
        place: a file, or a split's name on the hub.

    Raises:
        DataError: they cannot be read.
    """
    if hub is not None:
        return f"{hub} {place}", numbered(read_hub(hub, config, place, revision))
    return place, numbered(read_file(Path(place), columns))


def numbered(rows: Sequence[Row]) -> list[Row]:
    """Rows that remember their place in the file, so that errors can name it after sampling."""
    return [{**row, ROW_NUMBER: number} for number, row in enumerate(rows, start=1)]


def read_hub(name: str, config: str | None, split: str, revision: str | None) -> list[Row]:
    """All rows of a split of a hub data set, class labels as names.

    Raises:
        DataError: the hub does not give it.
    """
    import datasets

    try:
        found = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # datasets and the hub client raise many unrelated types
        raise DataError(
            "there is no file or folder of that name, and the hub did not give it",
            where=name,
            got=f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}",
            fix="check the name, the split and the network",
        ) from error
    return _named(found)


def _named(dataset: Any) -> list[Row]:
    """The rows of a data set, class labels by their names, alone or in lists."""
    from datasets import ClassLabel

    inner = {k: getattr(f, "feature", None) for k, f in dataset.features.items()}
    names = {k: f.names for k, f in dataset.features.items() if isinstance(f, ClassLabel)}
    lists = {k: f.names for k, f in inner.items() if isinstance(f, ClassLabel)}

    def plain(key: str, value: Any) -> Any:
        if key in lists and value is not None:
            return [lists[key][one] for one in value]
        return names[key][value] if key in names and value is not None and value >= 0 else value

    return [{key: plain(key, value) for key, value in row.items()} for row in dataset.to_list()]


def row_digest(texts: Text) -> str:
    """What makes two rows the same row: their texts, white space aside."""
    return hashlib.sha256(json.dumps([" ".join(t.split()) for t in texts]).encode()).hexdigest()


def sample(count: int, samples: int, seed: int) -> list[int]:
    """Indices of a random sample without replacement, in order; all of them if there are fewer."""
    if count <= samples:
        return list(range(count))
    return sorted(np.random.default_rng(seed).permutation(count)[:samples].tolist())


def hold_out(digests: Sequence[str], samples: int, seed: int) -> tuple[list[int], list[int]]:
    """Split the rows of one file into calibration and evaluation rows; equal rows go to the same side.

    At most half of the distinct rows are taken for calibration.
    """
    distinct = sorted(set(digests))
    order = np.random.default_rng(seed).permutation(len(distinct))
    taken = {distinct[i] for i in order[: min(samples, len(distinct) // 2)]}
    first = [i for i, d in enumerate(digests) if d in taken]
    return first, [i for i, d in enumerate(digests) if d not in taken]


def apart(digests: Sequence[str], others: Iterable[str]) -> list[int]:
    """Indices of the rows that are none of the others."""
    known = set(others)
    return [index for index, digest in enumerate(digests) if digest not in known]


def refuse_leakage(
    chosen: Sequence[str], evaluation: Sequence[str], *, what: str = "calibration", where: str = "data.calibrate"
) -> None:
    """Refuse calibration or training rows that are also evaluated.

    Raises:
        DataError: with how many, and the first.
    """
    evaluated = {digest: index for index, digest in enumerate(evaluation)}
    shared = [i for i, digest in enumerate(chosen) if digest in evaluated]
    if shared:
        raise DataError(
            f"{len(shared)} of {len(chosen)} {what} rows are also evaluated, which flatters the result",
            where=where,
            got=f"for example evaluation row {evaluated[chosen[shared[0]]] + 1}",
            expected=f"{what} rows from the training split, none of them evaluated",
            fix=f"take other rows ({where}.from, or drop_evaluated: true to leave shared rows out), "
            "or set data.allow_leakage: true and have the report say so",
        )


def _splits_in(stem: str) -> list[str]:
    """The split that a file's name names: a word that is a split's name, with digits or a letter behind it (`testa`)."""
    words = re.split(r"[-_. ]", stem.lower())
    for split, names in SPLIT_WORDS.items():
        if any(re.fullmatch(rf"({'|'.join(names)})([a-z]|\d*)", word) for word in words):
            return [split]
    return []


def _read_delimited(path: Path, delimiter: str, columns: tuple[str, ...], cache: str) -> list[Row]:
    from datasets import Dataset, Features, Value

    # Not splitlines(): texts may hold separators (U+2028, NEL) that end a line for Python, but not in these formats.
    text = formats.decoded(path)
    lines = [line.rstrip("\r") for line in text.split("\n") if line.strip()]
    if not lines or (len(lines) == 1 and not columns):
        return []
    quoted = delimiter == "," or _quotes_fields(lines, delimiter)
    fields = [line.split(delimiter) for line in lines[:1000]]
    columns = columns or _headerless(fields, delimiter)
    if columns:
        width = max(map(len, csv.reader(lines, delimiter=delimiter) if quoted else (line.split(delimiter) for line in lines)))
        if len(columns) > width:
            what = "more columns are named than the file has"
            raise DataError(what, where=str(path), got=f"{len(columns)} names", expected=f"at most {width}")
        names = [*columns, *(f"extra_{i}" for i in range(width - len(columns)))]
    else:
        names = next(csv.reader([lines[0]], delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE))
    options: dict[str, Any] = {
        "sep": delimiter,
        "quoting": csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        "encoding": "utf-8-sig",
        # A text that reads "null" or "NA" is a text, and "007" is not a number.
        "keep_default_na": False,
        "features": Features({name: Value("string") for name in names}),
        "column_names": names,
        "header": None if columns else 0,
        "index_col": False,
    }
    records = ((n, line.split(delimiter)) for n, line in enumerate(text.split("\n"), start=1) if line.strip())
    if quoted:
        reader = csv.reader(io.StringIO(text), delimiter=delimiter)
        records = ((reader.line_num, record) for record in reader if record)
    _check_width(records, len(names), path, exact=not columns)
    return Dataset.from_csv(str(path), keep_in_memory=True, cache_dir=cache, **options).to_list()


def _check_width(records: Iterable[tuple[int, list[str]]], width: int, path: Path, *, exact: bool) -> None:
    """Refuse lines that the reader would shift or pad in silence."""
    for number, record in records:
        if len(record) > width or (exact and len(record) != width):
            raise DataError(
                "the line has another number of columns than the header",
                where=f"{path}, line {number}",
                got=str(len(record)),
                expected=str(width),
                fix="correct the line",
            )


def _quotes_fields(lines: list[str], delimiter: str) -> bool:
    """Whether quotes in a tab-separated file are quoting (RFC 4180) rather than text, as in the official MRPC files."""
    quoted = [f for line in lines for f in line.split(delimiter) if f.startswith('"')]
    proper = [f for f in quoted if len(f) > 1 and f.endswith('"') and '"' not in f[1:-1].replace('""', "")]
    return bool(quoted) and len(proper) == len(quoted)


def _headerless(fields: list[list[str]], delimiter: str) -> tuple[str, ...]:
    """Column names of the two official layouts that have no header: CoLA, and the STS benchmark."""
    if delimiter != "\t":
        return ()
    if all(len(f) == 4 and f[1] in ("0", "1") and re.fullmatch(r"[*?#% ]*", f[2]) for f in fields):
        return _COLA
    if all(len(f) >= 7 and re.fullmatch(r"[0-5](\.\d+)?", f[4]) for f in fields):
        return _STSB
    return ()
