"""Zero-shot classification: labels of the user's own, by a model that tells whether one text follows from another (NLI).

Each label makes a hypothesis of a template, and each text is read with each hypothesis: as many rows for a text as there are
labels. As in the pipeline of transformers, a text has the label whose hypothesis is entailed most, by the softmax over the
entailments; with any number of labels it has each whose entailment is more likely than its contradiction.

Source: Yin et al., Benchmarking Zero-shot Text Classification, 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from octobert.core.errors import DataError, ModelError, did_you_mean
from octobert.core.results import ModelMetadata
from octobert.data.encoded import Encoded
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.tasks._classification import Classification, refuse_prompt
from octobert.tasks._metrics import CLASSES, LABELS, named, probabilities
from octobert.tasks._task import NOTHING, RowTargets, UserAnswer
from octobert.tasks._texts import USUAL, LabelledTexts, TextOptions
from octobert.tasks.text_classification import LabelNames, MultiLabel

_PLACE = "{}"
_WHERE = "task.zero-shot-classification"


class ZeroShotOptions(TextOptions):
    """Args:
    labels: that a text may have, as rows name them.
    template: what makes a hypothesis of a label, which stands for `{}`.
    several: whether a text may have any number of labels; with one label it is so.
    entailment: the model's class for texts that follow; by default the one whose name begins so.
    label: the column of labels; by default, the first of the usual names that the data has.
    max_length: tokens of a text with a hypothesis; by default the model's limit.
    """

    description: ClassVar[str] = (
        "classify texts by labels of your own with a model of entailment (NLI); accuracy, F1, Matthews; micro-F1"
    )

    labels: LabelNames = ()
    template: str = "This example is {}."
    several: bool = False
    entailment: str | None = None
    label: str | None = None
    max_length: int | None = Field(default=None, ge=2)

    @field_validator("template")
    @classmethod
    def _has_a_place(cls, value: str) -> str:
        if value.count(_PLACE) != 1:
            raise ValueError("write {} once, where the label stands")
        return value

    def build(self, metadata: ModelMetadata = NOTHING) -> ZeroShot:
        """Return the task for a model.

        Raises:
            DataError: there are no labels, or the model has no class for entailment.
        """
        refuse_prompt(metadata)
        if not self.labels:
            raise DataError(
                "the task has no labels",
                where=f"{_WHERE}.labels",
                fix="name those that a text may have",
            )
        # Before the model is read, none of its classes is known.
        entailed, contradicted = (
            (0, -1) if metadata is NOTHING else classes_of(metadata.labels, self.entailment)
        )
        usual, several = ("label", "labels", "class"), self.several or len(self.labels) == 1
        kind, metrics = (
            (SeveralLabels, named(LABELS, "micro_f1", "macro_f1"))
            if several
            else (OneLabel, named(CLASSES, "accuracy", "macro_f1", "matthews"))
        )
        return kind(
            text=(self.text,) if self.text else tuple(group for group in USUAL if len(group) == 1),
            texts=1,
            label=(self.label,) if self.label else usual,
            labels=self.labels,
            max_length=self.max_length,
            per_token=True,
            primary=next(iter(metrics)),
            metrics=metrics,
            hypotheses=tuple(self.template.replace(_PLACE, label) for label in self.labels),
            of_model=metadata.labels,
            entailed=entailed,
            contradicted=contradicted if several else None,
        )


def classes_of(labels: Sequence[str], named_class: str | None) -> tuple[int, int]:
    """The indices of the classes for texts that follow and for those that contradict.

    The latter is the one that is named so; else, as in the pipeline of transformers, the first class, or the last one where the
    first is entailment.

    Raises:
        DataError: there is no such class.
    """
    lower = [label.lower() for label in labels]
    found = [i for i, label in enumerate(lower) if label.startswith("entail")]
    if named_class is not None:
        found = [i for i, label in enumerate(labels) if label == named_class]
    if not found or len(labels) < 2:
        raise DataError(
            "the model has no class for texts that follow from others",
            where=f"{_WHERE}.entailment",
            got=named_class or ", ".join(labels) or "no classes",
            expected=", ".join(labels) if named_class else "a model of entailment (NLI)",
            fix=did_you_mean(named_class, labels) if named_class else "name the class: entailment",
        )
    against = [i for i, label in enumerate(lower) if label.startswith("contra")]
    return found[0], next(iter(against), len(labels) - 1 if found[0] == 0 else 0)


@dataclass(frozen=True, kw_only=True)
class ZeroShot(LabelledTexts):
    """One text column.

    Args:
        hypotheses: one for each label.
        of_model: the model's own classes.
        entailed: index of the class for texts that follow.
        contradicted: of the class for those that contradict, which the first is weighed against; None where labels are weighed
            against each other.
    """

    hypotheses: tuple[str, ...]
    of_model: tuple[str, ...]
    entailed: int
    contradicted: int | None

    @property
    def model_labels(self) -> tuple[str, ...]:
        return self.of_model

    def encode(self, tokenizer: Tokenizer, texts: Sequence[Text]) -> EncodedTexts:
        """A row for each hypothesis."""
        pairs = [(*text, hypothesis) for text in texts for hypothesis in self.hypotheses]
        weighed = (self.entailed, self.contradicted)
        rows = [Hypothesis(r.ids, r.types, r.truncated, weighed) for r in tokenizer.encode(pairs)]
        count = len(self.hypotheses)
        groups = [rows[i : i + count] for i in range(0, len(rows), count)]
        return EncodedTexts(texts, groups, tokenizer)

    def targets(self, encoded: EncodedTexts, gold: Sequence[Any]) -> list[RowTargets]:
        raise DataError(
            "a model of entailment is trained on pairs of texts",
            where="finetune",
            fix="fine-tune it with the task text-classification first",
        )


@dataclass(frozen=True)
class Hypothesis(Encoded):
    """A row that keeps one number: how far its hypothesis is entailed.

    Args:
        weighed: indices of the classes, see `ZeroShot`.
    """

    weighed: tuple[int, int | None]

    @property
    def entries(self) -> int:
        """One."""
        return 1

    def kept(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The logit of entailment, less that of contradiction where labels are not weighed against each other; [1, 1]."""
        entailed, contradicted = self.weighed
        logits = outputs["logits"]
        if max(entailed, contradicted or 0) >= len(logits):
            raise ModelError(
                "the model has fewer classes than its labels",
                got=f"{len(logits)} logits",
                expected=f"{max(entailed, contradicted or 0) + 1} or more",
                fix="copy the model again",
            )
        against = 0.0 if contradicted is None else logits[contradicted]
        return {"logits": (logits[entailed] - against).reshape(1, 1)}


@dataclass(frozen=True, kw_only=True)
class OneLabel(ZeroShot, Classification):
    """One label for each text."""

    def answer(self, result: Any, index: int, user_input: Any) -> UserAnswer:
        """The label, and the probability of every label."""
        answer = super().answer(result, index, user_input)
        scores = dict(zip(self.labels, probabilities(result.logits[index]).tolist(), strict=True))
        return answer | {"scores": scores}


@dataclass(frozen=True, kw_only=True)
class SeveralLabels(ZeroShot, MultiLabel):
    """Any number of labels for each text."""
