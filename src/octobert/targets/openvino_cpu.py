"""OpenVINO on x86 CPUs.

Its low-precision transformations accept Q/DQ of any 8-bit type on the inputs of matrix products. The attention kernel takes
Q and K in 8 bits if they are symmetric, and is slower with 8-bit probabilities. Without VNNI the product of symmetric Q and
K saturates, and asymmetric ones are multiplied in float: there Q and K are not quantized. The float operators run in float32,
or with `float_parts` in bfloat16 or float16 where the CPU has units for it. In bfloat16 the file stays float32: the runtime
converts it when it opens it.

Norms of an IR are rewritten: readers of the quantized output and the others each get a scale and a shift of their own.
OpenVINO computes a LayerNormalization as MVN, Multiply and Add. Multiply and Add become one elementwise operator, and it takes
over what reads it: a FakeQuantize, or a Multiply and the residual Add. If both read it, it takes over neither: the FakeQuantize
and the Add become operators of their own, and the output is written and read once more. With two elementwise operators
behind MVN, one ends in 8 bits and the other one in the residual sum.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.capability import (
    INTEGER_UNITS,
    Activations,
    Capabilities,
    FloatParts,
    Needs,
    OnnxRules,
    Weights,
)
from octobert.core.plan import ATTENTION, EMBEDDING, HEAD, LINEAR, OUTPUTS, RESIDUAL
from octobert.core.session import ExportOptions
from octobert.targets import Target
from octobert.targets.runtimes import openvino
from octobert.targets.shared import files, ir_files

CAPABILITIES = Capabilities(
    name="openvino-cpu",
    runtime="openvino",
    description="OpenVINO on the CPU",
    baseline_precisions=("f32", "bf16"),
    placement="matmul-scores",
    activations=Activations(
        computed=(("uint8", False), ("uint8", True), ("int8", False), ("int8", True)),
        symmetric_int8=("scores.query", "scores.key"),
        simulated=(("uint16", False), ("int16", True)),
        dynamic="token",
    ),
    weights=Weights(int4=("token", "float")),
    float_parts=FloatParts(
        in_files=("float32", "float16"),
        by_options={
            "bfloat16": {"INFERENCE_PRECISION_HINT": "bf16"},
            "float16": {"INFERENCE_PRECISION_HINT": "f16"},
        },
    ),
    saturates_without=INTEGER_UNITS,
    roles=(*LINEAR, *ATTENTION, *HEAD, *EMBEDDING),
    simulated_roles=(*RESIDUAL, *OUTPUTS),
    onnx=OnnxRules(opset=(13, 22)),
    static_lengths=True,
    formats=("onnx", "openvino"),
    needs=Needs(extra="openvino"),
    status="run here",
)
_DEVICE = openvino.OpenvinoDevice("CPU")


def model_file(package: Path) -> Path:
    """Return the path of the IR in a package: where optimum-intel and sentence-transformers look for it."""
    return package / "openvino_model.xml"


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph and its IR."""
    convert(files.write(quantized, folder, options), model_file(folder))


TARGET = Target(
    capabilities=CAPABILITIES,
    probe=_DEVICE.probe,
    export=export,
    open_session=_DEVICE.open_session,
    model_file=model_file,
    runtime_options=openvino.RUNTIME_OPTIONS,
)


def convert(onnx_path: Path, xml_path: Path) -> None:
    """Convert an ONNX file to IR. Weights stay as they are: compressing them to float16 would change the float operators.

    Raises:
        OSError: the IR cannot be written completely.
    """
    from openvino import Core, save_model

    xml_path.parent.mkdir(parents=True, exist_ok=True)
    model = Core().read_model(str(onnx_path))
    # Else OpenVINO would quantize the activations of all layers with float inputs and 8-bit weights, in groups of 32.
    model.set_rt_info(ir_files.group_of(model), list(ir_files.GROUP_OPTION))
    separate_norms_(model)
    try:
        save_model(model, str(xml_path), compress_to_fp16=False)
    except RuntimeError as error:
        # OpenVINO reports a failed write as "basic_ios::clear: iostream error", without the reason.
        if "iostream" not in str(error):
            raise
        raise OSError(
            errno.ENOSPC, "the IR could not be written completely", str(xml_path)
        ) from error


@dataclass(frozen=True)
class _Affine:
    """x · scale + shift, as constants of the last axis [C] or scalars, in float64."""

    scale: np.ndarray
    shift: np.ndarray

    def then(self, op_type: str, constant: np.ndarray) -> _Affine:
        """The function followed by a Multiply or an Add."""
        if op_type == "Multiply":
            return _Affine(self.scale * constant, self.shift * constant)
        return _Affine(self.scale, self.shift + constant)


def separate_norms_(model: Any) -> int:
    """Give the float readers of quantized norms operators of their own, in place.

    The outputs of the model stay the same, except for rounding in the type of the norm. A norm whose float readers do not
    multiply it by other constants (SmoothQuant does) is left as it is: OpenVINO would merge the two equal operators again.

    Args:
        model: an `openvino.Model`.

    Returns:
        The number of norms that were changed.
    """
    return sum(
        _separate_norm_(node) for node in model.get_ordered_ops() if node.get_type_name() == "MVN"
    )


def _separate_norm_(mvn: Any) -> bool:
    affine, last = _followed(_Affine(np.ones(1), np.zeros(1)), mvn)
    readers = _readers(last)
    others = [port for port in readers if port.get_node().get_type_name() != "FakeQuantize"]
    if (
        last is mvn
        or len(others) == len(readers)
        or not all(_differs(port.get_node()) for port in others)
    ):
        return False
    _give_(mvn.output(0), affine, others, last.get_friendly_name())
    return bool(others)


def _differs(reader: Any) -> bool:
    """Return whether a reader scales the norm again, or takes some of its rows."""
    return _takes_rows(reader) or (
        reader.get_type_name() == "Multiply" and _constant(reader) is not None
    )


def _give_(source: Any, affine: _Affine, ports: list[Any], name: str) -> None:
    """Write the affine function of `source` for each of its readers, together with their own factor."""
    for port in ports:
        reader = port.get_node()
        if _takes_rows(reader):
            readers = _readers(reader)
            port.replace_source_output(source)
            _give_(reader.output(0), affine, readers, reader.get_friendly_name())
        elif reader.get_type_name() == "Multiply" and (factor := _constant(reader)) is not None:
            whole, last = _followed(affine.then("Multiply", factor), reader)
            copy = _copy(source, whole, last.get_friendly_name())
            for target in _readers(last):
                target.replace_source_output(copy)
        else:
            port.replace_source_output(_copy(source, affine, f"{name}.shifted"))


def _followed(affine: _Affine, node: Any) -> tuple[_Affine, Any]:
    """Return a function with the Multiplies and Adds that are the only readers after a node, and the last of them."""
    while (
        len(readers := _readers(node)) == 1
        and (operand := _constant(readers[0].get_node())) is not None
    ):
        node = readers[0].get_node()
        affine = affine.then(node.get_type_name(), operand)
    return affine, node


def _takes_rows(node: Any) -> bool:
    """Return whether a node is a Slice of tokens, [:, a:b]."""
    axes = (
        node.input_value(4).get_node()
        if node.get_type_name() == "Slice" and node.get_input_size() == 5
        else None
    )
    return (
        axes is not None
        and axes.get_type_name() == "Constant"
        and np.asarray(axes.data).tolist() == [1]
    )


def _readers(node: Any) -> list[Any]:
    # OpenVINO has them in the order of their addresses, and files depend on the order: numbers in names are given out in it.
    return sorted(
        node.output(0).get_target_inputs(),
        key=lambda port: (port.get_node().get_friendly_name(), port.get_index()),
    )


def _constant(node: Any) -> np.ndarray | None:
    """Return the constant of a Multiply or Add with one that follows the last axis."""
    if node.get_type_name() not in ("Multiply", "Add"):
        return None
    sources = [port.get_source_output().get_node() for port in node.inputs()]
    arrays = [
        np.asarray(source.data, np.float64)
        for source in sources
        if source.get_type_name() == "Constant"
    ]
    return (
        arrays[0].reshape(-1)
        if len(arrays) == 1 and arrays[0].size == (arrays[0].shape or (1,))[-1]
        else None
    )


def _copy(source: Any, affine: _Affine, name: str) -> Any:
    """Write a Multiply and an Add behind a value, and return their output."""
    from openvino import opset13

    dtype = source.get_element_type().to_dtype()
    product = opset13.multiply(
        source, opset13.constant(affine.scale.astype(dtype)), name=f"{name}.scaled"
    )
    return opset13.add(product, opset13.constant(affine.shift.astype(dtype)), name=name).output(0)
