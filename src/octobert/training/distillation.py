"""Distillation: the loss of a model in training compares it with a float teacher, by outputs and hidden states. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from octobert.config.training import Distill
from octobert.core.errors import ModelError
from octobert.core.files import canonical_digest
from octobert.core.heads import head_of
from octobert.core.session import read_outputs
from octobert.data.tokenizer_files import open_tokenizer, tokenizer_file
from octobert.models.checkpoint import inputs_of, load_torch
from octobert.models.pooling import Pooler, pooler_of
from octobert.models.source import ModelSource
from octobert.models.torch_pooling import pool

# Logit of padding; its softmax is 0.
_MASKED = -1e4


@dataclass(frozen=True)
class Teacher:
    """A float model with fixed weights and without dropout, which a model in training follows.

    Args:
        model: takes inputs by name and `output_hidden_states`, and returns outputs by name.
        head: a key of `core.heads.HEADS`.
        settings: share of its loss, and how the losses are computed.
        inputs: names of the model's inputs.
        pooler: how token states become the vectors to compare; None where the model does not return states alone.
        compared: indices of the hidden states that those in training are compared with; None for all.
    """

    model: Any
    head: str
    settings: Distill
    inputs: Sequence[str]
    pooler: Pooler | None = None
    compared: Sequence[int] | None = None

    def loss(self, outputs: Any, inputs: Mapping[str, Any]) -> Any:
        """Return the distance of a model's outputs from the teacher's, as a scalar.

        Args:
            outputs: of the model in training, with hidden states if `settings.hidden` is positive.
            inputs: of the model in training, [B, S] each.
        """
        self.model.to(inputs["input_ids"].device)
        accepted = {name: inputs[name] for name in self.inputs if name in inputs}
        with torch.no_grad():
            expected = self.model(**accepted, output_hidden_states=self.settings.hidden > 0)
        mask = inputs["attention_mask"].bool()
        pairs = list(
            zip(
                self._compared_outputs(outputs, mask),
                self._compared_outputs(expected, mask),
                strict=True,
            )
        )
        total = outputs_loss(head_of(self.head).shape, pairs, mask, self.settings.temperature)
        if self.settings.hidden:
            states = expected["hidden_states"]
            states = states if self.compared is None else [states[index] for index in self.compared]
            total = total + self.settings.hidden * hidden_loss(
                outputs["hidden_states"], states, mask
            )
        return total

    def _compared_outputs(self, outputs: Any, mask: Any) -> list[Any]:
        if self.pooler is not None:
            return [pool(outputs[head_of(self.head).pools], mask, self.pooler)]
        return [outputs[name] for name in read_outputs(head_of(self.head).outputs)]


def checkpoint_teacher(
    folder: Path,
    head: str,
    settings: Distill,
    *,
    kept: Sequence[int] | None = None,
    allow_pickle: bool = False,
) -> Teacher:
    """Load a teacher.

    Args:
        folder: its checkpoint.
        head: head of both models.
        settings: how the losses are computed.
        kept: layers that the model in training has, as indices of the teacher's; None for all.
        allow_pickle: accept weights in pickle files.

    Raises:
        ModelError: the checkpoint cannot be loaded.
    """
    model = load_torch(folder, head, attention=None, allow_pickle=allow_pickle).requires_grad_(
        False
    )
    chosen = head_of(head)
    pooler = pooler_of(folder, chosen, allow_pickle=allow_pickle) if chosen.pooled else None
    # Hidden states of the embeddings and behind each layer that is kept. The last layer in training does the work of all layers
    # behind it.
    compared = None if kept is None else (0, *(index + 1 for index in kept[:-1]), -1)
    return Teacher(model, head, settings, inputs_of(model), pooler=pooler, compared=compared)


def outputs_loss(
    shape: str, pairs: Sequence[tuple[Any, Any]], mask: Any, temperature: float
) -> Any:
    """Return the distance of outputs from those of a teacher, the mean over the outputs.

    Args:
        shape: of the outputs, as in `Head`.
        pairs: (output in training, output of the teacher).
        mask: bool [B, S]; padding does not count.
        temperature: of the logits.
    """
    if shape in ("states", "embedding"):
        vectors = pairs if shape == "embedding" else [(a[mask], b[mask]) for a, b in pairs]
        return torch.stack(
            [(1 - F.cosine_similarity(a, b, dim=-1)).mean() for a, b in vectors]
        ).mean()
    if shape == "tokens":
        pairs = [(a.masked_fill(~mask, _MASKED), b.masked_fill(~mask, _MASKED)) for a, b in pairs]
    elif shape == "token-classes":
        pairs = [(a[mask], b[mask]) for a, b in pairs]
    return torch.stack([_divergence(a, b, temperature) for a, b in pairs]).mean()


def _divergence(student: Any, teacher: Any, temperature: float) -> Any:
    """KL divergence of logits [N, C], times the squared temperature, so that gradients do not shrink with it.

    Source: Hinton et al., Distilling the Knowledge in a Neural Network, 2015, section 2.
    """
    if teacher.shape[-1] == 1:
        return F.mse_loss(student, teacher)
    log_student = F.log_softmax(student / temperature, dim=-1)
    log_teacher = F.log_softmax(teacher / temperature, dim=-1)
    return (
        F.kl_div(log_student, log_teacher, log_target=True, reduction="batchmean") * temperature**2
    )


def hidden_loss(student: Sequence[Any], teacher: Sequence[Any], mask: Any) -> Any:
    """Mean squared difference of hidden states [B, S, D] without padding, relative to the teacher's mean square."""
    shares = []
    for student_state, teacher_state in zip(student, teacher, strict=True):
        a, b = student_state[mask], teacher_state[mask]
        shares.append(((a - b) ** 2).mean() / (b**2).mean())
    return torch.stack(shares).mean()


def check_teacher(
    teacher: ModelSource, student: ModelSource, labels: Sequence[str], settings: Distill
) -> None:
    """Refuse a teacher that does not fit the model in training.

    Args:
        teacher: the teacher.
        student: the model in training.
        labels: classes of the model in training; empty for heads without classes.
        settings: of the distillation.

    Raises:
        ModelError: labels or tokenizers differ, or sizes differ where hidden states are compared.
    """
    config = teacher.path / "config.json"
    if labels and teacher.labels != tuple(labels):
        raise ModelError(
            "the teacher has other labels",
            where=str(config),
            got=", ".join(teacher.labels) or "none",
            expected=", ".join(labels),
            fix="give a teacher with the same labels in the same order",
        )
    folders = [model.tokenizer_folder for model in (teacher, student)]
    vocabularies = [
        canonical_digest(open_tokenizer(folder)[0].get_vocab())
        for folder in folders
        if tokenizer_file(folder)
    ]
    if len(set(vocabularies)) > 1:
        raise ModelError(
            "the teacher has another tokenizer",
            where=str(tokenizer_file(folders[0])),
            fix="give a teacher with the same vocabulary",
        )
    for key in ("hidden_size", "num_hidden_layers") if settings.hidden else ():
        sizes = [model.config.get(key) for model in (teacher, student)]
        if sizes[0] != sizes[1]:
            raise ModelError(
                "hidden states of different sizes cannot be compared",
                where=str(config),
                got=f"{key} {sizes[0]}",
                expected=f"{key} {sizes[1]}",
                fix="give a teacher of the same sizes, or leave out distill.hidden",
            )
