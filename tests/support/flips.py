"""A package whose two models disagree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

NAME = "classifier.bias"


def prefer(package: Path, index: int) -> None:
    """Let the float model of a package for two classes answer always the same."""
    path = package / "onnx" / "model.onnx"
    model = onnx.load(path)
    bias = next(each for each in model.graph.initializer if each.name == NAME)
    bias.CopyFrom(
        onnx.numpy_helper.from_array(
            np.where(np.arange(2) == index, 9, -9).astype(np.float32), NAME
        )
    )
    onnx.save(model, path)
