"""Which outputs of a model file are those of a head: by their names, else by their shapes."""

from __future__ import annotations

from collections.abc import Sequence

from octobert.core.errors import ModelError
from octobert.core.onnx_files import Port
from octobert.core.session import STATES
from octobert.models.heads import Head

# Names that exporters give to outputs of heads. `unstack` is that of TensorFlow's SQuAD script.
ALIASES = {
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


def outputs_of(
    head: Head, ports: Sequence[Port], *, classes: int = 0, where: str
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
    named = {ALIASES.get(port.name, port.name): port for port in ports}
    forms = [head.outputs[-1:], head.model_outputs] if head.pooled else [head.outputs]
    found = next(
        ({name: named[name] for name in form} for form in forms if set(form) <= set(named)), None
    )
    if found is None:
        fitting = [port for name, port in named.items() if _fits(head, name, port, classes)]
        found = (
            dict(zip(head.outputs, fitting, strict=True))
            if len(fitting) == len(head.outputs)
            else {}
        )
    wrong = [port for name, port in found.items() if _axes(head, name, port) is False]
    if wrong or not found:
        raise ModelError(
            f"the outputs are not those of a {head.name} model",
            where=where,
            got=", ".join(map(str, wrong or ports)),
            expected=", ".join(forms[0]),
            fix="choose the task that the model was exported for",
        )
    return {name: port.name for name, port in found.items()}


def _fits(head: Head, name: str, port: Port, classes: int) -> bool:
    """Whether an output of another name can only be this head's."""
    if (
        head.pooled
        or name in _OTHERS
        or not port.dtype.startswith("float")
        or not _axes(head, name, port)
    ):
        return False
    assert port.shape is not None
    return head.shape == "tokens" or classes == 0 or port.shape[-1] in (-1, classes)


def _axes(head: Head, name: str, port: Port) -> bool | None:
    """Whether an output has as many axes as the head's; None if the file does not say."""
    expected = 3 if name == STATES else _AXES.get(head.shape, 2)
    return None if port.shape is None else len(port.shape) == expected
