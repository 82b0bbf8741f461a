"""Data sets on the hub: which one a name means, with `huggingface_hub`; and what went wrong, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from octobert.core.errors import DataError
from octobert.core.files import content_of
from octobert.core.frozen import FrozenModel


class HubData(FrozenModel):
    """A data set on the hub.

    Args:
        name: `namespace/name`; the name alone where the hub could not be asked.
        config: its configuration, such as `mrpc` of GLUE.
        commit: of the revision that was asked for; None where nobody knows.
    """

    name: str
    config: str | None
    commit: str | None


def find(source: str, config: str | None, revision: str | None) -> HubData:
    """The data set that a name means: `nyu-mll/glue` or its old name `glue`, with a configuration behind it or without.

    Where the hub cannot be asked, the data sets in its cache are.

    Raises:
        DataError: it is the name of a format, and of no data set.

    Args:
        source: name, or name and configuration: `glue/mrpc`, `nyu-mll/glue/mrpc`.
        config: the configuration; then it is not in the name.
        revision: branch, tag or commit.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    readings = list(_readings(source, config))
    for name, own in readings:
        try:
            info = HfApi().dataset_info(name, revision=revision)
            return HubData(name=info.id, config=own, commit=info.sha)
        except (RepositoryNotFoundError, HFValidationError):
            continue
        except Exception:  # noqa: BLE001  # no network, or one of many types: reading the rows will say what is wrong
            break
    for name, own in readings:
        for folder in _cached(name):
            known = folder.name.removeprefix("datasets--").replace("--", "/", 1)
            return HubData(name=known, config=own, commit=_ref(folder, revision))
    name, own = readings[0]
    # `datasets` reads what lies in the working directory for these names.
    from datasets import packaged_modules

    if name in packaged_modules._PACKAGED_DATASETS_MODULES:
        raise DataError(
            "the hub has no data set of that name",
            where="data.source",
            got=name,
            fix="give a file, a folder, or a data set with its owner: OWNER/NAME",
        )
    return HubData(name=name, config=own, commit=None)


def _readings(source: str, config: str | None) -> Iterator[tuple[str, str | None]]:
    """(name, configuration): with two parts the second may be either."""
    if config is not None or source.count("/") < 2:
        yield source, config
    if config is None and "/" in source:
        name, _, last = source.rpartition("/")
        yield name, last


def _cached(name: str) -> list[Path]:
    """The folders of a data set in the hub's cache; of an old name, those of any namespace."""
    from huggingface_hub.constants import HF_HUB_CACHE

    pattern = f"datasets--{name.replace('/', '--')}" if "/" in name else f"datasets--*--{name}"
    return sorted(Path(HF_HUB_CACHE).glob(pattern))


def _ref(folder: Path, revision: str | None) -> str | None:
    """The commit that a revision stood for when it was last asked for."""
    path = folder / "refs" / (revision or "main")
    return content_of(path).decode().strip() if path.is_file() else revision
