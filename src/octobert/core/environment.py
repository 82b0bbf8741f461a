"""The machine and the software that figures are measured on, and what a recipe needs of them."""

from __future__ import annotations

import ctypes
import datetime
import functools
import gc
import importlib.util
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import platformdirs

from octobert.core import cgroups, cpus, plugins
from octobert.core.errors import TargetError
from octobert.core.files import storage_errors
from octobert.core.frozen import FrozenModel, Row, Tabular

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Packages whose versions are recorded, besides those of the runtimes (`Runtime.packages`).
PACKAGES = (
    "octobert",
    "numpy",
    "onnx",
    "onnx-ir",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
)
# Variable with the number of cores that a process and its children may use.
CORES = "PYTHON_CPU_COUNT"
# Variables that make a runtime use fewer instructions than the CPU has.
SIMULATING = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_CPU_ISA_HINTS",
    "DNNL_CPU_ISA_HINTS",
    "ATEN_CPU_CAPABILITY",
    "FBGEMM_ENABLE_INSTRUCTIONS",
    "MKL_ENABLE_INSTRUCTIONS",
)
# Instruction sets that matter for 8-bit and bfloat16 arithmetic, as the kernel names them; later ones are faster.
FLAGS = (
    "ssse3",
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)


class Environment(FrozenModel):
    """A machine and its software.

    Args:
        cpu: model name.
        cores: number of cores that this process may use.
        memory_bytes: memory that this process may use.
        features: instruction sets of the CPU that matter for 8-bit arithmetic, such as `avx512_vnni`; empty where there is no
            /proc/cpuinfo.
        system: operating system and kernel.
        python: version of Python.
        versions: installed package → version.
    """

    cpu: str
    cores: int
    memory_bytes: int
    features: tuple[str, ...]
    system: str
    python: str
    versions: dict[str, str]


def is_arm() -> bool:
    """Return whether the CPU is one of Arm's 64-bit architecture."""
    return platform.machine().lower() in ("aarch64", "arm64")


def cache_folder() -> Path:
    """Return octobert's folder in the user's cache, or `$OCTOBERT_CACHE`: measurements and downloaded models."""
    folder = os.environ.get("OCTOBERT_CACHE")
    return Path(folder) if folder else platformdirs.user_cache_path("octobert", appauthor=False)


@contextmanager
def place_in_cache(*names: str) -> Iterator[Path]:
    """A path in octobert's cache folder that no other process works on until the block ends.

    Raises:
        StorageError: the cache folder cannot be written, or has no room.
    """
    from filelock import FileLock

    place = cache_folder().joinpath(*names)
    with storage_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock"):
            yield place


def current(packages: Iterable[str] | None = None) -> Environment:
    """Return the environment of this process.

    Args:
        packages: whose versions are of interest; None for all that matter, which imports the runtimes of other packages.
    """
    named = runtime_packages() if packages is None else tuple(packages)
    return Environment(
        cpu=_cpu()[0],
        cores=_allowed(),
        memory_bytes=memory().total,
        features=features(),
        system=f"{platform.system()} {platform.release()}",
        python=sys.version.split()[0],
        versions=versions((*PACKAGES, *named)),
    )


def features() -> tuple[str, ...]:
    """Return the instruction sets of the CPU that matter for 8-bit arithmetic (`Environment.features`)."""
    flags = _cpu()[1]
    return tuple(flag for flag in FLAGS if flag in flags)


def today() -> datetime.date:
    """Return the day, in UTC."""
    return datetime.datetime.now(datetime.UTC).date()


def findings(here: Environment) -> list[str]:
    """Consequences of a machine and its packages for 8-bit models, in sentences."""
    sentences = [*cpus.advice(here.features)]
    quota = cgroups.limits().cores
    if quota is not None and quota < _affine():
        sentences.append(
            f"a control group gives this process {quota:.3g} of {_affine()} cores: octobert starts "
            f"{cores()} thread{'' if cores() == 1 else 's'}; {CORES}=N sets another number."
        )
    missing = [package for package in ("torch", "transformers") if package not in here.versions]
    if missing:
        names = " and ".join(missing)
        sentences.append(
            f"{names} not installed: checkpoints cannot be captured; {install('torch')}."
        )
    return sentences


def require(extra: str) -> None:
    """Check that the packages of an extra of octobert are installed, for what imports them.

    Raises:
        TargetError: some are not.
    """
    missing = _missing(extra)
    if missing:
        raise TargetError(
            "this needs packages that are not installed",
            got=f"no {', '.join(missing)}",
            fix=install(extra),
        )


@functools.cache
def _missing(extra: str) -> tuple[str, ...]:
    names = [requirement.name for requirement in requirements_of(extra)]
    # Modules of these packages have their names.
    return tuple(name for name in names if not importlib.util.find_spec(name.replace("-", "_")))


def requirements_of(extra: str) -> Iterator[Requirement]:
    """Yield the requirements that an extra of octobert adds; those of octobert itself for the empty one."""
    # It takes 12 ms to import.
    from packaging.requirements import Requirement

    for text in metadata.requires("octobert") or ():
        requirement = Requirement(text)
        marker = requirement.marker
        is_needed, is_always = (
            marker is None or marker.evaluate({"extra": value}) for value in (extra, "")
        )
        if is_needed and not (extra and is_always):
            yield requirement


@functools.cache
def install(extra: str) -> str:
    """The command that installs an extra of octobert from where octobert itself came: an index, a wheel, or a checkout."""
    # urllib.request takes 19 ms to import, and hardly any command needs this.
    import json
    import shlex
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(metadata.distribution("octobert").read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = urlsplit(origin.get("url", ""))
    if url.scheme != "file":
        return f"pip install 'octobert[{extra}]'"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}{shlex.quote(f'{url2pathname(url.path)}[{extra}]')}"


def runtime_packages() -> tuple[str, ...]:
    """Return the Python packages of all runtimes, installed or not."""
    packages = (
        package
        for _, runtime in plugins.values_of("runtimes").each()
        for package in runtime.packages
    )
    return tuple(dict.fromkeys(packages))


def cores() -> int:
    """Return the number of physical cores that this process may use, which is the number of threads worth starting.

    Of a quota of CPU time (`core.cgroups`) the whole cores count, at least one: with 1.5 cores two threads are stopped for a
    part of each period, and the slowest of a hundred answers takes three times as long as with one thread, for the same mean.
    """
    import psutil

    return min(_allowed(), psutil.cpu_count(logical=False) or 1)


def thread_limit() -> int:
    """Return `cores()` where this process may use only some of the cores of the machine, else 0.

    Runtimes take 0 for the number that they find, which is that of the machine: a thread on each, also on cores that are not
    this process's.
    """
    import psutil

    return cores() if _allowed() < (psutil.cpu_count() or 1) else 0


def _affine() -> int:
    """The cores on which this process may run."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _allowed() -> int:
    allowed = _affine()
    # Python 3.13's own variable, for every version: a process that shares its machine is told how many cores are its own.
    told = os.environ.get(CORES, "")
    limit = float(told) if told.isdecimal() else cgroups.limits().cores
    return allowed if limit is None else min(allowed, max(1, int(limit)))


class Memory(NamedTuple):
    """Memory that this process may use, in bytes.

    Args:
        total: all of it.
        free: what is not in use now.
    """

    total: int
    free: int


def memory() -> Memory:
    """Return the memory of the machine, or what its control groups leave this process of it."""
    import psutil

    machine, group = psutil.virtual_memory(), cgroups.limits()
    return Memory(
        total=min(machine.total, group.memory_bytes or machine.total),
        free=machine.available
        if group.free_bytes is None
        else min(machine.available, group.free_bytes),
    )


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return package → version, for the packages that are installed."""
    installed = {}
    for package in packages:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def release_memory() -> None:
    """Give memory back to the system: of objects that only refer to each other, as graphs do, and what the C library keeps."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def peak_memory_bytes() -> int:
    """Return the peak memory of this process.

    On Linux it is read from /proc: `getrusage` would report the peak of the parent process if that was higher.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@functools.cache
def _cpu() -> tuple[str, frozenset[str]]:
    """Return the model name and the features of the CPU, with the kernel's names for them.

    py-cpuinfo 9.0 finds the same features on Linux, but takes 1.2 s in every process instead of a millisecond. Elsewhere it
    reads CPUID itself and knows neither AVX-VNNI nor AMX, so that a CPU with either would get the weights of one without.
    """
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    fields = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines) if v}
    flags = fields.get("flags") or fields.get("Features") or ""
    return fields.get("model name") or platform.processor() or platform.machine(), frozenset(
        flags.split()
    )


class Need(FrozenModel):
    """A package or a driver.

    Args:
        name: of the distribution, or the driver's title.
        kind: Python packages can be installed by pip, drivers cannot; a build is a package that replaces onnxruntime.
        wanted_by: parts of the recipe, such as `target tensorrt`.
        version: accepted versions, such as `>=2.9`; empty if any.
        found: the installed version, or where a driver was found; None if it was not.
        fits: it is there, in an accepted version.
        required: without it the run fails. Otherwise files are written, and not measured here.
        extra: of octobert that installs it; empty if none.
        note: for a driver, what was looked for.
        install: what to do; empty if it fits.
    """

    name: str
    kind: Literal["package", "build", "driver"]
    wanted_by: tuple[str, ...]
    version: str = ""
    found: str | None = None
    fits: bool
    required: bool
    extra: str = ""
    note: str = ""
    install: str = ""


class Setup(Tabular):
    """The requirements of a recipe, and the commands that install what is missing.

    Args:
        needs: packages first.
        commands: install the missing Python packages in this environment.
        conflicts: what these commands leave out because it would break something here or is of unknown origin, as sentences.
        problem: why nothing can be installed from here; None if it can.
    """

    needs: tuple[Need, ...]
    commands: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def missing(self) -> tuple[Need, ...]:
        """Requirements without which the run fails, and which are not there."""
        return tuple(need for need in self.needs if need.required and not need.fits)

    def to_rows(self) -> list[Row]:
        """One row per need."""
        return [
            {
                "needed": f"{need.name} {need.version}".strip(),
                "by": ", ".join(need.wanted_by),
                "here": need.found or "no",
                "state": "ready"
                if need.fits
                else "missing"
                if need.required
                else "missing, only to measure here",
                "install": need.install,
            }
            for need in self.needs
        ]
