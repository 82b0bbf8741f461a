"""Systems, accelerators and execution providers: the targets of the recipe."""

from __future__ import annotations

from collections.abc import Mapping

from octobert.core.errors import RecipeError
from octobert.importers.olive.draft import Draft, apply, needless, refuse
from octobert.importers.outcomes import Node

# Execution provider without its suffix → target. OpenVINO's depends on the device.
TARGETS = {
    "CPU": "ort-cpu",
    "CUDA": "ort-cuda",
    "Tensorrt": "tensorrt",
    "NvTensorRTRTX": "tensorrt-rtx",
    "QNN": "qnn",
    "VitisAI": "vitisai",
    "MIGraphX": "migraphx",
    "ROCM": "migraphx",
}
OPENVINO = {"cpu": "openvino-ep", "gpu": "openvino-gpu", "npu": "openvino-npu"}
# Targets whose files have one input shape, or profiles around it.
FIXED = ("qnn", "vitisai", "openvino-npu", "migraphx", "tensorrt", "tensorrt-rtx")
# Targets on a device, whose sessions can bind inputs and outputs.
BINDING = ("ort-cuda", "tensorrt", "tensorrt-rtx", "migraphx")
# Targets that take ONNX Runtime's own operators; that run whole graphs in integers; that take
# integer operators; that take uint8 weights.
CONTRIB = ("ort-cpu", "ort-cuda", "openvino-ep", "vitisai")
WHOLE = ("qnn", "vitisai")
QOPERATOR = ("ort-cpu",)
UNSIGNED = ("ort-cpu", "qnn", "vitisai")
_DEVICES = {"cpu": "CPU", "gpu": "CUDA", "npu": "QNN", "cpu_spr": "CPU"}
_HERE = "octobert runs where it is called"


def read(draft: Draft) -> None:
    """Note the providers of the target system, or of the host where there is no target.

    Raises:
        RecipeError: a system is not there.
    """
    target, host = draft.config.get("target"), draft.config.get("host")
    systems = draft.config.objects("systems")
    chosen = draft.config.named("systems", target)
    used = draft.config.named("systems", host)
    if chosen is None and used is None and len(systems) == 1:
        used = next(iter(systems.values()))
    if chosen is not None or used is not None:
        _system(draft, chosen or used)  # type: ignore[arg-type]
    providers = draft.config.get("execution_providers")
    if chosen is None and used is None and providers is not None:
        for element in providers.elements():
            _provider(draft, element.text, "", providers)
    main = chosen or used
    for system in systems.values():
        if main is None or system.path != main.path:
            # What a host can run says nothing of where the model will run.
            system.not_needed("where Olive's passes run: octobert runs where it is called")


def _system(draft: Draft, system: Node) -> None:
    kind = system.get("type")
    if kind is not None and kind.text.lower() in ("localsystem", "local"):
        kind.not_needed(_HERE)
    elif kind is not None:
        kind.refused(f"{_HERE}: start it inside that container, environment or machine")
    accelerators = system.get("accelerators")
    for accelerator in accelerators.elements() if accelerators is not None else ():
        _accelerator(draft, accelerator)
    apply(draft, system, _SYSTEM)


def _accelerator(draft: Draft, node: Node) -> None:
    if not isinstance(node.value, Mapping):
        _provider(draft, _DEVICES.get(node.text.lower(), node.text), node.text.lower(), node)
        return
    device = node.get("device")
    name = device.text.lower() if device is not None else ""
    providers = node.get("execution_providers")
    for element in providers.elements() if providers is not None else ():
        # A provider, or a provider and the path of its library.
        value = element.value[0] if isinstance(element.value, list) and element.value else element.value
        assert providers is not None
        _provider(draft, str(value), name, providers)
        if device is not None:
            draft.providers[provider_of(str(value)), name].append(device)
    if providers is None and device is not None:
        _provider(draft, _DEVICES.get(name, name), name, device)
    apply(draft, node, {"memory": needless("octobert measures the memory of a model, and does not plan with it")})


def provider_of(name: str) -> str:
    """`CPUExecutionProvider` → `CPU`."""
    return name.strip().removesuffix("ExecutionProvider")


def _provider(draft: Draft, name: str, device: str, node: Node) -> None:
    draft.providers.setdefault((provider_of(name), device), []).append(node)


def add_provider(draft: Draft, name: str, node: Node) -> None:
    """A metric names the provider that it is measured on."""
    known = [key for key in draft.providers if key[0] == provider_of(name)]
    draft.providers.setdefault(known[0] if known else (provider_of(name), ""), []).append(node)


def target_of(draft: Draft, provider: str, device: str) -> str | None:
    """The target of a provider on a device; None if octobert has none."""
    if provider == "OpenVINO":
        return OPENVINO.get(draft.openvino_device or device or "cpu")
    return TARGETS.get(provider)


def finish(draft: Draft) -> None:
    """Set the targets.

    Raises:
        RecipeError: there are providers, and none of them has a target.
    """
    targets: list[str] = []
    for (provider, device), fields in draft.providers.items():
        target = target_of(draft, provider, device)
        for field in fields:
            if target is None:
                field.refused(f"octobert has no target for {provider}ExecutionProvider")
            else:
                field.mapped("targets", target)
        targets += [target] if target is not None and target not in targets else []
    for target, field in draft.implied.items():
        targets += [target] if target not in targets else []
        field.mapped("targets", target)
    if not targets and draft.providers:
        raise RecipeError(
            "octobert has no target for any of the config's execution providers",
            where=draft.config.where,
            got=", ".join(provider for provider, _ in draft.providers),
            expected=", ".join([*TARGETS, "OpenVINO"]),
        )
    draft.set("targets", targets or ["ort-cpu"])


_SYSTEM = {
    "hf_token": needless("HF_TOKEN is used where it is set"),
    "python_environment_path": refuse(f"{_HERE}: start it with that Python"),
    "environment_variables": refuse("set them in the shell"),
    "prepend_to_path": refuse("set PATH in the shell"),
    "local_docker_config": refuse("docker/ has octobert's own images"),
    "dockerfile": refuse("docker/ has octobert's own images"),
    "requirements_file": refuse("octobert run RECIPE --setup says what is missing"),
    "olive_managed_env": needless("octobert makes no environments"),
    "is_dev": needless("octobert makes no environments"),
    "aml_compute": refuse(_HERE),
    "aml_docker_config": refuse(_HERE),
    "azureml_client_config": refuse(_HERE),
}
