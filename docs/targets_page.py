"""The page of all targets, written from their tables."""

from __future__ import annotations

from collections.abc import Sequence

from octobert.core.capability import Capabilities, kind_of
from octobert.core.plan import DType

_INTRODUCTION = """# Targets

Generated from the tables in `src/octobert/targets`. A plan that breaks a rule of its target is an error. With `repair: true`
the plan is changed instead, and the report says how. `octobert check FILE --target NAME` checks any Q/DQ ONNX file against the
same tables.
"""
_SHAPES = {
    "either": "dynamic, or static where the recipe has `shape`",
    "dynamic": "dynamic",
    "profiles": "dynamic within a profile, which is written beside the model",
    "fixed": "static, as the recipe's `shape` says",
}


def page_of(targets: Sequence[Capabilities]) -> str:
    """Return the documentation page of all targets as Markdown: a table of all targets, then one section per target."""
    lines = [
        _INTRODUCTION,
        "| target | description | runtime | placement | status |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| [`{t.name}`](#{t.name}) | {t.description} | {t.runtime} | `{t.placement}` | *{t.status}* |"
        for t in targets
    ]
    return "\n".join(lines + [_section(target) for target in targets])


def _section(target: Capabilities) -> str:
    weights = f"symmetric {' or '.join(target.weights.accepted)}"
    channels = (
        "one scale per tensor"
        if target.weights.axis is None
        else "one scale per output channel or per tensor"
    )
    form = (
        "floats followed by a QuantizeLinear/DequantizeLinear pair"
        if target.weights.form == "pair"
        else "integers"
    )
    rows = [
        ("activations computed in integers", _kinds(target.activations.computed)),
        ("activations accepted, computed in float", _kinds(target.activations.simulated)),
        (
            "dynamic quantization",
            "computed in integers" if target.activations.dynamic else "not computed in integers",
        ),
        (
            "narrowest range",
            f"{target.activations.smallest_range:g}" if target.activations.smallest_range else "",
        ),
        ("weights", f"{weights}; {channels}; {form}"),
        (
            "biases",
            "float, or int32 with a DequantizeLinear" if target.weights.int32_bias else "float",
        ),
        ("site roles computed in integers", ", ".join(target.roles)),
        ("site roles accepted, computed in float", ", ".join(target.simulated_roles)),
        ("float types in files", ", ".join(target.float_parts.in_files)),
        (
            "float types computed where the CPU has units for them",
            ", ".join(target.float_parts.by_options),
        ),
        ("shapes", _SHAPES[target.shapes]),
        (
            "last layer",
            "first token only, if the head reads no other"
            if target.rewrites.first_token
            else "all tokens",
        ),
        (
            "norms",
            f"InstanceNormalization on machines with up to {target.rewrites.norms_up_to_cores} cores"
            if target.rewrites.norms_up_to_cores
            else "",
        ),
        (
            "format",
            "integer operators (qoperator) or Q/DQ" if target.rewrites.integer_products else "Q/DQ",
        ),
        ("opset", f"{target.onnx.opset[0]} to {target.onnx.opset[1]}"),
        ("further operator domains", ", ".join(target.onnx.domains)),
        ("operators that are refused", ", ".join(target.onnx.refuses)),
        (
            "lowest mask constant",
            f"{target.onnx.lowest_constant:g}" if target.onnx.lowest_constant > -1e38 else "",
        ),
        ("files in the package", ", ".join(target.formats)),
        ("status", target.status),
    ]
    table = [f"| {name} | {text} |" for name, text in rows if text]
    return "\n".join(
        [
            f"\n## {target.name}\n",
            f"{target.description}.\n",
            "| property | value |",
            "|---|---|",
            *table,
        ]
    )


def _kinds(pairs: Sequence[tuple[DType, bool]]) -> str:
    return ", ".join(kind_of(*pair) for pair in pairs)
