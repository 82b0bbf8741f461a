"""How the states of a text's tokens become one vector: what a sentence-transformers folder states, and its PyTorch form.

`modules.json` names the modules of such a model, in order. Every module is honoured or refused by its name. A folder without
that file is a plain encoder, whose token states are averaged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.arrays import tensors_in
from octobert.core.errors import ModelError
from octobert.core.frozen import first_problem
from octobert.core.heads import Head
from octobert.core.model_config import (
    ABOUT,
    CONFIG,
    MODE_KEYS,
    MODULES,
    SENTENCE_CONFIG,
    WEIGHTS,
    Dense,
    LayerNorm,
    Mode,
    Normalize,
    Pooling,
    PoolingStep,
    read_object,
)
from octobert.models.late_interaction import PROJECTION, STANFORD
from octobert.models.locating import pickle_only
from octobert.models.sentence_transformers import (
    SATURATIONS,
    check_kind,
    check_template,
    modules_of,
)
from octobert.models.weights import shapes_of, unpickled, weight_files

# Kind of model → its modules up to the pooling, and the pooling of a plain encoder of that kind.
_MODULES = {
    "SentenceTransformer": ("Transformer", "Pooling"),
    "SparseEncoder": ("MLMTransformer or Transformer", "SpladePooling"),
    "MultiVectorEncoder": ("Transformer",),
    "CrossEncoder": ("Transformer", "Pooling"),
}
_PLAIN = {
    "SentenceTransformer": Pooling(),
    "SparseEncoder": Pooling(modes=("max",), saturation=1),
}
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "Sigmoid", "GELU")
_EMBEDDING = "sentence_embedding"
# Lower bounds of the divisors in sentence-transformers' mean pooling and in torch.nn.functional.normalize.
MIN_TOKENS, MIN_NORM = 1e-9, 1e-12
# Of torch.nn.LayerNorm.
NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Pooler:
    """A pooling with the weights of its steps, by `<folder>.<name>`, such as `2_Dense.linear.weight`."""

    pooling: Pooling
    weights: Mapping[str, np.ndarray]


def pooling_of(folder: Path, head: Head) -> Pooling:
    """The pooling that a folder states; for a plain encoder that of `_PLAIN`, as in sentence-transformers.

    Args:
        folder: the checkpoint, or the folder of an ONNX file's config.
        head: of the task, whose kind of model it has to be.

    Raises:
        ModelError: it is another kind of model, or a module, or an option of a module, is not supported.
    """
    check_kind(folder, head)
    modules, where = modules_of(folder), str(folder / MODULES)
    if not modules:
        if head.encoder == "MultiVectorEncoder":
            return _stanford(folder)
        if (folder / "1_Pooling").is_dir():
            raise ModelError(
                "the folder states a pooling, but not which modules follow it",
                where=where,
                got="no such file",
                fix="download modules.json too",
            )
        check_template(folder)
        return _PLAIN[head.encoder]
    about = read_object(folder / ABOUT, missing_ok=True)
    names = [_kind(stated, where) for stated, _ in modules]
    late = head.encoder == "MultiVectorEncoder"
    first, *others = _MODULES[head.encoder]
    if names[0] not in first.split(" or ") or names[1 : 1 + len(others)] != others:
        raise ModelError(
            "these modules are not supported",
            where=where,
            got=", ".join(names),
            expected=", ".join([first, *others, "…"]),
        )
    _check_transformer(folder, head)
    # Late interaction has no pooling.
    stated = {} if late else _options(modules[1][1])
    prompts = about.get("prompts")
    if (
        not stated.get("include_prompt", True)
        and isinstance(prompts, dict)
        and any(prompts.values())
    ):
        raise ModelError(
            "tokens of a prompt cannot be left out of the pooling",
            where=str(modules[1][1] / "config.json"),
            got="include_prompt: false",
            fix="remove the prompts of the model",
        )
    reads = "token_embeddings" if late else _EMBEDDING
    following = [
        (name, module_folder)
        for name, (_, module_folder) in list(zip(names, modules, strict=True))[1 + len(others) :]
        if name not in ("Dropout", "MultiVectorMask")
    ]
    scored = head.encoder == "CrossEncoder"
    if scored and (not following or following[-1][0] != "Dense"):
        raise ModelError(
            "the last module of a cross-encoder makes no scores",
            where=where,
            got=", ".join(names),
            expected="a Dense at the end",
        )
    steps = [
        _step(*module, folder, reads, "scores" if scored and module == following[-1] else reads)
        for module in following
    ]
    if late and not any(isinstance(step, Normalize) for step in steps):
        # PyLate normalizes without stating it.
        steps.append(Normalize())
    modes: tuple[Mode, ...] = ()
    saturation = 0
    if not late:
        read = _splade if head.encoder == "SparseEncoder" else _modes
        modes, saturation = read(stated, str(modules[1][1] / "config.json"))
    _check_widths(
        stated.get("embedding_dimension", stated.get("word_embedding_dimension")),
        modes,
        steps,
        where,
    )
    try:
        return Pooling(
            modes=modes,
            saturation=saturation,
            include_prompt=bool(stated.get("include_prompt", True)),
            steps=tuple(steps),
            # Scores are no vector to be cut.
            truncate_dim=None if scored else about.get("truncate_dim"),
            # Vectors of tokens have one similarity.
            similarity=None if late else about.get("similarity_fn_name"),
        )
    except ValueError as error:
        raise ModelError(
            f"{ABOUT} cannot be followed",
            where=str(folder / ABOUT),
            got=first_problem(error),
            fix="correct it",
        ) from error


def _stanford(folder: Path) -> Pooling:
    """The projection of Stanford's ColBERT, which lies among the weights of the encoder, as a module of its own.

    Raises:
        ModelError: there is none.
    """
    config, shapes = (
        read_object(folder / CONFIG),
        shapes_of(weight_files(folder, allow_pickle=True)),
    )
    shape = shapes.get("linear.weight", ())
    if STANFORD not in (config.get("architectures") or ()) or len(shape) != 2:
        raise ModelError(
            "the model has no projection of its token vectors",
            where=str(folder),
            expected="a model of PyLate, of sentence-transformers (MultiVectorEncoder) or of Stanford's ColBERT",
            fix="train it as one of these, or choose the task embedding",
        )
    projection = Dense(
        folder=PROJECTION,
        in_features=shape[1],
        out_features=shape[0],
        bias=False,
        activation="Identity",
    )
    return Pooling(modes=(), steps=(projection, Normalize()))


def pooler_of(folder: Path, head: Head, *, allow_pickle: bool = False) -> Pooler:
    """The pooling that a folder states, with its weights.

    Raises:
        ModelError: it is not supported, or its weights are missing, or in a pickle file that is not allowed.
    """
    pooling = pooling_of(folder, head)
    weights: dict[str, np.ndarray] = {}
    for step in pooling.steps:
        if isinstance(step, Normalize):
            continue
        expected, place = _shapes(step), folder / step.folder
        arrays = _arrays(place if place.is_dir() else folder, expected, allow_pickle=allow_pickle)
        for name, shape in expected.items():
            if name not in arrays or arrays[name].shape != shape:
                raise ModelError(
                    f'the module has no weights "{name}" of its shape',
                    where=str(folder / step.folder),
                    got=f"shape {arrays[name].shape}"
                    if name in arrays
                    else ", ".join(sorted(arrays)) or "nothing",
                    expected=str(shape),
                    fix="download it again",
                )
            weights[f"{step.folder}.{name}"] = arrays[name].astype(np.float32)
    return Pooler(pooling, weights)


def _check_widths(
    width: Any, modes: Sequence[Mode], steps: Sequence[PoolingStep], where: str
) -> None:
    """Refuse modules of which one reads a vector of another width than the one before makes."""
    width = width * max(len(modes), 1) if isinstance(width, int) else None
    for step in steps:
        if isinstance(step, Normalize):
            continue
        reads = step.in_features if isinstance(step, Dense) else step.dimension
        if width not in (None, reads):
            raise ModelError(
                f"the module in {step.folder} reads vectors of another width",
                where=where,
                got=str(reads),
                expected=str(width),
                fix="check the download",
            )
        width = step.out_features if isinstance(step, Dense) else reads


def _kind(stated: str, where: str) -> str:
    """`Dense` for `sentence_transformers.models.Dense` of older files and for the longer names of newer ones."""
    if not stated.startswith(("sentence_transformers.", "pylate.models.Dense.")):
        raise ModelError(
            "a module of the model needs its own Python code, which octobert never runs",
            where=where,
            got=stated,
            expected="modules of sentence-transformers",
        )
    return stated.rpartition(".")[2]


def _check_transformer(folder: Path, head: Head) -> None:
    """Refuse an encoder that gives anything but what a head pools."""
    path = folder / SENTENCE_CONFIG
    stated = read_object(path, missing_ok=True)
    read: Any = stated.get("modality_config")
    for key in ("text", "method_output_name"):
        read = read.get(key) if isinstance(read, dict) else None
    expected = ("fill-mask" if head.pools == "logits" else "feature-extraction", head.pools)
    lengths = [
        key for key in ("query_length", "document_length", "query_expansion") if stated.get(key)
    ]
    if lengths and head.encoder != "MultiVectorEncoder":
        raise ModelError(
            "an option of sentence-transformers is not supported",
            where=str(path),
            got=f"{lengths[0]}: {stated[lengths[0]]}",
            fix="remove it, and write what it changes into max_seq_length",
        )
    seen = (stated.get("transformer_task", expected[0]), read or expected[1])
    if seen != expected:
        raise ModelError(
            "the encoder's output is not supported",
            where=str(path),
            got=" with ".join(map(str, seen)),
            expected=" with ".join(expected),
        )


def _splade(stated: Mapping[str, Any], where: str) -> tuple[tuple[Mode, ...], int]:
    """The pooling of SPLADE, and how often it saturates."""
    mode, activation = (
        str(stated.get(key, usual))
        for key, usual in (("pooling_strategy", "max"), ("activation_function", "relu"))
    )
    if mode not in ("max", "sum") or activation not in SATURATIONS:
        raise ModelError(
            "the pooling is not supported",
            where=where,
            got=f"{mode} of {activation}",
            expected=f"max or sum of {' or '.join(SATURATIONS)}",
        )
    return ("sum" if mode == "sum" else "max",), 1 + SATURATIONS.index(activation)


def _modes(stated: Mapping[str, Any], where: str) -> tuple[tuple[Mode, ...], int]:
    """The modes of a pooling of token states, which do not saturate."""
    modes = stated.get("pooling_mode")
    if modes is None:
        active = [key for key, value in stated.items() if key.startswith("pooling_mode_") and value]
        unknown = [key for key in active if key not in MODE_KEYS]
        modes = unknown or [mode for key, mode in MODE_KEYS.items() if key in active] or ["mean"]
    modes = list(modes) if isinstance(modes, (list, tuple)) else [modes]
    for mode in modes:
        if str(mode) not in MODE_KEYS.values():
            raise ModelError(
                "the pooling is not supported",
                where=where,
                got=str(mode),
                expected=", ".join(MODE_KEYS.values()),
            )
    return tuple(modes), 0


def _step(name: str, module_folder: Path, folder: Path, reads: str, writes: str) -> PoolingStep:
    """A module after pooling.

    Args:
        reads: what it reads.
        writes: what it writes.
    """
    stated, where = (
        _options(module_folder, missing_ok=name == "Normalize"),
        str(module_folder / "config.json"),
    )
    used = [stated.get(key) or reads for key in ("module_input_name", "module_output_name")]
    if used != [reads, writes]:
        raise ModelError(
            f"this use of {name} is not supported",
            where=where,
            got=" → ".join(map(str, used)),
            expected=f"{reads} → {writes}",
        )
    inner = module_folder.relative_to(folder).as_posix()
    if name == "Normalize":
        return Normalize()
    try:
        if name == "LayerNorm":
            return LayerNorm(folder=inner, dimension=stated["dimension"])
        if name == "Dense":
            activation = str(stated.get("activation_function", "torch.nn.modules.activation.Tanh"))
            if (
                not activation.startswith("torch.nn.")
                or activation.rpartition(".")[2] not in ACTIVATIONS
            ):
                raise ModelError(
                    "the activation function is not supported",
                    where=where,
                    got=activation,
                    expected=", ".join(ACTIVATIONS),
                )
            return Dense(
                folder=inner,
                in_features=stated["in_features"],
                out_features=stated["out_features"],
                bias=stated.get("bias", True),
                activation=activation.rpartition(".")[2],
                residual=stated.get("use_residual", False),
            )
    except (KeyError, ValueError) as error:
        raise ModelError(
            f"the config of {name} cannot be read",
            where=where,
            got=first_problem(error) if isinstance(error, ValueError) else f"no {error}",
            fix="check the download",
        ) from error
    raise ModelError(
        f"the module {name} is not supported",
        where=str(folder / MODULES),
        got=inner,
        expected="Dense, LayerNorm, Normalize or Dropout",
    )


def _shapes(step: Dense | LayerNorm) -> dict[str, tuple[int, ...]]:
    """Name → shape of the weights of a step."""
    if isinstance(step, LayerNorm):
        return {"norm.weight": (step.dimension,), "norm.bias": (step.dimension,)}
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (step.out_features, step.in_features)}
    if step.bias:
        shapes["linear.bias"] = (step.out_features,)
    if step.residual and step.in_features != step.out_features:
        shapes["residual.weight"] = (step.out_features, step.in_features)
    return shapes


def _arrays(
    module_folder: Path, names: Collection[str], *, allow_pickle: bool
) -> dict[str, np.ndarray]:
    """The weights of a module that have these names; all of a pickle."""
    safe, pickled = (module_folder / name for name in WEIGHTS)
    if not safe.is_file() and not pickled.is_file():
        raise ModelError(
            "the module has no weights",
            where=str(module_folder),
            expected="model.safetensors",
            fix="check the download",
        )
    if not safe.is_file() and not allow_pickle:
        raise pickle_only(str(pickled))
    if safe.is_file():
        return tensors_in(safe, names)
    return {name: tensor.float().numpy() for name, tensor in unpickled(pickled).items()}


def _options(module_folder: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    path = module_folder / "config.json"
    if not path.is_file() and missing_ok:
        return {}
    if not path.is_file():
        raise ModelError(
            "a module has no config.json", where=str(module_folder), fix="check the download"
        )
    return read_object(path)
