"""What some programs need beside a package's files and its model, as steps of writing a folder; `clients.yaml` names them.

A step changes the folder, in which all other files are written. It also gets the facts on its model and the manifest.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octobert.core.errors import ModelError, RecipeError
from octobert.core.heads import HEADS
from octobert.core.model_config import (
    ABOUT,
    CONFIG,
    SENTENCE_CONFIG,
    TOKENIZER_CONFIG,
    Pooling,
    read_object,
    write_json,
)
from octobert.core.session import TOKEN_VECTORS

if TYPE_CHECKING:
    from octobert.api.clients import Model
    from octobert.core.results import PackageManifest

_TOKENIZER_IR = "openvino_tokenizer.xml"


def name_no_file(folder: Path) -> None:
    """Remove the name of the 8-bit file: a package has it beside the float one, here it has the default name."""
    from octobert.models.sentence_transformers import FILE_KEY

    if (folder / SENTENCE_CONFIG).is_file():
        config = read_object(folder / SENTENCE_CONFIG)
        config.pop(FILE_KEY, None)
        write_json(folder / SENTENCE_CONFIG, config)


def state_reading(folder: Path, *, by_class: bool) -> None:
    """State that texts are read as octobert reads them: by `tokenizer.json` as it is, and with padding on the right.

    Args:
        folder: of the tokenizer.
        by_class: the program is transformers, most of whose classes take parts of the tokenizer from elsewhere.
    """
    from octobert.data.tokenization import Tokenizer
    from octobert.data.tokenizer_files import BACKEND, FAST, TOKENIZER, of_no_class

    stated = read_object(folder / TOKENIZER_CONFIG) | {"padding_side": "right"}
    # octobert reads a special token in a text as one.
    stated.pop("split_special_tokens", None)
    split = read_object(folder / TOKENIZER).get("pre_tokenizer") or {}
    if "add_prefix_space" in split:
        # transformers 4 changes it in every class, and takes no space where nothing is stated.
        stated["add_prefix_space"] = split["add_prefix_space"]
    if by_class and stated.get("tokenizer_class") not in (FAST, BACKEND):
        stated = of_no_class(folder, stated, segments=True)
        # A default of many classes.
        with suppress(ModelError):
            stated["mask_token"] = Tokenizer(folder).mask[0]
    write_json(folder / TOKENIZER_CONFIG, stated)


def late_problem(
    folder: Path, manifest: PackageManifest, *, openvino: bool, own: bool
) -> tuple[str, str] | None:
    """Return why a client does not open a late-interaction model, and what it has; None where it does."""
    from octobert.data.tokenization import Tokenizer

    if not own:
        # The release of sentence-transformers that has such models needs a newer transformers than optimum-onnx.
        return None if openvino else ("opens such models with OpenVINO only", manifest.target)
    reading, tokenizer = manifest.task.reading, Tokenizer(folder)
    markers = reading.markers if reading is not None else ()
    tokens = [tokenizer.id_of(marker) for marker in markers if marker]
    if reading is None or tokens != [1, 2] or reading.lengths[0] != 32 or reading.filled != 32:
        what = "knows no markers but the tokens 1 and 2, and no queries but those of 32 tokens"
        return what, f"markers {', '.join(map(str, tokens)) or 'in the texts'}"
    return None


def keep_output(weights: Path, path: Path, name: str, *, as_token: bool) -> None:
    """Write a model with one of its outputs only.

    Args:
        weights: an ONNX file.
        path: where the model is written.
        name: of the output.
        as_token: take the vector, and name it the states of one token, [batch, 1, width]: who takes the first, or the mean, has
            the vector.
    """
    import onnx_ir as ir

    from octobert.core.session import STATES
    from octobert.graph import operators

    model = ir.load(weights)
    graph = model.graph
    if as_token:
        vector = graph.outputs[-1]
        for value in (each for node in graph for each in node.outputs if each.name == STATES):
            value.name = f"{STATES}_inside"
        axis = ir.Value(
            name="token_axis",
            const_value=ir.tensor([1], dtype=ir.DataType.INT64, name="token_axis"),
        )
        graph.register_initializer(axis)
        node = ir.node("Unsqueeze", [vector, axis], name="vector_as_token")
        node.outputs[0].name, node.outputs[0].type = STATES, vector.type
        graph.append(node)
        graph.outputs[:] = [node.outputs[0]]
    else:
        graph.outputs[:] = [value for value in graph.outputs if value.name == name]
        operators.clean_(model)
    operators.save(model, path)


def keep_vector_of_ir(source: Path, path: Path, *, as_token: bool) -> None:
    """Write an IR with its vector as the only output, or as the state of one token."""
    import numpy as np
    import openvino
    from openvino import opset13

    from octobert.core.session import STATES

    model = openvino.Core().read_model(source)
    vector = model.outputs[-1].node.input_value(0)
    if as_token:
        for output in model.outputs[:-1]:
            output.node.input_value(0).tensor.set_names({f"{STATES}_inside"})
        vector = opset13.unsqueeze(vector, np.array([1], dtype=np.int64)).output(0)
        vector.tensor.set_names({STATES})
    openvino.save_model(
        openvino.Model([opset13.result(vector)], model.get_parameters()),
        path,
        compress_to_fp16=False,
    )


def _fit_markers(folder: Path, model: Model, manifest: PackageManifest) -> None:
    """Fit a model to fastembed, which inserts markers into all inputs but segment ids, and takes the first output."""
    import onnx_ir as ir

    from octobert.graph import operators

    if model.kind != "late-interaction":
        return
    path = folder / "model.onnx"
    written = ir.load(path)
    graph = written.graph
    graph.outputs[:] = [value for value in graph.outputs if value.name == TOKEN_VECTORS]
    inputs = {str(value.name): value for value in graph.inputs}
    if (segments := inputs.get("token_type_ids")) is not None:
        zeros = ir.node("Sub", [inputs["input_ids"]] * 2, name="segments")
        graph.inputs.remove(segments)
        segments.replace_all_uses_with(zeros.outputs[0])
        graph.insert_before(graph[0], zeros)
    operators.clean_(written)
    operators.save(written, path)


def _state_positions(folder: Path, model: Model, manifest: PackageManifest) -> None:
    """State the longest text as the number of positions in `config.json`, where infinity cuts texts."""
    config, tokenizer = (read_object(folder / name) for name in (CONFIG, TOKENIZER_CONFIG))
    config["max_position_embeddings"] = tokenizer["model_max_length"]
    write_json(folder / CONFIG, config)


def _write_tokenizer_ir(folder: Path, model: Model, manifest: PackageManifest) -> None:
    """Write the tokenizer as an IR, because openvino-genai runs it with OpenVINO too.

    Raises:
        RecipeError: a package is missing.
    """
    try:
        from openvino_tokenizers import convert_tokenizer
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        from octobert.core import environment

        raise RecipeError(
            f"openvino-genai needs a tokenizer that {error.name} converts, which is not installed",
            where="--for",
            fix=environment.install("genai"),
        ) from None
    import openvino

    converted = convert_tokenizer(
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False), truncation=True
    )
    openvino.save_model(converted, folder / _TOKENIZER_IR)


def _state_all(folder: Path, model: Model, manifest: PackageManifest) -> None:
    """State all keys that text-embeddings-inference parses into types of its own: without one of them it does not start.

    Names and types are those of its release 1.9.3. It reads no other keys, so that none that it would take otherwise are left.
    """
    from octobert.core.session import STATES
    from octobert.data.tokenization import Tokenizer
    from octobert.data.tokenizer_files import TOKENIZER, lowers

    config, tokenizer = (read_object(folder / name) for name in (CONFIG, TOKENIZER_CONFIG))
    length, kept = tokenizer["model_max_length"], model.outputs[0].name
    if lowers(folder):
        # It reads nothing else of the tokenizer.
        Tokenizer(folder).save(folder / TOKENIZER)
    is_classifier = kept == "logits"
    labels = manifest.task.labels or [f"LABEL_{i}" for i in range(model.width * is_classifier)]
    files: dict[str, dict[str, Any]] = {
        CONFIG: {
            "model_type": config["model_type"],
            # It takes a model for a classifier by the end of this name, and one of one logit for a reranker.
            "architectures": ["ForSequenceClassification"] * is_classifier,
            "id2label": dict(enumerate(labels)),
            "label2id": {label: i for i, label in enumerate(labels)},
            "max_position_embeddings": length,
            "pad_token_id": config.get("pad_token_id") or 0,
            # DistilBERT has other names for them.
            "hidden_size": manifest.model.sizes.hidden,
            "num_hidden_layers": manifest.model.sizes.layers,
        },
        SENTENCE_CONFIG: {"max_seq_length": length},
        ABOUT: {"prompts": manifest.task.prompts},
    }
    if not is_classifier and kept != STATES:
        # The file gives the vector. It asks for a pooling that it knows all the same, and does not use it.
        files["1_Pooling/config.json"] = {
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
        }
    for name, content in files.items():
        write_json(folder / name, content)


def _take_token(folder: Path, model: Model, manifest: PackageManifest) -> None:
    """Let sentence-transformers pool the one token that has the vector as its state, and do nothing else."""
    from octobert.models import sentence_transformers

    if model.given != "token":
        return
    task, length = manifest.task, read_object(folder / TOKENIZER_CONFIG)["model_max_length"]
    about = {
        "prompts": task.prompts,
        "default_prompt_name": task.default_prompt,
        "similarity_fn_name": task.similarity,
    }
    write_json(folder / ABOUT, about)
    sentence_transformers.write(
        folder,
        folder,
        HEADS[task.head],
        Pooling(modes=("cls",)),
        hidden=model.width,
        max_length=length,
    )


WRITERS = {
    "markers": _fit_markers,
    "modules": _take_token,
    "positions": _state_positions,
    "tokenizer": _write_tokenizer_ir,
    "tei": _state_all,
}
