"""A hub on this machine, which answers as huggingface.co does: models and data sets with revisions, gated or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tests.support.web import Web

GATED = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this repository is restricted."}


def open_hub(web: Web) -> None:
    """Let a server answer questions about repositories that are not there."""
    web.missing["/api/models"] = web.missing["/api/datasets"] = {"X-Error-Code": "RepoNotFound"}
    web.missing["/"] = {"X-Error-Code": "EntryNotFound"}


def commit_of(name: str, revision: str = "main") -> str:
    """The commit of a revision."""
    return hashlib.sha1(f"{name} {revision}".encode()).hexdigest()


def publish(
    web: Web,
    name: str,
    files: Mapping[str, bytes],
    *,
    data: bool = False,
    revision: str = "main",
    gated: bool = False,
) -> None:
    """Put a repository on the hub.

    Args:
        name: `namespace/name`.
        data: a data set, not a model.
        revision: branch or tag. Others are not there.
        gated: the files are not given to anybody.
    """
    commit, api = commit_of(name, revision), f"/api/{'datasets' if data else 'models'}/{name}"
    info = {
        "id": name,
        "sha": commit,
        "siblings": [{"rfilename": path} for path in files],
        "gated": "manual" if gated else False,
    }
    listed = [
        {"type": "file", "path": path, "size": len(body), "oid": "0" * 40}
        for path, body in files.items()
    ]
    web.missing = {f"{api}/revision/": {"X-Error-Code": "RevisionNotFound"}, **web.missing}
    for end in (
        ("", f"/revision/{revision}", f"/revision/{commit}")
        if revision == "main"
        else (f"/revision/{revision}", f"/revision/{commit}")
    ):
        web.files[f"{api}{end}"] = json.dumps(info).encode()
    for end in (f"/tree/{commit}", f"/tree/{revision}"):
        web.files[f"{api}{end}"] = json.dumps(listed).encode()
    for path, body in files.items():
        for own in (commit, revision):
            place = f"{'/datasets' if data else ''}/{name}/resolve/{own}/{path}"
            web.files[place], web.headers[place] = body, {"X-Repo-Commit": commit}
            if gated:
                web.status[place], web.headers[place] = 403, GATED
