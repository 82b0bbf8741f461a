"""ONNX files of unknown origin: read with limits, with external data only from their folder; and their inputs and outputs.

Exporters name inputs differently: `input_mask`, `segment_ids:0`, `input_ids.1`.
"""

from __future__ import annotations

import copy
import functools
import graphlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from octobert.core.errors import ModelError, reason, unreadable
from octobert.core.files import content_of, file_stamp, stays_inside
from octobert.core.frozen import FrozenModel
from octobert.core.origin import check_inside

if TYPE_CHECKING:
    import onnx_ir


# Reading and rewriting takes about 0.2 ms for each node. The largest encoders have a few thousand nodes, with Q/DQ three times
# as many.
MAX_NODES = 50_000
# Operators of ONNX and of its runtimes on quantized numbers: QLinearMatMul, DequantizeLinear, MatMulInteger, MatMulNBits.
_QUANTIZED = re.compile("Q[A-Z]|.*(Quantize|Integer|NBits)")
# Where ONNX and its runtime name types otherwise than NumPy.
DTYPES = {"float": "float32", "double": "float64"}


def read_onnx(path: Path) -> onnx_ir.Model:
    """Read an ONNX file, its operators sorted. Its external data is mapped when it is used.

    Raises:
        ModelError: it is missing, is not a valid ONNX model, has too many operators, or its external data is missing, too short
            or elsewhere.
    """
    import onnx_ir as ir

    proto = _proto(path)
    try:
        _sort_(proto.graph)
        _check_graph(proto)
    except Exception as error:  # of the checker, and of protobuf
        raise ModelError(
            "the file is not a valid ONNX model",
            where=str(path),
            got=reason(error, longest=200),
            fix="export or copy it again",
        ) from error
    try:
        model = ir.serde.deserialize_model(proto)
        ir.external_data.set_base_dir(model.graph, path.parent)
        _decode(model)
    except Exception as error:  # the library raises its own types and those of numpy and protobuf
        raise _damaged(path, error) from error
    return model


def _sort_(graph: Any) -> None:
    """Sort the nodes of a graph: runtimes open files whose nodes have any order, but for those of subgraphs.

    Raises:
        ValueError: they form a cycle, or read what nothing makes.
    """
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output}
    given = {value.name for value in (*graph.input, *graph.initializer)}
    given |= {value.values.name for value in graph.sparse_initializer}
    for name in (
        *(name for node in graph.node for name in node.input if name),
        *(v.name for v in graph.output),
    ):
        if name not in makers and name not in given:
            raise ValueError(f"nothing makes {name}, which is read")
    needs = {
        i: {makers[name] for name in _read(node) if name in makers}
        for i, node in enumerate(graph.node)
    }
    if any(need >= i for i, others in needs.items() for need in others):
        try:
            order = list(graphlib.TopologicalSorter(needs).static_order())
        except graphlib.CycleError as error:
            names = (graph.node[i].name or graph.node[i].op_type for i in error.args[1])
            raise ValueError(f"operators form a cycle: {', '.join(names)}") from error
        nodes = [copy.deepcopy(graph.node[i]) for i in order]
        del graph.node[:]
        graph.node.extend(nodes)


def _read(node: Any) -> Iterator[str]:
    """The names of what a node reads, also in its subgraphs."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)


def _check_graph(proto: Any) -> None:
    """Check operators, attributes and types. Weights stand as inputs: they may have gigabytes, and are decoded elsewhere.

    Shapes that a file states of what operators make are left out: runtimes do not insist on them.
    """
    import onnx

    graph, stated = proto.graph, {value.name for value in proto.graph.input}
    weights = {
        tensor.name: onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in stated
    }
    alone = onnx.ModelProto(ir_version=proto.ir_version)
    alone.opset_import.extend(proto.opset_import)
    alone.functions.extend(proto.functions)
    alone.graph.name = "graph"
    alone.graph.node.extend(graph.node)
    alone.graph.input.extend([*graph.input, *weights.values()])
    alone.graph.sparse_initializer.extend(graph.sparse_initializer)
    for kind, value in (
        *(("value_info", v) for v in graph.value_info),
        *(("output", v) for v in graph.output),
    ):
        if number := value.type.tensor_type.elem_type:
            info = onnx.helper.make_tensor_value_info(value.name, number, None)
            getattr(alone.graph, kind).append(info)
    onnx.shape_inference.infer_shapes(alone, check_type=True, strict_mode=True)
    del alone.graph.value_info[:], alone.graph.output[:]
    for node in _nodes(alone):
        for inner in (graph for a in node.attribute for graph in (a.g, *a.graphs)):
            for value in inner.output:
                # The checker wants a shape, whatever it is.
                value.type.tensor_type.shape.SetInParent()
    onnx.checker.check_model(alone)


def ports_of(model: onnx_ir.Model) -> ModelSignature:
    """The inputs and outputs of a model; constants that old files list as inputs are left out."""
    graph = model.graph
    inputs = [value for value in graph.inputs if value.name not in graph.initializers]
    return ModelSignature(
        tuple(map(_port, inputs)), tuple(map(_port, graph.outputs)), _tables(graph)
    )


def _tables(graph: onnx_ir.Graph) -> dict[str, int]:
    """The rows of the tables that a graph looks its inputs up in, see `ModelSignature`."""
    keys: dict[Any, str | None] = {v: TABLES.get(input_named(str(v.name))) for v in graph.inputs}
    tables: dict[str, int] = {}
    for node in graph:
        if node.op_type in _AS_THEY_ARE:
            keys[node.outputs[0]] = keys.get(node.inputs[0])
        elif node.op_type == "Gather" and (key := keys.get(node.inputs[1])):
            table = node.inputs[0]
            if table is not None and table.const_value is not None and table.shape is not None:
                rows = table.shape.numpy()[0]
                tables[key] = min(rows, tables.get(key, rows))
    return tables


@functools.lru_cache(maxsize=64)
def tables_of(path: Path, stamp: str) -> Mapping[str, int]:
    """The rows of the tables in an ONNX file, see `ModelSignature`.

    Args:
        path: the file.
        stamp: of the file, as for `_locations`.

    Raises:
        ModelError: as `read_onnx`.
    """
    return ports_of(read_onnx(path)).tables


def integers_of(path: Path) -> str | None:
    """Return the type of the quantized numbers in an ONNX file: `int8`, `int4`; None where its operators are all float.

    Raises:
        ModelError: as `read_onnx`.
    """
    nodes = [node for node in read_onnx(path).graph.all_nodes() if _QUANTIZED.match(node.op_type)]
    bits = [node.attributes["bits"].as_int() for node in nodes if "bits" in node.attributes]
    return f"int{min(bits, default=8)}" if nodes else None


def _port(value: onnx_ir.Value) -> TensorInfo:
    dtype = "unknown" if value.dtype is None else value.dtype.name.lower()
    return TensorInfo(
        name=str(value.name),
        dtype=DTYPES.get(dtype, dtype),
        shape=None
        if value.shape is None
        else tuple(size if isinstance(size, int) else -1 for size in value.shape),
    )


def _decode(model: onnx_ir.Model) -> None:
    """Decode every constant once, so that data that does not fit its shape is found here, and nowhere else."""
    import onnx_ir as ir

    tensors = [
        value.const_value for graph in model.graphs() for value in graph.initializers.values()
    ]
    for node in model.graph.all_nodes():
        tensors += [
            a.as_tensor()
            for a in node.attributes.values()
            if a.type == ir.AttributeType.TENSOR and not a.is_ref()
        ]
    for tensor in tensors:
        if tensor is not None and (tensor.shape.numpy() != tensor.numpy().shape):
            raise ValueError(f"the data of {tensor.name} is not of shape {list(tensor.shape)}")


def external_files(path: Path) -> list[Path]:
    """The files that hold the weights of an ONNX file outside of it.

    Raises:
        ModelError: as `read_onnx`.
    """
    stamp = file_stamp(path) if path.is_file() else ""
    return sorted(path.parent / location for location in _locations(path, stamp))


def _proto(path: Path) -> Any:
    """The message in a file, its limits and external data checked."""
    import onnx

    if not path.is_file():
        raise ModelError("there is no such file", where=str(path), fix="check the path")
    try:
        proto = onnx.load_model_from_string(content_of(path, onnx.checker.MAXIMUM_PROTOBUF))
    except OSError as error:
        raise unreadable(ModelError, error, path) from error
    except Exception as error:  # protobuf raises types of its implementation
        raise _damaged(path, error) from error
    if not proto.HasField("graph"):
        raise _damaged(path, None)
    nodes = sum(1 for _ in _nodes(proto))
    if nodes > MAX_NODES:
        raise ModelError(
            "the graph has more operators than any encoder",
            where=str(path),
            got=f"{nodes:,}",
            expected=f"at most {MAX_NODES:,}",
        )
    for tensor in _tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(path, tensor)
    return proto


def _damaged(path: Path, error: Exception | None) -> ModelError:
    lines = str(error).strip().splitlines() if error is not None else []
    return ModelError(
        "the file is not a complete ONNX model",
        where=str(path),
        got=f"{path.stat().st_size} bytes; {lines[-1][:200] if lines else 'no graph'}",
        fix="export or copy it again",
    )


def _nodes(proto: Any) -> Iterator[Any]:
    """All nodes, those of subgraphs and functions included."""
    stack = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                stack += graph.node


def _tensors(proto: Any) -> Iterator[Any]:
    """All constants, those of subgraphs included."""
    graphs = [proto.graph]
    for node in _nodes(proto):
        for attribute in node.attribute:
            graphs += [attribute.g, *attribute.graphs]
            yield from (attribute.t, *attribute.tensors)
    for graph in graphs:
        yield from graph.initializer


@functools.lru_cache(maxsize=64)
def _locations(path: Path, stamp: str) -> frozenset[str]:
    """Names of the files beside an ONNX file that hold its weights. A run asks for them many times; parsing takes seconds.

    Args:
        path: the ONNX file.
        stamp: of the file, so that it is read again once it has changed.
    """
    return frozenset(
        entry.value
        for tensor in _tensors(_proto(path))
        for entry in tensor.external_data
        if entry.key == "location"
    )


def _check_external(path: Path, tensor: Any) -> None:
    """Refuse external data that is not a part of a file beside the model."""
    stated = {entry.key: entry.value for entry in tensor.external_data}
    location, where = stated.get("location", ""), f"{path}, tensor {tensor.name}"
    # A name that is no UTF-8 arrives as bytes.
    if not isinstance(location, str) or not stays_inside(location):
        raise ModelError(
            "the external data is not in the model's folder",
            where=where,
            got=repr(location),
            fix="do not trust it",
        )
    file = path.parent / location
    if not file.is_file():
        raise ModelError(
            "the model's external data is missing",
            where=str(file),
            fix="copy the .data file to the model's folder",
        )
    if file.samefile(path):
        raise ModelError(
            "the external data is the model's own file",
            where=where,
            got=location,
            fix="export it again",
        )
    check_inside(path.parent, location)
    try:
        parts = [int(stated.get(key) or 0) for key in ("offset", "length")]
    except ValueError:
        parts = [-1]
    end, valid = sum(parts), min(parts) >= 0
    size = file.stat().st_size
    if not valid or end > size:
        raise ModelError(
            "the external data is shorter than the model says",
            where=where,
            got=f"{file.name} of {size} bytes",
            expected=f"{end} bytes" if valid else "an offset and a length",
            fix="download or copy both files again",
        )


INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Input → key of `config.json` with the rows of the table that it is looked up in.
TABLES = {"input_ids": "vocab_size", "token_type_ids": "type_vocab_size"}
# Operators that leave ids as they are.
_AS_THEY_ARE = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
# The number of each row. Exports of TensorFlow's SQuAD script read it, and write it as an output.
ROW_NUMBERS = "unique_ids"
_ALIASES = {
    "ids": "input_ids",
    "input": "input_ids",
    "input_word_ids": "input_ids",
    "input_mask": "attention_mask",
    "mask": "attention_mask",
    "segment_ids": "token_type_ids",
    "input_type_ids": "token_type_ids",
}
_ENDING = re.compile(r"(_raw_output)?(___\d+)?([.:]\d+)?$")
_INTEGERS, _FLOATS = ("int64", "int32"), ("float32", "float16", "float64")
# Part of the name of an input of other models → what to do about it.
_UNFED = {
    "position": "export it without this input: the graph then counts positions itself",
    "past": "export it without the cache of a decoder (use_cache=False)",
    "inputs_embeds": "export it with input_ids, which its own table looks up",
    "cu_seqlens": "export it for padded batches (attn_implementation='eager'), not for packed ones",
}


class TensorInfo(FrozenModel):
    """An input or an output.

    Args:
        name: in the file.
        dtype: as NumPy names it.
        shape: sizes of the axes, -1 where they are free; None if the file does not say.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        axes = (
            ""
            if self.shape is None
            else f" [{', '.join('?' if size < 0 else str(size) for size in self.shape)}]"
        )
        return f"{self.name} {self.dtype}{axes}"


class ModelSignature(NamedTuple):
    """The inputs and outputs of a model file, and the rows of its tables that are found, by their keys in `config.json`."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    tables: Mapping[str, int] = MappingProxyType({})


def input_named(name: str) -> str:
    """The usual name of an input.

    Example:
        >>> input_named("segment_ids:0"), input_named("input_ids.1"), input_named("unique_ids_raw_output___9:0")
        ('token_type_ids', 'input_ids', 'unique_ids')
    """
    plain = _ENDING.sub("", name)
    return _ALIASES.get(plain, plain)


def without(names: Sequence[str]) -> str:
    """What to do about inputs that octobert does not feed.

    Example:
        >>> without(["past_key_values.0.key"])
        'export it without the cache of a decoder (use_cache=False)'
    """
    fixes = (fix for name in names for part, fix in _UNFED.items() if part in name)
    return next(fixes, "export it with these inputs")


def check_inputs(ports: Sequence[TensorInfo], *, where: str) -> None:
    """Check that a model reads what octobert feeds: token ids, a padding mask and segments, each [batch, sequence].

    Raises:
        ModelError: it reads something else, or reads it in another form.
    """
    named = {input_named(port.name): port for port in ports}
    others = [port for name, port in named.items() if name not in (*INPUTS, ROW_NUMBERS)]
    if others or not {*INPUTS[:2]} <= set(named) or len(named) < len(ports):
        raise ModelError(
            "the model has other inputs than an encoder",
            where=where,
            got=", ".join(map(str, others or ports)),
            expected=f"{', '.join(INPUTS)}, or other usual names of these",
            fix=without([port.name for port in others]),
        )
    for name, port in named.items():
        axes = 1 if name == ROW_NUMBERS else 2
        kinds = (*_INTEGERS, *_FLOATS, "bool") if name == "attention_mask" else _INTEGERS
        if port.shape is not None and len(port.shape) != axes:
            raise ModelError(
                f"the model reads its {name} with {len(port.shape)} axes",
                where=where,
                got=str(port),
                expected="batch, sequence",
                fix="export it with the tokenizer's two-dimensional inputs",
            )
        if port.dtype not in kinds:
            raise ModelError(
                f"the model reads its {name} in another type",
                where=where,
                got=str(port),
                expected=", ".join(kinds),
            )
