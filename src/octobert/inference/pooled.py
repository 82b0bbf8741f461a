"""Model files that give an output for each token, where a task wants vectors: made as the files beside the model say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octobert.core.errors import ModelError
from octobert.core.heads import Head
from octobert.core.session import Feeds, Session, read_outputs


class PooledSession:
    """A session whose outputs for tokens become vectors as the files beside the model say, by ONNX Runtime.

    Args:
        session: gives the states of all tokens, or their logits.
        folder: of the files that state the pooling.
        head: of the model.

    Raises:
        ModelError: the pooling is not supported.
    """

    def __init__(self, session: Session, folder: Path, head: Head) -> None:
        import onnx_ir as ir

        from octobert.graph.capture import shapes
        from octobert.graph.capture.pooling import append_pooling_
        from octobert.models.pooling import pooler_of

        states = ir.Value(
            name=head.pools,
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=ir.Shape(["batch", "sequence", "width"]),
        )
        mask = ir.Value(
            name="attention_mask",
            type=ir.TensorType(ir.DataType.INT64),
            shape=ir.Shape(["batch", "sequence"]),
        )
        graph = ir.Graph([states, mask], [], nodes=[], opset_imports={"": 18}, name="pooling")
        model = ir.Model(graph, ir_version=8)
        append_pooling_(model, states, pooler_of(folder, head), head.outputs[-1])
        self._pooling = shapes.open_session(model)
        self._session, self._pools, self.outputs = session, head.pools, read_outputs(head.outputs)
        self.precision, self.threads = session.precision, session.threads
        self.streams, self.prepares_shapes = session.streams, session.prepares_shapes

    @property
    def device(self) -> str | None:
        """The hardware that runs the model, where the user chose the device."""
        return self._session.device

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the vectors of one batch, [batch, width]."""
        states = self._session.run(feeds)[self._pools]
        inputs = {self._pools: states, "attention_mask": feeds["attention_mask"]}
        try:
            (vectors,) = self._pooling.run(list(self.outputs), inputs)
        except Exception as error:  # onnxruntime has no base class for its errors
            raise ModelError(
                "the token states cannot be pooled",
                got=f"states of shape {states.shape}",
                expected="the width that modules.json states",
            ) from error
        return {self.outputs[0]: vectors}
