"""Passes: what each sets. Types are compared in lower case, as Olive does."""

from __future__ import annotations

from dataclasses import replace

from octobert.core.errors import RecipeError, did_you_mean
from octobert_olive import scripts, searches
from octobert_olive.model import fix_shape
from octobert_olive.nodes import Node
from octobert_olive.quantizers import set_method
from octobert_olive.rules import (
    COMPUTED,
    Draft,
    OlivePass,
    apply,
    apply_rule,
    computed,
    names,
)


def read(draft: Draft, steps: list[OlivePass]) -> None:
    """Set what the passes mean.

    Raises:
        RecipeError: a pass is unknown, or for models that octobert does not quantize.
    """
    passes = names("passes")
    for step in steps:
        where = f"{draft.config.where}: {step.node.path}.type"
        got = str(step.node.get("type").value)
        if step.kind in names("generative"):
            raise RecipeError(
                "the pass is for generative models or 4-bit weights; octobert quantizes encoders to 8 bits",
                where=where,
                got=got,
                fix="remove the pass",
            )
        if step.kind not in passes:
            hint = did_you_mean(step.kind, passes)
            raise RecipeError(
                "the importer does not know this pass",
                where=where,
                got=got,
                fix=hint
                if hint.startswith("did")
                else "remove it, if the result does not depend on it",
            )
        varied = searches.open_fields(draft, step) if draft.search is not None else set()
        defaults = {
            field: value
            for field, value in names("defaults").get(step.kind, {}).items()
            if varied.isdisjoint(field.split(", "))
        }
        typed = step.node.get("precision", "weight_type")
        if varied and "activation_type" in defaults:
            # In Olive's search the type of activations follows that of weights.
            if {"precision", "weight_type"} & varied:
                del defaults["activation_type"]
            elif typed:
                defaults["activation_type"] = typed.value
        node, entry = replace(step.node, defaults=defaults), passes[step.kind]
        if "method" in entry:
            set_method(draft, entry["method"], node.get("type"))
        if "first" in entry:
            COMPUTED[entry["first"]](draft, node)
        if "type" in entry:
            apply_rule(draft, node.get("type"), *entry["type"])
        apply(draft, node, *entry["fields"], "common")
        if "last" in entry:
            COMPUTED[entry["last"]](draft, node)
        for other in step.others:
            _alternative(draft, other)


def chosen_by_olive(draft: Draft, metrics: list[Node]) -> OlivePass:
    """Without passes Olive takes one by itself: for its providers, in precisions that are named or that a goal allows."""
    root = draft.config.root
    options = root.get("auto_optimizer_config")
    named, off = options.get("precisions", "precision"), options.get("disable_auto_optimizer")
    goals = [
        part.get("goal").get("type").lower.rpartition("max-")[2]
        for metric in metrics
        if metric.get("type").lower == "accuracy"
        for part in metric.get("sub_types").elements()
    ]
    allowed = {"fp16", "int8"} if goals[:1] == ["degradation"] else set()
    facts = {each.lower for each in named.elements()} or allowed
    facts |= {provider for provider, _ in draft.providers} or {"CPU"}
    rows = "rows" if root.get("data_configs").value else "" if options else "old"
    facts |= {rows, "off" if off.value is True else ""}
    table = names("without_passes")
    kind, what = next(found for *found, conditions in table if facts.issuperset(conditions))
    node = replace(root.get("passes"), value="none", is_default=True)
    node.mapped("quantize", f"without passes Olive's auto-optimizer takes {what}")
    for field in (off, named):
        field.mapped("quantize", "4 bits are quantize.dynamic.bits" if "int4" in facts else what)
    return OlivePass(kind, kind.lower(), replace(node, value={"type": kind}, path=f"passes.{kind}"))


def _alternative(draft: Draft, other: OlivePass) -> None:
    """Add what may take the place of a pass to the search; without a search, the pass itself is taken."""
    alternative = Draft(draft.config)
    if draft.search and draft.method and other.kind in names("passes") and other.quantizes:
        read(alternative, [other])
    if draft.search is None or alternative.method is None:
        other.node.refused(
            "an alternative for Olive's search; a recipe has one, and the first is taken"
        )
        return
    space = draft.search.space
    # The name of the recipe's own method means that method with its options.
    method = (
        {alternative.method: alternative.options}
        if alternative.options or alternative.method == draft.method
        else alternative.method
    )
    space.setdefault("quantize", [draft.method]).append(method)
    for key in ("calibrate", "transforms", "corrections"):
        values = draft.get(key), alternative.get(key)
        if (key != "calibrate" or alternative.method == "static") and (
            values != (None, None) or key in space
        ):
            default = "minmax" if key == "calibrate" else []
            searches.add(
                space.setdefault(key, []), [default if value is None else value for value in values]
            )


@computed
def fixed_shape(draft: Draft, step: Node) -> None:
    """[batch, sequence] by the names of dimensions, or by the shapes of inputs."""
    dimensions, values = step.get("dim_param"), step.get("dim_value")
    shapes = step.get("input_shape")
    if isinstance(dimensions.value, list) and isinstance(values.value, list):
        sizes = {
            str(name).lower(): value
            for name, value in zip(dimensions.value, values.value, strict=False)
        }
        batch = next((size for name, size in sizes.items() if "batch" in name), None)
        sequence = next(
            (size for name, size in sizes.items() if "seq" in name or "length" in name), None
        )
        if (
            type(batch) is int
            and type(sequence) is int
            and min(batch, sequence) > 0
            and len(sizes) == 2
        ):
            draft.shape = (batch, sequence)
            draft.later["shape"] += [dimensions, values]
        else:
            for field in (dimensions, values):
                field.refused(
                    "octobert fixes batch and sequence, and an encoder has no other dimensions"
                )
    if shapes:
        fix_shape(draft, shapes)


@computed
def model_type(draft: Draft, node: Node) -> None:
    """The family that ONNX Runtime's optimizer takes the model for."""
    if node.lower not in ("bert", "bert_tf", "bert_keras", "none"):
        raise RecipeError(
            "octobert quantizes encoders",
            where=f"{draft.config.where}: {node.path}",
            got=node.text,
            expected="model_type bert",
        )
    node.not_needed(
        "octobert finds attention by its structure, and names parts by the model's family"
    )


@computed
def surgeries(draft: Draft, node: Node) -> None:
    """Changes of the graph that the canonical graph needs not."""
    for element in node.elements():
        why = names("surgeries").get(element.get("surgeon").lower)
        if why:
            element.not_needed(why)
        else:
            element.refused(
                "octobert edits no graphs on request; it makes its canonical graph, which parity with the model checks"
            )


@computed
def training(draft: Draft, step: Node) -> None:
    """Quantization-aware training, with a loop of one's own or without."""
    draft.set("qat", {})
    set_method(draft, "static")
    step.get("type").mapped("qat")
    loop, script = step.get("training_loop_func"), step.get("user_script")
    if loop and script:
        code = f"{scripts.script_of(draft, step, script).path}:{loop.text}"
        draft.set(
            "qat.code",
            code,
            loop,
            "needs --allow-code; the model that it gets rounds as octobert's plan does",
        )
        script.mapped("qat.code")
    else:
        loop.refused("a function needs its user_script")


@computed
def context_binary(draft: Draft, kind: Node) -> None:
    """Qualcomm's binary of a graph, which a session writes on the device."""
    if not draft.providers:
        draft.implied["qnn"] = kind
    kind.mapped(
        "targets",
        "session.json of the package has the options with which a session writes the context binary, on the device",
    )


@computed
def openvino_device(draft: Draft, node: Node) -> None:
    """A pass names the device: the target is OpenVINO on it."""
    device, targets = node.lower, names("openvino_targets")
    if device not in targets:
        node.refused(f"OpenVINO's targets are for {', '.join(targets)}")
        return
    draft.openvino_device = draft.openvino_device or device
    if all(provider != "OpenVINO" for provider, _ in draft.providers):
        draft.implied.setdefault("openvino-cpu" if device == "cpu" else targets[device], node)
    node.mapped("targets", f"OpenVINO on the {device.upper()}")


@computed
def exported_task(draft: Draft, node: Node) -> None:
    """The head that is exported comes before that of the model."""
    if node.text in names("tasks"):
        draft.task = names("tasks")[node.text]
        node.mapped("task", "the exported head; it comes before the model's task")
