"""How a late-interaction model (ColBERT) reads queries and documents: what its files state.

config_sentence_transformers.json    PyLate: markers, lengths, query expansion, skipped words
sentence_bert_config.json            sentence-transformers 6: lengths and query expansion; markers are prompts
N_MultiVectorMask/config.json        sentence-transformers 6: skipped words
artifact.metadata                    Stanford's ColBERT: all of it
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.errors import ModelError
from octobert.core.frozen import first_problem
from octobert.core.model_config import (
    ABOUT,
    CONFIG,
    METADATA,
    MODULES,
    SENTENCE_CONFIG,
    Reading,
    read_object,
    write_json,
)
from octobert.models.sentence_transformers import entries, modules_of

# Folder of a projection that had none.
PROJECTION = "1_Dense"
STANFORD = "HF_ColBERT"
# What the libraries take where a model states nothing.
_QUERY_LENGTH, _PYLATE_DOCUMENT_LENGTH = 32, 180
_PYLATE_MARKERS, _STANFORD_MARKERS = ("[Q] ", "[D] "), ("[unused0]", "[unused1]")
_PUNCTUATION = tuple(string.punctuation)


def reading_of(folder: Path) -> Reading | None:
    """How the model in a folder reads texts; None for a model of another kind.

    Raises:
        ModelError: a statement that cannot be followed.
    """
    about = read_object(folder / ABOUT, missing_ok=True) if (folder / MODULES).is_file() else {}
    kinds = [kind for kind, _ in modules_of(folder)]
    where, read = folder / ABOUT, _pylate
    if STANFORD in (read_object(folder / CONFIG, missing_ok=True).get("architectures") or ()):
        where, read = folder / METADATA, _stanford
        about = read_object(where, missing_ok=True)
    elif about.get("model_type") == "MultiVectorEncoder":
        where, read = folder / SENTENCE_CONFIG, _sentence_transformers
        about = read_object(where, missing_ok=True) | {"folder": folder}
    elif about.get("model_type") != "ColBERT" and not any(k.startswith("pylate.") for k in kinds):
        return None
    try:
        return Reading.model_validate(read(about))
    except (ValueError, TypeError, AttributeError) as error:
        raise ModelError(
            "how the model reads queries and documents cannot be followed",
            where=str(where),
            got=first_problem(error) if isinstance(error, ValueError) else str(error),
            fix="correct the file, or download it again",
        ) from error


def write_modules(folder: Path, reading: Reading, projection: np.ndarray) -> None:
    """Write the modules of a model whose projection lies among the weights of its encoder, as PyLate does.

    Args:
        folder: to write into.
        reading: how it reads texts.
        projection: [dimensions, hidden].
    """
    from safetensors.numpy import save_file

    own = folder / PROJECTION
    width, hidden = projection.shape
    dense = {
        "in_features": hidden,
        "out_features": width,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    kinds = {
        "": "sentence_transformers.models.Transformer",
        PROJECTION: "pylate.models.Dense.Dense",
    }
    about = {
        "model_type": "ColBERT",
        "query_prefix": reading.markers[0],
        "document_prefix": reading.markers[1],
        "query_length": reading.lengths[0],
        "document_length": reading.lengths[1],
        "attend_to_expansion_tokens": reading.attended,
        "skiplist_words": reading.skipped,
    }
    write_json(own / CONFIG, dense)
    write_json(folder / MODULES, entries(kinds))
    write_json(folder / ABOUT, about)
    save_file({"linear.weight": projection}, own / "model.safetensors")


def _pylate(stated: Mapping[str, Any]) -> dict[str, Any]:
    markers = ("query_prefix", "document_prefix")
    length = stated.get("query_length") or _QUERY_LENGTH
    skipped = stated.get("skiplist_words")
    return {
        "markers": [
            stated[key] if stated.get(key) is not None else usual
            for key, usual in zip(markers, _PYLATE_MARKERS, strict=True)
        ],
        "lengths": (length, stated.get("document_length") or _PYLATE_DOCUMENT_LENGTH),
        "filled": 0 if stated.get("do_query_expansion") is False else length,
        "attended": bool(stated.get("attend_to_expansion_tokens")),
        "skipped": _PUNCTUATION if skipped is None else skipped,
    }


def _stanford(stated: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("query_token_id", "doc_token_id")
    length = stated.get("query_maxlen") or _QUERY_LENGTH
    return {
        "markers": [
            stated.get(key) or usual for key, usual in zip(keys, _STANFORD_MARKERS, strict=True)
        ],
        "lengths": (length, stated.get("doc_maxlen") or _PYLATE_DOCUMENT_LENGTH),
        "filled": length,
        "attended": bool(stated.get("attend_to_mask_tokens")),
        "skipped": _PUNCTUATION if stated.get("mask_punctuation", True) else (),
    }


def _sentence_transformers(stated: Mapping[str, Any]) -> dict[str, Any]:
    filled = stated.get("query_expansion") or {}
    length = filled.get("length", 0)
    if filled and filled.get("strategy") not in ("fixed", "min"):
        raise ValueError(f"query_expansion: no strategy {filled.get('strategy')!r}")
    most = length if filled.get("strategy") == "fixed" else stated.get("query_length")
    masks = [
        read_object(module / CONFIG)
        for kind, module in modules_of(stated["folder"])
        if kind.endswith("MultiVectorMask")
    ]
    mask = masks[0] if masks else {}
    if mask.get("keep_only_token_ids"):
        raise ValueError("keep_only_token_ids: a model of images")
    return {
        "lengths": (most, stated.get("document_length")),
        "filled": length,
        "filler": filled.get("token") or "",
        "attended": bool(filled.get("attend")),
        "skipped": mask.get("skiplist_words") or (),
        "skipping": mask.get("skiplist_tasks") or ("document",),
    }
