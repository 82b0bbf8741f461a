"""Refiners: one file each, from the constants of a linear layer and the moments of its input to better constants."""
