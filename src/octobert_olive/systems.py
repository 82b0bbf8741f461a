"""Systems, accelerators and execution providers: the targets of the recipe, and what depends on them."""

from __future__ import annotations

from octobert.core.errors import RecipeError
from octobert_olive.nodes import Node
from octobert_olive.rules import Draft, apply, computed, names

_HERE = "octobert runs where it is called"


# The first opsets with 16-bit Quantize/DequantizeLinear, and with LayerNormalization.
_WIDE_SINCE, _NORM_SINCE = 21, 17


def read(draft: Draft, evaluator: Node) -> None:
    """Note the providers of the target system, or of the host where there is no target.

    Args:
        evaluator: has the target in configs of Olive 0.1.

    Raises:
        RecipeError: a system is not there.
    """
    root, systems = draft.config.root, draft.config.objects("systems")
    places = root.get("target") or evaluator.get("target"), root.get("host")
    target, host = (draft.config.named("systems", place) for place in places)
    system = target or host
    if not system and len(systems) == 1:
        system = next(iter(systems.values()))
    providers = root.get("execution_providers")
    if system:
        _system(draft, system)
    if not draft.providers:
        for element in providers.elements():
            draft.providers[provider_of(element.text), ""].append(providers)
    for other in systems.values():
        if other.path != system.path:
            # What a host can run says nothing of where the model will run.
            other.not_needed("where Olive's passes run: octobert runs where it is called")


def _system(draft: Draft, system: Node) -> None:
    kind = system.get("type")
    if kind.lower in ("localsystem", "local"):
        kind.not_needed(_HERE)
    else:
        kind.refused(f"{_HERE}: start it inside that container, environment or machine")
    devices = names("device_providers")
    accelerators = system.get("accelerators")
    for accelerator in accelerators.elements():
        if not accelerator.is_mapping:
            # In old configs a list of devices; execution providers stand beside it, if anywhere.
            if not draft.config.root.get("execution_providers"):
                provider = provider_of(devices.get(accelerator.lower, accelerator.text))
                draft.providers[provider, accelerator.lower].append(accelerators)
            else:
                accelerators.not_needed("the execution providers say the device")
            continue
        device, providers = accelerator.get("device"), accelerator.get("execution_providers")
        for element in providers.elements():
            fields = draft.providers[provider_of(_first(element)), device.lower]
            fields += [providers, device] if device else [providers]
        if device and not providers:
            draft.providers[
                provider_of(devices.get(device.lower, device.lower)), device.lower
            ].append(device)
        apply(draft, accelerator, "accelerator")
    apply(draft, system, "system")


def _first(element: Node) -> str:
    """The name of a provider; Olive takes also a provider and the path of its library."""
    return str(
        element.value[0] if isinstance(element.value, list) and element.value else element.value
    )


def provider_of(name: str) -> str:
    """`CPUExecutionProvider` → `CPU`."""
    return name.strip().removesuffix("ExecutionProvider")


def measured_on(draft: Draft, providers: Node) -> list[str]:
    """Note the providers that a metric is measured on; their names."""
    provider_names = [_first(element) for element in providers.elements()]
    for name in provider_names:
        draft.providers[_key(draft, name)].append(providers)
    return provider_names


def _key(draft: Draft, name: str) -> tuple[str, str]:
    """A provider with the device that the config has for it."""
    provider = provider_of(name)
    return next((key for key in draft.providers if key[0] == provider), (provider, ""))


def target_of(draft: Draft, name: str) -> str | None:
    """The target of a provider; None if octobert has none."""
    return _target(draft, *_key(draft, name))


def _target(draft: Draft, provider: str, device: str) -> str | None:
    if provider == "OpenVINO":
        target: str | None = names("openvino_targets").get(draft.openvino_device or device or "cpu")
    else:
        target = names("targets").get(provider)
    return target


def are(draft: Draft, table: str) -> bool:
    """Return whether all targets of the recipe are in a list of `names.yaml`."""
    return set(draft.recipe["targets"]) <= set(names(table))


def set_targets(draft: Draft) -> None:
    """Set the targets.

    Raises:
        RecipeError: there are providers, and none of them has a target.
    """
    targets: dict[str, None] = {}
    # Path of a field → the field, targets of its providers, providers without one.
    named: dict[str, tuple[Node, list[str], list[str]]] = {}
    for (provider, device), fields in draft.providers.items():
        target = _target(draft, provider, device)
        if target is not None:
            targets[target] = None
        for field in fields:
            _, known, unknown = named.setdefault(field.path, (field, [], []))
            (unknown if target is None else known).append(target or f"{provider}ExecutionProvider")
    for field, known, unknown in named.values():
        missing = f"octobert has no target for {', '.join(unknown)}" if unknown else ""
        if known:
            field.mapped("targets", "; ".join(filter(None, (", ".join(known), missing))))
        else:
            field.refused(missing)
    for target, field in draft.implied.items():
        targets[target] = None
        field.mapped("targets", target)
    if not targets and draft.providers:
        raise RecipeError(
            "octobert has no target for any of the config's execution providers",
            where=draft.config.where,
            got=", ".join(provider for provider, _ in draft.providers),
            expected=", ".join([*names("targets"), "OpenVINO"]),
        )
    draft.set("targets", list(targets) or ["ort-cpu"])


def set_method_options(draft: Draft) -> None:
    """Choose the method, once all passes are read."""
    for key in ("transforms", "corrections"):
        # Olive has none unless the config says so.
        if draft.get(key) is None and draft.get("qat") is None:
            draft.set(key, [])
    draft.method = draft.method or "float"
    for field in draft.later["half"][:1]:
        if draft.method == "dynamic":
            field.refused("dynamically quantized models have float32 parts")
        else:
            draft.option("float_parts", "float16", field)


def fit_to_targets(draft: Draft) -> None:
    """Leave out an opset, a form and a type of weights that a target cannot have."""
    targets = draft.recipe["targets"]
    _opset(draft)
    if "ort-cuda" in targets and draft.get("transforms") is None and draft.get("qat") is None:
        # Its fused operators read the residual path, which SmoothQuant would rescale.
        draft.set("transforms", [])
    for field in draft.later["format"]:
        if are(draft, "integer_operators"):
            draft.set("format", "qoperator", field)
        else:
            field.refused("integer operators are a form of ort-cpu; other targets take Q/DQ")
    if draft.options.get("placement") == "whole" and not are(draft, "any_plan"):
        # The quantizer takes all operators; what the target does not compute stays float there, too.
        draft.set("repair", True)
    if draft.options.get("weights") == "uint8" and not are(draft, "uint8_weights"):
        del draft.options["weights"]
    named, key = draft.later["weight_symmetric"], "weights_symmetric"
    if draft.options.get("weights") == "uint8":
        # ONNX Runtime's uint8 weights have a zero point of their own where nobody says otherwise.
        draft.options[key] = bool(named and named[-1].value is True)
    if draft.method is not None:
        draft.set("quantize", {draft.method: draft.options} if draft.options else draft.method)
    for field in named:
        if key in draft.options:
            field.mapped(f"quantize.static.{key}")
        elif field.value is False:
            field.refused("int8 weights are symmetric")
        else:
            field.not_needed("int8 weights are symmetric")
    for field in draft.later["weights"]:
        if "weights" in draft.options:
            field.mapped("quantize.static.weights")
        else:
            field.refused(f"a target of these takes int8 weights only: {', '.join(targets)}")


def _opset(draft: Draft) -> None:
    fields = draft.later["opset"]
    for field in fields:
        if type(field.value) is not int:
            field.refused("an opset is a number")
    # The last one is that of the file.
    for field in [field for field in fields if type(field.value) is int][-1:]:
        is_wide = draft.options.get("activations") in ("uint16", "int16") and not are(
            draft, "contrib_operators"
        )
        narrow = draft.options.get("bits") == 4
        if (is_wide or narrow) and field.value < _WIDE_SINCE:
            field.refused(
                f"{4 if narrow else 16}-bit Quantize/DequantizeLinear are in ONNX since opset 21; the least that holds the "
                "model is taken"
            )
        elif field.value < _NORM_SINCE and set(draft.recipe["targets"]) & set(
            names("whole_graphs")
        ):
            field.refused(
                "LayerNormalization is in ONNX since opset 17, and this NPU runs no primitive norms"
            )
        else:
            draft.set("opset", field.value, field)


def set_shapes(draft: Draft) -> None:
    """Set the shape, for targets with fixed shapes; and what is timed, for all."""
    if draft.shape is None:
        return
    batch, sequence = draft.shape
    key, note = (
        "benchmark",
        "the file of this target takes any shape; this one is timed, and texts are cut there",
    )
    if set(draft.recipe["targets"]) & set(names("fixed_shapes")):
        key, note = "shape", ""
        draft.set("shape", {"batch": batch, "sequence": sequence})
    draft.set("benchmark.batch", [batch])
    draft.set("benchmark.sequence", [sequence])
    if draft.task:
        draft.task_options.setdefault("max_length", sequence)
    for field in draft.later["shape"]:
        field.mapped(key, note)


@computed
def packaging(draft: Draft, node: Node) -> None:
    """Packages as zip files, which every system packs itself."""
    for element in node.elements():
        element.not_needed("a package of octobert is a folder: zip -r NAME.zip OUT/TARGET packs it")
