"""Calls for the type checker, which `make lint` runs; nothing runs them. An ignored error that is no error is one itself."""

from __future__ import annotations

import octobert

octobert.quantize(
    "m",
    task="mrpc",
    data="d",
    out="o",
    targets=["ort-cpu"],
    accuracy={"max_drop": 0.01},
    quick=True,
)
octobert.quantize("m", task="mrpc", data="d", out="o", tragets=["ort-cpu"])  # type: ignore[call-arg]
octobert.quantize("m", task="mrpc", data="d", out="o", quick="yes")  # type: ignore[arg-type]
octobert.auto(
    "m",
    "mrpc",
    "d",
    out="o",
    max_drop=0.01,
    targets=["ort-cpu"],
    calibrate={"percentile": {"keep": 99.9}},
)
octobert.auto("m", "mrpc", "d", out="o", max_drops=0.01)  # type: ignore[call-arg]
