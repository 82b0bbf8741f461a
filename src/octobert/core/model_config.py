"""JSON files of a model, such as `config.json`, read with a check of what octobert uses of them; `Pooling`, which they state.

They come with downloaded models, so any of them may be damaged, or say anything.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from octobert.core.errors import ModelError
from octobert.core.files import content_of
from octobert.core.frozen import FINITE, FrozenModel
from octobert.core.plain import parsed_json, preview

CONFIG = "config.json"
# What it says of a model. Its keys are those of the classes of transformers.
Config = dict[str, Any]
# Of sentence-transformers: its modules, and what its encoder reads.
MODULES, SENTENCE_CONFIG = "modules.json", "sentence_bert_config.json"
# Folder of the weights of tokens that make a query's sparse vector without a model.
QUERY_TABLE = "query_0_SparseStaticEmbedding"
TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"
ABOUT, ROUTER, GLINER = (
    "config_sentence_transformers.json",
    "router_config.json",
    "gliner_config.json",
)
# Of Stanford's ColBERT, and of peft.
METADATA, ADAPTER_CONFIG = "artifact.metadata", "adapter_config.json"
# Of a module of sentence-transformers, the safe form first.
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# Names of one file of sentence-transformers, the present one first.
SENTENCE_CONFIGS = tuple(
    SENTENCE_CONFIG.replace("bert", family, 1)
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Of a tokenizer, as transformers saves it.
TOKENIZER_FILES = (
    *("tokenizer.json", TOKENIZER_CONFIG, "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "*.model"),
)
# Of the table of queries, with a tokenizer of its own.
TABLE_FILES = tuple(f"{QUERY_TABLE}/{name}" for name in (CONFIG, WEIGHTS[0], *TOKENIZER_FILES))
# Patterns of the files in a model's folder that are read, but for weights and modules.
READ = (
    *(CONFIG, MODULES, ABOUT, ROUTER, GLINER, METADATA, ADAPTER_CONFIG, TEMPLATE, "*.index.json"),
    *SENTENCE_CONFIGS,
    *TOKENIZER_FILES,
)
_FIX = "download or copy the model again"
# The deepest encoders have fewer than a hundred layers. With a million, transformers would not come back.
_Layers = Annotated[int, Field(ge=1, le=1000)]
_Width = Annotated[int, Field(ge=1, le=2**20)]
# transformers writes them several times; with more, that takes half a minute.
_MOST_LABELS = 2**16
_Key = TypeVar("_Key")
_Labels = Annotated[dict[_Key, str | int | float], Field(max_length=_MOST_LABELS)]
_Epsilon = Annotated[float, Field(ge=0, le=1)]


def chat_template(path: Path) -> ModelError:
    """The error for a model whose texts sentence-transformers writes as chat messages, as a file says."""
    return ModelError(
        "the model reads texts as messages in a chat template, which octobert does not do",
        where=str(path),
        fix="remove the template from the files, if the model was trained without it, or choose another model",
    )


class _Config(BaseModel):
    """The keys that octobert, or the size of the model that transformers builds, depends on. Other keys may be anything."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model_type: Annotated[str, Field(max_length=100)] = "bert"
    architectures: list[str] | None = None
    auto_map: dict[str, Any] | None = None
    id2label: _Labels[Annotated[str, Field(pattern=r"^[0-9]{1,7}$")]] | None = None
    label2id: _Labels[str] | None = None
    max_position_embeddings: Annotated[int, Field(ge=1, le=2**24)] = 512
    pad_token_id: Annotated[int, Field(ge=0, le=2**31)] | None = None
    vocab_size: Annotated[int, Field(ge=1, le=2**26)] | None = None
    type_vocab_size: Annotated[int, Field(ge=0, le=2**20)] | None = None
    num_labels: Annotated[int, Field(ge=1, le=_MOST_LABELS)] | None = None
    num_hidden_layers: _Layers | None = None
    n_layers: _Layers | None = None
    hidden_size: _Width | None = None
    dim: _Width | None = None
    intermediate_size: _Width | None = None
    hidden_dim: _Width | None = None
    embedding_size: _Width | None = None
    num_attention_heads: _Width | None = None
    layer_norm_eps: _Epsilon | None = None
    layer_norm_epsilon: _Epsilon | None = None
    norm_eps: _Epsilon | None = None
    rms_norm_eps: _Epsilon | None = None


def read_object(path: Path, *, missing_ok: bool = False, **hooks: Any) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Args:
        path: the file.
        missing_ok: an empty object stands for a file that is not there.
        hooks: as those of `parsed_json`.

    Raises:
        ModelError: it cannot be read, is not JSON in UTF-8, or holds something else.
    """
    value = {} if missing_ok and not path.is_file() else read_json(path, **hooks)
    if not isinstance(value, dict):
        raise ModelError(
            f"{path.name} holds no object",
            where=str(path),
            got=preview(value, 60),
            expected="{…}",
            fix=_FIX,
        )
    return value


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file for people and other programs, in UTF-8; its folder is made where there is none."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def read_json(path: Path, **hooks: Any) -> Any:
    """Read a JSON file.

    Args:
        path: the file.
        hooks: as those of `parsed_json`.

    Raises:
        ModelError: it cannot be read, or is not JSON in UTF-8.
    """
    try:
        return parsed_json(content_of(path).decode(), **hooks)
    except OSError as error:
        raise ModelError(
            f"{path.name} cannot be read",
            where=str(path),
            got=error.strerror,
            fix="check the path and its permissions",
        ) from error
    except ValueError as error:
        raise ModelError(
            f"{path.name} is not JSON", where=str(path), got=str(error)[:200], fix=_FIX
        ) from error


def read_config(folder: Path) -> Config:
    """Read the `config.json` of a model; empty where there is none.

    Raises:
        ModelError: it cannot be read, or a value is none that an encoder can have.
    """
    path = folder / CONFIG
    config = read_object(path, missing_ok=True, **FINITE)
    check_config(config, path)
    return config


def check_config(config: Config, path: Path) -> None:
    """Check the values of a config that the size of a model depends on.

    Args:
        path: of the file that states them.

    Raises:
        ModelError: a value is none that an encoder can have.
    """
    try:
        _Config.model_validate(config)
    except ValidationError as error:
        first = error.errors()[0]
        raise ModelError(
            f"{path.name} has a value that no encoder can have",
            where=f"{path}, {'.'.join(map(str, first['loc']))}",
            got=preview(first["input"], 60),
            expected=first["msg"].removeprefix("Input should be ").removeprefix("String should "),
            fix=_FIX,
        ) from error


Mode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken", "sum"]


# Keys of older folders, in the order in which sentence-transformers concatenates.
MODE_KEYS: dict[str, Mode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


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


Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
PoolingStep = Annotated[Normalize | Dense | LayerNorm, Field(discriminator="kind")]


# Tokens of a query or a document: room for markers, and no more than a model can have positions.
_LONGEST = 2**20
_Length = Annotated[int, Field(ge=4, le=_LONGEST)]


class Reading(FrozenModel):
    """How a late-interaction model reads queries and documents.

    Args:
        markers: token that is inserted behind the first one of a query, and of a document; empty for none.
        lengths: most tokens of a query, and of a document, with all that is inserted; None for the model's limit.
        filled: tokens to which shorter queries are filled up; 0 for none.
        filler: the token that fills them; empty for the mask token.
        attended: whether other tokens attend to fillers. Each has a vector all the same.
        skipped: tokens without a vector, such as punctuation.
        skipping: what they are left out of.
    """

    markers: tuple[str, str] = ("", "")
    lengths: tuple[_Length | None, _Length | None] = (None, None)
    filled: int = Field(default=0, ge=0, le=_LONGEST)
    filler: str = ""
    attended: bool = False
    skipped: tuple[str, ...] = ()
    skipping: tuple[Literal["query", "document"], ...] = ("document",)


class Pooling(FrozenModel):
    """How what a model gives for each token becomes one vector, or vectors of all tokens.

    Args:
        modes: each gives a vector; several are concatenated in this order. None for the vectors of all tokens.
        saturation: how many times log(1 + x) is taken of the positive part of each token's numbers before; 1 in SPLADE.
        include_prompt: whether the tokens of a prompt count.
        steps: what follows, in order.
        truncate_dim: number of features that are kept at the end; None for all.
        similarity: how vectors are meant to be compared; None where the model does not say, which means `cosine`.
    """

    modes: tuple[Mode, ...] = ("mean",)
    saturation: int = Field(default=0, ge=0, le=2)
    include_prompt: bool = True
    steps: tuple[PoolingStep, ...] = ()
    truncate_dim: int | None = Field(default=None, gt=0)
    similarity: Similarity | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Folders that hold the weights of the steps."""
        return tuple(step.folder for step in self.steps if not isinstance(step, Normalize))
