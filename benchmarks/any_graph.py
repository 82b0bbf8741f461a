"""A graph shaped like GLiNER's around a real encoder: octobert's task `graph` beside onnxruntime's dynamic quantization.

    python benchmarks/any_graph.py MODEL TEXTS OUT

MODEL is a checkpoint folder of an encoder, TEXTS a JSON Lines file with the column `text`. The words of a text are read by a
BiLSTM behind the encoder, and spans of one to three words are scored against four label tokens; all but the encoder is random
with a fixed seed, so scores mean nothing, and how near they stay to float does. 64 texts calibrate, 200 others are compared.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

import octobert

LABELS, MOST_WORDS, CALIBRATED, COMPARED, ROUNDS = 4, 60, 64, 200, 3


class SpanTagger(nn.Module):
    """Token states → words → BiLSTM → spans × labels."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        width = self.encoder.config.hidden_size
        self.lstm = nn.LSTM(width, width // 2, bidirectional=True, batch_first=True)
        self.start, self.end, self.label = (nn.Linear(width, width) for _ in range(3))

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, words_mask: Tensor, span_idx: Tensor
    ) -> Tensor:
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        words = self.lstm(torch.einsum("bwt,btd->bwd", words_mask, states))[0]
        index = span_idx.unsqueeze(-1).expand(-1, -1, -1, words.shape[-1])
        first = torch.gather(self.start(words), 1, index[:, :, 0])
        last = torch.gather(self.end(words), 1, index[:, :, 1])
        labels = self.label(states[:, 1 : 1 + LABELS])
        return torch.einsum("bsd,bld->bsl", torch.relu(first + last), labels)


def feed(tokenizer: Any, text: str) -> dict[str, np.ndarray]:
    """The inputs for a text of at most `MOST_WORDS` words."""
    words = text.split()[:MOST_WORDS]
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="np")
    owners = encoded.word_ids(0)
    mask = np.zeros((1, len(words), len(owners)), np.float32)
    for word in range(len(words)):
        mask[0, word, owners.index(word)] = 1
    spans = [(i, j) for i in range(len(words)) for j in range(i, min(i + 3, len(words)))]
    ids = encoded["input_ids"].astype(np.int64)
    return {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "words_mask": mask,
        "span_idx": np.array([spans]),
    }


def held_out(run: Path, feeds: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The feeds that octobert has not calibrated on, by their token ids."""
    (stored,) = (run / ".octobert/store").glob("data-*/evaluation.json")
    inputs = json.loads(stored.read_text(encoding="utf-8"))["inputs"]
    evaluated = {tuple(json.loads(text)["input_ids"][2]) for (text,) in inputs}
    return [one for one in feeds if tuple(one["input_ids"].ravel().tolist()) in evaluated]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("model", "texts", "out"):
        parser.add_argument(name)
    options = parser.parse_args()
    out = Path(options.out)
    (out / "feeds").mkdir(parents=True)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    lines = Path(options.texts).read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(json.loads(line)["text"] for line in lines))[: CALIBRATED + COMPARED]
    feeds = [feed(tokenizer, text) for text in texts]
    for index, one in enumerate(feeds):
        np.savez(out / "feeds" / f"{index:03}.npz", **one)  # type: ignore[arg-type]
    axes = {name: {1: "tokens"} for name in ("input_ids", "attention_mask")}
    axes |= {"words_mask": {1: "words", 2: "tokens"}, "span_idx": {1: "spans"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            SpanTagger(options.model).eval(),
            tuple(torch.from_numpy(array) for array in feeds[0].values()),
            out / "model.onnx",
            input_names=list(feeds[0]),
            output_names=["logits"],
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    recipe = {
        "model": str(out / "model.onnx"),
        "task": {"graph": {"scores": ["logits"]}},
        "data": {"source": str(out / "feeds"), "calibrate": {"samples": CALIBRATED}},
        "targets": ["ort-cpu"],
        "benchmark": {"repeats": 5},
    }
    octobert.run(recipe, out=out / "octobert")
    quantize_dynamic(
        out / "model.onnx", out / "dynamic.onnx", per_channel=True, weight_type=QuantType.QInt8
    )
    files = {
        "float": out / "model.onnx",
        "octobert": out / "octobert/ort-cpu/onnx/model_quantized.onnx",
        "onnxruntime dynamic": out / "dynamic.onnx",
    }
    sessions = {name: ort.InferenceSession(str(path)) for name, path in files.items()}
    rows = held_out(out / "octobert", feeds)
    found = {
        name: [session.run(None, one)[0] for one in rows] for name, session in sessions.items()
    }
    times: dict[str, list[float]] = {name: [] for name in sessions}
    for number in range(ROUNDS * len(rows)):
        for name, session in sessions.items():
            session.run(None, rows[number % len(rows)])
            started = time.perf_counter()
            session.run(None, rows[number % len(rows)])
            times[name].append(time.perf_counter() - started)
    floats = np.concatenate([array.ravel() for array in found["float"]])
    for name, outputs in found.items():
        ours = np.concatenate([array.ravel() for array in outputs])
        same = [a.argmax(-1) == b.argmax(-1) for a, b in zip(outputs, found["float"], strict=True)]
        ratio = np.median(np.array(times["float"]) / np.array(times[name]))
        error = np.sqrt(np.mean((ours - floats) ** 2) / np.mean(floats**2))
        share = np.mean(np.concatenate([each.ravel() for each in same]))
        size = files[name].stat().st_size / 1e6
        print(
            f"{name}: relative error {error:.4f}, same label {share:.4f}, {ratio:.2f} × float, {size:.0f} MB"
        )


if __name__ == "__main__":
    main()
