"""Folders of sentence-transformers models made by code, and what such a model computes, in NumPy and independently of octobert."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

# Order in which the boolean keys of older files are concatenated.
LEGACY = (
    "cls_token",
    "max_tokens",
    "mean_tokens",
    "mean_sqrt_len_tokens",
    "weightedmean_tokens",
    "lasttoken",
)


def write_modules(
    folder: Path,
    modules: list[tuple[str, dict[str, Any] | None]],
    *,
    width: int = 32,
    **about: object,
) -> Path:
    """Write the modules that follow the encoder, as `(kind, config)`, with random weights, and `modules.json`.

    Args:
        folder: of the encoder.
        modules: `Pooling` first; a kind with dots is a full type.
        width: of the token states.
        about: what `config_sentence_transformers.json` says.
    """
    generator = np.random.default_rng(3)
    entries = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    for index, (kind, config) in enumerate(modules, start=1):
        name = kind.rpartition(".")[2]
        own = folder / f"{index}_{name}"
        own.mkdir(parents=True)
        full = kind if "." in kind else f"sentence_transformers.models.{kind}"
        entries.append({"idx": index, "name": str(index), "path": own.name, "type": full})
        if config is not None:
            (own / "config.json").write_text(json.dumps(config))
        if name == "Dense" and config is not None and isinstance(config["in_features"], int):
            shapes = {"linear.weight": (config["out_features"], config["in_features"])}
            shapes |= {"linear.bias": (config["out_features"],)} if config.get("bias", True) else {}
            shapes |= (
                {"residual.weight": shapes["linear.weight"]} if config.get("use_residual") else {}
            )
        elif name == "LayerNorm" and config is not None:
            shapes = {"norm.weight": (config["dimension"],), "norm.bias": (config["dimension"],)}
        else:
            continue
        weights = {
            name: generator.normal(0, 0.4, shape).astype(np.float32)
            for name, shape in shapes.items()
        }
        save_file(weights, own / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(entries))
    if about:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(about))
    return folder


def reference(folder: Path, states: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The vectors [B, E] of token states [B, S, D], in float64, text by text and module by module.

    What every module computes is that of sentence-transformers 6.2, against which `tests/clients` compares.
    """
    x = np.zeros(0)
    for entry in json.loads((folder / "modules.json").read_text())[1:]:
        own, kind = folder / entry["path"], entry["type"].rpartition(".")[2]
        config = (
            json.loads((own / "config.json").read_text()) if (own / "config.json").exists() else {}
        )
        weights = (
            load_file(own / "model.safetensors") if (own / "model.safetensors").exists() else {}
        )
        if kind == "Pooling":
            modes = config.get("pooling_mode") or [
                k for k in LEGACY if config.get(f"pooling_mode_{k}")
            ]
            modes = [modes] if isinstance(modes, str) else modes
            rows = zip(states.astype(np.float64), mask.astype(bool), strict=True)
            x = np.stack(
                [np.concatenate([_pooled(mode, row[real]) for mode in modes]) for row, real in rows]
            )
        elif kind == "Normalize":
            x = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
        elif kind == "LayerNorm":
            scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
            x = scaled * weights["norm.weight"] + weights["norm.bias"]
        elif kind == "Dense":
            made = _activated(
                config,
                x @ weights["linear.weight"].T.astype(np.float64) + weights.get("linear.bias", 0),
            )
            x = made + x @ weights["residual.weight"].T if config.get("use_residual") else made
    about = folder / "config_sentence_transformers.json"
    return x[:, : json.loads(about.read_text()).get("truncate_dim")] if about.exists() else x


def _pooled(mode: str, tokens: np.ndarray) -> np.ndarray:
    """One text, without padding: [S, D] → [D]."""
    places = np.arange(1, len(tokens) + 1)
    by_mode = {
        "cls": lambda: tokens[0],
        "max": lambda: tokens.max(0),
        "mean": lambda: tokens.mean(0),
        "mean_sqrt_len": lambda: tokens.sum(0) / math.sqrt(len(tokens)),
        "weightedmean": lambda: np.average(tokens, axis=0, weights=places),
        "lasttoken": lambda: tokens[-1],
    }
    return by_mode[mode.replace("_tokens", "").replace("_token", "")]()


def _activated(config: dict[str, Any], x: np.ndarray) -> np.ndarray:
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    by_name = {
        "Identity": lambda: x,
        "Tanh": lambda: np.tanh(x),
        "ReLU": lambda: np.maximum(x, 0),
        "Sigmoid": lambda: 1 / (1 + np.exp(-x)),
        "GELU": lambda: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    }
    return by_name[name]()
