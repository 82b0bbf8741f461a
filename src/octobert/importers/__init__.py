"""Configs of other tools become recipes, with an outcome for every field of the source."""
