"""What went wrong on the hub, in a sentence: its client and `datasets` raise many types, often one because of another."""

from __future__ import annotations

from octobert.core.errors import causes_of, reason


def what_failed(error: BaseException, name: str, kind: str) -> tuple[str, str, str]:
    """What failed, what was got, and what to do, for an error of the hub's client.

    Args:
        error: as it was raised.
        name: of the model or data set.
        kind: `model` or `data set`.
    """
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{'datasets/' if kind == 'data set' else ''}{name}"
    causes = causes_of(error)
    got = f"{type(error).__name__}: {reason(error, 0, longest=200)}"
    if any(isinstance(cause, errors.GatedRepoError) for cause in causes) or "gated dataset" in str(
        error
    ):
        fix = f"accept its licence on {page}, and give your token: HF_TOKEN=… or hf auth login"
        return f"the {kind} is gated, and the hub does not give it to you", got, fix
    if any(isinstance(cause, errors.RevisionNotFoundError) for cause in causes):
        return f"the {kind} has no such revision", got, f"look for its branches and tags on {page}"
    if (
        any(isinstance(cause, errors.OfflineModeIsEnabled) for cause in causes)
        or constants.HF_HUB_OFFLINE
    ):
        what = f"there is no folder of that name, and the {kind} is not in the cache of the hub's client"
        return what, got, "unset HF_HUB_OFFLINE once, to download it, or give a local folder"
    if kind == "data set" and type(error) is ValueError:
        fix = "name another configuration (data.config) or split (data.calibrate.from, data.evaluate.from)"
        return (
            "the data set has no such configuration or split",
            got.removeprefix("ValueError: "),
            fix,
        )
    what = "there is no file or folder of that name, and it could not be downloaded from the hub"
    return (
        what,
        got,
        "check the name, the network and your token (HF_TOKEN), or give a local folder",
    )
