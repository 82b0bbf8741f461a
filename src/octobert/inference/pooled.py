"""Sessions of files that give token states where the task wants one vector for each text."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octobert.core.errors import ModelError
from octobert.core.session import STATES, Feeds, Session


class PooledSession:
    """A session whose token states are pooled as the files beside the model say, by ONNX Runtime.

    Args:
        session: gives the states of all tokens.
        folder: of the files that state the pooling; token states are averaged where there are none.
        name: of the vector in results.

    Raises:
        ModelError: the pooling is not supported.
    """

    def __init__(self, session: Session, folder: Path, name: str) -> None:
        import onnx_ir as ir
        import onnxruntime as ort

        from octobert.graph.capture.pooling import append_pooling_
        from octobert.models.pooling import pooler_of

        states = ir.Value(
            name=STATES,
            type=ir.TensorType(ir.DataType.FLOAT),
            shape=ir.Shape(["batch", "sequence", "width"]),
        )
        mask = ir.Value(
            name="attention_mask",
            type=ir.TensorType(ir.DataType.INT64),
            shape=ir.Shape(["batch", "sequence"]),
        )
        graph = ir.Graph([states, mask], [], nodes=[], opset_imports={"": 18}, name="pooling")
        model = ir.Model(graph, ir_version=10)
        append_pooling_(model, states, pooler_of(folder), name)
        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        content = ir.to_proto(model).SerializeToString()
        self._pooling = ort.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
        self._session, self.outputs = session, (name,)
        self.precision, self.threads = session.precision, session.threads
        self.streams, self.prepares_shapes = session.streams, session.prepares_shapes

    @property
    def device(self) -> str | None:
        """What really runs the model, where the user chose the device."""
        return self._session.device

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the vectors of one batch, [batch, width]."""
        states = self._session.run(feeds)[STATES]
        inputs = {STATES: states, "attention_mask": feeds["attention_mask"]}
        try:
            (vectors,) = self._pooling.run(list(self.outputs), inputs)
        except Exception as error:  # onnxruntime has no base class for its errors
            what, got = "the token states cannot be pooled", f"states of shape {states.shape}"
            raise ModelError(
                what, got=got, expected="the width that modules.json states"
            ) from error
        return {self.outputs[0]: vectors}
