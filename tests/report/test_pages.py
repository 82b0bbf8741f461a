"""`octobert report`: the page of a run made again, and one page of several runs."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import octobert
from octobert.core.limits import rows_needed
from octobert.core.lock import locked
from octobert.engine import publishing
from octobert.engine.publishing import HIDDEN
from octobert.report.page import is_page, show_reports
from octobert.report.page.comparison import section
from octobert.report.verdict import verdict
from tests.support.cli import octobert as command
from tests.support.columns import columns, with_columns
from tests.support.reports import rich_report, rich_run
from tests.support.selections import MACHINE
from tests.support.single_changes import cases, changed

# Of a run that measured nothing.
BARE = {"scores": {}, "comparisons": (), "latencies": (), "footprints": (), "speedups": ()}
TEXT = rich_run(changed=1).evidence.changed[0].rows[0].texts[0]


@pytest.fixture(scope="module")
def files() -> tuple[str, str]:
    """`report.json` and `evidence.json` of a run."""
    run = rich_run(rows=20, changed=2)
    return run.report.model_dump_json(), run.evidence.model_dump_json()


@pytest.fixture
def out(tmp_path: Path, files: tuple[str, str]) -> Path:
    """An output directory."""
    return made(tmp_path / "out", files)


def made(folder: Path, files: tuple[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in zip(("report.json", "evidence.json"), files, strict=True):
        (folder / name).write_text(text)
    return folder


def test_the_page_is_made_again_where_it_was(out: Path) -> None:
    done = command("report", out)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"Report   {out / 'report.html'}\n"
    first = (out / "report.html").read_bytes()
    assert is_page(first)
    assert octobert.page(out) == out / "report.html"
    assert (out / "report.html").read_bytes() == first
    # Nothing half-written stays.
    assert sorted(path.name for path in out.iterdir()) == [
        "evidence.json",
        "report.html",
        "report.json",
    ]


def test_a_run_without_evidence_has_a_page(out: Path) -> None:
    (out / "evidence.json").unlink()
    assert is_page(octobert.page(out).read_bytes())


def test_a_file_of_the_user_is_not_replaced(golden, out: Path, tmp_path: Path) -> None:
    page = octobert.page(out)
    page.write_text(page.read_text().replace("<h1>", "<h1>My "))
    edited = page.read_bytes()
    done = command("report", out)
    assert done.returncode == octobert.StorageError.exit_code
    golden(done.stderr)
    assert page.read_bytes() == edited
    assert octobert.page(out, out=tmp_path / "other.html") == tmp_path / "other.html"


def test_a_page_that_a_run_published_may_be_replaced(out: Path) -> None:
    """Pages of octobert 0.1 have no digest of their own; what was published is recorded."""
    from octobert.core.files import text_digest

    (out / "report.html").write_text("<title>octobert</title>")
    (out / ".octobert").mkdir()
    record = {"files": {"report.html": {"": text_digest("<title>octobert</title>")}}}
    (out / ".octobert" / "published.json").write_text(json.dumps(record))
    assert is_page(octobert.page(out).read_bytes())


def damaged(out: Path, change: Callable[[dict], object]) -> str:
    report = json.loads((out / "report.json").read_text())
    change(report)
    (out / "report.json").write_text(json.dumps(report))
    return str(out)


WRONG: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "no folder": lambda out: (str(out / "none"),),
    "a file": lambda out: (str(out / "report.json"),),
    "no report": lambda out: (str(out.parent),),
    "a package": lambda out: (
        ((out / "octobert.json").write_text("{}") and (out / "report.json").unlink()) or (str(out),)
    ),
    "twice": lambda out: (str(out), f"{out}/../out"),
    "no JSON": lambda out: ((out / "report.json").write_text("{") and str(out),),
    "evidence": lambda out: ((out / "evidence.json").write_text("[]") and str(out),),
    "a newer octobert": lambda out: (
        damaged(
            out,
            lambda r: r["environment"]["versions"].update(octobert="99.1") or r.update(new=1),
        ),
    ),
    "a recipe of a newer octobert": lambda out: (
        damaged(
            out,
            lambda r: (
                r["environment"]["versions"].update(octobert="99.1") or r["recipe"].update(new=1)
            ),
        ),
    ),
    "an earlier octobert": lambda out: (damaged(out, lambda r: r.update(pruning=None)),),
    "another name among the sizes": lambda out: (
        damaged(out, lambda r: r["models"][0]["footprint"].update(candidate="x")),
    ),
    "a shape that one model lacks": lambda out: (
        damaged(out, lambda r: r["models"][0]["times"][1].update(sequence=77)),
    ),
    "a model without scores": lambda out: (
        damaged(out, lambda r: r["models"][0]["scores"].clear()),
    ),
    "a damaged recipe": lambda out: (damaged(out, lambda r: r["recipe"].pop("model")),),
    "no such folder for the page": lambda out: (str(out), "--out", str(out / "a" / "b.html")),
    "a folder as page": lambda out: (str(out), "--out", str(out)),
}


CONTRADICTIONS: dict[str, tuple[str, Callable[[dict], object]]] = {
    "times of no model": (
        "report.json",
        lambda r: r["models"][0]["times"][0].update(candidate="other"),
    ),
    "a comparison with no model": (
        "report.json",
        lambda r: r["models"][2]["against_float"].update(reference="other"),
    ),
    "a speedup over no model": (
        "report.json",
        lambda r: r["models"][2]["speedups"][0].update(reference="other"),
    ),
    "a model without scores": (
        "report.json",
        lambda r: r["models"][1]["scores"].clear(),
    ),
    "a model without times": ("report.json", lambda r: r["models"][0]["times"].clear()),
    "a model twice": ("report.json", lambda r: r["models"].append(r["models"][0])),
    "half an interval": (
        "report.json",
        lambda r: next(find(r["plans"], "quantizer"))["quantizer"].update(low=0.5, high=None),
    ),
    "an interval of another target": (
        "evidence.json",
        lambda r: next(find(r, "intervals")).update(clipped={"other": 0.0}),
    ),
    "changed rows without one": (
        "evidence.json",
        lambda r: next(find(r, "changed"))["changed"][0].update(total=9, rows=[]),
    ),
}


def find(value: object, key: str) -> Iterator[dict]:
    """The objects in a document that have something under this key."""
    if isinstance(value, dict) and value.get(key):
        yield value
    for inner in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from find(inner, key)


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_file_whose_parts_do_not_agree_is_damaged(out: Path, name: str) -> None:
    file, change = CONTRADICTIONS[name]
    content = json.loads((out / file).read_text())
    change(content)
    (out / file).write_text(json.dumps(content))
    with pytest.raises(octobert.StorageError, match=f"{file}: the file is damaged"):
        octobert.page(out, out=out / "new.html")
    assert not (out / "new.html").exists()


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_are_one_sentence(golden, out: Path, name: str) -> None:
    done = command("report", *WRONG[name](out))
    assert done.returncode in (octobert.RecipeError.exit_code, octobert.StorageError.exit_code)
    golden(done.stderr)
    assert done.stderr.count("\n") == 1
    assert not (out / "report.html").exists()


def test_several_runs_are_one_page_in_the_working_directory(
    out: Path, tmp_path: Path, files
) -> None:
    other = made(tmp_path / "elsewhere" / "out", files)
    done = command("report", out, other, "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == {"page": "comparison.html", "mlflow": []}
    text = (tmp_path / "comparison.html").read_text()
    assert "2 runs side by side" in text
    assert (
        'role="tab" id="tab-2" aria-controls="run-2" aria-selected="false">elsewhere/out</button>'
        in text
    )
    assert f">{tmp_path.name}/out</button>" in text


def test_a_page_without_texts(out: Path) -> None:
    assert TEXT in (out / "evidence.json").read_text()
    shown = octobert.page(out, texts=False).read_bytes()
    octobert.page(out, out=out / "with.html")
    assert len(shown) <= len((out / "with.html").read_bytes())
    assert TEXT.encode() not in shown


def test_runs_are_compared(golden) -> None:
    other = MACHINE.model_copy(update={"cpu": "Other Processor", "cores": 4})
    runs = [rich_run("laptop", rows=20), rich_run("server", rows=20, slower=0.5, environment=other)]
    found = section(runs)
    assert found.title == "2 runs side by side"
    ((sentence, table),) = found.values["tables"]
    assert [(row.cells[0].plain, row.cells[2].plain) for row in table.rows] == [
        (run, model) for run in ("laptop", "server") for model in ("ort-cpu", "openvino-cpu")
    ]
    assert found.values["differs"] == {
        "processor": ["Some Processor", "Other Processor"],
        "cores": ["8", "4"],
    }
    assert "model" in found.values["same"]
    golden(sentence)
    assert found.values["careful"] == ""
    assert found.data is not None
    assert len(found.data["raw"]) == 2 * 8


def test_runs_of_different_models_come_with_a_warning(golden) -> None:
    runs = [rich_run("one", rows=20), rich_run("other", rows=21, model_digest="0" * 64)]
    found = section(runs).values
    golden(found["careful"])
    # Times on different rows are not ranked.
    assert [(table.title, sentence) for sentence, table in found["tables"]] == [
        ("mrpc: 20 of glue", ""),
        ("mrpc: 21 of glue", ""),
    ]


def test_runs_without_measurements_or_a_common_shape() -> None:
    found = section([rich_run("one", rows=20), rich_run("bare", rows=20, **BARE)])
    ((sentence, table),) = found.values["tables"]
    assert table.columns[5].name == "ms (median)"
    assert [(row.cells[0].plain, " at " in row.cells[5].plain) for row in table.rows] == [
        ("one", True)
    ] * 2
    assert sentence != ""
    assert section([rich_run("a", rows=20, **BARE), rich_run("b", rows=20, **BARE)]).data is None


def test_a_report_shows_itself_in_a_notebook() -> None:
    """The verdict, a table of all models, and where the page is; nothing that a notebook would have to trust."""
    show_reports()
    report = rich_report(rows=20)
    shown = report._repr_html_()
    assert verdict(report).sentence in shown
    # Two float models, scores and times at four shapes; models in 8 bits are marked.
    assert (shown.count("<tr>"), shown.count('<tr class="int8">')) == (2 + 2 + 4 * 2, 2 + 4 * 2)
    assert "0.8640 [0.831, 0.896]" in shown
    assert "report.html" in shown
    assert "<script" not in shown
    named = with_columns(
        report,
        {
            "footprints": (
                columns(report).footprints[0].model_copy(update={"precision": "<img src=x>"}),
            )
        },
    )
    hostile = with_columns(
        named,
        {"latencies": tuple(x for x in columns(report).latencies if x.candidate == "ort-f32")},
    )
    assert "&lt;img src=x&gt;" in hostile._repr_html_()
    assert "<img" not in hostile._repr_html_()


def test_a_report_without_measurements_has_no_table_in_a_notebook() -> None:
    show_reports()
    shown = rich_report(rows=20, **BARE)._repr_html_()
    assert "<table" not in shown
    assert "report.html" in shown


def test_a_run_replaces_a_page_that_was_made_again_and_keeps_one_that_was_edited(out: Path) -> None:
    def publish(text: str) -> list[str]:
        with locked(out / HIDDEN) as lock:
            return publishing.publish(out, {}, {"report.html": text}, lock, fetch=lambda _: None)

    file = octobert.page(out, texts=False)
    assert publish("new") == []
    file = octobert.page(out, texts=False)
    file.write_bytes(file.read_bytes().replace(b"<h1>", b"<h1>My ", 1))
    (note,) = publish("newer")
    assert "yours is now" in note
    assert "<h1>My " in (out / "report.html.old").read_text()


@pytest.mark.parametrize("count", [[], {}, "many"])
def test_a_number_of_truncated_texts_that_is_none_is_left_out(out: Path, count: object) -> None:
    content = json.loads((out / "report.json").read_text())
    stage = next(stage for name, stage in content["stages"].items() if name.startswith("evaluate/"))
    stage["summary"]["truncated"] = count
    (out / "report.json").write_text(json.dumps(content))
    assert octobert.page(out, out=out / "new.html").is_file()


@pytest.mark.parametrize(
    ("rows", "reach", "room"),
    [(0, 0.1, 0.01), (40, math.nan, 0.01), (40, 0.1, math.inf), (40, 0.1, math.nan)],
)
def test_no_number_of_rows_is_named_where_the_figures_say_nothing(
    rows: int, reach: float, room: float
) -> None:
    assert rows_needed(rows, reach, room) is None


# With steps that share no factor with the number of values, each value comes to places of every kind, and every place gets some.
@pytest.mark.parametrize("step", [53, pytest.param(3, marks=pytest.mark.slow)])
def test_any_value_of_a_record_may_be_wrong(out: Path, files, step: int) -> None:
    """Its page is made, or the file is refused in a sentence."""
    for name, text in zip(("report.json", "evidence.json"), files, strict=True):
        document = json.loads(text)
        for path, value in cases(document)[::step]:
            (out / name).write_text(json.dumps(changed(document, path, value)))
            with contextlib.suppress(octobert.OctobertError):
                octobert.page(out, out=out / "new.html").unlink()
        (out / name).write_text(text)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("report.json", ("models", 2, "against_float", "high"), None),
        ("report.json", ("models", 2, "against_float", "low"), -1e308),
        ("report.json", ("data", "evaluation_rows"), 10**30),
        ("report.json", ("models", 0, "footprint", "model_bytes"), 10**400),
        ("report.json", ("recipe", "data", "calibrate"), "x"),
        ("report.json", ("recipe", "quantize"), [{}]),
        ("report.json", ("recipe", "targets"), [[]]),
        ("evidence.json", ("smoothed", 0, "after"), []),
        ("evidence.json", ("smoothed", 0, "before", 0), float("inf")),
    ],
)
def test_values_that_pass_the_types(out: Path, name: str, path, value) -> None:
    (out / name).write_text(json.dumps(changed(json.loads((out / name).read_text()), path, value)))
    with contextlib.suppress(octobert.StorageError):
        octobert.page(out, out=out / "new.html")
