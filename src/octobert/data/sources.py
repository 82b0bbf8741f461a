"""Sources: which files, folders, splits on the hub or functions of the user give the rows that a recipe asks for.

A source is a file, a folder whose files have a split's name, a function of the user, or a hub id. A folder with a folder of
texts for each class stands for a file. `places` reads nothing yet.

`rows(split)` of a user returns an iterable of mappings, or a `Dataset`, `DatasetDict` or `DatasetBuilder` of the library
`datasets`. `preprocess(row)` returns a row, or None to leave the row out.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from octobert.config.recipe import SPLITS
from octobert.config.rows import AUTO, Data
from octobert.core import environment, user_code
from octobert.core.errors import DataError, did_you_mean, not_there, unreadable
from octobert.core.files import canonical_digest, file_digest, file_stamp, looks_local
from octobert.core.frozen import FrozenModel
from octobert.core.origin import check_inside
from octobert.core.plain import preview
from octobert.core.user_code import UserCode, names_code
from octobert.data import beir, formats, sampling
from octobert.data.readers import FORMATS, HubData, find_on_hub, numbered, with_names
from octobert.data.sampling import ROW_NUMBER, Row

# CoNLL-2003 calls its development set testa.
SPLIT_WORDS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev", "testa"),
    "test": ("test",),
}


# Rows between two looks at the free memory.
_BETWEEN = 4096


class RowFunction(FrozenModel):
    """A function that gives the rows of a split."""

    code: UserCode
    split: str
    span: str = ""

    @property
    def where(self) -> str:
        """Its name in errors."""
        return f"{self.code.path.name}:{self.code.function}({self.split!r}){self.span}"

    def read(self) -> tuple[str, list[Row]]:
        """Call it.

        Returns:
            (the function in words for messages, the rows with their numbers).

        Raises:
            DataError: it gives no rows, or something that is not a row.
            RecipeError: it cannot be loaded, or it failed.
        """
        value = user_code.load(self.code)(self.split)
        with user_code.sentences(self.code):
            rows = self._rows(self._of_datasets(value))
        if not rows:
            raise DataError(
                "the function gives no rows",
                where=self.where,
                fix=f"return rows for {self.split!r}, or name another split with from",
            )
        return self.where, sampling.sliced(numbered(rows), self.span, where=self.where)

    def _of_datasets(self, value: Any) -> Any:
        """The rows of an object of `datasets`; anything else is returned unchanged."""
        datasets = sys.modules.get("datasets")
        if datasets is None:
            return value
        if isinstance(value, datasets.DatasetBuilder):
            value.download_and_prepare()
            return self._of_datasets(value.as_dataset())
        if isinstance(value, datasets.DatasetDict):
            if self.split not in value:
                raise DataError(
                    f'the data set has no split "{self.split}"',
                    where=self.where,
                    fix=did_you_mean(self.split, value),
                )
            value = value[self.split]
        return (
            with_names(value.features, value.to_list())
            if isinstance(value, datasets.Dataset)
            else value
        )

    def _rows(self, value: Any) -> list[Row]:
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
            raise DataError(
                "the function does not give rows",
                where=self.where,
                got="nothing" if value is None else f"a {type(value).__name__}",
                expected="an iterable of mappings, or a Dataset",
            )
        rows: list[Row] = []
        free = environment.memory().free
        for number, row in enumerate(value, start=1):
            if not isinstance(row, Mapping):
                raise DataError(
                    "the row is not a mapping",
                    where=f"{self.where}, row {number}",
                    got=f"a {type(row).__name__}: {preview(row)}",
                    expected="a dict",
                )
            rows.append(dict(row))
            if number % _BETWEEN == 0 and environment.memory().free < free // 2:
                raise DataError(
                    "the rows take too much memory",
                    where=self.where,
                    got=f"{number:,} rows",
                    fix="give fewer rows: all of them are held in memory",
                )
        return rows


def find_splits(source: str) -> dict[str, list[Path]]:
    """Split name → the files or folders of texts that look like it, in a folder; a single file is the split `all`.

    Raises:
        DataError: no such path, or no recognised file.
    """
    path = Path(source)
    if is_one(path):
        return {"all": [path]}
    if not path.is_dir():
        raise not_there(DataError, source)
    splits: dict[str, list[Path]] = {}
    if judged := beir.splits_of(path):
        *judged, corpus = judged
        splits = {file.stem: [file] for file in judged} | {"corpus": [corpus]}
        return {("validation" if name == "dev" else name): files for name, files in splits.items()}
    for file in sorted(path.iterdir()):
        # A saved split has its name, whatever that is.
        for split in _splits_in(file.name) or [file.name] * bool(formats.tables_in(file)):
            if file.suffix.lower() in FORMATS or file.is_dir():
                check_inside(path, file.name, DataError)
            if formats.rows_in(file) if file.is_dir() else file.suffix.lower() in FORMATS:
                place = file.with_name(formats.part_name(file.name))
                splits.setdefault(split, []).append(place)
    if not splits:
        formats.refuse_other(path)
        # A clone from the hub, and what `datasets` has cached, have their files in a folder of their own.
        inner = [file for file in path.glob("[!.]*") if file.is_dir() and not file.is_symlink()]
        if len(inner) == 1:
            return find_splits(str(inner[0]))
        raise DataError(
            "no file in the folder has the name of a split",
            where=source,
            got=", ".join(sorted(f.name for f in path.glob("[!.]*"))[:8]) or "an empty folder",
            expected="train*, validation* or dev*, test* as .csv, .tsv, .jsonl, .json, .parquet, .arrow or .conll, "
            "as folders with a folder of .txt files for each class, or as save_to_disk writes them",
            fix="name the files: train=… validation=…, or the folder that holds them",
        )
    return {split: list(dict.fromkeys(places)) for split, places in splits.items()}


def is_one(path: Path) -> bool:
    """Whether a path has no splits: a file, a folder of feeds of a graph, or one saved data set."""
    return path.is_file() or bool(formats.feeds_in(path) or formats.tables_in(path))


def pick_split(
    splits: Mapping[str, list[Path]], split: str, *, where: str, prefer: Sequence[str] = ()
) -> Path:
    """The file, or folder of texts, of a split.

    Args:
        prefer: of several, the file with one of these words in its name is chosen.

    Raises:
        DataError: there is no such file, or more than one.
    """
    if split not in splits:
        raise DataError(
            f'there is no split "{split}"', where=where, fix=did_you_mean(split, splits)
        )
    files = splits[split]
    preferred = [file for file in files if any(word in file.name for word in prefer)]
    files = preferred if len(preferred) == 1 else files
    if len(files) > 1:
        raise DataError(
            f"more than one file looks like the {split} split",
            where=where,
            got=", ".join(f.name for f in files),
            fix=f"name the one you mean: {split}={files[0]}",
        )
    return files[0]


@dataclass(frozen=True)
class Places:
    """Where the rows of a run come from.

    Args:
        calibrate, evaluate: a file, a folder of texts, or the name of a split on the hub; with a slice behind it or without.
            `evaluate` is None where nothing is evaluated, and there are no rows for it.
        how: the choice in words, for the report.
        tune: as `calibrate`, for rows to search on; None without a search.
        train: the same, for rows to fine-tune on; None without training.
        corpus: the same, for documents that are searched too; None where there are none.
        hub: the data set on the hub; None for local files.
        alone: there is one file, whose rows are split between both.
        functions: place → the user's function that gives its rows, for places that are no files.
    """

    calibrate: str
    evaluate: str | None
    how: str
    tune: str | None = None
    train: str | None = None
    corpus: str | None = None
    hub: HubData | None = None
    alone: bool = False
    functions: Mapping[str, RowFunction] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, str]:
        """The places that there are, by the names of these fields."""
        fields = ("calibrate", "evaluate", "tune", "train", "corpus")
        return {part: place for part in fields if (place := getattr(self, part)) is not None}

    def content(self) -> Content:
        """The content that the rows depend on: digests of the files, or the commit on the hub.

        Raises:
            DataError: a file cannot be read.
        """
        named = list(self.parts.values())
        if self.hub is not None:
            return Content(
                places=(),
                digest=canonical_digest([self.hub.model_dump(), *named]),
                stamp="",
                spans=(),
            )
        file_spans = [file_of(place) for place in named if place not in self.functions]
        files, spans = tuple(file for file, _ in file_spans), tuple(span for _, span in file_spans)
        try:
            return Content(
                places=files,
                spans=spans,
                stamp=_summary(files, spans, file_stamp),
                digest=_summary(files, spans, file_digest),
            )
        except OSError as error:
            raise unreadable(DataError, error, error.filename) from error


class Content(FrozenModel):
    """The content that rows depend on.

    Args:
        places: files and folders of texts; none on the hub.
        digest: of their content, wherever it lies.
        stamp: what the file system said of them before they were read.
        spans: the slice of each file that is meant; empty for all of it.
    """

    places: tuple[Path, ...]
    digest: str
    stamp: str
    spans: tuple[str, ...]

    def summary(self, of: Callable[[Path], str]) -> str:
        """The current digest of the files, or another summary of each (see `engine/contract.py`)."""
        return _summary(self.places, self.spans, of) if self.places else self.digest


def _summary(places: Sequence[Path], spans: Sequence[str], of: Callable[[Path], str]) -> str:
    """A summary of files, or of all texts in folders and their classes."""
    summaries: dict[Path, object] = {}
    for place in set(places):
        if place.is_dir():
            summaries[place] = {
                str(file.relative_to(place)): of(file) for file in formats.rows_in(place)
            }
        else:
            summaries[place] = [of(file) for file in beir.files_of(place)]
    return canonical_digest([summaries[place] for place in places] + [list(spans)] * any(spans))


def file_of(place: str) -> tuple[Path, str]:
    """The file of a place, and the slice of it that is meant. The name of a file is its path, with whatever brackets."""
    name, span = (place, "") if os.path.exists(place) else sampling.split_of(place)
    return Path(name), span


def places(
    settings: Data,
    *,
    evaluate: bool = True,
    tune: bool = False,
    train: bool = False,
    prefer: Sequence[str] = (),
) -> Places:
    """Find the rows that a recipe asks for, before anything is read.

    Args:
        evaluate: rows to evaluate are needed. Otherwise they are kept apart from the others where there are some.
        tune: rows to search on are names too.
        train: rows to fine-tune on are names too.
        prefer: words in the names of files that a task prefers.

    Raises:
        DataError: a file, folder or split is missing or ambiguous.
    """
    source = settings.source
    local = source is not None and (
        names_code(source) or os.path.lexists(source) or _is_local(source)
    )
    splits = find_splits(source) if source is not None and local and not names_code(source) else {}
    for split in SPLITS:
        named = getattr(settings, split)
        if named and not names_code(named):
            splits[split] = [Path(named)]
    # By the fields of `Places`.
    names: dict[str, Any] = {
        "calibrate": settings.calibrate.from_,
        "evaluate": settings.evaluate.from_,
    }
    if tune:
        names["tune"] = settings.tune.from_
    if train:
        names["train"] = settings.finetune.from_
    corpus = settings.corpus
    if corpus == AUTO:
        corpus = "corpus" if "corpus" in splits else None
    if corpus is not None:
        names["corpus"] = corpus
    spans = {key: file_of(name)[1] for key, name in names.items()}
    names = {key: name.removesuffix(spans[key]) for key, name in names.items()}
    for key, span in spans.items():
        sampling.check_slice(span, where=_key(key))
    alone = (
        set(splits) == {"all"}
        and not functions(settings, names.values(), splits)
        and names["calibrate"] == "train"
        and names["evaluate"] in (AUTO, "validation")
        and not any(spans.values())
        and corpus is None
    )
    if alone and train:
        raise DataError(
            "fine-tuning needs rows of its own",
            where="data",
            got=f"one file, {splits['all'][0]}",
            fix="give train=… and validation=… as two files",
        )
    if alone:
        how = "one file: calibration rows drawn at random, all other rows evaluated"
        only = str(splits["all"][0])
        return Places(only, only, how, tune=only if tune else None, alone=True)
    hub = (
        None
        if local or splits or source is None
        else find_on_hub(source, settings.config, settings.revision)
    )
    note = ""
    if AUTO in names.values():
        split_names = [*splits, *functions(settings, SPLITS, splits)]
        available = (
            split_names if hub is None else hub_splits(hub.name, hub.config, settings.revision)
        )
        usual = "test" if "test" in available and "validation" not in available else "validation"
        if not evaluate and names["evaluate"] == AUTO and usual not in available:
            names["evaluate"] = None
        names = {key: usual if name == AUTO else name for key, name in names.items()}
        note = ", as there is no validation split" if usual == "test" else ""
    if hub is not None:
        names = {key: name and name + spans[key] for key, name in names.items()}
        how = f"{hub.name} on the hub: calibrated from {names['calibrate']}, evaluated on {names['evaluate']}{note}"
        return Places(**names, how=how, hub=hub)
    functions_of, called = functions(settings, filter(None, names.values()), splits), {}
    chosen: dict[str, Any] = {}
    for key, name in names.items():
        if name is None:
            chosen[key] = None
            continue
        if name in functions_of:
            function = functions_of[name].replaced(span=spans[key])
            chosen[key], called[function.where] = function.where, function
            continue
        is_file = Path(name).suffix.lower() in FORMATS and name not in splits
        path = Path(name) if is_file else pick_split(splits, name, where=_key(key), prefer=prefer)
        if not all(file.exists() for file in beir.files_of(path)):
            raise not_there(DataError, path)
        chosen[key] = f"{path}{spans[key]}"
    evaluated = Path(chosen["evaluate"]).name if chosen["evaluate"] else "no rows"
    how = f"calibrated from {Path(chosen['calibrate']).name}, evaluated on {evaluated}{note}"
    return Places(**chosen, how=how, functions=called)


def _key(place: str) -> str:
    """The key of the recipe that names a place."""
    return {"train": "data.finetune.from", "corpus": "data.corpus"}.get(place, f"data.{place}.from")


def functions(
    settings: Data, splits: Iterable[str], files: Mapping[str, list[Path]]
) -> dict[str, RowFunction]:
    """Split → the function that gives its rows, of the splits that no file holds.

    Raises:
        RecipeError: a Python file does not exist, or the function is not named.
    """
    row_functions = {}
    for split in splits:
        named = getattr(settings, split) if split in SPLITS else None
        key, text = (split, named) if named else ("source", settings.source)
        if (
            text is not None
            and names_code(text)
            and split not in files
            and Path(split).suffix.lower() not in FORMATS
        ):
            row_functions[split] = RowFunction(
                code=user_code.at(text, "rows", where=f"data.{key}"), split=split
            )
    return row_functions


def hub_splits(name: str, config: str | None, revision: str | None) -> list[str]:
    """The splits of a hub data set; none when the hub cannot be asked."""
    import datasets

    try:
        return list(datasets.get_dataset_split_names(name, config, revision=revision))
    except Exception:  # noqa: BLE001  # as below: reading the rows will say what is wrong
        return []


def _is_local(source: str) -> bool:
    """Return whether a source that is not there is a mistyped path rather than a data set with its configuration."""
    named = (
        re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*){2}", source)
        and Path(source).suffix.lower() not in FORMATS
    )
    return not named and looks_local(source, FORMATS)


def _splits_in(stem: str) -> list[str]:
    """The split that a file's name names: a word that is a split's name, with digits or a letter behind it (`testa`)."""
    words = re.split(r"[-_. ]", stem.lower())
    for split, names in SPLIT_WORDS.items():
        if any(re.fullmatch(rf"({'|'.join(names)})([a-z]|\d*)", word) for word in words):
            return [split]
    return []


def preprocessed(rows: Sequence[Row], code: UserCode, *, where: str) -> list[Row]:
    """Rows as a function of the user changes them, without those that it leaves out. They keep their numbers.

    Raises:
        DataError: the function returns something else than a row or None, or leaves out all rows.
        RecipeError: it cannot be loaded, or it failed.
    """
    function = user_code.load(code)
    changed_rows: list[Row] = []
    for row in rows:
        number = row.get(ROW_NUMBER)
        changed = function({name: value for name, value in row.items() if name != ROW_NUMBER})
        if changed is not None and not isinstance(changed, Mapping):
            raise DataError(
                "the row is not a mapping",
                where=f"{where}, row {number}",
                got=f"a {type(changed).__name__} from {code.function}",
                expected="a dict, or None to leave the row out",
            )
        if changed is not None:
            changed_rows.append({**changed, ROW_NUMBER: number})
    if rows and not changed_rows:
        raise DataError(
            "preprocess leaves out every row",
            where=where,
            got=f"None for {len(rows)} rows",
            fix=f"return the rows that {code.function} keeps",
        )
    return changed_rows
