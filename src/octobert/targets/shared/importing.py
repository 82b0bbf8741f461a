"""Whether the package of a runtime can be imported."""

from __future__ import annotations

import importlib
import importlib.util

from octobert.core.capability import Probe


def unavailable(package: str, install: str) -> Probe | None:
    """Return why a package cannot be used: it is not installed, or cannot be imported here. None if it can.

    Args:
        package: as it is imported.
        install: the command that installs it, for the error message.
    """
    if importlib.util.find_spec(package) is None:
        return Probe(
            available=False, missing=f"the package {package} is not installed", install=install
        )
    try:
        importlib.import_module(package)
    except (ImportError, OSError, MemoryError) as error:
        # A library that is missing on this machine, or too little memory for the libraries of the package.
        why = " ".join(str(error).split()) or type(error).__name__
        return Probe(available=False, missing=f"the package {package} cannot be imported: {why}")
    return None
