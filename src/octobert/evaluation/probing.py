"""The closeness of a finished model to its float model on texts that nothing was fitted to."""

from __future__ import annotations

from octobert.core.closeness import Closeness
from octobert.data import other_texts
from octobert.data.tokenization import EncodedTexts, Text, Tokenizer
from octobert.evaluation import candidates
from octobert.inference.batching import run_rows
from octobert.inference.opened import FinishedModel
from octobert.inference.predictor import Predictor
from octobert.tasks import Outputs, Result, Task


def rows_like(text: Text, task: Task, tokenizer: Tokenizer) -> EncodedTexts:
    """What a model reads for the texts, in the form of `text`; nothing where it reads no texts."""
    if not task.reads_texts:
        return EncodedTexts([], [])
    return task.encode(tokenizer, task.inputs_like(text, other_texts.probe(tokenizer)))


def closeness(task: Task, ours: Outputs, floating: Outputs, encoded: EncodedTexts) -> Closeness:
    """Compare the outputs of a model for `rows_like` with those of the float model."""
    measure, values = task.closeness(Result(ours, encoded), Result(floating, encoded))
    return Closeness.of(measure, values, encoded.texts)


def probed(model: FinishedModel) -> Closeness | None:
    """Run a model and its float model; None where it has no float model beside it, or reads no texts.

    Raises:
        ModelError: a model cannot be opened for its task.
    """
    reference = candidates.float_of(model)
    if reference is None:
        return None
    with Predictor(model, measure=False) as predictor:
        task = predictor.task
        if not task.reads_texts:
            return None
        tokenizer = model.tokenizer(task)
        encoded = rows_like(("",) * max(1, model.facts().texts), task, tokenizer)
        ours = predictor.outputs(encoded.flat)
    session = model.with_vectors(candidates.open_candidate(reference, 0, heads=model.heads))
    floating = run_rows(session, encoded.flat, tokenizer.pad_id, per_token=task.per_token)
    return closeness(task, ours, floating, encoded)
