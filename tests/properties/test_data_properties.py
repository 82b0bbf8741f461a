"""What is written is what is read, whatever the texts are; and whatever a file holds, the answer is rows or a `DataError`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pyarrow import parquet

from octobert.core.errors import DataError
from octobert.data import readers, sampling
from octobert.data.encoded import Encoded, batches, feeds_of, split
from tests.properties.outcomes import sentence_of

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=40)
NAMES = st.lists(
    st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8),
    min_size=2,
    max_size=4,
    unique=True,
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def tables(draw: st.DrawFn, cells: st.SearchStrategy) -> list[dict[str, object]]:
    """Rows of the same columns."""
    names = draw(NAMES)
    return draw(
        st.lists(st.fixed_dictionaries({name: cells for name in names}), min_size=1, max_size=5)
    )


@given(tables(TEXTS))
def test_csv(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    (tmp_path / "a.csv").write_bytes(stream.getvalue().encode())
    kept = [row for row in rows if any(cell.strip() for cell in row.values()) or len(row) > 1]
    assert readers.read_file(tmp_path / "a.csv") == kept


@given(tables(TEXTS.map(lambda text: " ".join(text.split()).replace('"', "'") or "-")))
def test_tsv(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    lines = ["\t".join(rows[0]), *("\t".join(row[name] for name in rows[0]) for row in rows)]
    (tmp_path / "a.tsv").write_bytes("\n".join(lines).encode())
    assert readers.read_file(tmp_path / "a.tsv") == rows


@given(
    st.lists(st.dictionaries(TEXTS, JSON, min_size=1, max_size=4), min_size=1, max_size=4),
    st.booleans(),
)
def test_json_lines_and_arrays(
    tmp_path: Path, rows: list[dict[str, object]], ascii_only: bool
) -> None:
    columns = dict.fromkeys(name for row in rows for name in row)
    # Names of columns lose the spaces around them; a file with two that are then alike is refused.
    plain = {name: name.strip() or name for name in columns}
    assume(len(set(plain.values())) == len(plain))
    expected = [{plain[name]: row.get(name) for name in columns} for row in rows]
    lines = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    (tmp_path / "a.jsonl").write_bytes(lines.encode())
    (tmp_path / "a.json").write_bytes(json.dumps(rows, ensure_ascii=ascii_only).encode())
    for name in ("a.jsonl", "a.json"):
        # The nested form of SQuAD is told by its parts.
        if not (len(rows) == 1 and isinstance(rows[0].get("data"), list)):
            assert readers.read_file(tmp_path / name) == expected


@given(tables(st.none() | TEXTS), st.integers(1, 3), st.booleans())
def test_parquet(
    tmp_path: Path, rows: list[dict[str, object]], size: int, dictionary: bool
) -> None:
    table = pyarrow.Table.from_pylist(
        rows, pyarrow.schema([(name, pyarrow.string()) for name in rows[0]])
    )
    parquet.write_table(
        table, tmp_path / "a.parquet", row_group_size=size, use_dictionary=dictionary
    )
    assert readers.read_file(tmp_path / "a.parquet") == rows


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json", "conll", "parquet"])
@given(content=st.binary(max_size=60) | st.text('"\t\n\r ,{}[]:a0é', max_size=60).map(str.encode))
def test_any_content_gives_rows_or_a_sentence(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(content)
    said = sentence_of(DataError, readers.read_file, path)
    if said is not None:
        assert str(path) in said
    else:
        rows = readers.read_file(path)
        assert rows
        assert all(set(row) == set(rows[0]) for row in rows)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 200), st.integers(1, 8)
)
def test_batches_hold_every_row_once_and_outputs_come_back_in_order(
    lengths: list[int], tokens: int, rows: int
) -> None:
    encoded = [Encoded(np.arange(i, i + n), np.zeros(n, int), False) for i, n in enumerate(lengths)]
    groups = list(batches(encoded, max_tokens=tokens, max_rows=rows))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        feeds = feeds_of([encoded[i] for i in group], pad_id=7)
        assert len(group) == 1 or (len(group) <= rows and feeds["input_ids"].size <= tokens)
        flat = feeds["input_ids"][feeds["attention_mask"].astype(bool)]
        for index, ids in zip(group, split(flat, [encoded[i] for i in group]), strict=True):
            assert ids.tolist() == encoded[index].ids.tolist()


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.integers(0, 20), st.integers(0, 3))
def test_a_file_that_is_split_has_no_row_on_both_sides(
    digests: list[str], samples: int, seed: int
) -> None:
    first, second = sampling.hold_out(digests, samples, seed)
    assert sorted(first + second) == list(range(len(digests)))
    assert not {digests[i] for i in first} & {digests[i] for i in second}
    assert len({digests[i] for i in first}) == min(samples, len(set(digests)) // 2)
