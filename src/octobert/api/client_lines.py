"""The lines of Python or JavaScript that load a model in another program and run it, from a template for each in `snippets`.

They compute what octobert computes: prompts stand before the texts, and scores of pairs are on the checkpoint's scale. A
template sees the constants of this module and the `Model`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

# Kinds of models: heads, and of classifiers what they read.
EMBEDDING, CLASSIFICATION = "embedding", "sequence-classification"
SINGLE, PAIRS, RERANKER = "classifier of single texts", "classifier of pairs", "reranker"
TAGGING, ANSWERING = "token-classification", "question-answering"
FILLING, FEATURES, NEXT = "masked-lm", "feature-extraction", "next-sentence"
# What the models are asked.
TEXTS = ("How old is the tower?", "It was built in 1889.")
QUERY = TEXTS[0]
ONE_TEXT = ("It was a pleasant surprise.",)
TWO_TEXTS = (("He left.", "He went away."),)
RANKED = ("How old is the tower?", ("It was built in 1889.", "He left."))
QUESTION, CONTEXT = "Who built it?", "Gustave Eiffel built it in 1889."

# Names of transformers: of pipelines, and of classes behind `AutoModelFor`.
PIPELINES = {
    SINGLE: "text-classification",
    PAIRS: "text-classification",
    TAGGING: "token-classification",
    ANSWERING: "question-answering",
    FILLING: "fill-mask",
    FEATURES: "feature-extraction",
}
CLASSES = {
    **dict.fromkeys((SINGLE, PAIRS, RERANKER), "SequenceClassification"),
    TAGGING: "TokenClassification",
    ANSWERING: "QuestionAnswering",
    FILLING: "MaskedLM",
    FEATURES: "FeatureExtraction",
}
# Names of prompts for passages, as sentence-transformers looks for them.
_PASSAGES = ("document", "passage", "corpus")


@dataclass(frozen=True)
class Model:
    """What the lines depend on.

    Args:
        folder: of the model.
        kind: of the model.
        openvino: whether the folder holds an IR, not an ONNX file.
        width: of a vector, or of the logits.
        activation: what makes the score of a reranker: `Identity`, `Sigmoid` or `Tanh`.
        multi_label: whether every logit is a decision of its own.
        normalized: whether vectors have length 1.
        prompts: name → text that is put before a text.
        default_prompt: name of the prompt that sentence-transformers puts before texts where none is chosen.
    """

    folder: str
    kind: str
    openvino: bool = False
    width: int = 0
    activation: str = "Identity"
    multi_label: bool = False
    normalized: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    @property
    def backend(self) -> str:
        """As sentence-transformers names it."""
        return "openvino" if self.openvino else "onnx"

    @property
    def passage(self) -> str | None:
        """Name of the prompt for passages, else the default; None where there is none."""
        return _named(self.prompts, _PASSAGES) or self.default_prompt

    @property
    def query(self) -> str | None:
        """Name of the prompt for queries, else the default; None where there is none."""
        return _named(self.prompts, ("query",)) or self.default_prompt

    @property
    def prompted(self) -> bool:
        """Whether queries are embedded in another way than passages."""
        return self.query != self.passage

    @property
    def asked(self) -> list[tuple[str, list[str]]]:
        """(result, texts behind their prompt) for programs that know no prompts; a query, if it has a prompt of its own."""
        rows = [("vectors", self.passage, TEXTS), ("queries", self.query, (QUERY,))]
        behind = {name: self.prompts[prompt] if prompt else "" for name, prompt, _ in rows}
        return [
            (name, [behind[name] + text for text in texts])
            for name, _, texts in rows[: 1 + self.prompted]
        ]


def _named(prompts: Mapping[str, str], endings: tuple[str, ...]) -> str | None:
    """The prompt of that name, else one whose name ends like it, such as `search_query`."""
    exact = [name for name in endings if name in prompts]
    return next((name for name in (*exact, *prompts) if name.endswith(endings)), None)


def snippet(client: str, model: Model) -> str:
    """The lines that load a model in a client and run it."""
    constants = {name: value for name, value in globals().items() if name.isupper()}
    return _templates().get_template(f"{client}.jinja").render(constants, model=model)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(__package__, "snippets")
    environment = Environment(  # of programs, not of markup
        loader=loader,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["written"] = _written
    environment.globals["keywords"] = _keywords
    return environment


def _written(value: object) -> str:
    """Texts and lists of them, as Python and JavaScript write them."""
    return json.dumps(value, ensure_ascii=False)


def _keywords(**keywords: object) -> str:
    """`, name=value` of those that are not None, as Python writes them."""
    return "".join(
        f", {name}={_written(value)}" for name, value in keywords.items() if value is not None
    )
