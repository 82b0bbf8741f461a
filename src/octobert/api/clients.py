"""Other programs that open models: what each needs beyond a package, and what loads a model there.

A client is a row of `clients.yaml`.

The lines of Python or JavaScript that load the model in a client are a template in `snippets`, which sees the constants of this
module and the `Model`. They compute what octobert computes: prompts stand before the texts, and scores of pairs are on the
checkpoint's scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Literal

import yaml
from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.model_config import TOKENIZER_CONFIG

if TYPE_CHECKING:
    from jinja2 import Environment

    from octobert.core.onnx_files import TensorInfo

# Kinds of models: heads, and of classifiers what they read.
EMBEDDING, SPARSE, LATE = "embedding", "sparse-embedding", "late-interaction"
SINGLE, PAIRS, RERANKER = "classifier of single texts", "classifier of pairs", "reranker"
CLASSIFICATION, TAGGING = "sequence-classification", "token-classification"
ANSWERING, FILLING = "question-answering", "masked-lm"
FEATURES, NEXT = "feature-extraction", "next-sentence"
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


class Client(FrozenModel):
    """A program: a row of `clients.yaml`, which says what the fields are."""

    kinds: tuple[str, ...]
    install: tuple[str, ...]
    file: str = "onnx/model.onnx"
    ir: str = ""
    folder: str = ""
    outputs: Literal["all", "vector", "token", "modules", "states"] = "all"
    writes: str | None = None
    templates: dict[str, str] = Field(default_factory=dict)
    tokenizer: Literal["class", "file"] = "class"
    segments: Literal["stated", "file", "none"] = "stated"
    limit: tuple[str, str] = (TOKENIZER_CONFIG, "model_max_length")
    cuts: Literal["", "right"] = ""
    devices: tuple[str, ...] = ()
    normalizes: bool = False
    readings: Literal["modules", "own"] = "modules"


@dataclass(frozen=True)
class Model:
    """The facts on a model that the lines depend on.

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
        target: of the package.
        given: of the outputs of an embedding, what the client is given, as `Client.outputs`.
        precision: of float operators, as OpenVINO names it.
        inputs, outputs: tensors of the exported file.
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
    target: str = "ort-cpu"
    given: Literal["all", "vector", "token", "states"] = "all"
    precision: str = "f32"
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()

    @property
    def backend(self) -> str:
        """Return the backend's name in sentence-transformers."""
        return "openvino" if self.openvino else "onnx"

    @property
    def passage(self) -> str | None:
        """Return the name of the prompt for passages, else the default; None where there is none."""
        return _named(self.prompts, _PASSAGES) or self.default_prompt

    @property
    def query(self) -> str | None:
        """Return the name of the prompt for queries, else the default; None where there is none."""
        return _named(self.prompts, ("query",)) or self.default_prompt

    @property
    def prompted(self) -> bool:
        """Return whether queries have another prompt than passages."""
        return self.query != self.passage

    @property
    def asked(self) -> list[tuple[str, list[str]]]:
        """Return results and their texts behind prompts, for programs that know none; queries only if they have their own."""
        rows = [("vectors", self.passage, TEXTS), ("queries", self.query, (QUERY,))]
        behind = {name: self.prompts[prompt] if prompt else "" for name, prompt, _ in rows}
        return [
            (name, [behind[name] + text for text in texts])
            for name, _, texts in rows[: 1 + self.prompted]
        ]


def _named(prompts: Mapping[str, str], endings: tuple[str, ...]) -> str | None:
    """Return the prompt of that name, else one whose name ends like it, such as `search_query`."""
    exact = [name for name in endings if name in prompts]
    return next((name for name in (*exact, *prompts) if name.endswith(endings)), None)


def _read() -> dict[str, Client]:
    table = yaml.safe_load(
        resources.files(__package__).joinpath("clients.yaml").read_text(encoding="utf-8")
    )
    for row in table["clients"].values():
        row["install"] = [text.format(**table["pins"]) for text in row["install"]]
    return {name: Client(**row) for name, row in table["clients"].items()}


CLIENTS: Mapping[str, Client] = _read()


def snippet(client: str, model: Model) -> str:
    """Return the lines that load a model in a client and run it."""
    return rendered(f"{client}.jinja", model=model)


def rendered(template: str, **facts: object) -> str:
    """Return a template of `snippets`, filled in. It sees the constants of this module too."""
    constants = {name: value for name, value in globals().items() if name.isupper()}
    templates = _templates()
    if template.endswith(".md.jinja"):
        templates = templates.overlay(finalize=_as_text)
    return templates.get_template(template).render(constants, **facts)


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


def _as_text(value: object) -> object:
    """Return a value in Markdown without markup, because packages come from anybody, unless the template says `safe`."""
    from markupsafe import Markup

    from octobert.report.tables import as_markdown

    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return as_markdown(value)


def _written(value: object) -> str:
    """Return texts and lists of them as Python and JavaScript write them."""
    return json.dumps(value, ensure_ascii=False)


def _keywords(**keywords: object) -> str:
    """Return `, name=value` of those that are not None, as Python writes them."""
    return "".join(
        f", {name}={_written(value)}" for name, value in keywords.items() if value is not None
    )
