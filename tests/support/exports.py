"""PyTorch's exporter takes seconds for a tiny model, and many tests start with the same one: a model is exported once in a session."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octobert.core.heads import HEADS
from octobert.graph import operators

Export = Callable[[Any, str], ir.Model]
# Settings that no graph depends on: names of classes, the loss of a training, and where a model comes from.
NOT_COMPUTED = frozenset(["id2label", "label2id", "problem_type", "_name_or_path"])


def exported_once(export: Export, kept: Callable[[str, Callable[[Path], object]], Path]) -> Export:
    """The exporter of `capture`, which reads the graph of a model that it has exported before from a file.

    Args:
        export: writes the graph of a model with a head.
        kept: fills the folder of a name, if it is not there yet.
    """

    def get(torch_model: Any, head: str) -> ir.Model:
        # The code of other classes may change from test to test.
        if not type(torch_model).__module__.startswith("transformers."):
            return export(torch_model, head)
        name = f"export-{digest(torch_model, head)}"
        folder = kept(
            name, lambda made: operators.save(export(torch_model, head), made / "model.onnx")
        )
        return ir.load(folder / "model.onnx")

    return get


def digest(torch_model: Any, head: str) -> str:
    """All that an exported graph depends on: the class of the model, its settings and weights, and the names of the outputs."""
    import torch

    config = torch_model.config
    settings = {k: v for k, v in config.to_dict().items() if k not in NOT_COMPUTED}
    about = type(torch_model), HEADS[head].model_outputs, config._attn_implementation, settings
    found = hashlib.sha256(repr(about).encode())
    for name, value in torch_model.state_dict().items():
        found.update(name.encode() + value.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]
