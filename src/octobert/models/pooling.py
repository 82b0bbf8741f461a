"""How the states of a text's tokens become one vector: what a sentence-transformers folder states, and its PyTorch form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octobert.core.errors import ModelError
from octobert.core.frozen import FrozenModel

_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class Pooling(FrozenModel):
    """How token states become one vector.

    Args:
        mode: `mean` over the tokens that are not padding, or `cls`, the first token.
        normalize: divide by the L2 norm.
    """

    mode: str = "mean"
    normalize: bool = False


def pooling_of(folder: Path) -> Pooling:
    """Pooling and normalization as a sentence-transformers folder states them; mean pooling without any statement.

    Args:
        folder: the checkpoint, or the folder of an ONNX file's config; it may hold `1_Pooling/config.json` and `modules.json`.

    Raises:
        ModelError: a pooling that is neither mean nor CLS.
    """
    path = folder / "1_Pooling" / "config.json"
    modules = folder / "modules.json"
    normalize = modules.is_file() and "models.Normalize" in modules.read_text(encoding="utf-8")
    if not path.is_file():
        return Pooling(normalize=normalize)
    stated = json.loads(path.read_text(encoding="utf-8"))
    active = [key for key, value in stated.items() if key.startswith("pooling_mode_") and value is True]
    mode = _MODES.get(active[0]) if len(active) == 1 else stated.get("pooling_mode")
    if mode not in ("mean", "cls"):
        got = ", ".join(active) or "none"
        raise ModelError("the pooling is not supported", where=str(path), got=got, expected="mean or cls")
    return Pooling(mode=mode, normalize=normalize)


def pool(states: Any, mask: Any, pooling: Pooling) -> Any:
    """Pool token states in PyTorch, the reference for the graph's pooling.

    Args:
        states: tensor [B, S, D].
        mask: the attention mask, tensor [B, S].
        pooling: how.

    Returns:
        tensor [B, D].
    """
    if pooling.mode == "cls":
        pooled = states[:, 0]
    else:
        weights = mask.unsqueeze(-1).to(states.dtype)
        pooled = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return pooled / pooled.norm(dim=-1, keepdim=True).clamp(min=1e-12) if pooling.normalize else pooled
