"""A tiny late-interaction model in the forms of three libraries, and what it computes, in PyTorch and loops, apart from octobert."""

from __future__ import annotations

import json
import shutil
import string
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

WIDTH, QUERY_TOKENS, DOCUMENT_TOKENS = 8, 12, 16
MARKERS = ("[Q] ", "[D] ")
PUNCTUATION = [".", ","]


def projection(hidden: int = 32) -> np.ndarray:
    return np.random.default_rng(5).normal(0, 0.3, (WIDTH, hidden)).astype(np.float32)


def write(encoder: Path, folder: Path, form: str, **stated: Any) -> Path:
    """A folder in the form of `pylate`, `sentence-transformers` or `stanford`.

    Args:
        encoder: a checkpoint of an encoder.
        stated: what its files state instead of the usual.
    """
    shutil.copytree(encoder, folder)
    texts = folder / "tokenizer.json"
    tokenizer = json.loads(texts.read_text())
    # Two tokens of the vocabulary stand for the markers.
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    vocabulary = tokenizer["model"]["vocab"]
    for marker, replaced in zip(MARKERS, ("##8", "##9"), strict=True):
        vocabulary[marker] = vocabulary.pop(replaced)
        tokenizer["added_tokens"].append(
            {"id": vocabulary[marker], "content": marker, "special": False, **added}
        )
    texts.write_text(json.dumps(tokenizer))
    if form == "stanford":
        weights = load_file(folder / "model.safetensors")
        named = {f"bert.{name}": weight for name, weight in weights.items()}
        save_file(
            named | {"linear.weight": projection()},
            folder / "model.safetensors",
            {"format": "pt"},
        )
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
        about = {
            "query_token_id": MARKERS[0],
            "doc_token_id": MARKERS[1],
            "query_maxlen": QUERY_TOKENS,
            "doc_maxlen": DOCUMENT_TOKENS,
        }
        (folder / "artifact.metadata").write_text(json.dumps(about | stated))
        return folder
    dense: dict[str, Any] = {
        "in_features": 32,
        "out_features": WIDTH,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": projection()}, folder / "1_Dense" / "model.safetensors")
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    about = {
        "query_prefix": MARKERS[0],
        "document_prefix": MARKERS[1],
        "query_length": QUERY_TOKENS,
        "document_length": DOCUMENT_TOKENS,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        "similarity_fn_name": "MaxSim",
        "model_type": "ColBERT",
    }
    if form == "sentence-transformers":
        library = "sentence_transformers"
        kinds = {
            "": f"{library}.base.modules.transformer.Transformer",
            "1_Dense": f"{library}.base.modules.dense.Dense",
            "2_Mask": f"{library}.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask",
            "3_Normalize": f"{library}.base.modules.normalize.Normalize",
        }
        about = {
            "model_type": "MultiVectorEncoder",
            "prompts": dict(zip(("query", "document"), MARKERS, strict=True)),
            "similarity_fn_name": "maxsim",
        }
        dense["module_input_name"] = dense["module_output_name"] = "token_embeddings"
        configs = {
            "2_Mask": {"skiplist_words": list(string.punctuation), "skiplist_tasks": ["document"]},
            "3_Normalize": {"module_input_name": "token_embeddings"},
        }
        for name, config in configs.items():
            (folder / name).mkdir()
            (folder / name / "config.json").write_text(json.dumps(config))
        reading = {
            "document_length": DOCUMENT_TOKENS,
            "query_expansion": {
                "strategy": "fixed",
                "attend": False,
                "token": None,
                "length": QUERY_TOKENS,
            },
        }
        (folder / "sentence_bert_config.json").write_text(json.dumps(reading | stated))
        stated = {}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(about | stated))
    return folder


def reference(encoder: Path, folder: Path, text: str, side: int) -> np.ndarray:
    """[tokens, WIDTH] of a query (0) or a document (1), as PyLate 1.2 computes it."""
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModel

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    ids = tokenizer.encode(text).ids
    most = (QUERY_TOKENS, DOCUMENT_TOKENS)[side] - 1
    ids = ids if len(ids) <= most else [*ids[: most - 1], ids[-1]]
    marker, mask = tokenizer.token_to_id(MARKERS[side]), tokenizer.token_to_id("[MASK]")
    ids = [ids[0], marker, *ids[1:]]
    real = len(ids)
    if side == 0:
        ids += [mask] * (QUERY_TOKENS - real)
    attended = [1] * real + [0] * (len(ids) - real)
    model = AutoModel.from_pretrained(encoder, attn_implementation="eager").eval()
    with torch.inference_mode():
        states = model(
            input_ids=torch.tensor([ids]), attention_mask=torch.tensor([attended])
        ).last_hidden_state[0]
    vectors = states.numpy().astype(np.float64) @ projection().T.astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    skipped = {tokenizer.token_to_id(word) for word in string.punctuation} - {None}
    kept = [i for i, token in enumerate(ids) if side == 0 or token not in skipped]
    return vectors[kept]


def maxsim(query: np.ndarray, document: np.ndarray) -> float:
    """The best product of each token of a query, added up."""
    return float(sum(max(float(q @ d) for d in document) for q in query))
