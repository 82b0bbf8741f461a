"""Reading rows: every format and official layout, splits by name, and calibration rows kept apart from evaluated ones."""

from __future__ import annotations

import json
from pathlib import Path

import pandas
import pytest

from octobert.config.loading import parse
from octobert.config.rows import Data
from octobert.core.errors import DataError
from octobert.core.files import file_digest, file_stamp
from octobert.data import formats, readers, sampling, sources
from octobert.data.readers import HubData
from tests.support.stages import call_of, step_of


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode("utf-8"))
    return path


def test_the_official_mrpc_layout(tmp_path) -> None:
    text = (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
        '1\t007\t2\t"I am sad ," he said .\tHe said " I am sad\r\n'
        "0\t3\t4\tNA\tnull\r\n"
    )
    rows = readers.read_file(write(tmp_path / "msr.tsv", text))
    assert rows[0] == {
        "Quality": "1",
        "#1 ID": "007",
        "#2 ID": "2",
        "#1 String": '"I am sad ," he said .',
        "#2 String": 'He said " I am sad',
    }
    assert rows[1]["#1 String"] == "NA"
    assert rows[1]["#2 String"] == "null"


def test_a_tsv_with_real_quoting(tmp_path) -> None:
    text = 'text\tlabel\n"a ""quoted"" word"\t1\n"plain"\t0\n'
    assert [r["text"] for r in readers.read_file(write(tmp_path / "a.tsv", text))] == [
        'a "quoted" word',
        "plain",
    ]


def test_csv_with_commas_and_newlines_in_quotes(tmp_path) -> None:
    rows = readers.read_file(write(tmp_path / "a.csv", 'text,label\n"one, two\nthree",1\nfour,0\n'))
    assert [r["text"] for r in rows] == ["one, two\nthree", "four"]


def test_the_official_cola_and_sts_layouts_have_no_header(tmp_path) -> None:
    cola = readers.read_file(
        write(tmp_path / "c.tsv", 'gj04\t1\t\tThe "sailors rode.\ngj04\t0\t*\tRode sailors.\n')
    )
    assert cola[1]["sentence"] == "Rode sailors."
    assert cola[1]["label"] == "0"
    sts = 'main\tMSRvid\t2012\t0001\t5.000\tA man.\tOne man.\nmain\tnews\t2012\t0002\t1.2\tA dog.\tA "cat.\textra\tmore\n'
    rows = readers.read_file(write(tmp_path / "s.tsv", sts))
    assert [(r["score"], r["sentence1"], r["sentence2"]) for r in rows] == [
        ("5.000", "A man.", "One man."),
        ("1.2", "A dog.", 'A "cat.'),
    ]


def test_columns_can_be_named_for_a_file_without_header(tmp_path) -> None:
    rows = readers.read_file(
        write(tmp_path / "x.tsv", "p\th\tneutral\nq\ti\tentailment\n"),
        ("premise", "hypothesis", "label"),
    )
    assert rows[1] == {"premise": "q", "hypothesis": "i", "label": "entailment"}
    uneven = readers.read_file(write(tmp_path / "y.tsv", f"a\n{'long ' * 30_000}\tc\n"), ("text",))
    assert [row["extra_0"] for row in uneven] == ["", "c"]


def test_separators_inside_a_text_do_not_end_a_line(tmp_path) -> None:
    odd = "one\u2028two\x85three\x0bfour"
    assert (
        readers.read_file(
            write(tmp_path / "a.jsonl", json.dumps({"text": odd}, ensure_ascii=False))
        )[0]["text"]
        == odd
    )
    assert (
        readers.read_file(write(tmp_path / "a.tsv", f"text\tlabel\n{odd}\t1\n"))[0]["text"] == odd
    )


def test_more_names_than_columns(golden, tmp_path) -> None:
    with golden.raises(DataError):
        readers.read_file(write(tmp_path / "a.csv", '"x, y",1\n'), ("a", "b", "c"))


def test_another_encoding(tmp_path) -> None:
    (tmp_path / "a.tsv").write_bytes("text\tlabel\ncaf\xe9\t1\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"the file is not UTF-8 .*convert it to UTF-8"):
        readers.read_file(tmp_path / "a.tsv")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(golden, tmp_path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\ngood,1\n".encode(encoding))
    with golden.raises(DataError):
        readers.read_file(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'text;label\n"one; two, three";1\nfour, five;0\n'),
        ("a.csv", "text\tlabel\none; two, three\t1\nfour, five\t0\n"),
        ("a.tsv", 'text,label\n"one; two, three",1\n"four, five",0\n'),
    ],
)
def test_the_header_tells_another_delimiter(tmp_path, name: str, text: str) -> None:
    rows = readers.read_file(write(tmp_path / name, text))
    assert rows == [{"text": "one; two, three", "label": "1"}, {"text": "four, five", "label": "0"}]


@pytest.mark.parametrize(
    ("text", "columns"),
    [("a;b,c\n1,2\n", ["a;b", "c"]), ('"a;b"\n1\n', ["a;b"]), ("a;b\tc\n1\n", ["a;b\tc"])],
)
def test_a_delimiter_that_is_not_clear_is_that_of_the_format(
    tmp_path, text: str, columns: list[str]
) -> None:
    assert list(readers.read_file(write(tmp_path / "a.csv", text))[0]) == columns


def test_a_line_with_another_number_of_columns_tells_the_delimiter(golden, tmp_path) -> None:
    with golden.raises(DataError):
        readers.read_file(write(tmp_path / "a.csv", "text;label\none; two;1\n"))


def test_a_mistyped_file_is_not_looked_for_on_the_hub() -> None:
    with pytest.raises(DataError, match=r"nope.csv: there is no such file"):
        sources.places(settings(source="nope.csv"))


@pytest.mark.parametrize("source", ["csv", "pandas"])
def test_the_name_of_a_format_is_no_data_set(source: str) -> None:
    """`datasets` would read what lies in the working directory, pickles too."""
    with pytest.raises(DataError, match=r"data\.source: the hub has no data set of that name"):
        sources.places(Data(source=source))


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_name_of_a_file_is_a_path_and_no_pattern(tmp_path, suffix: str) -> None:
    folder = tmp_path / "a[b]*?{c,d}"
    folder.mkdir()
    names = [
        f"v1.{suffix}",
        f"v[1].{suffix}",
        f"v*.{suffix}",
        f"v?.{suffix}",
        f"v{{1,2}}.{suffix}",
        f"hf: v.{suffix}",
    ]
    for name in names:
        frame = pandas.DataFrame({"text": [name]})
        if suffix == "parquet":
            frame.to_parquet(folder / name)
        else:
            write(
                folder / name,
                frame.to_csv(index=False)
                if suffix == "csv"
                else frame.to_json(orient="records", lines=True),
            )
    assert [readers.read_file(folder / name) for name in names] == [
        [{"text": name}] for name in names
    ]
    assert sources.places(settings(source=str(folder / names[1]))).evaluate == str(
        folder / names[1]
    )


def test_json_is_read_as_it_is(tmp_path) -> None:
    lines = '{"text": "2009-10-01", "label": 1}\n\n{"text": "b", "score": null}\n'
    assert readers.read_file(write(tmp_path / "a.jsonl", lines)) == [
        {"text": "2009-10-01", "label": 1, "score": None},
        {"text": "b", "label": None, "score": None},
    ]
    assert readers.read_file(write(tmp_path / "a.json", '[{"a": 1},\n {"a": 2}]')) == [
        {"a": 1},
        {"a": 2},
    ]
    assert readers.read_file(write(tmp_path / "b.json", '{"a":\n 1}')) == [{"a": 1}]


def test_a_long_document_is_a_cell(tmp_path) -> None:
    text = "a long document, " * 60_000
    assert (
        readers.read_file(write(tmp_path / "a.csv", f'text,label\n"{text}",1\n'))[0]["text"] == text
    )


def test_parquet_keeps_class_names_and_dictionaries(tmp_path) -> None:
    from datasets import ClassLabel, Dataset, Features, Value

    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features).to_parquet(
        str(tmp_path / "a.parquet")
    )
    assert readers.read_file(tmp_path / "a.parquet") == [
        {"text": "a", "label": "yes"},
        {"text": "b", "label": "no"},
    ]
    pandas.DataFrame({"text": ["a", None, "a"] * 100}).astype("category").to_parquet(
        tmp_path / "b.parquet"
    )
    assert [row["text"] for row in readers.read_file(tmp_path / "b.parquet")] == [
        "a",
        None,
        "a",
    ] * 100


def test_a_small_parquet_file_of_gigabytes_is_refused_early(golden, tmp_path, monkeypatch) -> None:
    import pyarrow
    from pyarrow import parquet

    path, one = tmp_path / "bomb.parquet", pyarrow.array(["x" * 100_000])
    repeated = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 1000, pyarrow.int32()), one)
    parquet.write_table(pyarrow.table({"text": repeated}), path)
    assert path.stat().st_size < 50_000
    monkeypatch.setattr(formats, "MOST_BYTES", 20 * 2**20)
    with golden.raises(DataError):
        readers.read_file(path)
    # The number of rows in the footer is enough.
    parquet.write_table(pyarrow.table({"a": pyarrow.nulls(200_000)}), path)
    with pytest.raises(DataError, match=r"too much memory .*write a file with fewer rows"):
        readers.read_file(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", ""),
        ("a.tsv", "text\tlabel\n"),
        ("a.csv", "\n\n"),
        ("a.csv", '""\n'),
        ("a.doc", "hello"),
        ("a.conll", "hello"),
        ("a.jsonl", '{"text": "a"}\n{"text"\n'),
        ("a.jsonl", '{"text": "a"}\n\nnull\n'),
        ("a.json", '[{"text": "a"}, 1]'),
        ("a.json", '[{"text": "a"},\n {"te'),
        ("a.json", '{"text": ' + "[" * 100_000),
        ("a" * 300 + ".csv", None),
        ("a.csv", "text,label\nfoo,1,\n"),
        ("a.parquet", "not parquet"),
        ("a.csv", 'text,label\na,0\n"b\nc,1\n'),
        ("a.csv", 'text\na\n"'),
        ("a.tsv", "text\tone\rtwo\na\tb\n"),
        ("a.tsv", "text\ttext\na\tb\n"),
        ("a.tsv", "text\tlabel\nfine\t1\nbroken\n"),
    ],
)
def test_bad_files(golden, tmp_path, name: str, text: str | None) -> None:
    path = tmp_path / name
    with golden.raises(DataError):
        readers.read_file(path if text is None else write(path, text))


def test_a_missing_file(tmp_path) -> None:
    with pytest.raises(DataError, match=r"there is no such file or folder; check the path"):
        readers.read_file(tmp_path / "none.tsv")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["train.tsv", "dev.tsv", "test.tsv", "notes.txt"],
            {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"},
        ),
        (["sts-train.tsv", "sts-dev.csv"], {"train": "sts-train.tsv", "validation": "sts-dev.csv"}),
        (
            ["train-00000.parquet", "validation.jsonl"],
            {"train": "train-00000.parquet", "validation": "validation.jsonl"},
        ),
    ],
)
def test_splits_are_recognised_by_name(
    tmp_path, names: list[str], expected: dict[str, str]
) -> None:
    for name in names:
        write(tmp_path / name, "x")
    assert {k: [f.name for f in v] for k, v in sources.find_splits(str(tmp_path)).items()} == {
        k: [v] for k, v in expected.items()
    }


def reviews(folder: Path, per_class: int = 2) -> Path:
    """aclImdb as it is unpacked, with all that is in it beside the reviews."""
    for split in ("train", "test"):
        for label, stars in (("pos", 9), ("neg", 2)):
            (folder / split / label).mkdir(parents=True)
            for number in range(per_class):
                write(
                    folder / split / label / f"{number}_{stars}.txt",
                    f"{split} {label} é<br />{number}",
                )
            write(
                folder / split / f"urls_{label}.txt",
                "http://www.imdb.com/title/tt0453418/usercomments",
            )
        write(folder / split / "labeledBow.feat", "9 0:9 1:1")
    (folder / "train" / "unsup").mkdir()
    write(folder / "train" / "unsup" / "0_0.txt", "nobody knows")
    write(folder / "train" / "pos" / "._0_9.txt", "what another system leaves")
    for name in ("README", "imdb.vocab", "imdbEr.txt"):
        write(folder / name, "the")
    return folder


def test_folders_of_one_text_a_file(tmp_path) -> None:
    source = reviews(tmp_path / "aclImdb")
    found = sources.find_splits(str(source))
    assert found == {"train": [source / "train"], "test": [source / "test"]}
    rows = readers.read_file(source / "train")
    assert rows[0] == {
        "id": "train/neg/0_2",
        "label": "neg",
        "text": "train neg é<br />0",
        "rating": 2,
    }
    assert [row["id"] for row in rows] == [
        "train/neg/0_2",
        "train/neg/1_2",
        "train/pos/0_9",
        "train/pos/1_9",
    ]
    (tmp_path / "own" / "spam").mkdir(parents=True)
    (tmp_path / "own" / "ham").mkdir()
    write(tmp_path / "own" / "spam" / "b.txt", "buy")
    write(tmp_path / "own" / "ham" / "a_1.txt", "hello")
    assert readers.read_file(tmp_path / "own") == [
        {"id": "own/ham/a_1", "label": "ham", "text": "hello"},
        {"id": "own/spam/b", "label": "spam", "text": "buy"},
    ]


def test_folders_of_texts_are_known_by_their_texts_and_classes(tmp_path) -> None:
    source = reviews(tmp_path / "aclImdb")
    given = settings(train=str(source / "train"), test=str(source / "test"), evaluate="test")
    found = sources.places(given)
    assert (found.calibrate, found.evaluate) == (str(source / "train"), str(source / "test"))
    before = found.content()
    write(source / "train" / "unsup" / "1_0.txt", "not read")
    assert found.content().digest == before.digest
    (source / "train" / "neg" / "0_2.txt").rename(source / "train" / "pos" / "0_2.txt")
    assert found.content().digest != before.digest


def test_what_is_evaluated_where_nobody_said(golden, tmp_path, monkeypatch) -> None:
    source = reviews(tmp_path / "aclImdb")
    found = sources.places(settings(source=str(source)))
    assert (Path(found.calibrate).name, Path(found.evaluate).name) == ("train", "test")
    assert found.how == "calibrated from train, evaluated on test, as there is no validation split"
    with golden.raises(DataError):
        sources.places(settings(source=str(source), evaluate="validation"))
    dev = str(write(tmp_path / "dev.csv", "x"))
    found = sources.places(settings(source=str(source), validation=dev))
    assert (found.evaluate, found.how) == (dev, "calibrated from train, evaluated on dev.csv")
    for splits, expected in (
        (["train", "test", "unsupervised"], "test"),
        (["train", "validation", "test"], "validation"),
        ([], "validation"),
    ):
        monkeypatch.setattr(sources, "hub_splits", lambda *given, splits=splits: splits)
        found = sources.places(settings(source="stanfordnlp/imdb"))
        assert (found.hub.name, found.evaluate, found.how.endswith("no validation split")) == (
            "stanfordnlp/imdb",
            expected,
            expected == "test",
        )


def test_imdb_as_it_is_unpacked_is_all_that_a_recipe_need_say(tmp_path, checkpoint) -> None:
    source = reviews(tmp_path / "aclImdb")
    recipe = parse({"model": str(checkpoint("bert")), "task": "imdb", "data": str(source)})
    context = call_of(step_of(recipe, "data"), tmp_path / "run", {})
    summary = context.run()
    assert (summary["calibration_rows"], summary["evaluation_rows"], summary["leaked_rows"]) == (
        4,
        4,
        0,
    )
    assert summary["source"].endswith("evaluated on test, as there is no validation split")
    judged = json.loads((context.work / "evaluation.json").read_text())
    assert judged["gold"] == [0, 0, 1, 1]
    assert judged["inputs"][0] == ["test neg é<br />0"]


def test_bad_folders_of_texts(golden, tmp_path) -> None:
    source = reviews(tmp_path / "aclImdb")
    (source / "test" / "neg" / "1_2.txt").write_bytes("caf\xe9".encode("latin-1"))
    with golden.raises(DataError):
        readers.read_file(source / "test")
    write(source / "test" / "neg" / "1_2.txt", " \n")
    with golden.raises(DataError):
        readers.read_file(source / "test")
    gone = source / "test" / "neg" / "1_2.txt"
    gone.unlink()
    gone.symlink_to(tmp_path / "nowhere")
    for read in (
        readers.read_file,
        lambda path: sources.places(settings(train=str(path), validation=str(path))).content(),
    ):
        with golden.raises(DataError):
            read(source / "test")
    for file in (source / "test" / "neg").iterdir():
        file.unlink()
    missing = r"test: the folder has no texts of two classes \(got pos with .txt files in it, expected a folder for each class"
    with pytest.raises(DataError, match=missing):
        readers.read_file(sources.find_splits(str(source))["test"][0])
    (tmp_path / "empty").mkdir()
    with golden.raises(DataError):
        readers.read_file(tmp_path / "empty")
    with golden.raises(DataError):
        sources.find_splits(str(tmp_path / "empty"))


def settings(**given: object) -> Data:
    return Data.model_validate(given)


def test_two_files_for_one_split_are_an_error_only_if_that_split_is_wanted(
    golden, tmp_path
) -> None:
    for name in ("train.tsv", "dev-en.tsv", "dev-de.tsv"):
        write(tmp_path / name, "x")
    with golden.raises(DataError):
        sources.places(settings(source=str(tmp_path)))
    found = sources.places(settings(source=str(tmp_path), validation=str(tmp_path / "dev-en.tsv")))
    assert found.evaluate.endswith("dev-en.tsv")
    assert not found.alone


def test_names_that_only_begin_like_a_split_are_not_one(tmp_path) -> None:
    for name in (
        "valuable.csv",
        "developers.csv",
        "training.csv",
        "train.csv",
        "testament.txt",
        "eng.testb.tsv",
    ):
        write(tmp_path / name, "x")
    assert set(sources.find_splits(str(tmp_path))) == {"train", "test"}


def test_the_official_conll_files_are_splits(tmp_path) -> None:
    for name in ("eng.train", "eng.testa", "eng.testb"):
        write(tmp_path / name, "x")
    found = sources.find_splits(str(tmp_path))
    assert {split: [f.name for f in files] for split, files in found.items()} == {
        "train": ["eng.train"],
        "validation": ["eng.testa"],
        "test": ["eng.testb"],
    }


def test_a_task_says_which_of_two_versions_it_means(tmp_path) -> None:
    for name in ("train-v1.1.json", "dev-v1.1.json", "dev-v2.0.json"):
        write(tmp_path / name, "{}")
    found = sources.find_splits(str(tmp_path))
    for word in ("v1.1", "v2.0"):
        assert (
            sources.pick_split(found, "validation", where="here", prefer=(word,)).name
            == f"dev-{word}.json"
        )
        assert (
            sources.pick_split(found, "train", where="here", prefer=(word,)).name
            == "train-v1.1.json"
        )
    with pytest.raises(DataError, match="more than one file looks like the validation split"):
        sources.pick_split(found, "validation", where="here", prefer=("json",))


def test_rows_can_come_from_files_named_in_place(tmp_path) -> None:
    for name in ("one.csv", "cal.csv", "train.csv", "dev.csv"):
        write(tmp_path / name, name)
    one = sources.places(settings(source=str(tmp_path / "one.csv")))
    assert one.alone
    named = sources.places(
        settings(
            source=str(tmp_path / "one.csv"), calibrate=str(tmp_path / "cal.csv"), evaluate="all"
        )
    )
    assert (named.alone, Path(named.calibrate).name, Path(named.evaluate).name) == (
        False,
        "cal.csv",
        "one.csv",
    )
    before = named.content()
    write(tmp_path / "cal.csv", "changed")
    assert named.content() != before
    with pytest.raises(DataError, match=r"none.csv: there is no such file"):
        sources.places(settings(source=str(tmp_path), evaluate=str(tmp_path / "none.csv")))


def test_a_hub_id_is_not_taken_for_a_path(golden, tmp_path) -> None:
    found = HubData(name="nyu-mll/glue", config="mrpc", commit=None)
    assert sources.places(settings(source="nyu-mll/glue", config="mrpc")).hub == found
    assert sources.places(settings(source="nyu-mll/glue/mrpc")).hub == found
    with pytest.raises(DataError, match="there is no such file or folder"):
        sources.places(settings(source="./nowhere"))
    with golden.raises(DataError):
        readers.read_hub("nobody/nothing", None, "train", None)


def test_a_folder_without_a_recognised_file(golden, tmp_path) -> None:
    write(tmp_path / "rows.tsv", "x")
    with golden.raises(DataError):
        sources.find_splits(str(tmp_path))
    with pytest.raises(DataError, match="there is no such file or folder"):
        sources.find_splits(str(tmp_path / "nowhere"))


def test_an_unknown_split(golden) -> None:
    with golden.raises(DataError):
        sources.pick_split(
            {"train": [], "validation": []}, "validatoin", where="data.evaluate.from"
        )


def test_leakage_is_refused_however_the_white_space_falls(golden) -> None:
    calibration = [sampling.row_digest(("a  b", "c")), sampling.row_digest(("x", "y"))]
    evaluation = [sampling.row_digest(("q", "r")), sampling.row_digest((" a b", "c "))]
    with golden.raises(DataError):
        sampling.refuse_leakage(calibration, evaluation)
    sampling.refuse_leakage(calibration[1:], evaluation)


def test_a_single_file_is_held_apart() -> None:
    digests = [sampling.row_digest((f"row {i // 2}",)) for i in range(100)]
    first, second = sampling.hold_out(digests, 20, seed=0)
    assert sorted(first + second) == list(range(100))
    assert len(first) == 40
    assert not {digests[i] for i in first} & {digests[i] for i in second}
    assert len(sampling.hold_out(digests, 1000, seed=0)[0]) == 50


@pytest.mark.parametrize(
    ("rows", "repeated", "expected"),
    [
        (300, 1, (150, 150)),
        (9, 1, (4, 5)),
        (2, 1, (1, 1)),
        (40, 2, (20, 40)),
        (2000, 1, (256, 1000)),
    ],
)
def test_rows_that_are_too_few_to_calibrate_and_to_search_on_are_shared(
    checkpoint, tmp_path, rows: int, repeated: int, expected: tuple[int, int]
) -> None:
    tables = {"train": range(rows), "validation": range(9000, 9020)}
    for name, numbers in tables.items():
        lines = [
            f"text {i}\t{i % 2}" for i in numbers for _ in range(repeated if name == "train" else 1)
        ]
        write(tmp_path / f"{name}.tsv", "\n".join(["sentence\tlabel", *lines]) + "\n")
    raw = {
        "model": str(checkpoint("bert")),
        "task": "sst2",
        "data": str(tmp_path),
        "accuracy": {"max_drop": 0.01},
    }
    context = call_of(step_of(parse(raw), "data"), tmp_path / "run", {})
    summary = context.run()
    calibrated, tuned = summary["calibration_rows"], summary["tuning_rows"]
    assert (calibrated, summary["evaluation_rows"], summary["tuning_split"]) == (
        expected[0],
        20,
        "train",
    )
    calibration = json.loads((context.work / "calibration.json").read_text())["inputs"]
    tuning = json.loads((context.work / "tuning.json").read_text())[-1]["inputs"]
    assert not {tuple(text) for text in calibration} & {tuple(text) for text in tuning}
    # Of rows that occur twice, both may be calibrated on.
    assert tuned == expected[1] if repeated == 1 else tuned >= expected[1]


@pytest.mark.parametrize(
    ("rows", "search", "expected"),
    [(30, True, (10, 10, 10)), (30, False, (15, 0, 15)), (3, True, (1, 1, 1))],
)
def test_one_file_is_shared_by_all_parts(
    checkpoint, tmp_path, rows: int, search: bool, expected: tuple[int, ...]
) -> None:
    lines = [f"text {i}\t{i % 2}" for i in range(rows)]
    file = write(tmp_path / "rows.tsv", "\n".join(["sentence\tlabel", *lines]) + "\n")
    raw = {"model": str(checkpoint("bert")), "task": "sst2", "data": str(file)}
    recipe = parse({**raw, **({"accuracy": {"max_drop": 0.01}} if search else {})})
    summary = call_of(step_of(recipe, "data"), tmp_path / "run", {}).run()
    assert (
        tuple(summary[f"{part}_rows"] for part in ("calibration", "tuning", "evaluation"))
        == expected
    )


def test_samples_are_reproducible_and_without_replacement() -> None:
    assert sampling.sample(100, 10, 1) == sampling.sample(100, 10, 1) != sampling.sample(100, 10, 2)
    assert len(set(sampling.sample(100, 10, 1))) == 10
    assert sampling.sample(5, 10, 1) == [0, 1, 2, 3, 4]


@pytest.mark.needs_shared
@pytest.mark.parametrize(
    ("path", "rows", "columns"),
    [
        ("mrpc/train.tsv", 3668, {"Quality", "#1 String", "#2 String"}),
        ("mrpc/validation.tsv", 408, {"Quality", "#1 String", "#2 String"}),
        ("sst2/dev.tsv", 872, {"sentence", "label"}),
        ("rte/dev.tsv", 277, {"sentence1", "sentence2", "label"}),
        ("cola/dev.tsv", 1043, {"sentence", "label"}),
        ("stsb/sts-dev.tsv", 1500, {"sentence1", "sentence2", "score"}),
        ("imdb/test.jsonl", 3000, {"text", "label"}),
    ],
)
def test_the_real_files_load_as_they_are(shared, path: str, rows: int, columns: set[str]) -> None:
    found = readers.read_file(shared / "data" / path)
    assert len(found) == rows
    assert columns <= set(found[0])
    texts = [c for c in columns if c not in ("label", "Quality", "score")]
    assert all(str(row[c]).strip() for row in found for c in texts)


# ---- slices of splits


@pytest.mark.parametrize(
    ("span", "kept"),
    [("", range(20)), ("[:3]", range(3)), ("[5:7]", range(5, 7)), ("[-2:]", range(18, 20)), ("[:10%]", range(2)), ("[50%:60%]", range(10, 12))],
)  # fmt: skip
def test_a_slice_of_a_split_is_read_as_datasets_reads_it(tmp_path, span: str, kept: range) -> None:
    for name in ("train", "dev"):
        write(tmp_path / f"{name}.csv", "text\n" + "".join(f"{name} {i}\n" for i in range(20)))
    found = sources.places(
        settings(source=str(tmp_path), calibrate=f"train{span}", evaluate=f"validation{span}")
    )
    where, rows = readers.read(found.calibrate, hub=None, revision=None, columns=())
    assert [row["text"] for row in rows] == [f"train {i}" for i in kept]
    # Rows keep their numbers in the file.
    assert [row["__row__"] for row in rows] == [i + 1 for i in kept]
    assert where == str(tmp_path / "train.csv") + span
    assert found.how == f"calibrated from train.csv{span}, evaluated on dev.csv{span}"
    content = found.content()
    assert content.summary(file_stamp) == content.stamp
    assert content.summary(file_digest) == content.digest
    whole = sources.places(
        settings(source=str(tmp_path), calibrate="train", evaluate="validation")
    ).content()
    assert (whole.digest == content.digest) == (not span)


def test_a_slice_of_a_file_beside_the_recipe(tmp_path) -> None:
    write(tmp_path / "own.csv", "text\na\nb\nc\n")
    raw = {
        "model": "m",
        "task": "mrpc",
        "data": {"train": "own.csv", "validation": "own.csv", "calibrate": "own.csv[1:]"},
    }
    found = sources.places(parse(raw, base=tmp_path).data)
    assert found.calibrate == f"{tmp_path / 'own.csv'}[1:]"
    assert [
        r["text"] for r in readers.read(found.calibrate, hub=None, revision=None, columns=())[1]
    ] == ["b", "c"]


@pytest.mark.parametrize(
    "name", ["train[:x]", "train[3]", "train[:5]+validation[:5]", "train[10:20]", "train[2:2]"]
)
def test_a_slice_that_is_none(golden, tmp_path, name: str) -> None:
    for split in ("train", "dev"):
        write(tmp_path / f"{split}.csv", "text\na\nb\nc\n")
    given = settings(source=str(tmp_path), calibrate=name)
    with golden.raises(DataError):
        readers.read(sources.places(given).calibrate, hub=None, revision=None, columns=())


def test_a_slice_of_the_rows_of_a_function(tmp_path) -> None:
    code = write(
        tmp_path / "mine.py",
        "def rows(split):\n    return [{'text': f'{split} {i}'} for i in range(10)]\n",
    )
    found = sources.places(
        settings(source=f"{code}:rows", calibrate="train[2:4]", evaluate="train[50%:]")
    )
    read = [found.functions[place].read() for place in (found.calibrate, found.evaluate)]
    assert [[row["text"] for row in rows] for _, rows in read] == [
        ["train 2", "train 3"],
        [f"train {i}" for i in range(5, 10)],
    ]
    assert read[0][0] == "mine.py:rows('train')[2:4]"
