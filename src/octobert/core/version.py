"""The version of octobert."""

__version__ = "0.1.0"
