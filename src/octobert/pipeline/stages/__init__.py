"""Stages: one file each, with `Inputs`, `Options` and `run`; files in, files out. See `pipeline/contract.py`."""
