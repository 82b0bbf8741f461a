"""Encoder families: one file each, with a value that has the module names of its parts."""

from octobert.core.family import PLUGINS

names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each
