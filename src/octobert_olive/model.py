"""The input model: its name and its task."""

from __future__ import annotations

from octobert.core.errors import RecipeError
from octobert_olive import scripts
from octobert_olive.nodes import Node
from octobert_olive.rules import Draft, apply, computed, names

_WORKSPACE = ("subscription_id", "resource_group", "workspace_name")
# A model of an AzureML workspace, as `models/azureml.py` reads it.
_AZURE = "azureml://subscriptions/{subscription_id}/resourcegroups/{resource_group}/workspaces/{workspace_name}/{model}"


def read(draft: Draft) -> None:
    """Set the model and its task.

    Raises:
        RecipeError: the model is of a kind that octobert does not read, or its task is none of an encoder.
    """
    node, kinds = draft.config.model, names("models")
    kind = node.get("type")
    if kind.lower not in kinds:
        raise RecipeError(
            "the importer does not know this kind of model",
            where=f"{draft.config.where}: input_model.type",
            got=kind.text if kind else "no type",
            expected=", ".join(kinds),
        )
    kind.not_needed("octobert sees what a model is: a checkpoint, or an ONNX file")
    place = node.get("model_path", "model_name")
    loader = node.get("model_loader")
    if not place and not loader:
        raise RecipeError("the model has no model_path", where=f"{draft.config.where}: input_model")
    if place.is_mapping:
        _described(draft, place)
    elif place:
        draft.set("model", place.text, place)
    _task(draft, node, loader)
    _from_loader(draft, node, loader, place)
    apply(draft, node, "model")
    apply(draft, node.get("load_kwargs", "from_pretrained_args"), "loading_arguments")
    apply(draft, node.get("io_config"), "inputs_and_outputs")


def _described(draft: Draft, place: Node) -> None:
    """A model in a folder, in an AzureML workspace or in a registry."""
    kind, name = place.get("type"), place.get("name")
    if not kind.lower.startswith("azureml"):
        path = place.get("path", "name")
        if not path:
            raise RecipeError(
                "the model's path is of an unknown form",
                where=f"{draft.config.where}: {place.path}",
                got=str(place.value),
            )
        draft.set("model", path.text, path)
        kind.not_needed("octobert sees whether a model is a folder, a file or a Hub id")
        return
    if not name:
        raise RecipeError(
            "the AzureML model has no name", where=f"{draft.config.where}: {place.path}"
        )
    version, registry = place.get("version"), place.get("registry_name")
    model = f"models/{name.text}" + (f"/versions/{version.text}" if version else "")
    if registry:
        draft.set("model", f"azureml://registries/{registry.text}/{model}", place)
        return
    client = draft.config.root.get("azureml_client")
    parts = {key: client.get(key) for key in _WORKSPACE}
    for part in parts.values():
        part.mapped("model", "part of the model's name")
    texts = {key: part.text if part else f"<{key}>" for key, part in parts.items()}
    draft.set("model", _AZURE.format(model=model, **texts), place)


def _task(draft: Draft, node: Node, loader: Node) -> None:
    task, tasks = node.get("task", "hf_task"), names("tasks")
    name = task.lower.removesuffix("-with-past")
    if name in tasks:
        draft.task = tasks[name]
        task.mapped("task")
    elif task:
        raise RecipeError(
            "octobert has no such task: it quantizes encoders",
            where=f"{draft.config.where}: {task.path}",
            got=task.text,
            expected=", ".join(tasks),
        )
    elif not loader:
        # Olive's own default.
        draft.task = "text-classification"


def _from_loader(draft: Draft, node: Node, loader: Node, place: Node) -> None:
    """A function that makes the model: what head it makes is read from its script; otherwise the recipe names the function."""
    script = node.get("model_script")
    if not loader or not script:
        return
    code = scripts.script_of(draft, node, script)
    head = code.head(loader.text)
    if head is not None and place:
        draft.task = draft.task or head
        note = f"{script.text} calls from_pretrained of this head; octobert captures it from the checkpoint and runs no code"
        for field in (loader, script):
            field.mapped("task", note)
        return
    draft.set(
        "model",
        f"{code.path}:{loader.text}",
        loader,
        "needs --allow-code; octobert calls it without arguments",
    )
    script.mapped("model")
    place.refused(f"{loader.text} makes the model, and gets no arguments: write the name into it")
    draft.task = draft.task or "text-classification"


@computed
def fix_shape(draft: Draft, node: Node) -> None:
    """Take the first [batch, sequence] of a list of input shapes."""
    shape = next(
        (
            s
            for s in node.value
            if isinstance(s, list) and len(s) == 2 and all(type(n) is int for n in s)
        ),
        None,
    )
    if shape is None or min(shape) < 1:
        node.refused("not a shape [batch, sequence]")
        return
    draft.shape = draft.shape or (shape[0], shape[1])
    draft.later["shape"].append(node)
