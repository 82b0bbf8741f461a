"""How far the outputs of a model are from those of another, as one number in nats per row that adds up over small changes."""

from __future__ import annotations

import numpy as np

from octobert.data.tokenization import EncodedTexts
from octobert.tasks import Diverges, Outputs, Task


def divergence(task: Task, ours: Outputs, reference: Outputs, encoded: EncodedTexts) -> float:
    """Compute the divergence of a model's outputs from those of another model on the same rows.

    Where outputs are distributions over classes or tokens it is the Kullback-Leibler divergence. Scores, embeddings, and logits
    of tokens and answers are compared as vectors: half of the mean squared error relative to the variance of the reference,
    which is the divergence of normal distributions of that variance.

    Args:
        task: without the metrics of a recipe.
        ours: of the model, by name.
        reference: of the other model.
        encoded: the rows.

    Returns:
        At least 0, in nats.
    """
    if isinstance(task, Diverges):
        return task.divergence(ours, reference)
    measured = task.fidelity(ours, reference, encoded).divergence
    if measured is not None:
        return measured
    errors = []
    for name, values in reference.items():
        before = values.astype(np.float64)
        error = np.mean((ours[name].astype(np.float64) - before) ** 2)
        errors.append(0.5 * error / max(float(before.var()), 1e-30))
    return float(np.mean(errors))
