"""The script in which every child process begins (see `processes`): child_start.py MODULE ARGUMENTS… runs `MODULE.main()`.

Nothing is imported before the path is clean, but what the interpreter itself has imported already: `os` and `sys`.
"""

import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [
        entry for entry in sys.path if os.path.isabs(entry) and os.path.realpath(entry) != here
    ]
    root = os.path.dirname(os.path.dirname(here))
    if root not in sys.path:
        # octobert was imported by a path of its parent alone. It comes last, so that it hides no other package.
        sys.path.append(root)
    del sys.argv[0]
    import importlib

    sys.exit(importlib.import_module(sys.argv[0]).main())
