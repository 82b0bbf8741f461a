"""Which target to take on a CPU: every combination of its instructions, and the pages that the advice names."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octobert import targets
from octobert.core import cpus, environment
from octobert.core.capability import saturates

ROOT = Path(__file__).parents[2]
ROWS = (*cpus.KINDS, *cpus.HALVES)
COMBINATIONS = [
    chosen
    for count in range(len(environment.FLAGS) + 1)
    for chosen in itertools.combinations(environment.FLAGS, count)
]


def test_every_combination_has_one_advice_for_8_bits_and_at_most_one_for_floats() -> None:
    for features in COMBINATIONS:
        first, *rest = cpus.advice(features)
        kind, halves = cpus.kind_of(features), cpus.kind_of(features, cpus.HALVES)
        assert first.startswith(f"{kind.title if kind else 'no instruction for 8-bit products'}")
        assert len(rest) == (halves is not None)
        # The fastest instructions decide, and the advice stands with its evidence.
        if kind is not None:
            earlier = cpus.KINDS[: cpus.KINDS.index(kind)]
            assert not {flag for each in earlier for flag in each.features} & {*features}
            assert first == f"{kind.title}: {kind.advice} ({kind.evidence})."


@pytest.mark.parametrize(
    ("features", "title", "target"),
    [
        (("ssse3", "avx2"), "AVX2 alone", "ort-cpu"),
        (("ssse3", "avx2", "avx512f"), "AVX512 without VNNI", "ort-cpu"),
        (("ssse3", "avx2", "avx_vnni"), "AVX-VNNI", "ort-cpu and openvino-cpu"),
        (("ssse3", "avx2", "avx512f", "avx512_vnni"), "AVX512-VNNI", "openvino-cpu"),
        (("avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"), "AMX", "openvino-cpu"),
        # Graviton2, Raspberry Pi 5, M1.
        (("asimddp",), "Arm with dot products", "ort-cpu"),
        (("asimddp", "i8mm", "bf16"), "Arm with I8MM", "ort-cpu"),
    ],
)
def test_the_target_to_take(features: tuple[str, ...], title: str, target: str) -> None:
    first = next(cpus.advice(features))
    assert first.startswith(f"{title}: ")
    assert re.search(rf"(take |: ){target}\b", first)


def test_no_target_is_advised_for_a_speed_that_nobody_measured() -> None:
    for row in ROWS:
        if row.evidence == cpus.NOT_MEASURED:
            assert not re.search(r"\d\.\d", row.advice)
            continue
        path, _, anchor = row.evidence.partition("#")
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), flags=re.MULTILINE)
        assert anchor in {re.sub(r"[^\w-]+", "-", each.lower()) for each in headings}
    named = {name for row in ROWS for name in re.findall(r"\b(?:ort|openvino)-\w+", row.advice)}
    assert named <= {*targets.names()}


def test_all_flags_are_of_some_kind() -> None:
    known = {flag for row in ROWS for flag in row.features}
    # Units for float16 make OpenVINO's float models faster, which the report of a run says.
    assert {*environment.FLAGS} - known == {"avx512_fp16", "amx_fp16", "sve"}


def test_where_products_saturate_openvino_is_not_advised() -> None:
    table = targets.load("openvino-cpu").capabilities
    for features in COMBINATIONS:
        if saturates(table, features):
            assert "take openvino-cpu" not in next(cpus.advice(features))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
@pytest.mark.parametrize("command", ["doctor", "targets"])
def test_a_runtime_whose_import_ends_python_is_one_line(tmp_path: Path, command: str) -> None:
    package = tmp_path / "onnxruntime"
    package.mkdir()
    (package / "__init__.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", "from octobert.cli.main import main; main()", command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'src'}", "COLUMNS": "500"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "importing onnxruntime ends Python at once: a known cause is a /proc/cpuinfo"
        in " ".join(done.stdout.split())
    )
    assert "openvino-cpu" in done.stdout
