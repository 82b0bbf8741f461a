"""What devices need of the system besides Python packages: how it is found here, and how it is installed.

Only files and names of installed packages are looked at; no device is opened. Whether a target really runs says its `probe`.
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Driver:
    """A driver or a library of a device.

    Args:
        title: as its maker calls it.
        detect: returns a version, or where it was found; None if it was not.
        looks_for: what `detect` looks for, in words.
        install: what to do.
    """

    title: str
    detect: Callable[[], str | None]
    looks_for: str
    install: str


def found_file(*paths: str) -> Callable[[], str | None]:
    """A detector: the first of these files that exists, with the version in it if it is a small text."""

    def detect() -> str | None:
        for path in map(Path, paths):
            if path.is_file():
                text = path.read_text(errors="replace") if path.stat().st_size < 4096 else ""
                version = re.search(r"\b\d+\.\d+(\.\d+)*", text)
                return version[0] if version else str(path)
            if path.exists():
                return str(path)
        return None

    return detect


def found_library(library: str, *packages: str) -> Callable[[], str | None]:
    """A detector: a shared library on the system's path, or one of these Python packages that contain it."""

    def detect() -> str | None:
        for package in packages:
            try:
                return f"{package} {metadata.version(package)}"
            except metadata.PackageNotFoundError:
                continue
        return ctypes.util.find_library(library)

    return detect


def found_program(program: str, *more: Callable[[], str | None]) -> Callable[[], str | None]:
    """A detector: the first of some others that finds something, or a program on the path."""
    return lambda: next((found for other in more if (found := other())), None) or shutil.which(program)


def found_variable(name: str) -> Callable[[], str | None]:
    """A detector: the value of an environment variable."""
    return lambda: os.environ.get(name) or None


DRIVERS: Mapping[str, Driver] = {
    "nvidia": Driver(
        "NVIDIA driver",
        found_program("nvidia-smi", found_file("/proc/driver/nvidia/version")),
        "/proc/driver/nvidia/version, nvidia-smi",
        "install the driver of the GPU from NVIDIA or from the distribution; in a container, run it with --gpus all",
    ),
    "cuda": Driver(
        "CUDA runtime",
        found_library("cudart", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12"),
        "libcudart, or the package nvidia-cuda-runtime",
        "install CUDA in the major version that onnxruntime-gpu was built for: pip install 'onnxruntime-gpu[cuda]'",
    ),
    "cudnn": Driver(
        "cuDNN",
        found_library("cudnn", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
        "libcudnn, or the package nvidia-cudnn-cu13",
        "install cuDNN 9: pip install 'onnxruntime-gpu[cudnn]'",
    ),
    "tensorrt": Driver(
        "TensorRT",
        found_library("nvinfer", "tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        "libnvinfer, or the package tensorrt",
        "install TensorRT: pip install tensorrt, or NVIDIA's archive with its lib folder in LD_LIBRARY_PATH",
    ),
    "tensorrt-rtx": Driver(
        "TensorRT for RTX",
        found_library("tensorrt_rtx"),
        "libtensorrt_rtx",
        "install NVIDIA's TensorRT for RTX, with its lib folder on the library path",
    ),
    "rocm": Driver(
        "ROCm",
        found_program("rocminfo", found_file("/opt/rocm/.info/version", "/dev/kfd")),
        "/opt/rocm/.info/version, /dev/kfd, rocminfo",
        "install AMD's ROCm and its kernel driver; the user must be in the groups video and render",
    ),
    "migraphx": Driver(
        "MIGraphX",
        found_program("migraphx-driver", found_library("migraphx_c"), found_file("/opt/rocm/bin/migraphx-driver")),
        "libmigraphx_c, migraphx-driver",
        "install the package migraphx of ROCm's repository",
    ),
    "intel-gpu": Driver(
        "Intel GPU driver",
        found_program("clinfo", found_library("ze_intel_gpu"), found_file("/dev/dri/renderD128")),
        "libze_intel_gpu, /dev/dri/renderD128, clinfo",
        "install Intel's compute runtime (intel-opencl-icd, libze-intel-gpu1); the user must be in the group render",
    ),
    "intel-npu": Driver(
        "Intel NPU driver",
        found_program("", found_library("ze_intel_npu"), found_library("ze_intel_vpu"), found_file("/dev/accel/accel0")),
        "libze_intel_npu, /dev/accel/accel0",
        "install Intel's driver linux-npu-driver (Windows: the NPU driver of Windows Update)",
    ),
    "ryzen-ai": Driver(
        "Ryzen AI software",
        found_variable("RYZEN_AI_INSTALLATION_PATH"),
        "the variable RYZEN_AI_INSTALLATION_PATH",
        "install AMD's NPU driver and Ryzen AI software, and work in the Python environment that it makes",
    ),
}
