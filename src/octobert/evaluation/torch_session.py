"""A checkpoint in PyTorch: the float model as users know it. Needs torch and transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octobert.core import environment
from octobert.core.heads import head_of
from octobert.core.session import Feeds, SessionOptions, read_outputs
from octobert.models import checkpoint, pooling, torch_pooling
from octobert.targets.shared import sessions


class TorchSession:
    """A checkpoint folder, run by transformers with its default attention, not compiled.

    Args:
        folder: the checkpoint.
        options: how to open it.
        head: the head to load, such as `sequence-classification`.
        allow_pickle: allow pickle weights. Opening them runs code.
    """

    def __init__(
        self, folder: Path, options: SessionOptions, head: str, *, allow_pickle: bool = False
    ) -> None:
        import torch

        options = sessions.with_streams(options)
        if options.threads or options.streams > 1:
            # The setting is global to the process.
            torch.set_num_threads(options.threads or max(1, environment.cores() // options.streams))
        self.streams, self.prepares_shapes, self.device = options.streams, False, None
        self.model = checkpoint.load_torch(folder, head, attention=None, allow_pickle=allow_pickle)
        self._head = head_of(head)
        self._pooler = (
            pooling.pooler_of(folder, self._head, allow_pickle=allow_pickle)
            if self._head.pooled
            else None
        )
        self.outputs = read_outputs(self._head.outputs)
        self.precision = "f32"
        self.threads = torch.get_num_threads()
        self._accepts = checkpoint.inputs_of(self.model)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name."""
        taken = {name: array for name, array in feeds.items() if name in self._accepts}
        given = torch_pooling.answers(self.model, taken, self._head, self._pooler)
        return {name: given[name] for name in self.outputs}
