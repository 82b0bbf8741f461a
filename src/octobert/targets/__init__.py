"""Targets: one file each, what a runtime accepts and how to open a model on it."""
