"""Passes for NPUs other than Intel's: Qualcomm's context binaries and SNPE, AMD's metadata."""

from __future__ import annotations

from octobert.importers.olive.draft import Draft, Rule, needless, refuse
from octobert.importers.olive.model import fix_shape
from octobert.importers.outcomes import Node

_SNPE = (
    "octobert writes no .dlc files: SNPE's converter is not a Python package and its runtime is not open; "
    "the target qnn runs on the same chips, through ONNX Runtime"
)


def _context(draft: Draft, step: Node) -> None:
    kind = step.get("type")
    if not draft.providers and kind is not None:
        draft.implied["qnn"] = kind
    if kind is not None:
        kind.mapped(
            "targets",
            "session.json of the package has the options with which a session writes the context binary, on the device",
        )


def _provider(draft: Draft, node: Node) -> None:
    if isinstance(node.value, dict):
        draft.settings.append(("QNNExecutionProvider", "provider", node.value, node))
    else:
        node.refused("provider options are a mapping")


def _session(draft: Draft, node: Node) -> None:
    if isinstance(node.value, dict):
        draft.settings.append(("QNNExecutionProvider", "options", node.value, node))
    else:
        node.refused("session options are a mapping")


def _vitis(draft: Draft, step: Node) -> None:
    if (kind := step.get("type")) is not None:
        draft.implied["vitisai"] = kind
        kind.mapped("targets", "vitisai writes the metadata that AMD's provider reads")


def _dlc(draft: Draft, step: Node) -> None:
    if (kind := step.get("type")) is not None:
        kind.refused(_SNPE)
        draft.implied["qnn"] = kind
    if (shapes := step.get("input_shapes")) is not None and isinstance(shapes.value, list):
        fix_shape(draft, shapes)


_CONTEXT: dict[str, Rule] = {
    "provider_options": _provider,
    "session_options": _session,
    "embed_context": refuse("the context is a file beside the model; session.json says where to embed it instead"),
    "weight_sharing": refuse("an encoder is one graph, and shares no weights with others"),
    "disable_cpu_fallback": needless("a session raises an error where operators fall back, unless --allow-fallback is given"),
    "update_genai_config": needless("a setting for models that generate"),
}
_VITIS: dict[str, Rule] = {
    "config_meta_data_keys": needless("the metadata has the model type; config.json of the package has the rest"),
    "activation_type": needless("the metadata states the types that are in the file"),
    "weight_type": needless("the metadata states the types that are in the file"),
    "quant_type": needless("the metadata states it"),
}
_DLC: dict[str, Rule] = {
    name: refuse(_SNPE)
    for name in (
        "input_names",
        "output_names",
        "input_types",
        "input_layouts",
        "extra_args",
        "target_device",
        "use_enhanced_quantizer",
    )
}
PASSES: dict[str, tuple[Rule | None, dict[str, Rule]]] = {
    "epcontextbinarygenerator": (_context, _CONTEXT),
    "qnncontextbinarygenerator": (_context, _CONTEXT),
    "vitisaiaddmetadata": (_vitis, _VITIS),
    "snpeconversion": (_dlc, _DLC),
    "snpequantization": (_dlc, _DLC),
    "snpetoonnxconversion": (_dlc, _DLC),
}
