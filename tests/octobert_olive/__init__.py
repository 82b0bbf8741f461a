"""Configs of other tools."""
