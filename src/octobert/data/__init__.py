"""Rows and texts: sources, file readers, sampling, tokenization, and windows over long texts."""
