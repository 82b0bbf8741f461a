"""The page of all targets, from their tables: what each accepts, runs fast, and refuses."""

from __future__ import annotations

from collections.abc import Sequence

from octobert.core.capability import Capabilities, kind_of

_INTRODUCTION = """# Targets

Generated from the tables in `src/octobert/targets` (`octobert targets --markdown`); a test holds this page to them. A plan that
breaks a rule of its target is an error, or with `strict: false` is repaired, and says what was changed. `octobert check FILE
--target NAME` holds any Q/DQ ONNX file against the same tables.
"""
_SHAPES = {
    "dynamic": "free",
    "profiles": "free within a profile, which is written beside the model",
    "fixed": "fixed, by the recipe's `shape`",
}


def page(targets: Sequence[Capabilities]) -> str:
    """Markdown: one table of all targets, then a section each."""
    lines = [_INTRODUCTION, "| target | | runs through | placement | status |", "|---|---|---|---|---|"]
    lines += [f"| [`{t.name}`](#{t.name}) | {t.description} | {t.runtime} | `{t.placement}` | *{t.status}* |" for t in targets]
    return "\n".join(lines + [_section(target) for target in targets])


def _section(target: Capabilities) -> str:
    weights = f"symmetric {' or '.join(target.weights)}"
    channels = "one scale a weight" if target.weight_axis is None else "a scale for each output channel, or one"
    rows = [
        ("activations in integers", _kinds(target.activations)),
        ("accepted, computed in float", _kinds(target.simulated_activations)),
        ("dynamic activations", "in integers" if target.dynamic else "not in integers"),
        ("narrowest range", f"{target.least_range:g}" if target.least_range else ""),
        ("weights", f"{weights}; {channels}; {'floats behind a pair' if target.weight_form == 'pair' else 'integers'}"),
        ("biases", "float, or int32 behind DequantizeLinear" if target.int32_bias else "float only"),
        ("in 8 bits", ", ".join(target.roles)),
        ("accepted, computed in float", ", ".join(target.simulated)),
        ("float parts", ", ".join(target.float_parts)),
        ("shapes", _SHAPES[target.shapes]),
        ("last layer", "first token only, where the head reads no other" if target.first_token else "all tokens"),
        ("norms", f"as InstanceNormalization on machines with up to {target.fast_norms} cores" if target.fast_norms else ""),
        ("opset", f"{target.opset[0]} to {target.opset[1]}"),
        ("other operator domains", ", ".join(target.domains)),
        ("refuses", ", ".join(target.refuses)),
        ("least mask constant", f"{target.lowest_constant:g}" if target.lowest_constant > -1e38 else ""),
        ("written", ", ".join(target.formats)),
        ("status", target.status),
    ]
    table = [f"| {name} | {text} |" for name, text in rows if text]
    return "\n".join([f"\n## {target.name}\n", f"{target.description}.\n", "| | |", "|---|---|", *table])


def _kinds(pairs: Sequence[tuple]) -> str:  # type: ignore[type-arg]
    return ", ".join(kind_of(*pair) for pair in pairs)
