"""Models as OpenVINO reads them, from IRs and ONNX files: weights, inputs and outputs, and what a file asks of the runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import plan
from octobert.core.onnx_files import TensorInfo
from octobert.core.session import weights_at

# Place in an IR of the group of channels that activations are quantized in per token.
GROUP_OPTION = ("runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE")


def model_at(core: Any, path: Path) -> Any:
    """Read an IR with its weights, or an ONNX file."""
    return core.read_model(str(path), *([str(weights_at(path))] if path.suffix == ".xml" else []))


def port_of(port: Any) -> TensorInfo:
    """Return an input or an output as OpenVINO describes it."""
    name = port.get_any_name() if port.get_names() else port.get_node().get_friendly_name()
    shape, dtype = port.get_partial_shape(), np.dtype(port.get_element_type().to_dtype()).name
    sizes = (
        tuple(size.get_length() if size.is_static else -1 for size in shape)
        if shape.rank.is_static
        else None
    )
    return TensorInfo(name=name, dtype=dtype, shape=sizes)


def group_of(model: Any) -> str:
    """Return the group of channels in which a model wants float activations quantized per token; `0` where it says nothing.

    Args:
        model: an `openvino.Model`, of an IR or of an ONNX file.
    """
    places = (GROUP_OPTION, ("framework", plan.GROUP_METADATA))
    return next(
        (str(model.get_rt_info(list(at)).value) for at in places if model.has_rt_info(list(at))),
        "0",
    )
