"""Finished packages on the Hub of Hugging Face: a model card made of what was measured, and the upload."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from octobert.api import clients, exports
from octobert.api._arguments import PathLike, path_of
from octobert.core.errors import OctobertError, RecipeError, StorageError, reason
from octobert.core.files import atomic_write, content_of, is_file, storage_errors
from octobert.core.frozen import FrozenModel

if TYPE_CHECKING:
    from octobert.core.results import PackageManifest, Report

CARD = "README.md"
# What the Hub lists models of a kind by.
_PIPELINES = {
    **clients.PIPELINES,
    clients.EMBEDDING: "sentence-similarity",
    clients.RERANKER: "text-ranking",
}
# Programs that open a package as it is, and the file that they look for.
_OPENED_BY = {"sentence-transformers": "modules.json", "optimum": "openvino_model.xml"}


class Pushed(FrozenModel):
    """A package on the Hub.

    Args:
        repo: `OWNER/NAME`.
        card: the model card, in the package.
        files: what the repository gets.
        commit: address of the upload; None where nothing was sent.
    """

    repo: str
    card: Path
    files: tuple[str, ...]
    commit: str | None


def push(
    package: PathLike,
    repo: str,
    *,
    private: bool = False,
    revision: str | None = None,
    license: str | None = None,
    dry_run: bool = False,
) -> Pushed:
    """Upload a package to a repository of the Hub, with a model card made of what was measured.

    Args:
        package: A package, `OUT/TARGET`. The card is written into it as README.md, unless a card of this model is there.
        repo: The repository, `OWNER/NAME`; it is made if it is not there.
        private: Only you and those whom you allow see the repository.
        revision: A branch; it is made if it is not there. Default: main.
        license: The licence of the model, as the Hub names it, such as apache-2.0.
        dry_run: Write the card and list the files, and send nothing.

    Returns:
        The card, the files, and the address of the commit.

    Raises:
        RecipeError: The name is not that of a repository.
        ModelError: The folder is not a package, or its files are not those that were packaged.
        StorageError: README.md in the package is not the card of this model, or cannot be written.
        OctobertError: The Hub does not take the package.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.errors import HFValidationError

    from octobert import targets
    from octobert.core.results import PACKAGE_FILE
    from octobert.inference import package_files

    folder = path_of(package, "package")
    manifest = package_files.read_manifest(folder)
    added = package_files.verify(folder).added
    try:
        hf_hub_url(repo, CARD)
        is_whole = "/" in repo
    except HFValidationError:
        is_whole = False
    if not is_whole:
        raise RecipeError(
            "not the name of a repository", where="repo", got=repr(repo), expected="OWNER/NAME"
        )
    model_file = targets.load(manifest.target).model_file(folder)
    package_files.check_sizes(folder, manifest, model_file)
    digest = manifest.files[package_files.weights_of(model_file).relative_to(folder).as_posix()]
    card = folder / CARD
    with storage_errors(card):
        if CARD not in added and CARD not in manifest.files:
            text = card_of(folder, manifest, repo, digest, license)
            with atomic_write(card) as partial:
                partial.write_text(text, encoding="utf-8")
        elif not is_file(card) or digest not in content_of(card).decode(errors="replace"):
            raise StorageError(
                "the file is not the card of this model, whose sha256 it would name",
                where=str(card),
                expected=digest,
                fix="remove it, and a card is made",
            )
    files = tuple(dict.fromkeys((CARD, PACKAGE_FILE, *manifest.files)))
    commit = None if dry_run else _upload(folder, repo, files, manifest.files, private, revision)
    return Pushed(repo=repo, card=card, files=files, commit=commit)


def _upload(
    folder: Path,
    repo: str,
    files: Sequence[str],
    digests: Mapping[str, str],
    private: bool,
    revision: str | None,
) -> str:
    """Commit these files, which have these sha256, and nothing else that is in the folder."""
    from huggingface_hub import CommitOperationAdd, HfApi

    from octobert.inference.package_files import other_files

    hub = HfApi()
    added = [CommitOperationAdd(name, folder / name) for name in files]
    if changed := [
        name
        for name, add in zip(files, added, strict=True)
        if digests.get(name) not in (None, add.upload_info.sha256.hex())
    ]:
        raise other_files(folder, [f"{name} has another content" for name in changed])
    try:
        hub.create_repo(repo, private=private, exist_ok=True)
        is_public = private and not hub.model_info(repo).private
        if not is_public:
            if revision is not None:
                hub.create_branch(repo, branch=revision, exist_ok=True)
            done = hub.create_commit(
                repo,
                added,
                revision=revision,
                commit_message="Add a package of octobert",
            )
            return str(done.commit_url)
    except Exception as error:  # of the client, of httpx and of the system
        raise OctobertError(
            "the Hub does not take the package",
            where=repo,
            got=f"{type(error).__name__}: {reason(error, 0, longest=200)}",
            fix="check the name, the network, HF_HUB_OFFLINE, and that your token may write: HF_TOKEN=… or hf auth login",
        ) from error
    raise OctobertError(
        "the repository is there already, and public",
        where=repo,
        fix="make it private on the Hub, or choose another name",
    )


def card_of(
    folder: Path, manifest: PackageManifest, repo: str, digest: str, license: str | None
) -> str:
    """Return the model card of a package, with metadata for the Hub.

    Args:
        folder: the package. `report.json` beside it, if it is of the same model, has the times.
        repo: `OWNER/NAME`.
        digest: sha256 of the 8-bit weights.
        license: of the model; None where it is not known.
    """
    from huggingface_hub import EvalResult, ModelCardData

    from octobert.core import wording
    from octobert.report import contents, summary
    from octobert.report.page.runs import title_of

    report = _report_of(folder, manifest)
    client = next((c for c, mark in _OPENED_BY.items() if mark in manifest.files), None)
    model = exports.model_of(folder, manifest, client or "triton", Path(repo))
    source, data = str(manifest.recipe.get("model")), manifest.recipe.get("data")
    title = title_of(source)
    tag = _PIPELINES.get(model.kind)
    rows = str((isinstance(data, dict) and data.get("source")) or "rows of its own")
    scores = manifest.scores.get(manifest.target, ())
    about = ModelCardData(
        base_model=source if title == source and not os.path.exists(source) else None,
        base_model_relation="quantized",
        license=license,
        library_name="octobert",
        pipeline_tag=tag,
        tags=[
            *("int8", "quantized", "openvino" if model.openvino else "onnx"),
            *(["sentence-transformers"] if "modules.json" in manifest.files else []),
        ],
        model_name=repo.partition("/")[2],
        eval_results=[
            EvalResult(
                task_type=tag or manifest.task.name,
                dataset_type=title_of(rows),
                dataset_name=title_of(rows),
                metric_type=score.metric,
                metric_value=score.value,
            )
            for score in scores
        ]
        or None,
    )
    text = clients.rendered(
        "card.md.jinja",
        model=model,
        manifest=manifest,
        digest=digest,
        title=title,
        rows=title_of(rows),
        report=report,
        scores=contents.score_table(manifest.scores).markdown(),
        found=[] if report is None else summary.verdicts(report),
        wording=wording,
        lines=clients.snippet(client, model) if client else "",
    )
    return f"---\n{about.to_yaml()}\n---\n\n{text}"


def _report_of(folder: Path, manifest: PackageManifest) -> Report | None:
    """Return the report of the run that made a package, where it lies beside it."""
    from octobert.api.pages import report_of

    out = folder.absolute().parent
    report = report_of(out) if (out / "report.json").is_file() else None
    is_its = (
        report is not None
        and report.model_digest == manifest.model_digest
        and report.plans.get(manifest.target) == manifest.plan
    )
    return report if is_its else None
