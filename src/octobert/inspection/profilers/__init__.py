"""Profilers: one file for each runtime."""
