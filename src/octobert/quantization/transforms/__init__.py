"""Graph transforms: one file each, rewrite a float graph into an equivalent one that loses less accuracy when quantized."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Annotated, Any, ClassVar

import onnx_ir as ir

from octobert.core import plugins
from octobert.core.axes import Axis
from octobert.core.family import EncoderFamily
from octobert.core.frozen import FrozenModel
from octobert.core.ranges import Sample

# What a transform did to one group of layers: its kind, its module and the chosen setting.
Record = dict[str, Any]


class Transform(FrozenModel, ABC):
    """From a float graph to an equivalent one. The fields of a transform are its options; every one has a default.

    Attributes:
        needs_float: why it is left out where a target computes in integers alone; None where it is not.
        axes: what a search may vary.
    """

    needs_float: ClassVar[str | None] = None
    axes: ClassVar[tuple[Axis, ...]] = ()

    @abstractmethod
    def values(self, graph: ir.Graph, family: EncoderFamily) -> list[str]:
        """Return the names of the values that `transform_` needs samples of.

        Args:
            graph: a canonical float graph.
            family: the encoder family of the model.
        """

    @abstractmethod
    def transform_(
        self,
        model: ir.Model,
        family: EncoderFamily,
        samples: MutableMapping[str, Sample],
        progress: Callable[[int, int], None],
    ) -> list[Record]:
        """Edit a float graph in place. It still computes the same function.

        Args:
            model: a canonical float graph.
            family: the encoder family of the model.
            samples: a sample of each of `values`, and of others. Later transforms read them: the sample of a value that changes
                is replaced here, or taken out, and is then made again.
            progress: called with (groups done, groups in all).

        Returns:
            One record per group of layers for the report, with the change or the reason for none. Where channels were scaled,
            `channels` has the largest magnitude of each before and after, [2, C]; `pipeline/stages/transform.py` takes it out.
        """

    def summary(self, records: Sequence[Mapping[str, Any]]) -> str:
        """Say in a few words what the records of `transform_` tell, for the report; empty where they say it themselves."""
        return ""


PLUGINS = plugins.Plugins("transforms", Transform)
TransformField = Annotated[Transform, PLUGINS]
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each


def axes() -> tuple[Axis, ...]:
    """Return what a search may vary by transforms."""
    return tuple(axis for _, transform in each() for axis in transform.axes)
