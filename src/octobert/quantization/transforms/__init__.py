"""Graph transforms: one file each, rewrite a float graph into an equivalent one that loses less accuracy when quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import onnx_ir as ir

from octobert.core import plugins
from octobert.core.family import EncoderFamily
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Sample

# What a transform did to one group of layers: its kind, its module and the chosen setting.
Record = dict[str, Any]


class Transform(Protocol):
    """The module of a graph transform.

    Attributes:
        Options: the model of its options. Every option has a default.
        FLOAT_PARTS: Optional. Why it is left out where a target computes in integers alone; it is about what would be in float.
        summary: Optional. A function of the records of `transform_` that says in a few words what was done, for the report.
    """

    Options: type[FrozenModel]

    def values(self, graph: ir.Graph, family: EncoderFamily, options: Any) -> list[str]:
        """Return the names of the values that `transform_` needs samples of.

        Args:
            graph: a canonical float graph.
            family: the encoder family of the model.
            options: an instance of this module's `Options`.
        """

    def transform_(
        self,
        model: ir.Model,
        family: EncoderFamily,
        samples: Mapping[str, Sample],
        options: Any,
        progress: Callable[[int, int], None],
    ) -> list[Record]:
        """Edit a float graph in place. It still computes the same function.

        Args:
            model: a canonical float graph.
            family: the encoder family of the model.
            samples: a sample of each of `values`.
            options: an instance of this module's `Options`.
            progress: called with (groups done, groups in all).

        Returns:
            One record per group of layers for the report, with the change or the reason for none. Where channels were scaled,
            `channels` has the largest magnitude of each before and after, [2, C]; `pipeline/stages/transform.py` takes it out.
        """


_PLUGINS = plugins.Family[Transform]("transforms")
names, load, axes = _PLUGINS.names, _PLUGINS.load, _PLUGINS.axes
