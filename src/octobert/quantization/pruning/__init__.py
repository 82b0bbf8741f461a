"""Structured pruning after training: what to remove, what is left of the rest, and how much each sublayer gives."""
