"""Models of AzureML: registered models of a workspace or of a registry, downloaded once into octobert's cache folder.

    azureml://subscriptions/S/resourcegroups/R/workspaces/W/models/NAME/versions/V
    azureml://registries/REGISTRY/models/NAME/versions/V

Without a version, the label `latest` is asked for each time. The extra `azureml` has the client. Its default credential is
taken: a login of the Azure command line, a managed identity, or variables of the environment. The tests answer in the place of
the client with what it answered for one model; a live workspace was not tried.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from octobert.core import environment
from octobert.core.errors import ModelError, reason
from octobert.core.files import atomic_folder, canonical_digest, is_disk_error
from octobert.core.origin import listed
from octobert.models.sources import Source, model_in

_PART = r"([^/<>\s]+)"
_WORKSPACE = re.compile(
    rf"azureml://subscriptions/{_PART}/resource[gG]roups/{_PART}/workspaces/{_PART}/models/{_PART}(?:/versions/{_PART})?"
)
_REGISTRY = re.compile(rf"azureml://registries/{_PART}/models/{_PART}(?:/versions/{_PART})?")
_FORMS = "azureml://subscriptions/S/resourcegroups/R/workspaces/W/models/NAME/versions/V"


class ModelClient(Protocol):
    """The part of AzureML's client that is used: `MLClient(…).models`."""

    def get(self, name: str, version: str | None = None, label: str | None = None) -> Any:
        """The record of a model, with its `version`."""

    def download(self, name: str, version: str, download_path: Any) -> None:
        """Write the files of a model into `download_path/name`."""


@dataclass(frozen=True)
class _Name:
    place: tuple[str, ...]
    model: str
    version: str | None


class AzureML(Source):
    """Registered models of AzureML."""

    prefixes: tuple[str, ...] = ("azureml://",)

    def fetch(self, name: str) -> Path:
        """Return the model in the downloaded folder; see `Source`."""
        return model_in(downloaded(name), name)


def downloaded(name: str, models: ModelClient | None = None) -> Path:
    """The folder of a model's files, downloaded unless that version is there.

    Args:
        name: `azureml://…`.
        models: the client; by default one for the workspace or registry in the name.

    Raises:
        ModelError: the name has another form or a placeholder, the client is not installed, or the model cannot be had.
        StorageError: the cache folder cannot be written.
    """
    parsed = _parsed(name)
    client = models or _client(parsed, name)
    try:
        version = parsed.version or str(client.get(parsed.model, label="latest").version)
        digest = canonical_digest([*parsed.place, parsed.model, version])[:16]
        with environment.place_in_cache("azureml", digest) as folder:
            if not folder.is_dir():
                _download(client, parsed.model, version, folder)
    except Exception as error:  # Azure's clients raise many unrelated types: credentials, network, rights, not found
        if isinstance(error, ModelError) or is_disk_error(error):
            raise
        raise ModelError(
            "the model could not be downloaded from AzureML",
            where=name,
            got=f"{type(error).__name__}: {reason(error, 0, longest=200)}",
            fix="log in (az login), check the name and your rights, or give a local folder",
        ) from error
    return folder


def _download(client: ModelClient, model: str, version: str, folder: Path) -> None:
    with atomic_folder(folder) as partial:
        client.download(name=model, version=version, download_path=str(partial))
        listed(partial, "**/*")


def _parsed(name: str) -> _Name:
    for form in (_WORKSPACE, _REGISTRY):
        if match := form.fullmatch(name):
            *place, model, version = match.groups()
            return _Name(tuple(place), model, version)
    if placeholder := re.search(r"<[^>]*>", name):
        raise ModelError(
            "the name of the model has a placeholder",
            where=name,
            got=placeholder[0],
            fix="put your own in its place, or give another model",
        )
    raise ModelError("the name is not one of an AzureML model", where=name, expected=_FORMS)


def _client(name: _Name, where: str) -> ModelClient:
    try:
        from azure.ai.ml import MLClient
        from azure.identity import DefaultAzureCredential
    except ModuleNotFoundError:
        raise ModelError(
            "a model of AzureML needs its client",
            where=where,
            fix=f"{environment.install('azureml')}, or give a local folder",
        ) from None
    credential = DefaultAzureCredential()
    if len(name.place) == 1:
        return MLClient(credential, registry_name=name.place[0]).models  # type: ignore[no-any-return]
    return MLClient(credential, *name.place).models  # type: ignore[no-any-return]
