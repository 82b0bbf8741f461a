"""Encoder families: one file a family, the names of its parts."""
