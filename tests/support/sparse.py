"""Tiny sparse encoders as sentence-transformers writes them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from octobert.data.tokenization import Tokenizer

TABLE, ENCODER = "query_0_SparseStaticEmbedding", "document_0_MLMTransformer"


def stated(folder: Path, mode: str = "max", activation: str = "relu", **about: object) -> Path:
    """Make a checkpoint's folder that of a SparseEncoder, as sentence-transformers 5 writes it."""
    kinds = {"": "MLMTransformer", "1_SpladePooling": "SpladePooling"}
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": path,
            "type": f"sentence_transformers.sparse_encoder.models.{kind}",
        }
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "1_SpladePooling").mkdir()
    options = {"pooling_strategy": mode, "activation_function": activation}
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(options))
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "SparseEncoder"} | about)
    )
    return folder


def routed(checkpoint: Path, folder: Path, *, weights: int | None = None) -> Path:
    """A SparseEncoder whose queries are a table, as sentence-transformers 6 writes it."""
    encoder = stated(shutil.copytree(checkpoint, folder / ENCODER))
    for name in ("modules.json", "config_sentence_transformers.json"):
        (encoder / name).unlink()
    shutil.move(encoder / "1_SpladePooling", folder / "document_1_SpladePooling")
    (folder / TABLE).mkdir()
    shutil.copyfile(encoder / "tokenizer.json", folder / TABLE / "tokenizer.json")
    (folder / TABLE / "config.json").write_text(json.dumps({"frozen": True}))
    count = Tokenizer(encoder).vocabulary if weights is None else weights
    table = np.random.default_rng(3).random(count).astype(np.float32)
    save_file({"weight": table}, folder / TABLE / "model.safetensors")
    kinds = {
        TABLE: "SparseStaticEmbedding",
        ENCODER: "MLMTransformer",
        "document_1_SpladePooling": "SpladePooling",
    }
    package = "sentence_transformers.sparse_encoder.modules"
    route = {
        "types": {name: f"{package}.{kind.lower()}.{kind}" for name, kind in kinds.items()},
        "structure": {"query": [TABLE], "document": [ENCODER, "document_1_SpladePooling"]},
        "parameters": {"default_route": "document"},
    }
    (folder / "router_config.json").write_text(json.dumps(route))
    router = {"idx": 0, "name": "0", "path": "", "type": f"{package}.Router"}
    (folder / "modules.json").write_text(json.dumps([router]))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "SparseEncoder", "prompts": {"query": "", "document": ""}})
    )
    return folder
