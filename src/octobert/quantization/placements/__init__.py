"""Placements: one file each, which values a plan quantizes."""
