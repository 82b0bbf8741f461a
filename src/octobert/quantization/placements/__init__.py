"""Placements: one file each, with a value that says which kinds of sites a plan quantizes."""

from octobert.core.plan import Placement
from octobert.core.plugins import Plugins

PLUGINS = Plugins("placements", Placement)
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each
