"""Other programs that open models: what each needs beyond a package, and the lines that load it there.

A client is an entry of `CLIENTS`. An exported folder has the configuration and tokenizer of the package, and one model, under
the name that the client opens by default. Clients of OpenVINO get the IR, if the package has one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octobert.core.frozen import FrozenModel

if TYPE_CHECKING:
    from octobert.core.results import PackageManifest

EMBEDDING, CLASSIFICATION = "embedding", "sequence-classification"
TAGGING, ANSWERING = "token-classification", "question-answering"
FILLING, FEATURES, NEXT = "masked-lm", "feature-extraction", "next-sentence"
# transformers 5 has no pipeline for question answering, and no release has one for the others.
_WITHOUT_PIPELINE = (EMBEDDING, ANSWERING, NEXT)
_TEXTS = '["How old is the tower?", "It was built in 1889."]'
_IR = ("openvino_model.xml", "openvino_model.bin")
_QUESTION, _CONTEXT = '"Who built it?"', '"Gustave Eiffel built it in 1889."'
_PIPELINES = {
    CLASSIFICATION: "text-classification",
    TAGGING: "token-classification",
    ANSWERING: "question-answering",
    FILLING: "fill-mask",
    FEATURES: "feature-extraction",
}
_CLASSES = {
    CLASSIFICATION: "SequenceClassification",
    TAGGING: "TokenClassification",
    ANSWERING: "QuestionAnswering",
    FILLING: "MaskedLM",
    FEATURES: "FeatureExtraction",
}


class Exported(FrozenModel):
    """A folder for another program.

    Args:
        folder: the folder.
        client: the program.
        install: the command that installs the program.
        snippet: a program that loads the model and runs it.
    """

    folder: Path
    client: str
    install: str
    snippet: str


@dataclass(frozen=True)
class Model:
    """What a snippet depends on.

    Args:
        folder: of the model.
        head: of the model.
        openvino: whether the folder holds an IR, not an ONNX file.
        pairs: whether the model reads pairs of texts.
        width: of a vector; 0 for other heads.
    """

    folder: str
    head: str
    openvino: bool = False
    pairs: bool = False
    width: int = 0

    def quoted(self, file: str = "") -> str:
        """The folder, or a file in it, as Python and JavaScript write it."""
        return json.dumps(self.folder + file, ensure_ascii=False)


@dataclass(frozen=True)
class Client:
    """A program.

    Args:
        heads: that it opens.
        install: the packages that it needs; with an IR the second entry, if there is one.
        file: name of the ONNX file in its folder.
        ir: whether it opens an IR.
        vector_only: whether the file must have one output.
    """

    heads: tuple[str, ...]
    install: tuple[str, ...]
    file: str = "onnx/model.onnx"
    ir: bool = False
    vector_only: bool = False


CLIENTS: Mapping[str, Client] = {
    "sentence-transformers": Client(
        (EMBEDDING, CLASSIFICATION),
        ("pip install 'sentence-transformers[onnx]'", "pip install 'sentence-transformers[openvino]'"),
        ir=True,
    ),
    "optimum": Client(
        (EMBEDDING, CLASSIFICATION, TAGGING, ANSWERING, FILLING, FEATURES, NEXT),
        ("pip install 'optimum-onnx[onnxruntime]'", "pip install 'optimum-intel[openvino]'"),
        ir=True,
    ),
    "langchain": Client(
        (EMBEDDING,),
        (
            "pip install langchain-huggingface 'sentence-transformers[onnx]'",
            "pip install langchain-huggingface 'sentence-transformers[openvino]'",
        ),
        ir=True,
    ),
    "transformers.js": Client(
        (EMBEDDING, CLASSIFICATION, TAGGING, ANSWERING, FILLING, FEATURES),
        ("npm install @huggingface/transformers",),
        file="onnx/model_quantized.onnx",
    ),
    "fastembed": Client((EMBEDDING,), ("pip install fastembed",), file="model.onnx"),
    "txtai": Client((EMBEDDING,), ("pip install txtai onnxruntime",), file="model.onnx", vector_only=True),
}


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
        ModelError: The folder is not a package, or the client cannot open such a model.
        StorageError: The folder exists already.

    Example:
        >>> octobert.export("out/ort-cpu", "optimum").snippet             # doctest: +SKIP
    """
    from octobert.core.errors import RecipeError, did_you_mean
    from octobert.core.files import storage_errors
    from octobert.inference.machines import for_this_machine
    from octobert.inference.package_files import read_manifest

    if client not in CLIENTS:
        raise RecipeError(f'there is no client "{client}"', where="--for", fix=did_you_mean(client, CLIENTS))
    source = for_this_machine(Path(package))
    manifest = read_manifest(source)
    beside = Path(package).absolute()
    target = Path(out) if out is not None else beside.with_name(f"{beside.name}-{client}")
    model = _opened(source, manifest, client, target)
    with storage_errors(target):
        _write(source, manifest, CLIENTS[client], target)
    install = CLIENTS[client].install[-1 if model.openvino else 0]
    return Exported(folder=target, client=client, install=install, snippet=snippet(client, model))


def _opened(source: Path, manifest: PackageManifest, name: str, target: Path) -> Model:
    """What a client will open; an error if it cannot."""
    from octobert import targets
    from octobert.core.errors import ModelError, StorageError

    client, head = CLIENTS[name], manifest.task.head
    if head not in client.heads:
        expected, fix = ", ".join(client.heads), "choose another client"
        raise ModelError(f"{name} does not open models with this head", where=str(source), got=head, expected=expected, fix=fix)
    if targets.load(manifest.target).CAPABILITIES.shapes == "fixed":
        got, fix = f"{manifest.target}, one fixed shape", "export the package of ort-cpu or openvino-cpu"
        raise ModelError(f"{name} needs a model that takes texts of any length", where=str(source), got=got, fix=fix)
    if head == EMBEDDING and not client.vector_only and name != "fastembed" and not (source / "modules.json").is_file():
        fix = "quantize the model again, with token_states: true"
        raise ModelError(f"{name} needs the token states, which the model does not give", where=str(source), fix=fix)
    if target.exists():
        raise StorageError("the folder exists already", where=str(target), fix="remove it, or choose another --out")
    width = _width(source) if head == EMBEDDING else 0
    return Model(str(target), head, client.ir and _ir(source, manifest), manifest.task.texts == 2, width)


def _ir(source: Path, manifest: PackageManifest) -> bool:
    return _IR[0] in manifest.files and (source / _IR[0]).is_file()


def _width(source: Path) -> int:
    import onnx_ir as ir

    from octobert.targets.shared import files

    shape = ir.load(files.model_file(source)).graph.outputs[-1].shape
    return int(shape[-1]) if shape is not None and isinstance(shape[-1], int) else 0


def _write(source: Path, manifest: PackageManifest, client: Client, target: Path) -> None:
    """Write the folder: complete, or not at all."""
    import shutil

    from octobert.core.files import copy
    from octobert.targets.shared import files

    weights = files.model_file(source)
    if client.ir and _ir(source, manifest):
        models = {name: source / name for name in _IR}
    else:
        # Weights beside a large model keep their name, by which the model refers to them.
        models = {client.file: weights}
        models |= {str(Path(client.file).with_name(data.name)): data for data in weights.parent.glob(f"{weights.name}.*")}
    beside = {name: source / name for name in manifest.files if "onnx/" not in name and name not in _IR}
    partial = target.with_name(f"partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        for name, file in (beside | models).items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            copy(file, partial / name)
        if client.vector_only:
            _keep_vector(weights, partial / client.file)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _keep_vector(weights: Path, path: Path) -> None:
    """Write a model with the outputs that octobert reads."""
    import onnx_ir as ir

    from octobert.graph import operators

    model = ir.load(weights)
    operators.drop_states_(model)
    operators.save(model, path)


def snippet(client: str, model: Model) -> str:
    """The lines that load a model in a client and run it."""
    lines = _SNIPPETS[client](model)
    return "\n".join(lines) + "\n"


def _sentence_transformers(model: Model) -> list[str]:
    kind, backend = ("SentenceTransformer", "CrossEncoder")[model.head == CLASSIFICATION], _backend(model)
    lines = [f"from sentence_transformers import {kind}", "", f'model = {kind}({model.quoted()}, backend="{backend}")']
    if model.head == EMBEDDING:
        return [*lines, f"vectors = model.encode({_TEXTS})"]
    return [*lines, f"answers = model.predict([{_inputs(model)}])"]


def _optimum(model: Model) -> list[str]:
    module, prefix = ("optimum.intel", "OV") if model.openvino else ("optimum.onnxruntime", "ORT")
    kind = f"{prefix}ModelFor{_CLASSES.get(model.head, 'CustomTasks')}"
    lines = [
        f"from {module} import {kind}",
        f"from transformers import AutoTokenizer{', pipeline' if model.head not in _WITHOUT_PIPELINE else ''}",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({model.quoted()})",
        f"model = {kind}.from_pretrained({model.quoted()})",
    ]
    if model.head == EMBEDDING:
        lines += [f'inputs = tokenizer({_TEXTS}, padding=True, truncation=True, return_tensors="pt")']
        return [*lines, 'vectors = model(**inputs)["sentence_embedding"]']
    if model.head == ANSWERING:
        lines += [f'inputs = tokenizer({_QUESTION}, {_CONTEXT}, return_tensors="pt")', "outputs = model(**inputs)"]
        lines += ["start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()"]
        return [*lines, 'answers = tokenizer.decode(inputs["input_ids"][0, start : end + 1])']
    if model.head == NEXT:
        lines += ['inputs = tokenizer("He left.", "He went away.", return_tensors="pt")']
        return [*lines, 'answers = model(**inputs)["logits"]']
    lines += [f'run = pipeline("{_PIPELINES[model.head]}", model=model, tokenizer=tokenizer)']
    return [*lines, f"answers = run({_inputs(model, named=True)})"]


def _langchain(model: Model) -> list[str]:
    return [
        "from langchain_huggingface import HuggingFaceEmbeddings",
        "",
        f'model = HuggingFaceEmbeddings(model_name={model.quoted()}, model_kwargs={{"backend": "{_backend(model)}"}})',
        f"vectors = model.embed_documents({_TEXTS})",
    ]


def _fastembed(model: Model) -> list[str]:
    return [
        "from fastembed import TextEmbedding",
        "from fastembed.common.model_description import ModelSource, PoolingType",
        "",
        "TextEmbedding.add_custom_model(",
        '    model="quantized",',
        "    pooling=PoolingType.DISABLED,",
        "    normalization=False,",
        '    output_name="sentence_embedding",',
        '    sources=ModelSource(hf="quantized"),',
        f"    dim={model.width},",
        '    model_file="model.onnx",',
        ")",
        f'model = TextEmbedding("quantized", specific_model_path={model.quoted()})',
        f"vectors = list(model.embed({_TEXTS}))",
    ]


def _txtai(model: Model) -> list[str]:
    return [
        "from txtai import Embeddings",
        "",
        f"model = Embeddings(path={model.quoted('/model.onnx')})",
        f"vectors = model.batchtransform({_TEXTS})",
    ]


def _transformers_js(model: Model) -> list[str]:
    names = {EMBEDDING: "AutoModel, AutoTokenizer"}.get(model.head, "pipeline")
    lines = [
        f'import {{ env, {names} }} from "@huggingface/transformers";',
        "",
        "env.allowRemoteModels = false;",
        'env.localModelPath = "";',
    ]
    if model.head == EMBEDDING:
        return [
            *lines,
            f"const tokenizer = await AutoTokenizer.from_pretrained({model.quoted()});",
            f'const model = await AutoModel.from_pretrained({model.quoted()}, {{ dtype: "q8" }});',
            f"const inputs = tokenizer({_TEXTS}, {{ padding: true, truncation: true }});",
            "const vectors = (await model(inputs)).sentence_embedding.tolist();",
        ]
    lines += [f'const run = await pipeline("{_PIPELINES[model.head]}", {model.quoted()}, {{ dtype: "q8" }});']
    if model.head == CLASSIFICATION and model.pairs:
        # The pipeline of transformers.js takes single texts.
        return [
            *lines,
            'const inputs = run.tokenizer(["He left."], { text_pair: ["He went away."], padding: true, truncation: true });',
            "const answers = (await run.model(inputs)).logits.tolist();",
        ]
    given = {
        ANSWERING: f"{_QUESTION}, {_CONTEXT}",
        FILLING: "`It was a ${run.tokenizer.mask_token} surprise.`",
    }.get(model.head, '"It was a pleasant surprise."')
    return [*lines, f"const answers = await run({given});"]


def _backend(model: Model) -> str:
    return "openvino" if model.openvino else "onnx"


def _inputs(model: Model, *, named: bool = False) -> str:
    """An input of a model, as Python writes it."""
    if model.head == ANSWERING:
        return f"question={_QUESTION}, context={_CONTEXT}"
    if model.head == FILLING:
        return 'f"It was a {tokenizer.mask_token} surprise."'
    if not model.pairs:
        return '"It was a pleasant surprise."'
    return '[{"text": "He left.", "text_pair": "He went away."}]' if named else '("He left.", "He went away.")'


_SNIPPETS = {
    "sentence-transformers": _sentence_transformers,
    "optimum": _optimum,
    "langchain": _langchain,
    "transformers.js": _transformers_js,
    "fastembed": _fastembed,
    "txtai": _txtai,
}
