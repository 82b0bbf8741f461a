"""Models of AzureML: names, the client's answers for one model, and the cache. No live workspace is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octobert.core.errors import ModelError
from octobert.models.source import resolve
from octobert.models.sources import azureml
from tests.support.cli import octobert as program

NAME = (
    "azureml://subscriptions/0000/resourcegroups/group/workspaces/space/models/bert-hf/versions/3"
)


class Recorded:
    """What `MLClient(…).models` answered for one model: a folder registered as `bert-hf`, version 3."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.asked = files, []  # type: ignore[var-annotated]

    def get(self, name: str, version: str | None = None, label: str | None = None) -> Any:
        self.asked.append(("get", name, version, label))
        return SimpleNamespace(name=name, version="3")

    def download(self, name: str, version: str, download_path: Any) -> None:
        self.asked.append(("download", name, version))
        if version != "3":
            raise RuntimeError(
                f"(ModelNotFound) Model container with name: {name} and version: {version} not found."
            )
        for inner, content in self.files.items():
            place = Path(download_path, name, inner)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))


def test_a_model_is_downloaded_once_and_found_in_its_folder(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"data/model/{path.name}": path.read_bytes() for path in checkpoint("bert").iterdir()}
    client = Recorded({"MLmodel": b"flavors:", **files})
    monkeypatch.setattr(azureml, "_client", lambda *_: client)
    source = resolve(NAME)
    assert source.is_checkpoint
    assert source.digest == resolve(checkpoint("bert")).digest
    resolve(NAME)
    assert client.asked == [("download", "bert-hf", "3")]
    resolve("azureml://registries/azureml/models/bert-hf")
    assert client.asked[1:] == [("get", "bert-hf", None, "latest"), ("download", "bert-hf", "3")]


def test_nothing_stays_of_a_download_that_failed(
    golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with golden.raises(ModelError):
        azureml.downloaded(NAME.replace("versions/3", "versions/9"), Recorded({}))
    monkeypatch.setattr(azureml, "_client", lambda *_: Recorded({"notes.txt": b""}))
    with golden.raises(ModelError):
        resolve(NAME)
    assert [
        path.name
        for path in (tmp_path / "cache" / "azureml").iterdir()
        if path.name.startswith("partial")
    ] == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (NAME.replace("0000", "<place_holder>"), "the name of the model has a placeholder (got <place_holder>); put your own in its place"),
        ("azureml://bert-hf:3", "the name is not one of an AzureML model (expected azureml://subscriptions/S/"),
        (NAME, "a model of AzureML needs its client; "),
    ],
)  # fmt: skip
def test_names_that_cannot_be_resolved_are_one_sentence(
    name: str, message: str, tmp_path: Path
) -> None:
    done = program(
        "quantize",
        name,
        "--task",
        "mrpc",
        "--data",
        tmp_path,
        "--out",
        tmp_path / "out",
        "--dry-run",
    )
    assert done.returncode == ModelError.exit_code
    assert f"octobert: {name}: {message}" in done.stderr
