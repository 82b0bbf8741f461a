"""octobert: BERT, in octets. A BERT-family encoder and a task in; the smallest, fastest model that still does the task out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["OctobertError", "Recipe", "load", "load_recipe", "parse_recipe", "run"]

if TYPE_CHECKING:
    from octobert.errors import OctobertError
    from octobert.pipeline import run
    from octobert.recipe import Recipe
    from octobert.recipe import load as load_recipe
    from octobert.recipe import parse as parse_recipe
    from octobert.runtime.predictor import load

# Public name → (module, name there). Nothing is imported before it is asked for, so that `import octobert` costs nothing.
_PUBLIC = {
    "OctobertError": ("octobert.errors", "OctobertError"),
    "Recipe": ("octobert.recipe", "Recipe"),
    "load": ("octobert.runtime.predictor", "load"),
    "load_recipe": ("octobert.recipe", "load"),
    "parse_recipe": ("octobert.recipe", "parse"),
    "run": ("octobert.pipeline", "run"),
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'octobert' has no attribute {name!r}")
    import importlib

    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(module), attribute)
