"""Distillation: a model in training follows a float teacher, by its logits or embeddings and, if wanted, its hidden states.

Needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from octobert.config.training import Distill
from octobert.core.errors import ModelError
from octobert.core.files import canonical_digest
from octobert.models import checkpoint

# Logits of padding, which softmax makes 0 of.
_NOWHERE = -1e4


class Teacher:
    """A float model, its weights as they are, without dropout.

    Args:
        folder: of the checkpoint.
        head: of both models.
        settings: how it is followed.
        pooling: of embeddings.

    Raises:
        ModelError: the checkpoint cannot be loaded.
    """

    def __init__(self, folder: Path, head: str, settings: Distill, *, allow_pickle: bool = False) -> None:
        self.model = checkpoint.load_torch(folder, head, attention=None, allow_pickle=allow_pickle)
        self.model.requires_grad_(False)
        self.settings, self.head = settings, head
        self.pooling = checkpoint.pooling_of(folder)
        self._accepted = checkpoint.inputs_of(self.model)

    def loss(self, outputs: Any, inputs: Mapping[str, Any]) -> Any:
        """How far outputs are from the teacher's, as one number.

        Args:
            outputs: of the model in training, with hidden states if `settings.hidden`.
            inputs: what it read.
        """
        device = inputs["input_ids"].device
        if next(self.model.parameters()).device != device:
            self.model.to(device)
        read = {name: inputs[name] for name in self._accepted if name in inputs}
        with torch.no_grad():
            expected = self.model(**read, output_hidden_states=self.settings.hidden > 0)
        mask = inputs["attention_mask"].bool()
        total = self._outputs_loss(outputs, expected, mask)
        if self.settings.hidden:
            total = total + self.settings.hidden * _hidden_loss(outputs.hidden_states, expected.hidden_states, mask)
        return total

    def _outputs_loss(self, outputs: Any, expected: Any, mask: Any) -> Any:
        if self.head == "embedding":
            ours, theirs = (checkpoint.pool(one.last_hidden_state, mask, self.pooling) for one in (outputs, expected))
            return (1 - F.cosine_similarity(ours, theirs, dim=-1)).mean()
        temperature = self.settings.temperature
        if self.head == "question-answering":
            names = checkpoint.OUTPUTS[self.head]
            pairs = [tuple(one[name].masked_fill(~mask, _NOWHERE) for one in (outputs, expected)) for name in names]
        elif self.head == "token-classification":
            pairs = [(outputs.logits[mask], expected.logits[mask])]
        else:
            pairs = [(outputs.logits, expected.logits)]
        return torch.stack([_divergence(ours, theirs, temperature) for ours, theirs in pairs]).mean()


def _divergence(ours: Any, theirs: Any, temperature: float) -> Any:
    """KL divergence of [N, C] logits from the teacher's, times T², so that gradients do not depend on T's square."""
    if theirs.shape[-1] == 1:
        return F.mse_loss(ours, theirs)
    found = F.log_softmax(ours / temperature, dim=-1)
    wanted = F.log_softmax(theirs / temperature, dim=-1)
    return F.kl_div(found, wanted, log_target=True, reduction="batchmean") * temperature**2


def _hidden_loss(ours: Sequence[Any], theirs: Sequence[Any], mask: Any) -> Any:
    """Mean squared difference of real tokens' hidden states, of all layers, each as a share of the teacher's mean square."""
    shares = []
    for own, other in zip(ours, theirs, strict=True):
        a, b = own[mask], other[mask]
        shares.append(((a - b) ** 2).mean() / (b**2).mean())
    return torch.stack(shares).mean()


def check(teacher: Path, student: Path, labels: Sequence[str], settings: Distill) -> None:
    """Refuse a teacher that cannot teach this model.

    Args:
        labels: of the model in training.

    Raises:
        ModelError: other labels, another tokenizer, or other sizes where hidden states are compared.
    """
    theirs, ours = checkpoint.read_config(teacher), checkpoint.read_config(student)
    names = theirs.get("id2label") or {}
    stated = tuple(str(names[key]) for key in sorted(names, key=int))
    if labels and stated != tuple(labels):
        raise ModelError(
            "the teacher has other labels",
            where=str(teacher / "config.json"),
            got=", ".join(stated) or "none",
            expected=", ".join(labels),
            fix="give a teacher that was trained for the same labels in the same order",
        )
    tokenizers = [side / "tokenizer.json" for side in (teacher, student)]
    if all(path.is_file() for path in tokenizers) and len({_vocabulary(path) for path in tokenizers}) > 1:
        raise ModelError(
            "the teacher has another tokenizer", where=str(tokenizers[0]), fix="give a teacher with the same vocabulary"
        )
    for key in ("hidden_size", "num_hidden_layers") if settings.hidden else ():
        if theirs.get(key) != ours.get(key):
            raise ModelError(
                "hidden states of the teacher cannot be followed",
                where=str(teacher / "config.json"),
                got=f"{key} {theirs.get(key)}",
                expected=f"{key} {ours.get(key)}",
                fix="leave out distill.hidden",
            )


def _vocabulary(path: Path) -> str:
    from tokenizers import Tokenizer

    return canonical_digest(Tokenizer.from_file(str(path)).get_vocab())
