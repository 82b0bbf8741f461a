"""The environment: features of the CPU, peak memory, and imports that also work on Windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from octobert.core import environment

CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(not CPUINFO.is_file(), reason="there is no /proc/cpuinfo")
def test_features_are_those_of_the_kernel() -> None:
    line = next(
        line for line in CPUINFO.read_text().splitlines() if line.startswith(("flags", "Features"))
    )
    flags = set(line.partition(":")[2].split())
    here = environment.current()
    assert set(here.features) == flags & set(environment.FLAGS)
    assert here.cores >= environment.cores() >= 1


def test_the_peak_covers_what_was_allocated() -> None:
    block = bytearray(64 << 20)
    block[::4096] = b"\1" * len(block[::4096])
    assert environment.peak_memory_bytes() >= len(block)


def test_the_peak_on_windows(monkeypatch) -> None:
    """There is neither /proc nor the module `resource` there."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(Path, "is_file", lambda path: False)
    monkeypatch.setitem(sys.modules, "resource", None)
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(peak_wset=12345))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    assert environment.peak_memory_bytes() == 12345


def test_core_imports_no_module_of_unix_alone() -> None:
    code = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(("fcntl", "resource", "pwd", "grp", "termios")))
import octobert.core
for module in pkgutil.iter_modules(octobert.core.__path__):
    importlib.import_module(f"octobert.core.{module.name}")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
