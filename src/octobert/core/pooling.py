"""`Pooling`: how the states of a text's tokens become one vector, as a sentence-transformers folder states it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from octobert.core.frozen import FrozenModel

Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


class Normalize(FrozenModel):
    """Divide by the L2 norm."""

    kind: Literal["normalize"] = "normalize"


class Dense(FrozenModel):
    """A linear layer and an activation.

    Args:
        folder: of its weights, relative to the model's folder.
        in_features: width of the vector before.
        out_features: width of the vector after.
        bias: whether the linear layer has one.
        activation: `Identity`, `Tanh`, `ReLU`, `Sigmoid` or `GELU`, as torch.nn names them.
        residual: add the vector before, projected where the widths differ.
    """

    kind: Literal["dense"] = "dense"
    folder: str
    in_features: int = Field(gt=0)
    out_features: int = Field(gt=0)
    bias: bool = True
    activation: str = "Tanh"
    residual: bool = False


class LayerNorm(FrozenModel):
    """Layer normalization with a scale and a shift.

    Args:
        folder: of its weights, relative to the model's folder.
        dimension: width of the vector.
    """

    kind: Literal["layer-norm"] = "layer-norm"
    folder: str
    dimension: int = Field(gt=0)


PoolingStep = Annotated[Normalize | Dense | LayerNorm, Field(discriminator="kind")]


class Pooling(FrozenModel):
    """How token states become one vector.

    Args:
        modes: each gives a vector; several are concatenated in this order.
        include_prompt: whether the tokens of a prompt count.
        steps: what follows, in order.
        truncate_dim: number of features that are kept at the end; None for all.
        similarity: how vectors are meant to be compared, such as `cosine`; None where the model does not say.
    """

    modes: tuple[Mode, ...] = ("mean",)
    include_prompt: bool = True
    steps: tuple[PoolingStep, ...] = ()
    truncate_dim: int | None = Field(default=None, gt=0)
    similarity: str | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders that hold the weights of the steps."""
        return tuple(step.folder for step in self.steps if not isinstance(step, Normalize))
