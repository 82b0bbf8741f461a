"""Runtimes: one file each. A runtime probes its package, opens model files and runs them; targets build on it.

The file's name is the runtime's: `Capabilities.runtime` of a target names it. Importing the file must not import the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from octobert.core import plugins
from octobert.core.capability import Capabilities
from octobert.core.plan import SHORT, FloatType
from octobert.core.session import RuntimeOption, SessionEntries

# `RUNTIME_OPTIONS` of a target that tries none.
NO_OPTIONS: Mapping[str, tuple[RuntimeOption, ...]] = {}


class Runtime(Protocol):
    """The attributes and functions of a runtime's module.

    Attributes:
        TITLE: the runtime's name in texts, such as `ONNX Runtime`.
        PACKAGES: Python packages that it runs on. They are imported before a load time is measured, and their versions
            recorded.
        SUFFIXES: suffixes of the model files that it opens.
        CPU_TARGET: the target that runs it on the CPU. Where a device cannot run the float model, this target runs it.
    """

    TITLE: str
    PACKAGES: tuple[str, ...]
    SUFFIXES: tuple[str, ...]
    CPU_TARGET: str

    def precision_problem(self, precision: str) -> str | None:
        """Return why the CPU target cannot run a float model in a precision on this machine, or None if it can.

        Args:
            precision: one of the target's `baseline_precisions`.
        """

    def check_entries(self, entries: SessionEntries, device: str) -> None:
        """Check what a recipe sets for sessions, as far as that can be known without a model.

        Args:
            entries: for one target.
            device: of the target, `Capabilities.device`.

        Raises:
            RecipeError: the runtime has no such option, or does not take the value.
        """

    def check_device(self, device: str) -> None:
        """Check that its targets can run on a device that the user names.

        Args:
            device: as the runtime names it, such as `AUTO` or `GPU`.

        Raises:
            TargetError: they cannot, or the machine does not have the device.
        """


_PLUGINS = plugins.Family[Runtime]("runtimes")
names, load, each = _PLUGINS.names, _PLUGINS.load, _PLUGINS.each


def float_problems(capabilities: Capabilities) -> dict[FloatType, str | None]:
    """Return the types in which a target's device computes float operators → why not on this machine, or None.

    Types that a CPU target accepts in files and computes in float32 are left out.
    """
    if capabilities.device != "CPU":
        return dict.fromkeys(capabilities.float_parts.in_files)
    problem = load(capabilities.runtime).precision_problem
    return {
        "float32": None,
        **{kind: problem(SHORT[kind]) for kind in capabilities.float_parts.by_options},
    }


def entries_in(
    entries: SessionEntries, capabilities: Capabilities, float_parts: FloatType, *, per_token: bool
) -> SessionEntries:
    """Return entries of sessions that also make a target compute float operators in a type, and float products in float.

    Where this machine does not compute in the type, it is left out: some runtimes would imitate it, slowly. What the entries
    set themselves stays, too.

    Args:
        entries: what the recipe sets.
        capabilities: of the target.
        float_parts: of the plan.
        per_token: the runtime quantizes activations of the plan per token, before 4-bit weights.
    """
    kept = {} if per_token else capabilities.activations.keep_float
    typed = capabilities.float_parts.by_options.get(float_parts, {})
    if typed and float_problems(capabilities)[float_parts] is not None:
        typed = {}
    added = {**kept, **typed}
    return entries.replaced(options={**added, **entries.options}) if added else entries
