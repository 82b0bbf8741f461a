"""Pruning in words: what stayed of the model, how fast it is, and why."""

from __future__ import annotations

from collections.abc import Sequence

from octobert.core.pruning import PrunedSublayer, PruningFacts

NOUNS = {"attention": "heads", "ffn": "neurons"}


def sentences(pruning: PruningFacts | None) -> list[str]:
    """Return what pruning did, and what could not be pruned."""
    if pruning is None:
        return []
    model = pruning.taken
    if model is None:
        said = f"Pruning {pruning.reason}."
    else:
        said = f"Pruned for {pruning.target}: {stayed(model.sublayers)} stay; {pruning.reason}."
    trained = None if model is None else model.recovery
    if trained is not None:
        kept = "" if trained.kept else ": the weights stay as they were fitted"
        said += (
            f" Trained towards the whole model on {trained.rows:,} rows; the loss on rows that were held out went from "
            f"{trained.before:.4f} to {trained.after:.4f}{kept}."
        )
    left = [f"Not pruned: {names(pruning)}."] if pruning.left else []
    return [said, *left]


def stayed(sublayers: Sequence[PrunedSublayer]) -> str:
    """Return how many heads and neurons are left of how many.

    Example:
        >>> from octobert.core.pruning import Sublayer
        >>> heads = Sublayer(layer=0, kind="attention", module="m", units=12, width=32)
        >>> stayed([PrunedSublayer(sublayer=heads, kept=8, error=0.1, refitted=None, loss=0.0)])
        '8 of 12 heads'
    """
    parts = []
    for kind, noun in NOUNS.items():
        own = [each for each in sublayers if each.sublayer.kind == kind]
        if own:
            kept, units = sum(each.kept for each in own), sum(each.sublayer.units for each in own)
            parts.append(f"{kept:,} of {units:,} {noun}")
    return " and ".join(parts)


def names(pruning: PruningFacts) -> str:
    """Return the parts that cannot be pruned by reason, two of each by name."""
    by_reason: dict[str, list[str]] = {}
    for each in pruning.left:
        by_reason.setdefault(each.reason, []).append(each.module)
    texts = []
    for why, modules in by_reason.items():
        more = f" and {len(modules) - 2} more" if len(modules) > 2 else ""
        texts.append(f"{', '.join(modules[:2])}{more} ({why})")
    return "; ".join(texts)
