"""Executors: where stages run."""
