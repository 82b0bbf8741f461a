"""A report as Markdown: what it says, that no name in it is markup, and which files it replaces."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import octobert
from octobert.api import clients
from octobert.core.errors import RecipeError, StorageError
from octobert.core.files import is_page
from octobert.report.markdown import markdown
from octobert.report.tables import as_markdown, table_of
from tests.support import reports
from tests.support.enemies import ENEMIES
from tests.support.reports import MACHINE, rich_report, rich_run
from tests.support.selections import selection

OTHER_MACHINE = MACHINE.model_copy(update={"cpu": "Other Processor", "cores": 4})


@pytest.fixture(autouse=True)
def _three_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "LAYERS", 3)


def shown(*runs: Any) -> str:
    """The text without its seal."""
    text = markdown(runs)
    assert is_page(text.encode())
    return text[: text.rindex("<!--")]


def test_a_run(golden) -> None:
    golden(shown(rich_run()))


def test_a_search(golden) -> None:
    golden(shown(rich_run(kind="question-answering", choice=selection(), plans={}, searches={})))


def test_several_runs_begin_side_by_side(golden) -> None:
    runs = [rich_run("laptop", rows=20), rich_run("server", rows=20, environment=OTHER_MACHINE)]
    text = shown(*runs)
    golden(text[: text.index("# laptop")])
    assert text.index("# 2 runs side by side") < text.index("# laptop") < text.index("# server")


def test_what_was_not_measured_has_no_tables() -> None:
    bare = {"scores": {}, "comparisons": (), "latencies": (), "footprints": (), "speedups": ()}
    assert "|" not in shown(rich_run(**bare))


def test_the_same_figures_are_on_the_page_and_in_a_terminal() -> None:
    """One table, three forms: every cell of Markdown stands in the report's own table."""
    text = shown(rich_run())
    for score in (score for figures in rich_report().models for score in figures.scores[:1]):
        assert f"{score.value:.4f} [{score.low:.3f}, {score.high:.3f}]" in text


@pytest.mark.parametrize("enemy", ENEMIES)
def test_no_name_is_markup(enemy: str) -> None:
    name = f"{enemy} | [x](javascript:y) **b** `c` ~~~~"
    report = rich_report(environment=MACHINE.model_copy(update={"cpu": name}))
    recipe = {**report.recipe, "model": name, "data": {**report.recipe["data"], "source": name}}
    text = shown(rich_run(name, recipe=recipe, environment=report.environment))
    outside = re.sub(r"(~{3,})yaml\n.*?\n\1\n", "", text, flags=re.DOTALL)
    assert len(re.findall("~{5,}", text)) == 2
    assert not re.search(r"(?<!\\)<(?!/?(details|summary)>)", outside)
    assert not re.search(r"\](?!\\)[(:\[]", outside)
    assert not re.search("[\x00-\x08\x1b\u202e]", text)


# What programs make of a text: links, mentions and numbers of issues are searched for in what Markdown shows.
PARSER = MarkdownIt("gfm-like", {"html": True, "linkify": True})
PLAIN = {"paragraph_open", "paragraph_close", "inline", "text", "text_special"}
MENTION = re.compile(r"(?<![\w/])@\w|(?<!\w)#\d")
PIECES = (
    *(
        "@mention",
        "a @b",
        "x@example.com",
        "mailto:x@example.com",
        "https://example.com/a.b?c=d&e#f",
    ),
    *(
        "http://a.example.com",
        "www.example.com",
        "//example.com",
        "ftp://example.com",
        "#12",
        "owner/repo#12",
    ),
    *(
        "![x](y)",
        "[x](y)",
        "[x][y]",
        "[x]: y",
        "<b>",
        "</b>",
        "<!--",
        "&lt;",
        "&#64;a",
        "<http://a.bc>",
    ),
    *(
        "# x",
        "## ",
        "---",
        "***",
        "- x",
        "+ x",
        "* x",
        "1. x",
        "2) x",
        "- [ ] x",
        "[ ] x",
        "===",
        "> x",
    ),
    *(
        "| a | b |",
        "| --- |",
        "~~x~~",
        "```",
        "~~~",
        "`x`",
        "**x**",
        "__x__",
        "$x$",
        "\\",
        "\n\n",
        " ",
        "x",
    ),
)


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=6).map("".join))
@settings(max_examples=300, deadline=None)
def test_a_text_is_only_text(text: str) -> None:
    """Alone, in a list, a heading, a quotation and a table, whatever is before and behind it in the text."""
    as_text = as_markdown(text)
    for before, after, around in (
        ("", "", set()),
        ("- ", "", {"bullet_list", "list_item"}),
        ("# ", "", {"heading"}),
        ("> ", "", {"blockquote"}),
        ("| a | b |\n| --- | --- |\n| ", " | x |", {"table", "thead", "tbody", "tr", "th", "td"}),
    ):
        tokens = [
            token
            for block in PARSER.parse(f"x\n\n{before}{as_text}{after}\n")
            for token in (block, *(block.children or ()))
        ]
        allowed = PLAIN | {f"{name}_{end}" for name in around for end in ("open", "close")}
        assert {token.type for token in tokens} <= allowed, (before, as_text)
        for block in tokens:
            shown = "".join(t.content for t in block.children or () if t.type == "text")
            assert not MENTION.search(shown), as_text
        assert sum(token.type == "td_open" for token in tokens) in (0, 2)


@pytest.mark.parametrize("piece", [piece.strip() for piece in PIECES if piece.strip()])
def test_a_text_is_shown_as_it_is(piece: str) -> None:
    """But for joiners, which nobody sees."""
    shown = [
        token.content
        for block in PARSER.parse(as_markdown(piece))
        for token in block.children or ()
        if token.type in ("text", "text_special")
    ]
    assert "".join(shown).replace("\u2060", "") == " ".join(piece.split())


@pytest.mark.parametrize(
    "figure", ["-0.5", "nDCG@10", "recall@0.95", "a.b.c-d", "(0.5)", "0.8 [0.7, 0.9]"]
)
def test_figures_and_names_stay_readable(figure: str) -> None:
    assert as_markdown(figure) == figure


@pytest.mark.parametrize("piece", ["@mention", "https://example.com", "www.example.com", "#12"])
def test_a_card_has_the_same_text_as_a_report(piece: str) -> None:
    assert clients._as_text(piece) == as_markdown(piece)


def test_every_row_of_a_table_has_its_columns() -> None:
    table = table_of("", ("a|b", "c"))
    table.add_row("x|y")
    table.add_row("1\n[2, 3]", "", style="bold")
    lines = table.markdown().splitlines()
    assert lines == ["| a\\|b | c |", "| --- | --- |", "| x\\|y |  |", "| **1 [2, 3]** |  |"]
    assert as_markdown("a\n\n# b") == "a \\# b"


def test_a_file_that_somebody_edited_is_not_replaced(finished, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    shutil.copy(finished[1] / "report.json", out)
    file = octobert.page(out, format="markdown")
    assert file == out / "report.md"
    assert octobert.page(out, format="markdown").read_bytes() == file.read_bytes()
    file.write_text(file.read_text().replace("# ", "# My ", 1))
    with pytest.raises(StorageError, match=r"--out FILE\.md"):
        octobert.page(out, format="markdown")
    assert file.read_text().startswith("# My ")


@pytest.mark.parametrize(
    ("keys", "got"),
    [
        ({"format": "docx"}, "html or markdown"),
    ],
)
def test_forms_that_a_page_has_not(finished, keys: dict[str, Any], got: str) -> None:
    with pytest.raises(RecipeError, match=f"the page has no such form.*{got}"):
        octobert.page(finished[1], **keys)
