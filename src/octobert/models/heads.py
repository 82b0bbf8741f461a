"""Whether a checkpoint has a head, and which outputs of a model file are those of one: by their names, else by their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from octobert.core.errors import ModelError
from octobert.core.heads import HEADS, Head, head_of
from octobert.core.model_config import MODULES
from octobert.core.onnx_files import TensorInfo
from octobert.core.session import STATES, TOKEN_VECTORS
from octobert.models.pooling import pooling_of
from octobert.models.sentence_transformers import WHOLE, check_kind, modular_head, modules_of
from octobert.models.source import ModelSource

# A checkpoint of pre-training may hold the heads of all its objectives, whichever its config names.
_PRETRAINED = ("ForPreTraining", *(head.architecture for head in HEADS.values() if head.pretrained))
# Beginnings of names of weights that are theirs in transformers, and in DeBERTa's own checkpoints.
_PRETRAINED_WEIGHTS = (
    "cls.predictions.",
    "cls.seq_relationship.",
    "decoder.",
    "discriminator_predictions.",
    "generator_lm_head.",
    "generator_predictions.",
    "head.",
    "lm_head.",
    "lm_predictions.",
    "mask_predictions.",
    "predictions.",
    "sop_classifier.",
    "vocab_",
)
# Of heads that a checkpoint was trained with for a task.
_TRAINED_WEIGHTS = ("classifier.", "dense.", "pre_classifier.", "qa_outputs.", "score.")
# Ends of names of buffers of older versions, which follow from the config.
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")


# Names that exporters give to outputs of heads. `unstack` comes from TensorFlow's SQuAD script.
_ALIASES = {
    "output_start_logits": "start_logits",
    "output_end_logits": "end_logits",
    "unstack:0": "start_logits",
    "unstack:1": "end_logits",
    "token_embeddings": STATES,
    "0": STATES,
}
# Outputs that are no answers of any head, whatever their shapes.
_OTHERS = (STATES, "pooler_output", "sentence_embedding", "hidden_states", "attentions")
_AXES = {"classes": 2, "token-classes": 3, "tokens": 2}


def check_class(source: ModelSource, name: str) -> None:
    """Refuse a head that transformers does not have for the family of a checkpoint, be it trained already or not.

    Raises:
        ModelError: there is no such class.
    """
    head, family = head_of(name), source.family
    named = not head.families or {*head.families} & {*family.model_types}
    # Several heads may have one class.
    alike = {other.name for other in HEADS.values() if other.auto_class == head.auto_class}
    if alike & {*family.without_heads} or not named:
        raise ModelError(
            f"{family.model_types[0]} models have no {name} head in transformers",
            where=str(source.path / "config.json"),
            expected=f"a model of type {' or '.join(head.families)}" if head.families else None,
            fix="choose another task",
        )


def check_head(source: ModelSource, name: str) -> None:
    """Refuse a checkpoint that was trained for another head, before its weights are loaded.

    A sentence-transformers model says itself that it is one, whatever its encoder was trained for before.

    Raises:
        ModelError: the config names another architecture.
    """
    head = head_of(name)
    ending, stated = head.architecture, _architecture(source)
    trained_head = next(
        (
            head
            for head in HEADS.values()
            if head.architecture and stated.endswith(head.architecture)
        ),
        None,
    )
    plain = (
        trained_head.pretrained
        if trained_head is not None
        else not stated or stated.endswith(("Model", *_PRETRAINED))
    )
    is_sentence = head.encoder == "SentenceTransformer"
    if is_sentence and not plain and not (source.tokenizer_folder / MODULES).is_file():
        # Also of models that are no class of transformers, such as ColBERT with one vector for each token.
        raise ModelError(
            f"an {name} would drop the head of the checkpoint",
            where=str(source.path / "config.json"),
            got=stated,
            expected="an encoder without a head",
            fix="choose the task that it was trained for, or save the encoder alone (AutoModel, save_pretrained)",
        )
    if made := modular_head(source.tokenizer_folder, head):
        pooling_of(source.tokenizer_folder, made)
        return
    if ending and not head.pooled:
        check_kind(source.tokenizer_folder, head)
    modules = [kind.rpartition(".")[2] for kind, _ in modules_of(source.tokenizer_folder)]
    if ending and len(modules) > 1 and not head.pooled:
        raise ModelError(
            f"the model's answers are not those of a {name} head alone",
            where=str(source.tokenizer_folder / MODULES),
            got=", ".join(modules),
            expected="Transformer",
            fix=WHOLE,
        )
    fits = stated.endswith((ending, *_PRETRAINED)) if head.pretrained else stated.endswith(ending)
    if ending and stated and not fits:
        raise ModelError(
            f"the checkpoint has no {name} head",
            where=str(source.path / "config.json"),
            got=stated,
            expected=f"an architecture that ends in {ending}",
            fix="fine-tune it for the task first, or choose the task that it was trained for",
        )


def unused_weights(head: Head, folder: Path, names: Iterable[str]) -> list[str]:
    """Of the weights of a checkpoint that a model with a head does not read, those that are not meant to be left out.

    A pooler, heads of pre-training and buffers always are. A trained head is where token states are wanted, and under the
    modules of a sentence-transformers model.
    """
    dropped: tuple[str, ...] = _PRETRAINED_WEIGHTS
    if not head.architecture and (not head.pooled or (folder / MODULES).is_file()):
        dropped += _TRAINED_WEIGHTS
    if head.encoder == "MultiVectorEncoder":
        # Stanford's projection.
        dropped += ("linear.",)
    return sorted(
        name
        for name in names
        if "pooler." not in name and not name.endswith(_BUFFERS) and not name.startswith(dropped)
    )


def masked_lm(source: ModelSource, head: Head) -> str:
    """The class of a masked language model that is read as a plain encoder for embeddings; empty for all else.

    Nothing tells a pre-trained encoder from a sparse one (SPLADE) that was saved without sentence-transformers.
    """
    stated = _architecture(source)
    is_plain = (
        source.is_checkpoint
        and head.encoder == "SentenceTransformer"
        and not (source.tokenizer_folder / MODULES).is_file()
    )
    return stated if is_plain and stated.endswith(HEADS["masked-lm"].architecture) else ""


def has_head(source: ModelSource, name: str) -> bool:
    """Return whether the config of a checkpoint says that it was trained for a head."""
    return source.is_checkpoint and _architecture(source).endswith(
        head_of(name).architecture or "Model"
    )


def _architecture(source: ModelSource) -> str:
    return str((source.config.get("architectures") or [""])[0])


def outputs_of(
    head: Head, ports: Sequence[TensorInfo], *, classes: int = 0, where: str
) -> dict[str, str]:
    """Return the name that a head gives to an output → its name in the file.

    Args:
        head: of the task.
        ports: all outputs of the file.
        classes: the number of classes, if it is known.
        where: the file, for errors.

    Raises:
        ModelError: no outputs are those of the head; the message lists all.
    """
    named = {_ALIASES.get(port.name, port.name): port for port in ports}
    forms = [head.outputs, head.outputs[-1:], head.model_outputs] if head.pooled else [head.outputs]
    outputs = next(
        ({name: named[name] for name in form} for form in forms if set(form) <= set(named)), None
    )
    if outputs is None:
        fitting = [port for name, port in named.items() if _fits(head, name, port, classes)]
        names = head.model_outputs
        outputs = dict(zip(names, fitting, strict=True)) if len(fitting) == len(names) else {}
    wrong = [port for name, port in outputs.items() if _axes(head, name, port) is False]
    if wrong or not outputs:
        raise ModelError(
            f"the outputs are not those of a {head.name} model",
            where=where,
            got=", ".join(map(str, wrong or ports)),
            expected=", ".join(head.outputs),
            fix="choose the task that the model was exported for",
        )
    return {name: port.name for name, port in outputs.items()}


def _fits(head: Head, name: str, port: TensorInfo, classes: int) -> bool:
    """Return whether an output of another name can only be this head's."""
    if name in _OTHERS or not port.dtype.startswith("float"):
        return False
    if not _axes(head, head.model_outputs[0], port):
        return False
    assert port.shape is not None
    return classes == 0 or port.shape[-1] in (-1, classes)


def _axes(head: Head, name: str, port: TensorInfo) -> bool | None:
    """Return whether an output has as many axes as the head's; None if the file does not say."""
    expected = 3 if name in (TOKEN_VECTORS, head.pools) else _AXES.get(head.shape, 2)
    return None if port.shape is None else len(port.shape) == expected
