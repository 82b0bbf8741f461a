"""Stages: one file each, with a function `run`; files in, files out. See `engine/contract.py`."""
