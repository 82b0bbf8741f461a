"""Write a folder that another program opens.

An exported folder has the configuration and tokenizer of the package, and one model, under the name that the client opens by
default. Clients of OpenVINO get the IR, if the package has one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octobert.api.client_files import (
    WRITERS,
    keep_output,
    keep_vector_of_ir,
    late_problem,
    name_no_file,
    state_reading,
)
from octobert.api.clients import (
    CLASSIFICATION,
    CLIENTS,
    EMBEDDING,
    LATE,
    PAIRS,
    RERANKER,
    SINGLE,
    SPARSE,
    Model,
    rendered,
    snippet,
)
from octobert.core.errors import ModelError, RecipeError, StorageError, did_you_mean
from octobert.core.files import storage_errors
from octobert.core.frozen import FrozenModel
from octobert.core.model_config import MODULES

if TYPE_CHECKING:
    from octobert.core.model_config import Pooling
    from octobert.core.onnx_files import ModelSignature
    from octobert.core.results import PackageManifest

_IR = ("openvino_model.xml", "openvino_model.bin")


class Exported(FrozenModel):
    """A folder for another program.

    Args:
        folder: the folder.
        client: the program.
        install: the command that installs the program.
        snippet: a program that loads the model and runs it.
        unchecked: why its answers were not compared with those of the package; empty where they were.
    """

    folder: Path
    client: str
    install: str
    snippet: str
    unchecked: str = ""


def export(package: str | Path, client: str, out: str | Path | None = None) -> Exported:
    """Write a folder that another program opens: what it needs of a package, under the names that it opens by default.

    Args:
        package: A package, `OUT/<target>`.
        client: A program, such as `sentence-transformers`; a key of `CLIENTS`.
        out: The folder to write. Default: beside the package, `OUT/<target>-<client>`.

    Returns:
        The folder, and the lines that load it.

    Raises:
        RecipeError: There is no such client.
        ModelError: The folder is not a package, its files are not those that were packaged, or the client cannot open it.
        StorageError: The folder exists already.

    Example:
        >>> octobert.export("out/ort-cpu", "optimum").snippet             # doctest: +SKIP
    """
    from octobert.inference.package_files import read_manifest, verify

    if client not in CLIENTS:
        raise RecipeError(
            f'there is no client "{client}"', where="--for", fix=did_you_mean(client, CLIENTS)
        )
    source = Path(package)
    manifest = read_manifest(source)
    verify(source)
    beside = Path(package).absolute()
    target = Path(out or beside.with_name(f"{beside.name}-{client}")).absolute()
    model = _opened(source, manifest, client, target)
    with storage_errors(target):
        unchecked = _write(source, manifest, client, model)
    install = CLIENTS[client].install[-1 if model.openvino else 0]
    return Exported(
        folder=target,
        client=client,
        install=install,
        snippet=snippet(client, model),
        unchecked=unchecked,
    )


def _opened(source: Path, manifest: PackageManifest, name: str, target: Path) -> Model:
    """Return the package that a client will open; raise an error if it cannot."""
    from octobert import targets
    from octobert.data.tokenization import Tokenizer
    from octobert.data.tokenizer_files import has_segments

    client, model = CLIENTS[name], model_of(source, manifest, name, target)

    def refused(what: str, got: str | None = None, **more: str) -> ModelError:
        return ModelError(
            f"{name} {what}", where=str(source), got=got, **{"fix": "choose another client", **more}
        )

    if model.kind not in client.kinds:
        raise refused(
            "does not open models of this kind", model.kind, expected=", ".join(client.kinds)
        )
    capabilities = targets.load(manifest.target).capabilities
    shapes = capabilities.shapes
    if shapes == "fixed" or (shapes == "either" and manifest.recipe.get("shape")):
        raise refused(
            "needs a model that takes texts of any length",
            f"{manifest.target}, one fixed shape",
            fix="export the package of ort-cpu or openvino-cpu",
        )
    if manifest.task.options.get("windows"):
        raise refused(
            "would cut long texts, which the task reads in windows",
            fix="quantize the model again, without windows",
        )
    if client.devices and capabilities.device not in client.devices:
        what = f"runs files on {' and '.join(client.devices)}s only"
        raise refused(what, manifest.target, fix="export the package of ort-cpu")
    if not client.file and not model.openvino:
        raise refused(
            "opens models of OpenVINO", manifest.target, fix="export the package of openvino-cpu"
        )
    own = client.readings == "own"
    if own and manifest.task.query_table:
        raise refused(
            "runs the model on queries too, which are made of a table here",
            fix="choose sentence-transformers",
        )
    if model.kind == LATE:
        problem = late_problem(source, manifest, openvino=model.openvino, own=own)
        if problem is not None:
            raise refused(*problem)
    if model.kind in (SPARSE, LATE) and not own and not (source / MODULES).is_file():
        raise refused(
            "needs the token states, which the model does not give",
            fix="quantize the model again, with token_states: true",
        )
    has, tells = has_segments(source), client.segments
    is_read = any(value.name == "token_type_ids" for value in model.inputs)
    if model.kind in (PAIRS, RERANKER) and is_read and tells == {True: "none", False: "file"}[has]:
        raise refused(
            f"{'does not tell' if has else 'tells'} the model which of two texts a token belongs to",
            None if has else "model_input_names without token_type_ids in tokenizer_config.json",
        )
    if client.cuts not in ("", side := Tokenizer(source).side):
        raise refused(f"cuts long texts on the {client.cuts}", f"truncation_side: {side}")
    if target.exists():
        raise StorageError(
            "the folder exists already", where=str(target), fix="remove it, or choose another --out"
        )
    return model


def model_of(source: Path, manifest: PackageManifest, name: str, target: Path) -> Model:
    """Return the facts on a model that its lines depend on."""
    from octobert.core.model_config import Normalize
    from octobert.core.plan import SHORT
    from octobert.tasks import rebuild

    client, task, pooling = CLIENTS[name], manifest.task, manifest.model.pooling
    ports = _ports(source)
    width = max(0, (ports.outputs[-1].shape or (0,))[-1])
    kind = task.head
    given = client.outputs if kind == EMBEDDING else "all"
    stated = (source / MODULES).is_file()
    if given == "modules":
        # A module with weights has its own in the folder, in float.
        plain = stated and pooling is not None and not pooling.folders
        given = "all" if plain else "token"
    elif given == "states" and not (stated and _pools(pooling)):
        given = "vector"
    kept = {"vector": slice(-1, None), "states": slice(1)}.get(given, slice(None))
    if kind == CLASSIFICATION:
        kind = SINGLE if task.texts != 2 else RERANKER if width == 1 else PAIRS
    return Model(
        folder=str(target),
        kind=kind,
        openvino=bool(client.ir) and _IR[0] in manifest.files and (source / _IR[0]).is_file(),
        width=width,
        activation=getattr(rebuild(task), "activation", "Identity"),
        multi_label=task.multi_label,
        normalized=pooling is not None
        and bool(pooling.steps)
        and isinstance(pooling.steps[-1], Normalize),
        prompts=task.prompts,
        default_prompt=task.default_prompt,
        target=manifest.target,
        given=given,
        precision=SHORT[manifest.plan.float_parts],
        inputs=ports.inputs,
        outputs=ports.outputs[kept],
    )


def _pools(pooling: Pooling | None) -> bool:
    """Return whether a program that pools by `1_Pooling` alone, and normalizes if asked to, gives the vectors of a model."""
    from octobert.core.model_config import Normalize

    return (
        pooling is not None
        and pooling.modes in (("cls",), ("mean",), ("lasttoken",))
        and pooling.truncate_dim is None
        and all(isinstance(step, Normalize) for step in pooling.steps)
    )


def _ports(source: Path) -> ModelSignature:
    import onnx_ir as ir

    from octobert.core.onnx_files import ports_of
    from octobert.targets.shared import files

    return ports_of(ir.load(files.model_file(source)))


def _write(source: Path, manifest: PackageManifest, name: str, model: Model) -> str:
    """Write the folder: complete, or not at all; and return why its answers were not compared, see `client_answers.check`."""
    from octobert.api.client_answers import check
    from octobert.core.files import atomic_folder
    from octobert.core.origin import copy_file
    from octobert.targets.shared import files
    from octobert.tasks import state

    client, weights, target = CLIENTS[name], files.model_file(source), Path(model.folder)
    if model.openvino:
        ir = Path(client.ir)
        models = {str(ir.with_suffix(Path(name).suffix)): source / name for name in _IR}
    else:
        # Weights beside a large model keep their name, by which the model refers to them.
        models = {client.file: weights}
        models |= {
            str(Path(client.file).with_name(Path(name).name)): source / name
            for name in manifest.files
            if name.startswith(f"{weights.relative_to(source).as_posix()}.")
        }
    # Servers take folders whose names start with a number for versions of the model.
    beside = {
        str(Path(client.folder, name)): source / name
        for name in manifest.files
        if "onnx/" not in name and name not in _IR and not (client.folder and "/" in name)
    }
    with atomic_folder(target) as partial:
        for place, file in (beside | models).items():
            copy_file(file, partial / place)
        name_no_file(partial)
        state(manifest.task, partial / client.folder)
        state_reading(partial / client.folder, by_class=client.tokenizer == "class")
        if model.given != "all":
            as_token = model.given == "token"
            if model.openvino:
                keep_vector_of_ir(source / _IR[0], partial / client.ir, as_token=as_token)
            else:
                keep_output(
                    weights, partial / client.file, model.outputs[0].name, as_token=as_token
                )
        for place, template in client.templates.items():
            (partial / place).write_text(rendered(template, model=model), encoding="utf-8")
        if client.writes is not None:
            WRITERS[client.writes](partial, model, manifest)
        file = partial / (client.ir if model.openvino else client.file)
        return check(source, file, partial / client.folder, name, client, model)
