"""The systems of `speed.py`, each opened in a process of its own by `begin`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from octobert import targets
from octobert.core import environment
from octobert.core.session import Feeds, SessionOptions
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer

PADDED = 128
# Other systems' threads come to rest.
SETTLE_S = 0.02


@dataclass(frozen=True)
class System:
    """One way to run the model.

    Args:
        opener: name of a class below, which opens it in the system's own process.
        arguments: of that class.
        texts: how it takes all texts: `padded` or `plain` one by one, or as a goal of `octobert.load`; nothing if it does not.
        single: how it takes single texts whose latency is measured; "" if it does not.
    """

    name: str
    kind: Literal["INT8", "float"]
    opener: str
    arguments: tuple[Any, ...]
    texts: tuple[str, ...] = ()
    single: str = ""


_opened: Any = None


def begin(opener: str, arguments: tuple[Any, ...]) -> None:
    """Open a system."""
    global _opened
    _opened = globals()[opener](*arguments)


def precision() -> str:
    """Of float parts, as the runtime reports it."""
    return getattr(_opened, "precision", "f32")


def run_once(feeds: Feeds) -> float:
    """Milliseconds of one inference, after an untimed one."""
    time.sleep(SETTLE_S)
    _opened.run(feeds)
    started = time.perf_counter()
    _opened.run(feeds)
    return 1e3 * (time.perf_counter() - started)


def single(text: Sequence[str], how: str) -> float:
    """Milliseconds from one string, or a pair, to its label, after an untimed answer to it."""
    time.sleep(SETTLE_S)
    _opened.labels([text], how)
    started = time.perf_counter()
    _opened.labels([text], how)
    return 1e3 * (time.perf_counter() - started)


def answer(texts: Sequence[Sequence[str]], how: str) -> tuple[float, list[int | str]]:
    """(seconds from strings to labels, the labels: numbers of classes, or their names)."""
    started = time.perf_counter()
    labels = _opened.labels(texts, how)
    assert len(labels) == len(texts)
    return time.perf_counter() - started, labels


def _options(precision: str = "f32") -> SessionOptions:
    return SessionOptions(threads=environment.cores(), precision=precision)


class Sessions:
    """A session of octobert, which opens any ONNX file or IR, in the loops that users usually write."""

    def __init__(self, target: str, path: str, folder: str, precision: str = "f32") -> None:

        self._session = targets.load(target).open_session(Path(path), _options(precision))
        self.precision, self._encoder = self._session.precision, Tokenizer(Path(folder))

    def run(self, feeds: Feeds) -> Any:
        return self._session.run(feeds)

    def labels(self, texts: Sequence[Sequence[str]], how: str) -> list[Any]:
        labels = []
        for text in texts:
            (row,) = self._encoder.encode([tuple(text)])
            result = self.run(
                feeds_of([row], self._encoder.pad_id, PADDED if how == "padded" else 0)
            )
            labels.append(int(next(iter(result.values()))[0].argmax()))
        return labels


class Torch(Sessions):
    """The checkpoint in PyTorch, eager, attention as transformers chooses it."""

    def __init__(self, folder: str) -> None:
        from octobert.evaluation.torch_session import TorchSession

        self._session = TorchSession(Path(folder), _options(), "sequence-classification")
        self._encoder = Tokenizer(Path(folder))


class Torchao(Sessions):
    """torchao's dynamic INT8, compiled by Inductor."""

    def __init__(self, folder: str) -> None:
        import torch
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
        from transformers import AutoModelForSequenceClassification

        model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
        quantize_(model, Int8DynamicActivationInt8WeightConfig())
        torch.set_num_threads(environment.cores())
        self._torch: Any = torch
        self._model: Any = torch.compile(model)
        self._encoder = Tokenizer(Path(folder))
        self.run(
            {
                "input_ids": np.ones((1, 16), dtype=np.int64),
                "attention_mask": np.ones((1, 16), dtype=np.int64),
            }
        )

    def run(self, feeds: Feeds) -> Any:
        with self._torch.inference_mode():
            return {
                "logits": self._model(
                    **{n: self._torch.from_numpy(a) for n, a in feeds.items()}
                ).logits.numpy()
            }


class Ctranslate2(Sessions):
    """CTranslate2's INT8 encoder, with the pooler and without the head."""

    def __init__(self, folder: str, out: str) -> None:
        import ctranslate2
        from transformers import AutoModel

        plain = Path(out) / "bare"
        if not (Path(out) / "ct2").is_dir():
            AutoModel.from_pretrained(folder).save_pretrained(plain)
            # Its converter needs a key that configurations of transformers 5 do not have.
            config = json.loads((plain / "config.json").read_text()) | {
                "position_embedding_type": "absolute"
            }
            (plain / "config.json").write_text(json.dumps(config))
            (plain / "tokenizer.json").write_bytes((Path(folder) / "tokenizer.json").read_bytes())
            (plain / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizerFast"}')
            ctranslate2.converters.TransformersConverter(str(plain)).convert(
                str(Path(out) / "ct2"), quantization="int8"
            )
        cores = environment.cores()
        self._model = ctranslate2.Encoder(
            str(Path(out) / "ct2"), compute_type="int8", inter_threads=1, intra_threads=cores
        )
        self._encoder = Tokenizer(Path(folder))

    def run(self, feeds: Feeds) -> Any:
        lengths = feeds["attention_mask"].sum(axis=1)
        ids = [row[:n].tolist() for row, n in zip(feeds["input_ids"], lengths, strict=True)]
        return {"pooled": np.array(self._model.forward_batch(ids).pooler_output)}


class Octobert(Sessions):
    """A finished package as `octobert.load` opens it.

    Args:
        package: its folder.
        static_up_to: of `octobert.load`, for single rows; None for a package whose texts are also answered with
            goal="throughput".
    """

    def __init__(self, package: str, static_up_to: int | None = None) -> None:
        import octobert

        self._models = {"latency": octobert.load(package, static_up_to=static_up_to)}
        if static_up_to is None:
            self._models["throughput"] = octobert.load(package, goal="throughput")
        engine = self._models["latency"]._engine.get()
        self._session, self._scheduler = engine.session, engine.scheduler
        self.precision = self._session.precision

    def run(self, feeds: Feeds) -> Any:
        """A single row is padded as `octobert.load` would."""
        rows, length = feeds["input_ids"].shape
        more = self._scheduler.padded(length) - length if rows == 1 else 0
        padded = (
            {name: np.pad(array, ((0, 0), (0, more))) for name, array in feeds.items()}
            if more
            else feeds
        )
        return self._session.run(padded)

    def labels(self, texts: Sequence[Sequence[str]], how: str) -> list[Any]:
        goal, _, one_by_one = how.partition(", ")
        inputs = [text[0] if len(text) == 1 else tuple(text) for text in texts]
        model = self._models[goal]
        answers = [model([each])[0] for each in inputs] if one_by_one else model(inputs)
        return [label["label"] for label in answers]
