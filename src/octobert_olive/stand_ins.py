"""What scripts for Olive import of its package, where it is not installed.

Such scripts register their functions by decorators of `olive.data.registry.Registry`, and import some names beside it. The
decorators of the stand-in return the function, so that octobert can call it: a data set's function also as `rows(split)` when
it takes no arguments, and a post-processing function with tensors, as Olive calls it. All other names are empty classes.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_OLIVE = "olive"
# Modules that scripts import at their top.
_OLIVE_MODULES = (
    "",
    ".common",
    ".constants",
    ".data",
    ".data.component",
    ".data.component.dataset",
    ".data.config",
    ".data.registry",
    ".data.template",
    ".evaluator",
    ".model",
)


@contextmanager
def modules() -> Iterator[None]:
    """While this is open, `olive` can be imported: the installed package, or stand-ins that are gone afterwards."""
    if _OLIVE in sys.modules or importlib.util.find_spec(_OLIVE) is not None:
        yield
        return
    modules = {f"{_OLIVE}{name}": _StandIn(f"{_OLIVE}{name}") for name in _OLIVE_MODULES}
    vars(modules[f"{_OLIVE}.data.registry"])["Registry"] = _Registry
    vars(modules[f"{_OLIVE}.data.component.dataset"])["BaseDataset"] = _BaseDataset
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)


class _StandIn(ModuleType):
    """A module in which every name is an empty class."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _BaseDataset:
    """Items with their labels, as Olive's class of that name."""

    def __init__(self, data: Any, label_col: str = "label", **_: Any) -> None:
        self.data, self.label_col = data, label_col

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        item = dict(self.data[index])
        return item, item.pop(self.label_col, -1)


def _dataset(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def rows(*arguments: Any, **named: Any) -> Any:
        try:
            inspect.signature(function).bind(*arguments, **named)
        except TypeError:
            # octobert asks for a split, and the function has one answer.
            return function()
        return function(*arguments, **named)

    # Any number of arguments, for those who ask what it takes.
    rows.__signature__ = _ANY  # type: ignore[attr-defined]
    return rows


def _post_process(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def postprocess(outputs: Any, *arguments: Any, **named: Any) -> Any:
        if not isinstance(outputs, Mapping):
            return function(outputs, *arguments, **named)
        import torch

        tensors = {name: torch.as_tensor(value) for name, value in outputs.items()}
        # One output is passed as itself.
        first = next(iter(tensors.values())) if len(tensors) == 1 else tensors
        result = function(first, *arguments, **named)
        return result.numpy() if isinstance(result, torch.Tensor) else result

    return postprocess


_ANY = inspect.Signature(
    [
        inspect.Parameter("arguments", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("named", inspect.Parameter.VAR_KEYWORD),
    ]
)


def _registers(change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """A classmethod's body: `register_…(name=None)` returns a decorator."""
    return staticmethod(lambda *_, **__: change)


class _Registry:
    register_dataset = register_default_dataset = _registers(_dataset)
    register_post_process = register_default_post_process = _registers(_post_process)
    register_pre_process = register_default_pre_process = _registers(lambda function: function)
    register_dataloader = register_default_dataloader = _registers(lambda function: function)
