"""How vectors are made of token states in PyTorch: the reference for the pooling of graphs."""

from __future__ import annotations

from typing import Any

import numpy as np

from octobert.core.heads import Head
from octobert.core.model_config import LayerNorm, Mode, Normalize
from octobert.core.session import Feeds
from octobert.models.pooling import MIN_NORM, MIN_TOKENS, NORM_EPSILON, Pooler


def pool(states: Any, mask: Any, pooler: Pooler) -> Any:
    """Pool what a model gives for each token in PyTorch, the reference for the graph's pooling.

    Args:
        states: tensor [B, S, D]: states, or logits over the vocabulary.
        mask: the attention mask, tensor [B, S]; padding is on the right.
        pooler: how.

    Returns:
        tensor [B, E], or [B, S, E] where nothing is pooled.
    """
    import torch
    import torch.nn.functional as F

    def weight(name: str) -> Any:
        array = pooler.weights.get(name)
        return None if array is None else torch.from_numpy(array).to(states)

    token_mask = mask.unsqueeze(-1).to(states.dtype)
    for _ in range(pooler.pooling.saturation):
        states = states.relu().log1p()
    pooled = [_pooled(mode, states, token_mask) for mode in pooler.pooling.modes]
    x = torch.cat(pooled, dim=-1) if pooled else states
    for step in pooler.pooling.steps:
        if isinstance(step, Normalize):
            x = F.normalize(x, dim=-1, eps=MIN_NORM)
        elif isinstance(step, LayerNorm):
            scale, shift = weight(f"{step.folder}.norm.weight"), weight(f"{step.folder}.norm.bias")
            x = F.layer_norm(x, (step.dimension,), scale, shift, NORM_EPSILON)
        else:
            output = F.linear(
                x, weight(f"{step.folder}.linear.weight"), weight(f"{step.folder}.linear.bias")
            )
            output = getattr(torch.nn, step.activation)()(output)
            if step.residual:
                projection = weight(f"{step.folder}.residual.weight")
                output = output + (x if projection is None else F.linear(x, projection))
            x = output
    return x[..., : pooler.pooling.truncate_dim]


def with_modules(encoder: Any, pooler: Pooler) -> Any:
    """Return a PyTorch model whose logits modules make of the token states of an encoder of transformers."""
    import torch

    class Modular(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.config = encoder, encoder.config

        def forward(
            self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None
        ) -> dict[str, Any]:
            segments = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
            states = self.encoder(input_ids, attention_mask, **segments).last_hidden_state
            return {"logits": pool(states, attention_mask, pooler)}

    return Modular()


def answers(model: Any, feeds: Feeds, head: Head, pooler: Pooler | None) -> dict[str, np.ndarray]:
    """Return the outputs of a PyTorch model by name, in the order of `head.outputs`; vectors are made of them by `pooler`."""
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
    with torch.inference_mode():
        result = model(**tensors)
    if pooler is not None:
        states = result[head.pools]
        vectors = pool(states, tensors["attention_mask"], pooler)
        result = {head.pools: states, head.outputs[-1]: vectors}
    return {name: result[name].numpy() for name in head.outputs}


def _pooled(mode: Mode, states: Any, token_mask: Any) -> Any:
    """One mode; `token_mask` is 1 for tokens and 0 for padding, [B, S, 1]."""
    if mode == "cls":
        return states[:, 0]
    if mode == "max":
        return states.masked_fill(token_mask == 0, float("-inf")).amax(1)
    if mode == "sum":
        return (states * token_mask).sum(1)
    if mode in ("mean", "mean_sqrt_len_tokens"):
        count = token_mask.sum(1).clamp(min=MIN_TOKENS)
        return (states * token_mask).sum(1) / (count if mode == "mean" else count.sqrt())
    places = token_mask.cumsum(1) * token_mask
    weights = (
        places
        if mode == "weightedmean"
        else (places == token_mask.sum(1, keepdim=True)).to(states.dtype)
    )
    return (states * weights).sum(1) / weights.sum(1).clamp(min=MIN_TOKENS)
