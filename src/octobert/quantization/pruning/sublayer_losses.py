"""The loss of the model by the error of a sublayer: the divergence of the outputs where only this sublayer is cut.

A removed head or neuron is a row of zeros in the output projection. So one session with the float graph serves all sublayers
and levels: the constants of output projections are inputs with defaults, and a run gives one of them another value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octobert.core.pruning import Sublayer
from octobert.core.session import Feeds, read_outputs
from octobert.graph import cutting, operators, parts, sites
from octobert.graph.capture import shapes
from octobert.quantization.pruning.removal import Level


class Overridden:
    """A float graph whose output projections can be replaced for a while.

    Args:
        path: the canonical float graph.
        sublayers: whose output projections may be replaced.
    """

    prepares_shapes, precision, streams, threads, device = False, "f32", 1, 0, None

    def __init__(self, path: Path, sublayers: Sequence[Sublayer]) -> None:
        model = ir.load(path)
        # Each gets a weight and a bias of its own, where layers share them or have none.
        cutting.outputs_(
            model,
            {sublayer.module: projection(model.graph, sublayer.module) for sublayer in sublayers},
        )
        nodes = operators.nodes_of(model.graph)
        self._names: dict[str, tuple[str, str]] = {}
        for sublayer in sublayers:
            linear = parts.linear_at(sites.linear_node(nodes, sublayer.module))
            assert linear.bias is not None
            self._names[sublayer.module] = (str(linear.weight.name), str(linear.bias.name))
            model.graph.inputs.extend((linear.weight, linear.bias))
        self._session = shapes.open_session(model)
        self._inputs = {value.name for value in self._session.get_inputs()}
        self.outputs = read_outputs([value.name for value in self._session.get_outputs()])
        self.replaced: dict[str, np.ndarray] = {}

    def replace(self, sublayer: Sublayer, level: Level) -> None:
        """Run the model with one sublayer at a level; the others are whole."""
        weight = np.zeros((sublayer.units * sublayer.width, level.weight.shape[1]), np.float32)
        weight[cutting.channels_of(level.kept, sublayer.width)] = level.weight
        names = self._names[sublayer.module]
        self.replaced = dict(zip(names, (weight, level.bias.astype(np.float32)), strict=True))

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name."""
        inputs = {name: array for name, array in feeds.items() if name in self._inputs}
        return dict(
            zip(
                self.outputs,
                self._session.run(self.outputs, {**inputs, **self.replaced}),
                strict=True,
            )
        )


def projection(graph: ir.Graph, module: str) -> tuple[np.ndarray, np.ndarray]:
    """The weight [in, out] and the bias [out] of an output projection; zeros where it has none."""
    return constants(parts.linear_at(sites.linear_node(operators.nodes_of(graph), module)))


def constants(linear: parts.Linear) -> tuple[np.ndarray, np.ndarray]:
    """The weight [in, out] and the bias [out] of a linear layer; zeros where it has none."""
    weight = operators.constant_of(linear.weight)
    return weight, np.zeros(
        weight.shape[1], np.float32
    ) if linear.bias is None else operators.constant_of(linear.bias)


def measure(
    path: Path,
    sublayers: Sequence[Sublayer],
    levels: Mapping[str, Sequence[Level]],
    at: Sequence[float],
    loss: Callable[[Overridden], float],
    on_progress: Callable[[int, int], None],
) -> dict[str, np.ndarray]:
    """Measure the loss of the model at levels of each sublayer alone.

    Args:
        path: the canonical float graph.
        sublayers: to be cut.
        levels: module → its levels, by ascending units.
        at: shares of the units at which the loss is measured; between them it is interpolated by the error of the sublayer.
        loss: of the model, from outputs of a session.
        on_progress: called with the sublayers done, and all.

    Returns:
        Module → [levels] losses. Fewer units never have a smaller loss.
    """
    session, losses = Overridden(path, sublayers), {}
    for number, sublayer in enumerate(sublayers):
        on_progress(number, len(sublayers))
        sublayer_levels = levels[sublayer.module]
        errors = np.array([level.error for level in sublayer_levels])
        measured = {
            int(np.argmin([abs(level.units - share * sublayer.units) for level in sublayer_levels]))
            for share in at
        }
        points = {0.0: 0.0}
        for index in sorted(measured):
            session.replace(sublayer, sublayer_levels[index])
            points[float(errors[index])] = loss(session)
        measured_errors = sorted(points)
        values = np.interp(errors, measured_errors, [points[error] for error in measured_errors])
        losses[sublayer.module] = np.maximum.accumulate(values[::-1])[::-1]
    return losses
