"""INT8 models of other tools, from the same float graph and calibration rows, with their documented settings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from octobert.core.session import Feeds

T = TypeVar("T")


def attempt(make: Callable[[], T]) -> tuple[T | None, str]:
    """(the result, "") or (None, the reason for the failure). Output of libraries goes to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return make(), ""
    except ModuleNotFoundError as error:
        return None, f"{error.name} is not installed"
    except Exception as error:  # noqa: BLE001  # other tools may raise anything; the table shows it
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"[:200].replace(
            "|", "/"
        )


def onnxruntime_model(
    floating: Path, rows: list[Feeds], folder: Path, *, static: bool = True, **settings: Any
) -> Path:
    """onnxruntime.quantization after its pre-processing. `activations` is a name, because the library may not be installed."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        """One row at a time, None after the last."""

        get_next = staticmethod(partial(next, iter(rows), None))

    quant_pre_process(floating, folder / "prepared.onnx", skip_symbolic_shape=True)
    if "activations" in settings:
        settings.update(
            activation_type=QuantType[settings.pop("activations")], weight_type=QuantType.QInt8
        )
    if static:
        quantize_static(folder / "prepared.onnx", folder / "model.onnx", Reader(), **settings)
    else:
        quantize_dynamic(folder / "prepared.onnx", folder / "model.onnx", **settings)
    return folder / "model.onnx"


def nncf_transformer(floating: Path, rows: list[Feeds], folder: Path) -> Path:
    """nncf.quantize on the OpenVINO model."""
    import nncf
    import openvino

    settings = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(rows)}
    quantized = nncf.quantize(openvino.convert_model(str(floating)), nncf.Dataset(rows), **settings)
    openvino.save_model(quantized, str(folder / "model.xml"))
    return folder / "model.xml"


def nncf_weights(floating: Path, rows: list[Feeds], folder: Path) -> Path:
    """nncf.compress_weights on the OpenVINO model, with OpenVINO's default for its activations written down."""
    import nncf
    import openvino

    compressed = nncf.compress_weights(openvino.convert_model(str(floating)))
    compressed.set_rt_info("32", ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    openvino.save_model(compressed, str(folder / "model.xml"))
    return folder / "model.xml"


def nncf_four_bits(floating: Path, rows: list[Feeds], folder: Path) -> Path:
    """nncf.compress_weights to 4 bits, its group of 128 channels for weights and activations, rounded with data (GPTQ)."""
    import nncf
    import openvino

    compressed = nncf.compress_weights(
        openvino.convert_model(str(floating)),
        mode=nncf.CompressWeightsMode.INT4_SYM,
        group_size=128,
        ratio=1.0,
        all_layers=False,
        gptq=True,
        dataset=nncf.Dataset(rows),
    )
    compressed.set_rt_info("128", ["runtime_options", "DYNAMIC_QUANTIZATION_GROUP_SIZE"])
    openvino.save_model(compressed, str(folder / "model.xml"))
    return folder / "model.xml"


ORT_DYNAMIC = partial(onnxruntime_model, static=False)
ORT_COPIED = partial(onnxruntime_model, activations="QUInt8", op_types_to_quantize=["MatMul"])
