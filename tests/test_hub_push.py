"""`octobert push`: the model card, and what reaches a hub on this machine."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt

import octobert
from octobert.core.results import PACKAGE_FILE
from tests.support.cli import octobert as command
from tests.support.columns import columns
from tests.support.single_changes import cases, changed
from tests.support.web import Web, serving

REPO = "me/tiny-int8"
TOKEN = "hf_this_is_a_secret"


@pytest.fixture
def package(finished: tuple[Any, Path, Any], tmp_path: Path) -> Path:
    """A package of the tiny classifier, with the report of its run beside it."""
    shutil.copytree(finished[1] / "ort-cpu", tmp_path / "out" / "ort-cpu")
    shutil.copy(finished[1] / "report.json", tmp_path / "out")
    return tmp_path / "out" / "ort-cpu"


def test_the_card_has_the_figures_of_the_report(package: Path, finished) -> None:
    pushed = octobert.push(package, REPO, license="apache-2.0", dry_run=True)
    assert (pushed.repo, pushed.commit) == (REPO, None)
    manifest, report = octobert.manifest(package), finished[2]
    assert set(pushed.files) == {"README.md", PACKAGE_FILE, *manifest.files}
    card = ModelCard.load(pushed.card)
    about = card.data
    assert (about.license, about.library_name, about.pipeline_tag) == (
        "apache-2.0",
        "octobert",
        "text-classification",
    )
    assert {"onnx", "int8", "quantized"} <= set(about.tags)
    # A folder of this machine is no model of the Hub.
    assert about.base_model is None
    scores = columns(report).scores["ort-cpu"]
    assert {e.metric_type: e.metric_value for e in about.eval_results} == {
        score.metric: score.value for score in scores
    }
    for name in ("ort-cpu", "ort-f32"):
        for score in columns(report).scores[name]:
            assert f"{score.value:.4f} [{score.low:.3f}, {score.high:.3f}]" in card.text
    assert "ort-cpu: speed" in card.text
    assert report.environment.cpu in card.text
    assert "| linear.weight |" in card.text
    assert manifest.files["onnx/model_quantized.onnx"] in card.text
    assert f'snapshot_download("{REPO}")' in card.text
    assert str(Path(manifest.recipe["model"]).parent) not in pushed.card.read_text()


def test_a_model_of_the_hub_is_named_and_the_card_needs_no_report(package: Path) -> None:
    (package.parent / "report.json").unlink()
    stated = json.loads((package / PACKAGE_FILE).read_text())
    stated["recipe"]["model"] = "google-bert/bert-base-uncased"
    stated["recipe"]["data"]["source"] = "nyu-mll/glue"
    (package / PACKAGE_FILE).write_text(json.dumps(stated))
    card = ModelCard.load(octobert.push(package, REPO, dry_run=True).card)
    assert card.data.base_model == "google-bert/bert-base-uncased"
    assert {result.dataset_type for result in card.data.eval_results} == {"nyu-mll/glue"}
    assert "speed" not in card.text
    assert "compared with ort-f32" in card.text


def test_a_card_that_was_edited_stays_and_that_of_another_model_is_refused(
    package: Path,
) -> None:
    card = octobert.push(package, REPO, dry_run=True).card
    edited = card.read_text() + "\nMore of mine.\n"
    card.write_text(edited)
    assert octobert.push(package, REPO, dry_run=True).card.read_text() == edited
    card.write_text("# Another model")
    with pytest.raises(octobert.StorageError, match="not the card of this model"):
        octobert.push(package, REPO, dry_run=True)
    assert card.read_text() == "# Another model"


@pytest.mark.parametrize("repo", ["", "tiny", "me/../x", "a/b/c", "me/ti ny"])
def test_a_name_that_no_repository_has(golden, package: Path, repo: str) -> None:
    with golden.raises(octobert.RecipeError):
        octobert.push(package, repo, dry_run=True)
    assert not (package / "README.md").exists()


def test_what_is_no_package(package: Path, tmp_path: Path) -> None:
    with pytest.raises(octobert.ModelError, match="no such folder"):
        octobert.push(tmp_path / "nothing", REPO)
    with pytest.raises(octobert.ModelError, match="not a package"):
        octobert.push(package.parent, REPO)
    (package / "config.json").write_text("{}")
    with pytest.raises(octobert.ModelError, match=r"config\.json has another content"):
        octobert.push(package, REPO)


def test_the_command_lists_the_files(package: Path) -> None:
    done = command("push", package, REPO, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "onnx/model_quantized.onnx" in done.stdout
    assert "nothing was sent" in done.stdout


def pushed(web: Web, package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as the address of the Hub is read when its client is imported."""
    environment = os.environ | {
        "HF_ENDPOINT": web.address,
        "HF_HOME": str(package.parent / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": TOKEN,
    }
    line = [sys.executable, "-m", "octobert", "push", str(package), REPO, *options]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
    assert TOKEN not in done.stdout + done.stderr
    return done


@pytest.mark.parametrize("is_public", [False, True])
def test_a_private_repository_gets_the_package_and_a_public_one_does_not(
    package: Path, is_public: bool
) -> None:
    api = f"/api/models/{REPO}"
    with serving() as web:
        names = ["README.md", PACKAGE_FILE, *octobert.manifest(package).files]
        uploads = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
        answers = {
            "/api/repos/create": {"url": f"{web.address}/{REPO}"},
            api: {"id": REPO, "private": not is_public, "sha": "0" * 40, "siblings": []},
            f"{api}/branch/int8": {},
            f"{api}/revision/int8": {"id": REPO, "sha": "0" * 40, "siblings": []},
            "/api/validate-yaml": {"errors": [], "warnings": []},
            f"{api}/preupload/int8": {"files": uploads},
            f"{api}/commit/int8": {
                "success": True,
                "commitOid": "1" * 40,
                "commitUrl": f"{web.address}/{REPO}/commit/{'1' * 40}",
            },
        }
        secret = package.parent / "id_rsa"
        secret.write_text("a private key")
        (package / "notes.link").symlink_to(secret)
        (package / "onnx" / "notes.txt").write_text("of the user")
        web.files |= {path: json.dumps(answer).encode() for path, answer in answers.items()}
        done = pushed(web, package, "--private", "--revision", "int8")
        sent = dict(web.sent)
    assert done.returncode == int(is_public), done.stderr
    assert json.loads(sent["/api/repos/create"][0])["visibility"] == "private"
    commits = sent.get(f"{api}/commit/int8", [])
    if is_public:
        assert done.returncode == 1
        assert "the repository is there already, and public" in done.stderr
        assert commits == []
        return
    assert done.returncode == 0, done.stderr
    assert f"{REPO}/commit/{'1' * 40}" in done.stdout
    (commit,) = commits
    files = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in map(json.loads, commit.splitlines())
        if line["key"] == "file"
    }
    assert files == {name: (package / name).read_bytes() for name in names}


def test_texts_of_a_package_are_no_markup(package: Path) -> None:
    """Whoever made the package does not write the card that is published in the name of its user."""
    hostile = "a\n\n# x <img src=x> [y](javascript:z) `q` | w *v*"
    manifest = json.loads((package / PACKAGE_FILE).read_text())
    manifest["octobert"] = manifest["environment"]["cpu"] = manifest["recipe"]["model"] = hostile
    for scores in manifest["scores"].values():
        for score in scores:
            score["metric"] = hostile
    manifest["task"]["prompts"] = {"query": "```\n# x"}
    (package / PACKAGE_FILE).write_text(json.dumps(manifest))
    card = octobert.push(package, REPO, dry_run=True).card.read_text()
    text = MarkdownIt("commonmark").enable("table").parse(card.split("---\n", 2)[2])
    kinds = {t.type for token in text for t in (token, *(token.children or ()))}
    assert not kinds & {"html_block", "html_inline", "image", "link_open", "em_open"}
    headings = [text[i + 1].content for i, token in enumerate(text) if token.type == "heading_open"]
    assert headings[1:] == ["Measured", "Quantized", "Use"]


# With steps that share no factor with the number of values, each value comes to places of every kind, and every place gets some.
@pytest.mark.parametrize("step", [29, pytest.param(7, marks=pytest.mark.slow)])
def test_any_value_of_a_manifest_may_be_wrong(package: Path, step: int) -> None:
    """The package is used, or refused in a sentence."""
    document = json.loads((package / PACKAGE_FILE).read_text())
    for path, value in [
        (("task", "options"), {"x": {}}),
        (("files",), {}),
        *cases(document)[::step],
    ]:
        (package / PACKAGE_FILE).write_text(json.dumps(changed(document, path, value)))
        with contextlib.suppress(octobert.OctobertError), octobert.load(package) as model:
            model([("a", "b")])
        with contextlib.suppress(octobert.OctobertError):
            octobert.push(package, REPO, dry_run=True).card.unlink()
    (package / PACKAGE_FILE).write_text(json.dumps({**document, "files": {}}))
    with pytest.raises(octobert.ModelError, match=r"is not listed"):
        octobert.push(package, REPO, dry_run=True)
    with pytest.raises(octobert.ModelError, match=r"model_quantized\.onnx is not listed"):
        octobert.load(package)([("a", "b")])


def test_a_hub_that_does_not_answer_is_a_sentence(package: Path) -> None:
    with serving() as web:
        pass
    done = pushed(web, package)
    assert done.returncode == 1
    assert "the Hub does not take the package" in done.stderr
    assert "Traceback" not in done.stderr
