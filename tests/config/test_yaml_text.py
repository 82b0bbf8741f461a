"""Recipe files of somebody else: they are read as plain data, in little memory, and no key of them is lost in silence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import octobert
from octobert.config import loading, yaml_text
from octobert.core.errors import RecipeError

GOOD = "model: m\ntask: mrpc\ndata: d\n"


def bomb(anchors: int) -> str:
    """Each anchor is a list of nine aliases of the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for number in range(1, anchors):
        lines.append(f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        bomb(10),
        f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 20_000)}]",
        "a: &a [*a]",
        GOOD + "model: other\n",
        GOOD + "benchmark: {repeats: 3, repeats: 4}\n",
        "[" * 5000,
        GOOD + "#" * 300_000,
        GOOD + "seed: " + "9" * 5000,
        GOOD + "seed: 2026-02-31",
        GOOD + "seed: !!python/object/apply:os.system ['true']",
        GOOD + "seed: !mine 3",
        GOOD + "? [a, b]\n: 1\n",
        "model: \x07",
        "%YAML 1.1\n---\nmodel: m\n---\nmodel: n\n",
    ],
)  # fmt: skip
def test_files_of_an_enemy(golden, tmp_path: Path, text: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with golden.raises(RecipeError):
        loading.load(path)


def test_bytes_that_are_no_text(golden, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"model: \xff\xfe\n")
    with golden.raises(RecipeError):
        loading.load(path)
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    assert loading.load(path).model == "m"


@pytest.mark.parametrize("name", ["x" * 300 + ".yaml", "a\0b.yaml", "."])
def test_names_that_are_no_file(golden, name: str) -> None:
    with golden.raises(RecipeError):
        loading.load(Path(name))


def test_a_missing_recipe_is_named_with_the_folder_where_it_was_looked_for(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        loading.load(Path("recipes/mine.yaml"))
    assert (
        str(caught.value)
        == f"{tmp_path / 'recipes' / 'mine.yaml'}: the recipe file does not exist; check the path."
    )


@pytest.mark.parametrize("text", [bomb(10), "{a: 1, a: 2}", "!!python/name:os.system ''"])
def test_values_on_the_command_line(text: str) -> None:
    with pytest.raises(RecipeError, match="--set task"):
        loading.changed({}, [f"task={text}"])
    with pytest.raises(RecipeError, match="--task"):
        yaml_text.parse(text, where="--task")


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("allow_code: true", "--allow-code"),
        ("allow_pickle: true", "--allow-pickle"),
        ("training: {machines: 2, rendezvous: 'far:29500'}", "--set training.rendezvous=far:29500"),
        ("training: {tensorboard: ../logs}", "--set training.tensorboard=../logs"),
        ("cache: ~/shop", "--set 'cache=~/shop'"),
        ("cache: results", "--set cache=results"),
        ("executor: ray", "--set executor=ray"),
    ],
)
def test_a_file_can_neither_allow_its_own_code_nor_say_where_to_write(
    golden, tmp_path: Path, line: str, option: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(f"{GOOD}finetune: {{code: 'mine.py:train'}}\n{line}\n")
    with golden.raises(RecipeError) as caught:
        octobert.load_recipe(path)
    assert f"if you want it, add {option} to the command" in str(caught.value)


def test_a_file_may_say_what_holds_without_it(tmp_path: Path) -> None:
    """As a recipe that was written with all its keys."""
    path = tmp_path / "r.yaml"
    path.write_text(f"{GOOD}executor: local\ncache: null\nallow_code: false\n")
    assert octobert.load_recipe(path).executor == "local"


@pytest.mark.parametrize("revision", ["../../../.ssh/id_rsa", "/etc/passwd", "refs/../../x", ""])
def test_a_revision_is_no_path(golden, revision: str) -> None:
    for raw in ({"revision": revision}, {"data": {"source": "d", "revision": revision}}):
        with golden.raises(RecipeError):
            loading.parse({"model": "m", "task": "mrpc", "data": "d", **raw})
    assert (
        loading.parse({"model": "m", "task": "mrpc", "data": "d", "revision": "refs/pr/1"}).revision
        == "refs/pr/1"
    )


def test_the_user_allows_code_and_the_recipe_is_written_without_that(
    golden, tmp_path: Path
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(GOOD + "finetune: {code: 'mine.py:train'}\n")
    with golden.raises(RecipeError):
        loading.load(path)
    changes = [
        "allow_code=true",
        "training.rendezvous=near:1",
        "cache=c",
    ]
    recipe = loading.load(path, changes)
    assert (recipe.allow_code, recipe.cache) == (True, "c")
    path.write_text(loading.as_file(recipe))
    assert not {"allow_code", "training", "cache"} & set(re.findall(r"\w+", path.read_text()))
    assert loading.load(path, ["allow_code=true"]).finetune == recipe.finetune


def test_a_key_that_is_gone_says_what_to_do_instead(golden) -> None:
    search = {"space": {"calibrate": ["mse"]}, "storage": "t.log", "study": "mine"}
    with golden.raises(RecipeError):
        loading.parse({"model": "m", "task": "mrpc", "data": "d", "prune": 1.3, "search": search})


def test_a_target_that_is_gone_says_what_to_use_instead(golden) -> None:
    with golden.raises(RecipeError):
        loading.parse(
            {"model": "m", "task": "mrpc", "data": "d", "targets": ["torch-cpu", "torch-cuda"]}
        )
