"""The machine and the software that figures were measured on."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from octobert.core.frozen import FrozenModel

PACKAGES = (
    "octobert",
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "openvino",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
)
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm")


class Environment(FrozenModel):
    """Args:
    cpu: model name.
    cores: that this process may use.
    memory_bytes: of the machine.
    features: instruction sets that matter to 8-bit arithmetic.
    system: operating system and kernel.
    python: version.
    versions: of the packages that do the work, where installed.
    """

    cpu: str
    cores: int
    memory_bytes: int
    features: tuple[str, ...]
    system: str
    python: str
    versions: dict[str, str]


def current() -> Environment:
    """This machine, now."""
    import psutil

    model, flags = _cpu()
    return Environment(
        cpu=model,
        cores=_allowed(),
        memory_bytes=psutil.virtual_memory().total,
        features=tuple(flag for flag in _FLAGS if flag in flags),
        system=f"{platform.system()} {platform.release()}",
        python=sys.version.split()[0],
        versions=versions(PACKAGES),
    )


def cores() -> int:
    """Physical cores that this process may use: what is worth a thread of arithmetic."""
    import psutil

    return min(_allowed(), psutil.cpu_count(logical=False) or 1)


def restricted() -> bool:
    """Whether there are cores that this process may not use."""
    return _allowed() < (os.cpu_count() or 1)


def _allowed() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Installed versions; packages that are absent are left out."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def peak_memory_bytes() -> int:
    """The most memory that this process has held.

    Read from the kernel's own high-water mark: the figure of `getrusage` is inherited from the process that started this
    one. Where there is no /proc, `getrusage` it is.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(one for one in status.read_text().splitlines() if one.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _cpu() -> tuple[str, frozenset[str]]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    fields = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines) if v}
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name") or platform.processor() or platform.machine(), frozenset(flags.split())
