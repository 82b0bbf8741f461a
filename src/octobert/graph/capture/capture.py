"""Capture: a checkpoint or a user's own ONNX file becomes the canonical float graph, proven equal to what it came from.

In: the path of a checkpoint folder or an `.onnx` file, and a head. Out: a `Captured` model. PyTorch is used for
checkpoints only, and only here.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octobert.core.errors import ModelError
from octobert.core.family import EncoderFamily
from octobert.core.results import Parity, Sizes
from octobert.graph import operators, parity
from octobert.graph.capture import canonical, naming, shapes, structure
from octobert.graph.capture.pooling import append_pooling_
from octobert.models import checkpoint
from octobert.models.heads import Head, head_of
from octobert.models.pooling import pooling_of
from octobert.models.source import ModelSource

_OUTPUT_ALIASES = {
    "output_start_logits": "start_logits",
    "output_end_logits": "end_logits",
    "token_embeddings": "last_hidden_state",
    "0": "last_hidden_state",
}


@dataclass(frozen=True)
class Captured:
    """A canonical graph, with the figures that prove it."""

    model: ir.Model
    family: EncoderFamily
    sizes: Sizes
    parity: Parity


def capture(source: ModelSource, head: str, texts: parity.Batches, *, allow_pickle: bool = False) -> Captured:
    """The canonical float graph of a model.

    Args:
        source: a checkpoint or an ONNX file.
        head: a key of `heads.HEADS`.
        texts: batches of real inputs on which the graph is compared with the original.
        allow_pickle: accept pickle weights.

    Raises:
        ModelError: unsupported, unsafe or broken.
        ParityError: the graph and the original disagree.
    """
    if source.is_checkpoint:
        return _capture_checkpoint(source, head_of(head), texts, allow_pickle=allow_pickle)
    return _capture_onnx(source, head_of(head), texts)


def _capture_checkpoint(source: ModelSource, head: Head, texts: parity.Batches, *, allow_pickle: bool) -> Captured:
    family = source.family
    torch_model = checkpoint.load_torch(source.path, head.name, allow_pickle=allow_pickle)
    model = export(torch_model, head.name)
    pooling = pooling_of(source.path)
    sizes = canonicalize_(model, family)
    if head.pooled:
        append_pooling_(model, model.graph.outputs[0], pooling, head.outputs[0])
    shapes.annotate_(model)
    feeds = [parity.only(batch, model) for batch in texts]
    reference = [parity.torch_outputs(torch_model, batch, head, pooling) for batch in feeds]
    del torch_model
    return Captured(model, family, sizes, parity.compare(model, feeds, reference, "PyTorch"))


def _capture_onnx(source: ModelSource, head: Head, texts: parity.Batches) -> Captured:
    raw, original = load_onnx(source.path), load_onnx(source.path)
    family = source.family
    canonical.prepare_(raw)
    _choose_outputs_(raw, head, source.path)
    sizes = canonicalize_(raw, family, prepared=True)
    if head.pooled and str(raw.graph.outputs[0].name) not in head.outputs:
        pooling = pooling_of(source.tokenizer_folder)
        append_pooling_(raw, raw.graph.outputs[0], pooling, head.outputs[0])
        _choose_outputs_(original, head, source.path)
        append_pooling_(original, original.graph.outputs[0], pooling, head.outputs[0])
    shapes.annotate_(raw)
    feeds = [parity.only(batch, raw) for batch in texts]
    reference = parity.onnx_outputs(original, feeds, [str(v.name) for v in raw.graph.outputs])
    return Captured(raw, family, sizes, parity.compare(raw, feeds, reference, "the original ONNX file"))


def export(torch_model: Any, head: str) -> ir.Model:
    """The raw ONNX graph of a PyTorch model, with the outputs of one head, all axes dynamic."""
    import torch

    for noisy in ("torch.onnx", "onnxscript"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    # Nobody trains what is captured; the exporter follows gradients where weights want them, for a fifth of its time.
    torch_model.requires_grad_(False)
    used = checkpoint.inputs_of(torch_model)
    example = {name: torch.ones(2, 7, dtype=torch.int64) for name in used}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            torch_model,
            (),
            kwargs=example,
            dynamo=True,
            opset_version=canonical.OPSET,
            dynamic_shapes={name: {0: "batch", 1: "sequence"} for name in used},
            verbose=False,
        )
    assert program is not None
    model = program.model
    names = head_of(head).model_outputs
    # transformers' outputs are ordered, and what a head is for comes first; the exporter names them after its own nodes.
    model.graph.outputs[:] = model.graph.outputs[: len(names)]
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name
    operators.clean_(model)
    return model


def canonicalize_(model: ir.Model, family: EncoderFamily, *, prepared: bool = False) -> Sizes:
    """Bring a raw graph into canonical form in place; its sizes."""
    if not prepared:
        canonical.prepare_(model)
    layers = structure.find_layers(model.graph)
    probs = [layer.attention.softmax.outputs[0] for layer in layers]
    kept = [operand.heads for layer in layers for operand in layer.attention.operands if operand.heads is not None]
    measured = shapes.measure(model, list(dict.fromkeys([*probs, *kept])))
    heads = [_heads(measured[str(value.name)], str(value.name)) for value in (*probs, *kept)]
    canonical.rebuild_attention_(model, layers, heads[: len(layers)], family)
    layers = structure.find_layers(model.graph)
    naming.name_(model, layers, family)
    return Sizes(layers=len(layers), heads=heads[0], hidden=layers[-1].width)


def _heads(shape: tuple[int | str, ...], name: str) -> int:
    if len(shape) != 4 or not isinstance(shape[1], int):
        raise ModelError(
            "the attention is not split into heads",
            where=name,
            got=", ".join(map(str, shape)),
            expected="batch, heads, sequence and one more axis",
            fix="export the model with torch.onnx.export(dynamo=True)",
        )
    return shape[1]


def load_onnx(path: Path) -> ir.Model:
    """Read an ONNX file.

    Raises:
        ModelError: it is not ONNX, or is cut short.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        # By path: a message of over 2 GiB cannot be checked in memory.
        onnx.checker.check_model(str(path), full_check=False)
        return ir.load(path)
    except (DecodeError, onnx.checker.ValidationError, ValueError, RuntimeError, FileNotFoundError) as error:
        raise ModelError(
            "the file is not a whole ONNX model",
            where=str(path),
            got=f"{path.stat().st_size} bytes; {str(error).strip().splitlines()[0][:200] if str(error) else 'no graph'}",
            fix="export or copy it again",
        ) from error


def _choose_outputs_(model: ir.Model, head: Head, path: Path) -> None:
    for value in model.graph.outputs:
        value.name = _OUTPUT_ALIASES.get(str(value.name), value.name)
    names = {str(v.name) for v in model.graph.outputs}
    expected = head.outputs if set(head.outputs) <= names else head.model_outputs
    _keep_outputs_(model, expected, where=str(path))


def _keep_outputs_(model: ir.Model, wanted: tuple[str, ...], *, where: str) -> None:
    by_name = {str(v.name): v for v in model.graph.outputs}
    if len(by_name) == 1 and len(wanted) == 1:
        by_name = {wanted[0]: next(iter(by_name.values()))}
        by_name[wanted[0]].name = wanted[0]
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise ModelError(
            f'the model has no output "{missing[0]}"',
            where=where,
            got=", ".join(sorted(by_name)),
            expected=", ".join(wanted),
            fix="choose the task that the model was exported for",
        )
    model.graph.outputs[:] = [by_name[name] for name in wanted]
    operators.clean_(model)
