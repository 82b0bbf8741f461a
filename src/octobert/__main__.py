"""Runs the command line: `python -m octobert`."""

from octobert.cli.main import main

main()
