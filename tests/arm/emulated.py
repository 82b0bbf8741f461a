"""Python of aarch64 on this machine: `make(folder)` puts together what it needs, `run` runs it as one of three processors.

An emulator of single programs runs Debian's Python with the wheels of aarch64, in the versions that are installed here; packages
without machine code are those of this environment. Programs under it start no others. Run as a program, it makes the folder, or
says why that is not possible and ends with 1.
"""

from __future__ import annotations

import os
import platform
import site
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from octobert.core import environment

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "arm"
EMULATOR = "qemu-aarch64-static"
PYTHON = f"python3.{sys.version_info.minor}"
# What has machine code of what finished models need to open and to answer.
COMPILED = (
    "numpy",
    "onnxruntime",
    "openvino",
    "psutil",
    "pydantic-core",
    "pyyaml",
    "scipy",
    "tokenizers",
)
# Arm itself, in `/proc/cpuinfo`.
_MAKER = 0x41
_BASE = "fp asimd evtstrm crc32 cpuid"
_DOT_PRODUCT = f"{_BASE} aes pmull sha1 sha2 atomics fphp asimdhp asimdrdm lrcpc dcpop asimddp ssbs"


@dataclass(frozen=True)
class Processor:
    """A processor that the emulator knows.

    Args:
        name: the emulator's, with what it leaves out.
        part: its number in `/proc/cpuinfo`.
        features: the kernel's names.
    """

    name: str
    part: int
    features: str

    def __str__(self) -> str:
        return self.name.partition(",")[0]


# Without matrix instructions (SME): with them, DynamicQuantizeMatMul of ONNX Runtime 1.32 is wrong by as much as its outputs under QEMU
# 7.2. Whether the kernel or the emulator errs is not known.
PROCESSORS = (
    Processor("cortex-a72", 0xD08, _BASE),
    Processor("neoverse-n1", 0xD0C, _DOT_PRODUCT),
    Processor("max,sme=off", 0xD40, f"{_DOT_PRODUCT} jscvt fcma sve svei8mm svebf16 i8mm bf16"),
)


def make(folder: Path) -> None:
    """Put Python and its packages into a folder; what is there already stays.

    Raises:
        CalledProcessError: apt or pip does not have them.
    """
    if not (folder / "root" / "usr" / "bin" / PYTHON).exists():
        _unpack_python(folder)
    wanted = [f"{name}=={metadata.version(name)}" for name in COMPILED]
    listed = folder / "packages.txt"
    if not listed.exists() or listed.read_text().split() != wanted:
        _install(wanted, folder / "packages")
        listed.write_text("\n".join(wanted))


def _unpack_python(folder: Path) -> None:
    """Let apt, as on a machine of aarch64 on which nothing is installed, find Python and all that it depends on."""
    for name in ("lists/partial", "archives/partial"):
        (folder / "apt" / name).mkdir(parents=True, exist_ok=True)
    (folder / "apt" / "status").touch()
    options = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "Dir::State::Status": folder / "apt" / "status",
        "Dir::State::Lists": folder / "apt" / "lists",
        "Dir::Cache": folder / "apt",
        "Debug::NoLocking": 1,
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    _run([*apt, "update"])
    _run(
        [*apt, "install", "-y", "--download-only", "--no-install-recommends", PYTHON, "libstdc++6"]
    )
    for package in (folder / "apt" / "archives").glob("*.deb"):
        _run(["dpkg", "-x", package, folder / "root"])


def _install(wanted: Iterable[str], folder: Path) -> None:
    """Install wheels of aarch64 for the C library of this system, which is also that of the unpacked Python."""
    newest = int(platform.libc_ver()[1].split(".")[1])
    platforms = [f"manylinux_2_{minor}_aarch64" for minor in range(17, newest + 1)]
    tags = [f"--platform={each}" for each in ("manylinux2014_aarch64", *platforms)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    form = ["--no-deps", "--no-compile", "--only-binary=:all:", "--upgrade", f"--target={folder}"]
    _run([*pip, *form, *tags, *wanted])


def _run(command: Iterable[str | Path]) -> None:
    subprocess.run([*map(str, command)], check=True, stdout=subprocess.DEVNULL)


def run(folder: Path, processor: Processor, *arguments: str | Path) -> None:
    """Run Python with these arguments as on a processor.

    Raises:
        CalledProcessError: it ends with an error.
    """
    root = folder / "root"
    _describe(processor, root)
    paths = [folder / "packages", ROOT / "src", ROOT, *site.getsitepackages()]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        # Threads that wait for each other would take most of the time.
        environment.CORES: "1",
    }
    emulated = [EMULATOR, "-cpu", processor.name, "-L", root, root / "usr" / "bin" / PYTHON]
    subprocess.run([*map(str, (*emulated, *arguments))], check=True, env=variables, cwd=ROOT)


def _describe(processor: Processor, root: Path) -> None:
    """Write what programs read of a processor: with that of this machine, or with nothing, ONNX Runtime ends when it is imported."""
    files = {f"sys/devices/system/cpu/{name}": "0-1" for name in ("possible", "present", "online")}
    described = ""
    for core in range(2):
        place = f"sys/devices/system/cpu/cpu{core}"
        files[f"{place}/topology/core_id"] = str(core)
        files[f"{place}/topology/physical_package_id"] = "0"
        files[f"{place}/regs/identification/midr_el1"] = f"{_MAKER << 24 | processor.part << 4:#x}"
        described += (
            f"processor\t: {core}\nFeatures\t: {processor.features}\nCPU implementer\t: {_MAKER:#x}\n"
            f"CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {processor.part:#x}\nCPU revision\t: 0\n\n"
        )
    for name, content in {**files, "proc/cpuinfo": described}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")


if __name__ == "__main__":
    try:
        make(FOLDER)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}")
