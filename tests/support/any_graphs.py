"""Random graphs that hold transformer layers and more: as GLiNER's, two towers, and the text encoder of a speech model."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

VOCABULARY, WIDTH = 120, 32


def _encoder(layers: int = 2, seed: int = 0):
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


class SpanTagger(nn.Module):
    """As GLiNER: words are picked of tokens, a BiLSTM reads them, spans of words are scored against label tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()
        self.lstm = nn.LSTM(WIDTH, WIDTH // 2, bidirectional=True, batch_first=True)
        self.start, self.end = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.prompt = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids, attention_mask, words_mask, span_idx, span_mask):
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        words = torch.einsum("bwt,btd->bwd", words_mask, states)
        words = self.lstm(words)[0]
        index = span_idx.unsqueeze(-1).expand(-1, -1, -1, WIDTH)
        first = torch.gather(self.start(words), 1, index[:, :, 0])
        last = torch.gather(self.end(words), 1, index[:, :, 1])
        spans = torch.relu(first + last) * span_mask.unsqueeze(-1)
        labels = self.prompt(states[:, :3])
        return torch.einsum("bsd,bld->bsl", spans, labels)


class TwoTowers(nn.Module):
    """Two encoders with inputs of their own, and a score of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.documents = _encoder(1, 1), _encoder(2, 2)

    def forward(self, query_ids, query_mask, document_ids, document_mask):
        query = self.queries(query_ids, query_mask).last_hidden_state[:, 0]
        document = self.documents(document_ids, document_mask).last_hidden_state[:, 0]
        return query, document, (query * document).sum(-1)


class SpeechEncoder(nn.Module):
    """Pre-norm layers over features, without a mask, behind convolutions; durations and states leave it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.phonemes = nn.Embedding(50, WIDTH)
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.layers = nn.ModuleList([_PreNorm() for _ in range(2)])
        self.durations = nn.Linear(WIDTH, 1)

    def forward(self, phonemes, speed):
        x = self.convolution(self.phonemes(phonemes).transpose(1, 2)).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return x, torch.exp(self.durations(x).squeeze(-1)) * speed


class _PreNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        h = self.norm1(x)
        q, k, v = (
            part(h).unflatten(-1, (4, WIDTH // 4)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        probs = torch.softmax(q @ k.transpose(-1, -2) * (WIDTH // 4) ** -0.5, -1)
        x = x + self.o((probs @ v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Branching(nn.Module):
    """An encoder without a mask, used twice, and an If whose branches pass on what the graph computes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder(1, 4)

    def forward(self, first_ids, second_ids, flag):
        first = self.encoder(first_ids).last_hidden_state[:, 0]
        second = self.encoder(second_ids).last_hidden_state[:, 0]
        return _either(first, second, flag), (first * second).sum(-1) > 0


@torch.jit.script
def _either(first: torch.Tensor, second: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
    if bool(flag):
        return first
    return second


def span_feeds(
    generator: np.random.Generator, sizes: tuple[int, int] | None = None
) -> dict[str, np.ndarray]:
    tokens, words = sizes or (int(generator.integers(8, 30)), int(generator.integers(3, 7)))
    spans = words + 2
    ids = generator.integers(1, VOCABULARY, (1, tokens))
    picked = np.zeros((1, words, tokens), np.float32)
    picked[0, np.arange(words), np.sort(generator.choice(tokens, words, replace=False))] = 1
    span_idx = np.sort(generator.integers(0, words, (1, spans, 2)), axis=-1)
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "words_mask": picked,
        "span_idx": span_idx,
        "span_mask": np.ones((1, spans), np.float32),
    }


def tower_feeds(generator: np.random.Generator) -> dict[str, np.ndarray]:
    sides = {}
    for side, most in (("query", 8), ("document", 30)):
        ids = generator.integers(1, VOCABULARY, (1, int(generator.integers(4, most))))
        sides |= {f"{side}_ids": ids, f"{side}_mask": np.ones_like(ids)}
    return sides


def branching_feeds(generator: np.random.Generator) -> dict[str, np.ndarray]:
    first, second = (
        generator.integers(1, VOCABULARY, (1, int(generator.integers(4, 20)))) for _ in "ab"
    )
    return {"first_ids": first, "second_ids": second, "flag": np.array(generator.random() > 0.5)}


def speech_feeds(generator: np.random.Generator) -> dict[str, np.ndarray]:
    phonemes = generator.integers(0, 50, (1, int(generator.integers(5, 30))))
    return {"phonemes": phonemes, "speed": np.array([generator.uniform(0.8, 1.2)], np.float32)}


KINDS = {
    "spans": (
        SpanTagger,
        span_feeds,
        ["logits"],
        {
            "input_ids": {1: "tokens"},
            "attention_mask": {1: "tokens"},
            "words_mask": {1: "words", 2: "tokens"},
            "span_idx": {1: "spans"},
            "span_mask": {1: "spans"},
        },
    ),
    "towers": (
        TwoTowers,
        tower_feeds,
        ["query", "document", "score"],
        {f"{side}_{kind}": {1: side} for side in ("query", "document") for kind in ("ids", "mask")},
    ),
    "branching": (
        Branching,
        branching_feeds,
        ["chosen", "alike"],
        {"first_ids": {1: "first"}, "second_ids": {1: "second"}},
    ),
    "speech": (
        SpeechEncoder,
        speech_feeds,
        ["states", "durations"],
        {"phonemes": {1: "phonemes"}, "speed": {}},
    ),
}


def write(kind: str, path: Path) -> Path:
    """Write a graph as an ONNX file."""
    model, feeds, outputs, axes = KINDS[kind]
    example = {
        name: torch.from_numpy(array) for name, array in feeds(np.random.default_rng(9)).items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model().eval(),
            tuple(example.values()),
            path,
            input_names=list(example),
            output_names=outputs,
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    return path


def feeds_of(kind: str, count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [KINDS[kind][1](generator) for _ in range(count)]
