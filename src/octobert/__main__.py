"""Runs the command line: `python -m octobert`."""

import sys

if not getattr(sys.flags, "safe_path", False):
    # Python put the working directory in front of all other folders. The program `octobert` does not have it there.
    del sys.path[0]

from octobert.cli.main import main

main()
