"""Encoder families: one file each, the module names of its parts."""
