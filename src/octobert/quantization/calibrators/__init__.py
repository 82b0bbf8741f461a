"""Calibrators: one file each, from observed statistics to an interval."""
