"""Preparers: one file each, from a float graph to one that computes the same and quantizes better."""
