"""Graph transform: changes nothing, and samples one value."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import onnx_ir as ir

from octobert.core.family import EncoderFamily
from octobert.core.ranges import Sample
from octobert.quantization.transforms import Record, Transform


class Nothing(Transform):
    """Nothing is changed."""

    def values(self, graph: ir.Graph, family: EncoderFamily) -> list[str]:
        """Return the name of the embeddings."""
        return [family.embeddings_norm]

    def transform_(
        self,
        model: ir.Model,
        family: EncoderFamily,
        samples: MutableMapping[str, Sample],
        progress: Callable[[int, int], None],
    ) -> list[Record]:
        """Edit nothing."""
        progress(1, 1)
        return [
            {"kind": "extra", "module": value, "tokens": len(samples[value].rows)}
            for value in self.values(model.graph, family)
        ]
