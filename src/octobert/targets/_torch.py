"""PyTorch eager in float32: the baseline that most users come from. Needs torch and transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octobert.session import Feeds, SessionOptions


class TorchSession:
    """A checkpoint folder run by `transformers`, attention as the library chooses it, no compilation."""

    def __init__(self, folder: Path, options: SessionOptions, head: str, *, allow_pickle: bool = False) -> None:
        import torch

        from octobert.graph import checkpoint

        self._torch = torch
        if options.threads:
            torch.set_num_threads(options.threads)
        self.model = checkpoint.load_torch(folder, head, attention=None, allow_pickle=allow_pickle)
        self._head = head
        self._pooling = checkpoint.pooling_of(folder)
        self.inputs = ("input_ids", "attention_mask", "token_type_ids")
        self.outputs = checkpoint.OUTPUTS[head]
        self.precision = "f32"
        self.threads = torch.get_num_threads()
        self._accepts = checkpoint.inputs_of(self.model)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        torch = self._torch
        tensors = {name: torch.from_numpy(array) for name, array in feeds.items() if name in self._accepts}
        with torch.inference_mode():
            result = self.model(**tensors)
        if self._head != "embedding":
            return {name: result[name].numpy() for name in self.outputs}
        from octobert.graph import checkpoint

        states = result["last_hidden_state"]
        return {"sentence_embedding": checkpoint.pool(states, tensors["attention_mask"], self._pooling).numpy()}
