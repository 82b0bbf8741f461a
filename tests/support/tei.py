"""What text-embeddings-inference computes from a folder, written after its source, release 1.9.3, and independent of octobert.

`router/src/lib.rs` reads the JSON files, `core/src/tokenization.rs` tokenizes, `backends/ort/src/lib.rs` opens the model, feeds and
pools it, `core/src/infer.rs` normalizes and makes scores. Whatever stops the server is an `assert` here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

# Files that state the longest text; the first one that is there counts.
_NAMES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_POOLING = ("pooling_mode_cls_token", "pooling_mode_mean_tokens")
_LARGEST_BATCH = 8


def is_count(value: object) -> bool:
    """`usize` of Rust."""
    return type(value) is int and value >= 0


class Server:
    """A server on a folder.

    Args:
        folder: `--model-id`.
    """

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        assert isinstance(config["model_type"], str)
        assert all(isinstance(name, str) for name in config["architectures"])
        for key in ("max_trained_positions", "max_position_embeddings", "pad_token_id"):
            assert config.get(key) is None or is_count(config[key]), key
        assert all(isinstance(v, str) for v in (config.get("auto_map") or {}).values())
        # Of the ONNX backend.
        for key, other in (("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer")):
            assert is_count(config.get(key, config.get(other)))
            assert not {key, other} <= set(config)
        assert config.get("eos_token_id") is None or is_count(config["eos_token_id"])
        self.pad = config.get("pad_token_id")
        self.pad = config.get("eos_token_id") or 0 if self.pad is None else self.pad
        self.labels: dict[str, str] = config["id2label"]
        assert all(isinstance(v, str) for v in self.labels.values())
        assert all(is_count(v) for v in config["label2id"].values())
        is_classifier = any(name.endswith("Classification") for name in config["architectures"])
        self.kind = "embedding"
        if is_classifier:
            self.kind = "classifier" if len(self.labels) > 1 else "reranker"
        self.pool = "cls" if is_classifier else self._pool(folder, config["model_type"])
        assert is_count(config.get("max_position_embeddings", config.get("max_trained_positions")))
        offset = config["model_type"] in ("xlm-roberta", "camembert", "roberta")
        paths = [folder / f"sentence_{name}_config.json" for name in _NAMES]
        stated = next((json.loads(path.read_text()) for path in paths if path.is_file()), None)
        self.length = (
            stated["max_seq_length"]
            if stated is not None
            else config["max_position_embeddings"] - offset * (self.pad + 1)
        )
        assert is_count(self.length)
        about = folder / "config_sentence_transformers.json"
        self.prompts = (json.loads(about.read_text()) if about.is_file() else {}).get("prompts", {})
        assert all(isinstance(text, str) for text in self.prompts.values())
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.length, strategy="longest_first", direction="right")
        beside = folder / "tokenizer_config.json"
        side = (
            json.loads(beside.read_text()).get("padding_side", "right")
            if beside.is_file()
            else "right"
        )
        assert side in ("left", "right")
        self.pads_left = side == "left"
        file = folder / "model.onnx"
        self.session = ort.InferenceSession(
            file if file.exists() else folder / "onnx" / "model.onnx"
        )
        self.inputs = [value.name for value in self.session.get_inputs()]
        # It feeds no others, and position_ids only where the file has it.
        assert set(self.inputs) <= {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
        assert all(value.type == "tensor(int64)" for value in self.session.get_inputs())
        assert all(value.type == "tensor(float)" for value in self.session.get_outputs())

    @staticmethod
    def _pool(folder: Path, model_type: str) -> str:
        path = folder / "1_Pooling" / "config.json"
        if not path.is_file():
            assert "bert" in model_type.lower()
            return "cls"
        stated = json.loads(path.read_text())
        assert all(isinstance(stated[key], bool) for key in _POOLING)
        flags = {
            key: stated.get(f"pooling_mode_{key}")
            for key in ("cls_token", "mean_tokens", "lasttoken")
        }
        pool = next((key.partition("_")[0] for key, value in flags.items() if value), None)
        assert pool is not None, f"Pooling config {stated} is not supported"
        return pool

    def embed(
        self, texts: Sequence[str], *, normalize: bool = True, prompt_name: str | None = None
    ) -> np.ndarray:
        """`/embed`: [texts, width]."""
        assert self.kind == "embedding"
        before = self.prompts[prompt_name] if prompt_name is not None else ""
        vectors = np.concatenate(
            self._in_batches(self._vectors, [(before + text,) for text in texts])
        )
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True) if normalize else vectors

    def predict(
        self, rows: Sequence[Sequence[str]], *, raw_scores: bool = False
    ) -> list[dict[str, float]]:
        """`/predict`: label → score, of each text or pair."""
        assert self.kind != "embedding"
        logits = np.concatenate(self._in_batches(lambda rows: self._run(rows)[0]["logits"], rows))
        # Every logit has a label, or the server stops.
        assert logits.shape == (len(rows), len(self.labels))
        if raw_scores:
            scores = logits
        elif logits.shape[1] > 1:
            scores = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        else:
            scores = 1 / (1 + np.exp(-logits))
        return [{self.labels[str(i)]: float(s) for i, s in enumerate(row)} for row in scores]

    def rerank(self, query: str, texts: Sequence[str], *, raw_scores: bool = False) -> list[float]:
        """`/rerank`: scores, in the order of the texts."""
        assert self.kind == "reranker"
        found = self.predict([(query, text) for text in texts], raw_scores=raw_scores)
        return [score for each in found for score in each.values()]

    def embed_all(self, text: str) -> np.ndarray:
        """`/embed_all`: [tokens, width]. A file that has the vector gives no token states: the server would end."""
        outputs, _ = self._run([(text,)])
        assert "sentence_embedding" not in outputs
        return outputs["last_hidden_state"][0]

    @staticmethod
    def _in_batches(compute: Any, rows: Sequence[Any]) -> list[np.ndarray]:
        return [compute(rows[i : i + _LARGEST_BATCH]) for i in range(0, len(rows), _LARGEST_BATCH)]

    def _run(self, rows: Sequence[Sequence[str]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Outputs by name, and the length of each row."""
        assert all(any(row) for row in rows), "`inputs` cannot be empty"
        found = [self.tokenizer.encode(*row) for row in rows]
        lengths = np.array([len(each.ids) for each in found])
        width = lengths.max()

        def padded(values: Sequence[int], fill: int) -> list[int]:
            padding = [fill] * (width - len(values))
            return [*padding, *values] if self.pads_left else [*values, *padding]

        feeds = {
            "input_ids": [padded(each.ids, self.pad) for each in found],
            "attention_mask": [padded([1] * len(each.ids), 0) for each in found],
            "token_type_ids": [padded(each.type_ids, 0) for each in found],
            "position_ids": [list(range(width))] * len(found),
        }
        given = {name: np.array(feeds[name], dtype=np.int64) for name in self.inputs}
        names = [value.name for value in self.session.get_outputs()]
        return dict(zip(names, self.session.run(None, given), strict=True)), lengths

    def _vectors(self, rows: Sequence[Sequence[str]]) -> np.ndarray:
        assert not self.pads_left
        outputs, lengths = self._run(rows)
        if "sentence_embedding" in outputs:
            return outputs["sentence_embedding"]
        states = outputs.get("last_hidden_state", outputs.get("token_embeddings"))
        assert states is not None, f"Unknown output keys: {list(outputs)}"
        if self.pool == "mean":
            real = np.arange(states.shape[1]) < lengths[:, None]
            return (states * real[..., None]).sum(1) / lengths[:, None]
        return states[np.arange(len(rows)), 0 if self.pool == "cls" else lengths - 1]
