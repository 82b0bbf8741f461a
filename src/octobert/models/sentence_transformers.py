"""Write the files with which sentence-transformers opens the folder of a model.

modules.json                        encoder, pooling and what follows it
1_Pooling/config.json               how token states become a vector
2_Dense/…                           weights of a module after pooling, copied
sentence_bert_config.json           the longest text, in tokens
config_sentence_transformers.json   prompts, similarity
config.json                         of a classifier: what makes a score of its logit

Types of modules have the names of releases before 5.4, which newer releases read as well.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from octobert.core.model_config import CONFIG, SENTENCE_CONFIG, Normalize, Pooling, read_object
from octobert.models.modules import ABOUT, MODULES
from octobert.models.pooling import FLAGS

_TYPES = "sentence_transformers.models"
# Keys of `ABOUT` that change what is computed; versions of other packages say nothing about these files.
_KEPT = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
# Of `SENTENCE_CONFIG`: what is passed on to whoever opens the encoder's file.
FILE_KEY = "model_args"
_NAMES = {"normalize": "Normalize", "dense": "Dense", "layer-norm": "LayerNorm"}


def write(
    folder: Path,
    source: Path,
    pooling: Pooling,
    *,
    hidden: int,
    max_length: int,
    onnx_file: str | None = None,
) -> None:
    """Write the files.

    Args:
        folder: to write into.
        source: holds the folders of `pooling.steps`, and the last two files, where the model has them.
        pooling: of the model.
        hidden: width of the token states.
        max_length: the longest text, in tokens; longer ones are cut.
        onnx_file: what is opened in the folder `onnx`; None leaves it to the default, `model.onnx`.
    """
    own = ["", "1_Pooling"]
    kinds = ["Transformer", "Pooling"]
    for number, step in enumerate(pooling.steps, start=2):
        name = _NAMES[step.kind]
        kinds.append(name)
        own.append(f"{number}_{name}")
        if not isinstance(step, Normalize):
            shutil.copytree(source / step.folder, folder / own[-1])
    modules = [
        {"idx": i, "name": str(i), "path": own[i], "type": f"{_TYPES}.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    flags = {flag: mode in pooling.modes for flag, mode in FLAGS.items()}
    options: dict[str, Any] = {
        "word_embedding_dimension": hidden,
        **flags,
        "include_prompt": pooling.include_prompt,
    }
    if len(pooling.modes) > 1:
        # The flags do not say in which order vectors are joined.
        options["pooling_mode"] = list(pooling.modes)
    stated, settings = (
        read_object(source / name, missing_ok=True) for name in (ABOUT, SENTENCE_CONFIG)
    )
    about = {key: stated[key] for key in _KEPT if stated.get(key) is not None}
    lower = bool(settings.get("do_lower_case", False))
    opened = {FILE_KEY: {"file_name": onnx_file}} if onnx_file is not None else {}
    (folder / own[1]).mkdir()
    for name, content in (
        (MODULES, modules),
        (f"{own[1]}/config.json", options),
        (SENTENCE_CONFIG, {"max_seq_length": max_length, "do_lower_case": lower} | opened),
        (ABOUT, about),
    ):
        (folder / name).write_text(
            json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8"
        )


def write_activation(folder: Path, activation: str) -> None:
    """Write into `config.json` what makes a score of a logit: releases from 4 on read it there, with or without `modules.json`.

    Args:
        folder: holds `config.json`.
        activation: a function, as torch.nn names it.
    """
    config = read_object(folder / CONFIG)
    own = config.get("sentence_transformers")
    config["sentence_transformers"] = {
        **(own if isinstance(own, dict) else {}),
        "activation_fn": activation,
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False), encoding="utf-8")
