"""The heads that models can have, as data: what they give, what they are asked, and what can be done with them.

Nothing asks for a head by its name. To support another one, add an entry to `HEADS` and a task that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octobert.core.errors import ModelError, did_you_mean
from octobert.core.session import STATES, TOKEN_VECTORS, VECTOR


@dataclass(frozen=True)
class Head:
    """The layers on top of an encoder, and their outputs.

    Args:
        name: as tasks name it.
        auto_class: the class of `transformers` that loads a model with this head.
        outputs: names of the graph's outputs, in transformers' order.
        shape: of each output, with B texts of S tokens: `classes` [B, C]; `token-classes` [B, S, C]; `tokens` [B, S], one score
            per token; `states` [B, S, D], a vector of each token; `embedding`: the vector [B, E] of a text; `any`. Before
            vectors that octobert makes stands what they are made of, for programs that do it themselves.
        pooler: the head reads transformers' pooler, so that the pooler's weights must not be missing.
        pretrained: the head belongs to pre-training. A checkpoint often has it whatever its config names, and loses nothing
            that a user trained when the encoder is used without it.
        families: the only families that have the head in `transformers`; empty for all.
        encoder: the class of sentence-transformers that has such vectors, where octobert makes them, as its modules do, of an
            output of the model in transformers; else empty.
        pools: the output that they are made of.
        input: what a user gives: `texts`, one or a pair; a `named` text, which is a query or a document; `words` of a sentence,
            and a `question` with a context, which are read in windows; a `masked` text; `feeds`, arrays for all inputs.
        taught: what a model with the head gives, where only a teacher can train it; else empty.
        modular: modules of sentence-transformers may make the outputs instead of layers of transformers, in a cross-encoder.
        wide: outputs have one number for each entry of the vocabulary, so that few rows take much memory.
    """

    name: str
    auto_class: str
    outputs: tuple[str, ...]
    shape: Literal["classes", "token-classes", "tokens", "states", "embedding", "any"]
    pooler: bool = False
    pretrained: bool = False
    families: tuple[str, ...] = ()
    encoder: Literal[
        "", "SentenceTransformer", "SparseEncoder", "MultiVectorEncoder", "CrossEncoder"
    ] = ""
    pools: str = STATES
    input: Literal["texts", "named", "words", "question", "masked", "feeds"] = "texts"
    taught: str = ""
    modular: bool = False
    wide: bool = False

    @property
    def windowed(self) -> bool:
        """Return whether long inputs are read in windows."""
        return self.input in ("words", "question")

    @property
    def reads_texts(self) -> bool:
        """Return whether a tokenizer makes the rows; those of a graph of any kind are arrays."""
        return self.input != "feeds"

    @property
    def pooled(self) -> bool:
        """Return whether octobert adds modules of sentence-transformers to the model."""
        return bool(self.encoder)

    @property
    def model_outputs(self) -> tuple[str, ...]:
        """Names of the outputs before pooling, as transformers calls them.

        Example:
            >>> HEADS["embedding"].model_outputs
            ('last_hidden_state',)
        """
        return (self.pools,) if self.pooled else self.outputs

    @property
    def architecture(self) -> str:
        """How the architectures in `config.json` end that have this head; empty where no head follows the encoder.

        Example:
            >>> HEADS["question-answering"].architecture
            'ForQuestionAnswering'
        """
        return self.auto_class.removeprefix("AutoModel")


HEADS = {
    head.name: head
    for head in (
        Head(
            "sequence-classification",
            "AutoModelForSequenceClassification",
            ("logits",),
            "classes",
            pooler=True,
            modular=True,
        ),
        Head(
            "token-classification",
            "AutoModelForTokenClassification",
            ("logits",),
            "token-classes",
            input="words",
        ),
        Head(
            "question-answering",
            "AutoModelForQuestionAnswering",
            ("start_logits", "end_logits"),
            "tokens",
            input="question",
        ),
        Head(
            "masked-lm",
            "AutoModelForMaskedLM",
            ("logits",),
            "token-classes",
            pretrained=True,
            input="masked",
            wide=True,
        ),
        Head(
            "next-sentence",
            "AutoModelForNextSentencePrediction",
            ("logits",),
            "classes",
            pooler=True,
            pretrained=True,
            families=("bert", "ernie", "megatron-bert", "mobilebert"),
        ),
        Head("feature-extraction", "AutoModel", (STATES,), "states", taught="token states"),
        Head(
            "embedding",
            "AutoModel",
            (STATES, VECTOR),
            "embedding",
            encoder="SentenceTransformer",
            taught="embeddings",
        ),
        Head(
            "sparse-embedding",
            "AutoModelForMaskedLM",
            ("logits", VECTOR),
            "embedding",
            encoder="SparseEncoder",
            pools="logits",
            taught="embeddings",
            wide=True,
        ),
        Head(
            "late-interaction",
            "AutoModel",
            (STATES, TOKEN_VECTORS),
            "states",
            encoder="MultiVectorEncoder",
            input="named",
            taught="token vectors",
        ),
        Head("graph", "", (), "any", input="feeds"),
    )
}


def head_of(name: str) -> Head:
    """The head of that name.

    Raises:
        ModelError: there is none.
    """
    if name not in HEADS:
        raise ModelError(f'there is no head "{name}"', fix=did_you_mean(name, HEADS))
    return HEADS[name]


def input_of(name: str) -> str:
    """What a model with the head of that name is asked; texts for a head of another version, which a report may name."""
    return HEADS[name].input if name in HEADS else "texts"
