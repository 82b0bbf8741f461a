"""What control groups leave a process: every form in which Linux writes their limits, and a real group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from octobert.core import cgroups, environment

GIB = 1 << 30
V1_CPU = "31 30 0:28 {root} {mount} rw,nosuid - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "32 30 0:29 {root} {mount} rw,nosuid - cgroup cgroup rw,memory"
V2 = "29 23 0:26 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def v2(path: str, *, root: str = "/", mount: str = "/sys/fs/cgroup") -> dict[str, str]:
    return {
        "proc/self/cgroup": f"0::{path}\n",
        "proc/self/mountinfo": f"1 0 8:1 / / rw - ext4 /dev/sda rw\n{V2.format(root=root, mount=mount)}\n",
    }


def v1(path: str, *, root: str = "/") -> dict[str, str]:
    lines = [
        V1_CPU.format(root=root, mount="/sys/fs/cgroup/cpu,cpuacct"),
        V1_MEMORY.format(root=root, mount="/sys/fs/cgroup/memory"),
    ]
    return {
        "proc/self/cgroup": f"5:memory:{path}\n4:cpu,cpuacct:{path}\n0::/\n",
        "proc/self/mountinfo": "\n".join(lines),
    }


CPU_V1, CPU_V2 = "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup"
QUOTAS: dict[str, tuple[dict[str, str], float | None]] = {
    "no Linux": ({}, None),
    "v2 without a quota": ({**v2("/"), f"{CPU_V2}/cpu.max": "max 100000\n"}, None),
    "v2, a container with a name space": ({**v2("/"), f"{CPU_V2}/cpu.max": "50000 100000\n"}, 0.5),
    "v2, the group itself": ({**v2("/a/b"), f"{CPU_V2}/a/b/cpu.max": "150000 100000"}, 1.5),
    "v2, a group above": (
        {
            **v2("/pod/one"),
            f"{CPU_V2}/pod/one/cpu.max": "max 100000",
            f"{CPU_V2}/pod/cpu.max": "200000 100000",
        },
        2,
    ),
    "v2, the least of several": (
        {
            **v2("/pod/one"),
            f"{CPU_V2}/pod/one/cpu.max": "300000 100000",
            f"{CPU_V2}/pod/cpu.max": "20000 10000",
            f"{CPU_V2}/cpu.max": "400000 100000",
        },
        2,
    ),
    "v2, the host's path over the container's own mount": (
        {**v2("/docker/1", root="/docker/1"), f"{CPU_V2}/cpu.max": "25000 100000"},
        0.25,
    ),
    "v2, a process outside of its mount": (
        {**v2("/../../other"), f"{CPU_V2}/cpu.max": "25000 100000"},
        0.25,
    ),
    "v2, mounted elsewhere, with a space": (
        {**v2("/a", mount="/mnt/c\\040g"), "mnt/c g/a/cpu.max": "100000 100000"},
        1,
    ),
    "v1 without a quota": (
        {
            **v1("/a"),
            f"{CPU_V1}/a/cpu.cfs_quota_us": "-1\n",
            f"{CPU_V1}/a/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    "v1, the group itself": (
        {
            **v1("/a"),
            f"{CPU_V1}/a/cpu.cfs_quota_us": "50000\n",
            f"{CPU_V1}/a/cpu.cfs_period_us": "100000\n",
        },
        0.5,
    ),
    "v1, the host's path over the container's own mount": (
        {
            **v1("/docker/1", root="/docker/1"),
            f"{CPU_V1}/cpu.cfs_quota_us": "300000",
            f"{CPU_V1}/cpu.cfs_period_us": "100000",
        },
        3,
    ),
    "v1, a group above": (
        {
            **v1("/kube/pod/one"),
            f"{CPU_V1}/kube/pod/one/cpu.cfs_quota_us": "-1",
            f"{CPU_V1}/kube/pod/one/cpu.cfs_period_us": "100000",
            f"{CPU_V1}/kube/pod/cpu.cfs_quota_us": "250000",
            f"{CPU_V1}/kube/pod/cpu.cfs_period_us": "100000",
        },
        2.5,
    ),
    "v1 and v2 together": (
        {
            "proc/self/cgroup": "4:cpu:/a\n0::/b\n",
            "proc/self/mountinfo": "\n".join(
                [
                    V1_CPU.format(root="/", mount="/sys/fs/cgroup/cpu"),
                    V2.format(root="/", mount="/sys/fs/cgroup/unified"),
                ]
            ),
            "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/unified/b/cpu.max": "max 100000",
        },
        4,
    ),
    "nothing that can be read": (
        {
            "proc/self/cgroup": "\n0::\nx:y\n",
            "proc/self/mountinfo": "1 2\n - \n1 2 3 / /a rw - cgroup2 b c\n",
            "a/cpu.max": "much 0\n",
        },
        None,
    ),
    "a period of zero": ({**v2("/"), f"{CPU_V2}/cpu.max": "100000 0\n"}, None),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_quotas(tmp_path, name) -> None:
    files, cores = QUOTAS[name]
    assert cgroups.limits(write(tmp_path, files)).cores == cores


def test_memory_of_both_versions(tmp_path) -> None:
    stat = f"anon 5\ninactive_file {GIB // 2}\n"
    second = {
        **v2("/pod/one"),
        f"{CPU_V2}/pod/one/memory.max": "max\n",
        f"{CPU_V2}/pod/memory.max": f"{4 * GIB}\n",
        f"{CPU_V2}/pod/memory.current": f"{3 * GIB}\n",
        f"{CPU_V2}/pod/memory.stat": stat,
    }
    there = cgroups.limits(write(tmp_path / "2", second))
    # Half a GiB of what is in use is a cache of files that nobody reads.
    assert there == (None, 4 * GIB, 3 * GIB // 2)
    top = "sys/fs/cgroup/memory"
    first = {
        **v1("/a"),
        f"{top}/a/memory.limit_in_bytes": f"{2 * GIB}",
        f"{top}/a/memory.usage_in_bytes": f"{GIB}",
        f"{top}/a/memory.stat": "cache 1\n",
        f"{top}/memory.limit_in_bytes": "9223372036854771712",
        f"{top}/memory.usage_in_bytes": f"{9 * GIB}",
    }
    assert cgroups.limits(write(tmp_path / "1", first)) == (None, 2 * GIB, GIB)


@pytest.mark.parametrize(
    ("quota", "told", "expected"),
    [(0.5, "", 1), (1.99, "", 1), (2.0, "", 2), (1000.0, "", None), (1.5, "2", 2), (4.0, "1", 1)],
)
def test_the_whole_cores_of_a_quota_count(monkeypatch, quota, told, expected) -> None:
    """And a user who says a number has it, up to the cores on which the process may run."""
    monkeypatch.setattr(environment.cgroups, "limits", lambda: cgroups.Limits(quota, None, None))
    monkeypatch.setenv(environment.CORES, told)
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert environment.current().cores == min(here, expected or here)


def test_memory_is_what_is_left_of_the_machine(monkeypatch) -> None:
    monkeypatch.setattr(environment.cgroups, "limits", lambda: cgroups.Limits(None, GIB, GIB // 8))
    assert environment.memory() == (GIB, GIB // 8)
    assert environment.current().memory_bytes == GIB
    monkeypatch.setattr(
        environment.cgroups, "limits", lambda: cgroups.Limits(None, 1 << 60, 1 << 60)
    )
    assert environment.memory().total == psutil.virtual_memory().total


SHOWN = """
import json, subprocess, sys
open({group!r} + "/cgroup.procs", "w").write("0")
import onnxruntime, openvino
from octobert.core import environment, processes
from octobert.core.session import default_setting
from octobert.targets.runtimes import openvino as runtime
variables = processes._environment(None)
print(json.dumps({{
    "cores": environment.current().cores,
    "limit": environment.thread_limit(),
    "streams": default_setting("throughput").streams,
    "openvino": runtime.new_core().get_property("CPU", "INFERENCE_NUM_THREADS"),
    "blas": [variables["OMP_NUM_THREADS"], variables["OPENBLAS_NUM_THREADS"]],
    "said": [text for text in environment.findings(environment.current()) if "control group" in text],
}}))
"""


def group_with_half_a_core() -> Path | None:
    """A new group whose parent has the quota; None where this process may not make one."""
    for parent, quota in (
        ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us"),
        ("/sys/fs/cgroup", "cpu.max"),
    ):
        top = Path(parent, f"octobert-test-{os.getpid()}")
        try:
            (top / "inner").mkdir(parents=True)
            (top / quota).write_text("50000")
        except OSError:
            remove(top)
            continue
        return top / "inner"
    return None


def remove(top: Path) -> None:
    for folder in (top / "inner", top):
        if folder.is_dir():
            folder.rmdir()


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_a_real_group(monkeypatch) -> None:
    pytest.importorskip("openvino")
    monkeypatch.delenv(environment.CORES, raising=False)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core is no more than a quota leaves")
    group = group_with_half_a_core()
    if group is None:
        pytest.skip("this process may not make control groups")
    try:
        code = SHOWN.format(group=str(group))
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    finally:
        remove(group.parent)
    shown = json.loads(done.stdout.splitlines()[-1])
    assert "0.5 of" in shown.pop("said")[0]
    assert shown == {"cores": 1, "limit": 1, "streams": 1, "openvino": 1, "blas": ["1", "1"]}
