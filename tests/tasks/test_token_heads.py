"""Masked language models and token states: the tasks against transformers and NumPy, what is kept of outputs, and predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import octobert
from octobert import targets
from octobert.config.loading import parse
from octobert.core.errors import DataError, ModelError, OctobertError
from octobert.core.results import Report
from octobert.core.session import SessionOptions
from octobert.data.encoded import Encoded
from octobert.data.tokenization import Tokenizer
from octobert.engine.executors import inline
from octobert.evaluation import scoring
from octobert.graph import operators, parity
from octobert.inference import batching, cost_model, streaming
from octobert.pipeline import output, runner
from octobert.tasks import Result, fill_mask
from tests.support.checkpoints import WORDS, make_byte_level_tokenizer
from tests.support.columns import columns
from tests.support.runs import made_once, write_pairs
from tests.support.tasks import build

# Texts of several lengths, one with a mask of its own, which is not scored.
TEXTS = [
    " ".join(WORDS[(7 * i + 3 * k) % len(WORDS)] for k in range(2 + 3 * (i % 7))) for i in range(20)
] + ["the [MASK] of"]
# float32 logits of two runtimes.
CLOSE = 1e-4


@pytest.fixture(scope="session")
def filled(checkpoint, tmp_path_factory) -> Path:
    """The output directory of a run from a tiny masked language model to its package."""

    def make(folder: Path) -> None:
        recipe = {
            "model": str(checkpoint("bert", "masked-lm")),
            "task": "fill-mask",
            "data": str(write_pairs(folder / "data")),
            "targets": ["ort-cpu"],
            "baselines": ["ort-f32"],
            "sensitivity": True,
            "benchmark": {"batch": [1], "sequence": [16], "repeats": 3},
            "profile": False,
        }
        runner.run(parse(recipe), folder / "out", executor=inline.run)

    return made_once(tmp_path_factory, "filled", make) / "out"


@pytest.fixture(scope="session")
def filler(checkpoint, filled) -> tuple:
    """Its captured graph on ONNX Runtime: (checkpoint, tokenizer, session)."""
    folder, path = checkpoint("bert", "masked-lm"), filled / "ort-cpu" / "onnx" / "model.onnx"
    return (
        folder,
        Tokenizer(folder),
        targets.load("ort-cpu").open_session(path, SessionOptions(threads=1)),
    )


def scheduler(filler, task) -> streaming.Scheduler:
    _, tokenizer, session = filler
    return streaming.Scheduler(
        task, tokenizer, session, cost_model.default_cost_model(session), 2048
    )


@pytest.mark.parametrize("mask", [0.15, 0.6, "each"])
def test_metrics_equal_those_of_transformers(filler, mask) -> None:
    """Every masked row through the checkpoint, and every figure from all logits, with torch's own functions."""
    import torch
    from transformers import AutoModelForMaskedLM

    folder, tokenizer, session = filler
    task = build("fill-mask", {"mask": mask})
    encoded = task.encode(tokenizer, [(text,) for text in TEXTS])
    outputs = batching.run_rows(session, encoded.flat, tokenizer.pad_id, per_token=True)
    result = Result(outputs, encoded, TEXTS)
    ours = {score.metric: score.value for score in scoring.scores(task, result, seed=0)}
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    logs, firsts, fives = [], [], []
    for text, rows in zip(TEXTS[:-1], encoded.rows[:-1], strict=True):
        plain = torch.tensor(tokenizer.encode([(text,)])[0].ids)[None]
        masked = torch.tensor(np.stack([row.ids for row in rows]))
        assert ((masked == plain) | (masked == tokenizer.mask[1])).all()
        at = masked != plain
        count = plain.shape[1] - 2
        assert at.sum() == (count if mask == "each" else max(1, round(mask * count)))
        with torch.inference_mode():
            log = model(
                masked, torch.ones_like(masked), torch.zeros_like(masked)
            ).logits.log_softmax(-1)[at]
        wanted = plain.expand_as(masked)[at]
        logs += log.gather(1, wanted[:, None])[:, 0].tolist()
        best = log.topk(5).indices
        firsts += (best[:, 0] == wanted).tolist()
        fives += (best == wanted[:, None]).any(1).tolist()
    assert ours["log_likelihood"] == pytest.approx(np.mean(logs), abs=CLOSE)
    assert ours["pseudo_perplexity"] == pytest.approx(np.exp(-np.mean(logs)), rel=CLOSE)
    assert (ours["accuracy"], ours["top5_accuracy"]) == (np.mean(firsts), np.mean(fives))


def rows_of(places: list[int], length: int = 6, vocabulary: int = 150) -> fill_mask.MaskedRow:
    ids, at = np.arange(length), np.array(places)
    return fill_mask.MaskedRow(ids, 0 * ids, False, at, at, vocabulary, stated=False)


def test_divergence_of_kept_tokens_is_nearly_that_of_all() -> None:
    """Two models of 150 tokens, of which 100 are kept: against the sum over all tokens, which it never exceeds."""
    generator, row = np.random.default_rng(0), rows_of([1, 2, 3, 4])
    first = 3 * generator.standard_normal((6, 150))
    second = first + 0.2 * generator.standard_normal((6, 150))
    ours, theirs = row.kept({"logits": second}), row.kept({"logits": first})
    found = fill_mask.divergence(ours, theirs)
    p, q = (x[1:5] - np.log(np.exp(x[1:5]).sum(-1, keepdims=True)) for x in (first, second))
    exact = np.sum(np.exp(p) * (p - q), axis=-1)
    assert (found <= exact + 1e-6).all()
    np.testing.assert_allclose(found, exact, rtol=0.02)
    assert fill_mask.divergence(theirs, theirs).max() == 0.0


def test_logits_are_never_kept(filler) -> None:
    """A few numbers for each mask, whatever the vocabulary; and no batch whose logits would fill the memory."""
    _, tokenizer, session = filler
    task = build("fill-mask", {})
    encoded = task.encode(tokenizer, [(text,) for text in TEXTS])
    outputs = batching.run_rows(session, encoded.flat, tokenizer.pad_id, per_token=True)
    assert set(outputs) == set(fill_mask.KEPT)
    assert {len(array) for array in outputs.values()} == {sum(row.entries for row in encoded.flat)}
    assert batching.most_tokens([rows_of([1], vocabulary=250_002)]) == 134
    assert batching.most_tokens([rows_of([1], vocabulary=30_522)]) == 1_099
    assert batching.most_tokens([Encoded(np.arange(3), np.arange(3), False)]) == 2_048


def test_a_text_is_always_masked_at_the_same_places(filler) -> None:
    _, tokenizer, _ = filler
    task = build("fill-mask", {})
    together = [
        row.places.tolist() for row in task.encode(tokenizer, [(text,) for text in TEXTS]).flat
    ]
    alone = [task.encode(tokenizer, [(text,)]).flat[0].places.tolist() for text in reversed(TEXTS)]
    assert together == alone[::-1]
    assert together[-1] == [2]


def test_fillers_of_every_mask(filler) -> None:
    answers = scheduler(filler, build("fill-mask", {})).answer_now(
        ["the [MASK] of [MASK]", {"text": "a [MASK]", "top": 100}]
    )
    assert [[len(fillers) for fillers in answer["masks"]] for answer in answers] == [[5, 5], [100]]
    first, second = (fillers[0] for fillers in answers[0]["masks"])
    assert answers[0]["text"] == f"the {first['token']} of {second['token']}"
    scores = [each["score"] for each in answers[1]["masks"][0]]
    assert scores == sorted(scores, reverse=True)
    assert 0.5 < sum(scores) <= 1 + 1e-6
    json.dumps(answers)
    shown = build("fill-mask", {}).line(answers[0])
    assert shown.startswith(f"{first['text']} ({first['score']:.4f}), ")
    assert " | " in shown


@pytest.mark.parametrize(
    "given", ["the of", "the " * 70 + "[MASK]", {"text": "the [MASK]", "top": 101}, ("the", "of")]
)
@pytest.mark.parametrize("mask", [0.15, "each"])
def test_what_cannot_be_filled(golden, filler, given, mask) -> None:
    with golden.raises(DataError):
        scheduler(filler, build("fill-mask", {"mask": mask})).answer_now([given])


def test_masks_of_other_tokenizers(golden, tmp_path: Path) -> None:
    make_byte_level_tokenizer(tmp_path)
    with golden.raises(ModelError):
        _ = Tokenizer(tmp_path).mask
    # A token of the vocabulary that the files name, although the tokenizer does not know that it is special.
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": {"content": "Ġof"}}')
    tokenizer = Tokenizer(tmp_path)
    name, index = tokenizer.mask
    assert name == "Ġof"
    assert tokenizer.encode([("the Ġof a",)])[0].ids.tolist().count(index) == 1


def test_states_of_tokens(captured, checkpoint, tmp_path: Path) -> None:
    """Cosine and error over real tokens, from padded batches; states by token."""
    path = tmp_path / "model.onnx"
    operators.save(captured("bert", "feature-extraction").model, path)
    folder = checkpoint("bert", "feature-extraction")
    tokenizer, session = (
        Tokenizer(folder),
        targets.load("ort-cpu").open_session(path, SessionOptions(threads=1)),
    )
    task = build("feature-extraction", {"text": "text"})
    rows = [{"text": text} for text in TEXTS]
    encoded = task.encode(tokenizer, task.inputs(rows, where="rows"))
    states = batching.run_rows(session, encoded.flat, tokenizer.pad_id, per_token=True)
    alone = [session.run({"input_ids": r.ids[None], "attention_mask": 0 * r.ids[None] + 1, "token_type_ids": r.types[None]})
             for r in encoded.flat]  # fmt: skip
    expected = np.concatenate([each["last_hidden_state"][0] for each in alone])
    np.testing.assert_allclose(states["last_hidden_state"], expected, atol=1e-5)
    moved = expected + np.random.default_rng(0).standard_normal(expected.shape).astype(np.float32)
    found = task.fidelity(
        Result({"last_hidden_state": moved}, encoded),
        Result({"last_hidden_state": expected}, encoded),
    )
    lengths = [np.linalg.norm(each, axis=1) for each in (moved, expected)]
    assert found.agreement == pytest.approx(
        np.mean(np.sum(moved * expected, axis=1) / (lengths[0] * lengths[1])), abs=1e-6
    )
    assert found.error == pytest.approx(np.sqrt(np.mean((moved - expected) ** 2)), rel=1e-6)
    assert (task.primary, dict(task.metrics), task.gold(rows, where="rows")) == (None, {}, [])
    answer = task.answer(Result(states, encoded), 20, TEXTS[20])
    assert answer["tokens"] == ["[CLS]", "the", "[MASK]", "of", "[SEP]"]
    np.testing.assert_allclose(answer["states"], expected[-5:], atol=1e-5)
    assert task.line(answer).endswith("…] (5 × 32)")


@pytest.mark.parametrize(("model", "recipe"), [("roberta-sequence-classification", {"task": "next-sentence"}), ("bert-sequence-classification", {"task": "fill-mask"}), ("bert-masked-lm", {"task": "feature-extraction", "accuracy": {"max_drop": 0.1}}), ("bert-masked-lm", {"task": "fill-mask", "accuracy": {"max_drop": 0.1, "metric": "pseudo_perplexity"}}), ("bert-masked-lm", {"task": {"fill-mask": {"mask": 15}}}), ("bert-masked-lm", {"task": {"next-sentence": {"text": ["a"]}}}), ("bert-masked-lm", {"task": "feature-extraction", "qat": {}}), ("roberta-sequence-classification", {"task": "next-sentence", "finetune": {}})])  # fmt: skip
def test_what_the_heads_cannot_do(
    golden, checkpoint, pairs, tmp_path: Path, model: str, recipe: dict
) -> None:
    family, _, head = model.partition("-")
    with golden.raises(OctobertError):
        runner.run(
            parse({"model": str(checkpoint(family, head)), "data": str(pairs), **recipe}),
            tmp_path / "out",
        )


def test_a_masked_language_model_in_8_bits(filled) -> None:
    """It is captured as it is, follows float, and its package fills masks, which its example has."""
    report = Report.model_validate_json((filled / "report.json").read_text(encoding="utf-8"))
    assert report.model.parity.largest_difference <= parity.TOLERANCE
    (compared,) = columns(report).comparisons
    assert compared.fidelity > 0.8
    assert 0 < compared.divergence < 0.05
    eight = {
        site.module
        for site, _ in report.plans["ort-cpu"].quantized
        if site.role in ("head.weight", "embedding.weight")
    }
    assert eight == {"cls.predictions.decoder", "embeddings.word_embeddings"}
    assert {value.part for value in report.sensitivities["ort-cpu"].values} >= {
        "decoder",
        "embeddings",
    }
    (text,) = output.example(filled, report)
    with octobert.load(filled / "ort-cpu") as package:
        (answer,) = package(text)
    assert len(answer["masks"]) == text.count("[MASK]") == 1


def test_undefined_logits_are_no_right_guesses() -> None:
    row = fill_mask.MaskedRow(
        np.array([1, 2, 3]), np.zeros(3, np.int64), False, np.array([1]), np.array([2]), 5, False
    )
    assert row.kept({"logits": np.full((3, 5), np.nan)})[fill_mask.RANK].tolist() == [5]
