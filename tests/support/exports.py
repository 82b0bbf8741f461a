"""PyTorch's exporter takes seconds for a tiny model, and many tests start with the same one: each is exported once in a session.

The graph of a model with other weights is that of the first one of its kind, in which each weight is replaced. What `capture` makes
of it is compared with PyTorch in any case.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
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
        weights = weights_of(torch_model)
        of_kind, own = digest(torch_model, head, weights), digest_of(weights)

        def make(folder: Path) -> None:
            model = export(torch_model, head)
            operators.save(model, folder / "model.onnx")
            facts = {"weights": own, "origins": origins_of(model.graph, weights)}
            (folder / "facts.json").write_text(json.dumps(facts))

        folder = kept(f"export-{of_kind}", make)
        facts = json.loads((folder / "facts.json").read_text())
        if facts["weights"] == own:
            return ir.load(folder / "model.onnx")
        if facts["origins"] is None:
            return ir.load(kept(f"export-{of_kind}-{own}", make) / "model.onnx")
        model = ir.load(folder / "model.onnx")
        for name, (origin, transposed) in facts["origins"].items():
            array = weights[origin].T if transposed else weights[origin]
            value = model.graph.initializers[name]
            value.const_value = ir.tensor(np.ascontiguousarray(array), name=name)
        return model

    return get


def weights_of(torch_model: Any) -> dict[str, np.ndarray]:
    """The parameters and buffers of a model, those that no checkpoint holds included."""
    tensors = {**dict(torch_model.named_buffers()), **torch_model.state_dict()}
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def origins_of(
    graph: ir.Graph, weights: dict[str, np.ndarray]
) -> dict[str, tuple[str, bool]] | None:
    """Initializer → the weight that it is, and whether it is transposed; None where one was computed from weights."""
    contents = {content(array.T): (name, True) for name, array in weights.items()}
    contents |= {content(array): (name, False) for name, array in weights.items()}
    found = {}
    for name, value in graph.initializers.items():
        array = value.const_value.numpy()
        if name in weights and np.array_equal(weights[name], array):
            found[name] = name, False
        elif array.ndim and array.dtype.kind == "f":
            if content(array) not in contents:
                return None
            found[name] = contents[content(array)]
    return found


def content(array: np.ndarray) -> tuple[object, ...]:
    """What two arrays have in common if they are the same."""
    return array.dtype.str, array.shape, array.tobytes()


def digest_of(weights: dict[str, np.ndarray]) -> str:
    found = hashlib.sha256()
    for name, array in weights.items():
        found.update(name.encode() + array.tobytes())
    return found.hexdigest()[:16]


def digest(torch_model: Any, head: str, weights: dict[str, np.ndarray]) -> str:
    """All that the operators of a graph depend on: the class of the model, its settings, and the shapes of its weights."""
    config = torch_model.config
    settings = {k: v for k, v in config.to_dict().items() if k not in NOT_COMPUTED}
    shapes = {name: (array.dtype.str, array.shape) for name, array in weights.items()}
    about = (
        type(torch_model),
        HEADS[head].model_outputs,
        config._attn_implementation,
        settings,
        shapes,
    )
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]
