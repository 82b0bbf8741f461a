"""Targets: one file each, what a runtime accepts and how a model is written for it; sessions are in runtimes/."""
