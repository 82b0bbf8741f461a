"""Graph transform: changes nothing, and samples one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from octobert.core.family import EncoderFamily
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Sample


class Options(FrozenModel):
    """No options."""


def values(graph: ir.Graph, family: EncoderFamily, options: Options) -> list[str]:
    """Return the name of the embeddings."""
    return [family.embeddings_norm]


def transform_(
    model: ir.Model,
    family: EncoderFamily,
    samples: Mapping[str, Sample],
    options: Options,
    progress: Callable[[int, int], None],
) -> list[dict[str, Any]]:
    """Edit nothing."""
    progress(1, 1)
    return [
        {"kind": "extra", "module": value, "tokens": len(sample.rows)}
        for value, sample in samples.items()
    ]
