"""Kinds of CPUs by their instructions: which target each runs fastest, and where that was measured.

One table for all who ask: `octobert doctor`, and the results of `benchmarks/speed.py`. The figures are those of the pages that
it names. What was not measured says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

NOT_MEASURED = "not measured"
_COMPARE = "ort-cpu and openvino-cpu both take 8 bits: octobert benchmark says which is faster here"
_ARM = "take ort-cpu, whose kernels have such instructions"


class CpuKind(NamedTuple):
    """CPUs with the same instructions for one purpose.

    Args:
        name: as in the names of `benchmarks/results`.
        title: in texts.
        features: any of these makes a CPU one of this kind, if it is of no earlier one (`Environment.features`).
        advice: the target to take, and why.
        evidence: the page with the figures, in the repository; or `NOT_MEASURED`.
    """

    name: str
    title: str
    features: tuple[str, ...]
    advice: str
    evidence: str = NOT_MEASURED


# 8-bit products, the fastest first.
KINDS = (
    CpuKind(
        "amx",
        "AMX",
        ("amx_int8",),
        "take openvino-cpu: 0.79 of the time of its float model in bfloat16, BERT-base",
        "docs/evidence/speed.md#amx",
    ),
    CpuKind(
        "avx512-vnni",
        "AVX512-VNNI",
        ("avx512_vnni",),
        "take openvino-cpu: 0.70 to 0.77 of the time of its float model in bfloat16; ort-cpu has 0.42 to 0.57 of its own",
        "docs/evidence/speed.md#avx512-vnni",
    ),
    CpuKind("avx-vnni", "AVX-VNNI", ("avx_vnni",), _COMPARE),
    CpuKind("avx512", "AVX512 without VNNI", ("avx512f",), "take ort-cpu, as with AVX2 alone"),
    CpuKind(
        "avx2",
        "AVX2 alone",
        ("avx2",),
        "take ort-cpu: 2.0 to 2.3 times as fast as the best float model at BERT-base size, 1.35 to 1.42 times with MiniLM; "
        "openvino-cpu gains nothing by 8 bits",
        "docs/evidence/speed.md#avx2-alone",
    ),
    CpuKind("arm-i8mm", "Arm with I8MM", ("i8mm",), _ARM),
    CpuKind("arm-dotprod", "Arm with dot products", ("asimddp",), _ARM),
    CpuKind(
        "ssse3", "x86 without AVX2", ("ssse3",), "8-bit models are smaller, and may not be faster"
    ),
)
# Float products.
HALVES = (
    CpuKind(
        "bf16-x86",
        "bfloat16",
        ("avx512_bf16", "amx_bf16"),
        "OpenVINO runs float32 models in bfloat16 by default; octobert asks for float32, unless the recipe sets float_parts: "
        "bfloat16",
        "docs/evidence/runtimes.md#bfloat16",
    ),
    CpuKind(
        "bf16-arm",
        "bfloat16",
        ("bf16",),
        "ONNX Runtime multiplies float32 in bfloat16 only where it is told to: a run times the float model in that, too, and "
        "octobert auto tries it for what stays in float (float_parts: bfloat16)",
    ),
)
_UNKNOWN = CpuKind(
    "unknown", "no instruction for 8-bit products is known of this CPU", (), _COMPARE
)


def kind_of(features: Collection[str], kinds: tuple[CpuKind, ...] = KINDS) -> CpuKind | None:
    """Return the first kind of a table that a CPU is of; None if it is of none.

    Args:
        features: of the CPU (`Environment.features`).
        kinds: `KINDS` or `HALVES`.

    Example:
        >>> kind_of(("avx2", "avx_vnni")).title
        'AVX-VNNI'
    """
    return next((kind for kind in kinds if not {*kind.features}.isdisjoint(features)), None)


def advice(features: Collection[str]) -> Iterator[str]:
    """Yield which target to take on a CPU, and what it does with floats, each with its evidence.

    Args:
        features: as for `kind_of`.
    """
    for kind in (kind_of(features) or _UNKNOWN, kind_of(features, HALVES)):
        if kind is not None:
            yield f"{kind.title}: {kind.advice} ({kind.evidence})."
