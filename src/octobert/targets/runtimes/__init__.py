"""Runtimes: one file each. A runtime probes its package, opens model files and runs them; targets build on it.

The file's name is the runtime's: `Capabilities.runtime` of a target names it. Importing the file must not import the package.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from octobert.core.capability import Capabilities
from octobert.core.errors import TargetError
from octobert.core.frozen import FrozenModel
from octobert.core.plan import SHORT, FloatType
from octobert.core.plugins import Plugins
from octobert.core.session import SessionEntries


class Runtime(FrozenModel, ABC, validate_default=True):
    """What runs the model files of targets.

    Args:
        title: the runtime's name in texts, such as `ONNX Runtime`.
        packages: Python packages that it runs on. They are imported before a load time is measured, and their versions
            recorded.
        suffixes: suffixes of the model files that it opens.
        cpu_target: the target that runs it on the CPU. Where a device cannot run the float model, this target runs it.
    """

    title: str
    packages: tuple[str, ...]
    suffixes: tuple[str, ...]
    cpu_target: str

    @abstractmethod
    def check_entries(self, entries: SessionEntries, device: str) -> None:
        """Check what a recipe sets for sessions, as far as that can be known without a model.

        Args:
            entries: for one target.
            device: of the target, `Capabilities.device`.

        Raises:
            RecipeError: the runtime has no such option, or does not take the value.
        """

    def precision_problem(self, precision: str) -> str | None:
        """Return why the CPU target cannot run a float model in a precision on this machine, or None if it can, the default.

        Args:
            precision: one of the target's `baseline_precisions`.
        """
        return None

    def check_device(self, device: str) -> None:
        """Check that its targets can run on a device that the user names. By default each target is one device.

        Args:
            device: as the runtime names it, such as `AUTO` or `GPU`.

        Raises:
            TargetError: they cannot, or the machine does not have the device.
        """
        raise TargetError(
            f"targets of {self.title} run on one device only",
            where="device",
            got=device,
            fix="leave it out, or open a package for an OpenVINO target",
        )


PLUGINS = Plugins("runtimes", Runtime)
names, load, each = PLUGINS.names, PLUGINS.load, PLUGINS.each


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
