"""The input model: its name and its task."""

from __future__ import annotations

from collections.abc import Mapping

from octobert.core.errors import RecipeError
from octobert.importers.olive import scripts
from octobert.importers.olive.draft import Draft, apply, false_is_default, needless, refuse
from octobert.importers.outcomes import Node

KINDS = ("hfmodel", "pytorchmodel", "onnxmodel", "openvinomodel")
# Tasks of the Hub → tasks of octobert.
TASKS = {
    "text-classification": "text-classification",
    "sequence-classification": "text-classification",
    "feature-extraction": "feature-extraction",
    "fill-mask": "fill-mask",
    "next-sentence-prediction": "next-sentence",
    "token-classification": "token-classification",
    "ner": "token-classification",
    "question-answering": "question-answering",
    "sentence-similarity": "embedding",
}
_EAGER = "octobert always captures with eager attention, which its graph passes know"
# A model of an AzureML workspace, as `models/azureml.py` reads it.
_AZURE = "azureml://subscriptions/{subscription_id}/resourcegroups/{resource_group}/workspaces/{workspace_name}/{model}"


def read(draft: Draft) -> None:
    """Set the model and its task.

    Raises:
        RecipeError: the model is of a kind that octobert does not read, or its task is none of an encoder.
    """
    node = draft.config.model
    kind = node.get("type")
    if kind is None or kind.text.lower() not in KINDS:
        got = kind.text if kind is not None else "no type"
        where = f"{draft.config.where}: input_model.type"
        raise RecipeError("the importer does not know this kind of model", where=where, got=got, expected=", ".join(KINDS))
    kind.not_needed("octobert sees what a model is: a checkpoint, or an ONNX file")
    place = node.get("model_path") or node.get("model_name")
    loader = node.get("model_loader")
    if place is None and loader is None:
        raise RecipeError("the model has no model_path", where=f"{draft.config.where}: input_model")
    if place is not None:
        _name(draft, place)
    _task(draft, node, loader)
    _from_loader(draft, node, loader, place)
    apply(draft, node, _FIELDS)
    if (kwargs := node.get("load_kwargs") or node.get("from_pretrained_args")) is not None:
        apply(draft, kwargs, _KWARGS)
    if (io := node.get("io_config")) is not None:
        _inputs(draft, io)


def _name(draft: Draft, place: Node) -> None:
    if not isinstance(place.value, Mapping):
        draft.set("model", place.text, place)
        return
    kind = place.get("type")
    if kind is None or not kind.text.lower().startswith("azureml"):
        _local_or_refused(draft, place)
        return
    name, version, registry = place.get("name"), place.get("version"), place.get("registry_name")
    if name is None:
        raise RecipeError("the AzureML model has no name", where=f"{draft.config.where}: {place.path}")
    model = f"models/{name.text}" + (f"/versions/{version.text}" if version is not None else "")
    if registry is not None:
        draft.set("model", f"azureml://registries/{registry.text}/{model}", place)
        return
    client = draft.config.get("azureml_client")
    fields = {key: client.get(key) if client is not None else None for key in _WORKSPACE}
    for field in fields.values():
        if field is not None:
            field.mapped("model", "part of the model's name")
    draft.set(
        "model",
        _AZURE.format(model=model, **{key: field.text if field is not None else f"<{key}>" for key, field in fields.items()}),
        place,
    )


def _local_or_refused(draft: Draft, place: Node) -> None:
    path = place.get("path") or place.get("name")
    if path is None:
        raise RecipeError(
            "the model's path is of an unknown form", where=f"{draft.config.where}: {place.path}", got=str(place.value)
        )
    draft.set("model", path.text, path)
    if (kind := place.get("type")) is not None:
        kind.not_needed("octobert sees whether a model is a folder, a file or a Hub id")


def _task(draft: Draft, node: Node, loader: Node | None) -> None:
    task = node.get("task") or node.get("hf_task")
    if task is not None:
        name = task.text.lower().removesuffix("-with-past")
        if name not in TASKS:
            raise RecipeError(
                "octobert has no such task: it quantizes encoders",
                where=f"{draft.config.where}: {task.path}",
                got=task.text,
                expected=", ".join(TASKS),
            )
        draft.task = TASKS[name]
        task.mapped("task")
    elif loader is None:
        # Olive's own default.
        draft.task = "text-classification"


def _from_loader(draft: Draft, node: Node, loader: Node | None, place: Node | None) -> None:
    """A function that makes the model: what head it makes is read from its script; otherwise the recipe names the function."""
    script = node.get("model_script")
    if loader is None or script is None:
        return
    path = path_of_script(draft, node, script)
    found = scripts.read(draft.config.folder / path)
    head = found.head(loader.text) if found is not None else None
    note = f"{script.text} calls from_pretrained of this head; octobert captures it from the checkpoint and runs no code"
    if head is not None and place is not None:
        draft.task = draft.task or head
        for field in (loader, script):
            field.mapped("task", note)
        return
    code = f"{path}:{loader.text}"
    draft.set("model", code, loader, "needs --allow-code; octobert calls it without arguments")
    script.mapped("model")
    if place is not None:
        place.refused(f"{loader.text} makes the model, and gets no arguments: write the name into it")
    if not draft.task:
        draft.task = "text-classification"


def path_of_script(draft: Draft, node: Node, script: Node) -> str:
    """The path of a script relative to the config."""
    folder = node.get("script_dir")
    if folder is None or folder.text in (".", ""):
        if folder is not None:
            folder.not_needed("scripts are found beside the config")
        return script.text
    folder.mapped("model" if script.path.endswith("model_script") else "data")
    return f"{folder.text}/{script.text}"


def _inputs(draft: Draft, io: Node) -> None:
    shapes = io.get("input_shapes")
    if shapes is not None:
        fix_shape(draft, shapes)
    apply(draft, io, _IO)


def fix_shape(draft: Draft, node: Node) -> None:
    """Take the first [batch, sequence] of a list of input shapes."""
    shape = next((s for s in node.value if isinstance(s, list) and len(s) == 2 and all(type(n) is int for n in s)), None)
    if shape is None or min(shape) < 1:
        node.refused("not a shape [batch, sequence]")
        return
    draft.shape = draft.shape or (shape[0], shape[1])
    draft.shape_fields.append(node)


_WORKSPACE = ("subscription_id", "resource_group", "workspace_name")
_FIELDS = {
    "script_dir": needless("scripts are found beside the config"),
    "adapter_path": refuse("merge the adapter into the checkpoint first"),
    "model_file_format": needless("octobert sees the format"),
    "onnx_file_name": needless("give the .onnx file as the model"),
    "generative": false_is_default("octobert quantizes encoders"),
    "model_attributes": needless("octobert reads what the model's files state"),
    "test_model_config": refuse("octobert quantizes the model itself"),
}
_KWARGS = {
    "attn_implementation": needless(_EAGER),
    "trust_remote_code": false_is_default("octobert never runs code of a model repository"),
    "revision": lambda draft, node: draft.set("revision", node.text, node),
    "torch_dtype": needless("octobert captures float32; the target's float type is chosen later"),
    "device_map": needless("octobert captures on the CPU"),
    "use_safetensors": needless("safetensors are preferred always; pickles need --allow-pickle"),
    "cache_dir": needless("HF_HOME says where files of the Hub are kept"),
    "low_cpu_mem_usage": needless("encoders fit into memory"),
    "max_memory": needless("encoders fit into memory"),
    "extra_args": refuse("arguments of from_pretrained are not passed on"),
}
_IO = {
    "input_names": needless("the captured graph names its inputs as transformers does"),
    "input_types": needless("inputs are int64 token rows, and the 4-D mask is made inside the graph"),
    "output_names": needless("the captured graph names its outputs as transformers does"),
    "output_shapes": needless("shapes of outputs follow"),
    "dynamic_axes": needless("batch and sequence are dynamic, unless the target needs a fixed shape"),
    "dynamic_shapes": needless("batch and sequence are dynamic, unless the target needs a fixed shape"),
    "string_to_int_dim_params": needless("batch and sequence are dynamic, unless the target needs a fixed shape"),
    "kv_cache": false_is_default("encoders have no key-value cache"),
}
