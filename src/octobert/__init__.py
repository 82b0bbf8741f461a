"""octobert: BERT, in octets. A BERT-family encoder and a task in; the smallest, fastest model that still does the task out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["OctobertError", "Recipe", "load", "load_recipe", "parse_recipe", "run"]

if TYPE_CHECKING:
    from octobert.config.recipe import Recipe
    from octobert.config.loading import load as load_recipe
    from octobert.config.loading import parse as parse_recipe
    from octobert.core.errors import OctobertError
    from octobert.inference.predictor import load
    from octobert.pipeline.runner import run

# Public name → (module, name there). Nothing is imported before it is asked for, so that `import octobert` costs nothing.
_PUBLIC = {
    "OctobertError": ("octobert.core.errors", "OctobertError"),
    "Recipe": ("octobert.config.recipe", "Recipe"),
    "load": ("octobert.inference.predictor", "load"),
    "load_recipe": ("octobert.config.recipe", "load"),
    "parse_recipe": ("octobert.config.recipe", "parse"),
    "run": ("octobert.pipeline.runner", "run"),
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'octobert' has no attribute {name!r}")
    import importlib

    module, attribute = _PUBLIC[name]
    return getattr(importlib.import_module(module), attribute)
