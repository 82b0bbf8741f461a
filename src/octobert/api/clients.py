"""Other programs that open models: what each needs beyond a package, how a folder for it is written, and what loads it there.

A client is a row of `clients.yaml`. An exported folder has the configuration and tokenizer of the package, and one model, under
the name that the client opens by default. Clients of OpenVINO get the IR, if the package has one.

The lines of Python or JavaScript that load the model in a client are a template in `snippets`, which sees the constants of this
module and the `Model`. They compute what octobert computes: prompts stand before the texts, and scores of pairs are on the
checkpoint's scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import yaml
from pydantic import Field

from octobert.api.client_files import (
    WRITERS,
    keep_output,
    keep_vector_of_ir,
    late_problem,
    name_no_file,
    state_reading,
)
from octobert.core.errors import ModelError, RecipeError, StorageError, did_you_mean
from octobert.core.files import storage_errors
from octobert.core.frozen import FrozenModel
from octobert.core.model_config import MODULES, TOKENIZER_CONFIG

if TYPE_CHECKING:
    from jinja2 import Environment

    from octobert.core.model_config import Pooling
    from octobert.core.onnx_files import ModelSignature, TensorInfo
    from octobert.core.results import PackageManifest

_IR = ("openvino_model.xml", "openvino_model.bin")
# Kinds of models: heads, and of classifiers what they read.
EMBEDDING, SPARSE, LATE = "embedding", "sparse-embedding", "late-interaction"
SINGLE, PAIRS, RERANKER = "classifier of single texts", "classifier of pairs", "reranker"
CLASSIFICATION, TAGGING = "sequence-classification", "token-classification"
ANSWERING, FILLING = "question-answering", "masked-lm"
FEATURES, NEXT = "feature-extraction", "next-sentence"
# What the models are asked.
TEXTS = ("How old is the tower?", "It was built in 1889.")
QUERY = TEXTS[0]
ONE_TEXT = ("It was a pleasant surprise.",)
TWO_TEXTS = (("He left.", "He went away."),)
RANKED = ("How old is the tower?", ("It was built in 1889.", "He left."))
QUESTION, CONTEXT = "Who built it?", "Gustave Eiffel built it in 1889."

# Names of transformers: of pipelines, and of classes behind `AutoModelFor`.
PIPELINES = {
    SINGLE: "text-classification",
    PAIRS: "text-classification",
    TAGGING: "token-classification",
    ANSWERING: "question-answering",
    FILLING: "fill-mask",
    FEATURES: "feature-extraction",
}
CLASSES = {
    **dict.fromkeys((SINGLE, PAIRS, RERANKER), "SequenceClassification"),
    TAGGING: "TokenClassification",
    ANSWERING: "QuestionAnswering",
    FILLING: "MaskedLM",
    FEATURES: "FeatureExtraction",
}
# Names of prompts for passages, as sentence-transformers looks for them.
_PASSAGES = ("document", "passage", "corpus")


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


class Client(FrozenModel):
    """A program: a row of `clients.yaml`, which says what the fields are."""

    kinds: tuple[str, ...]
    install: tuple[str, ...]
    file: str = "onnx/model.onnx"
    ir: str = ""
    folder: str = ""
    outputs: Literal["all", "vector", "token", "modules", "states"] = "all"
    writes: str | None = None
    templates: dict[str, str] = Field(default_factory=dict)
    tokenizer: Literal["class", "file"] = "class"
    segments: Literal["stated", "file", "none"] = "stated"
    limit: tuple[str, str] = (TOKENIZER_CONFIG, "model_max_length")
    cuts: Literal["", "right"] = ""
    devices: tuple[str, ...] = ()
    normalizes: bool = False
    readings: Literal["modules", "own"] = "modules"


@dataclass(frozen=True)
class Model:
    """The facts on a model that the lines depend on.

    Args:
        folder: of the model.
        kind: of the model.
        openvino: whether the folder holds an IR, not an ONNX file.
        width: of a vector, or of the logits.
        activation: what makes the score of a reranker: `Identity`, `Sigmoid` or `Tanh`.
        multi_label: whether every logit is a decision of its own.
        normalized: whether vectors have length 1.
        prompts: name → text that is put before a text.
        default_prompt: name of the prompt that sentence-transformers puts before texts where none is chosen.
        target: of the package.
        given: of the outputs of an embedding, what the client is given, as `Client.outputs`.
        precision: of float operators, as OpenVINO names it.
        inputs, outputs: tensors of the exported file.
    """

    folder: str
    kind: str
    openvino: bool = False
    width: int = 0
    activation: str = "Identity"
    multi_label: bool = False
    normalized: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    target: str = "ort-cpu"
    given: Literal["all", "vector", "token", "states"] = "all"
    precision: str = "f32"
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()

    @property
    def backend(self) -> str:
        """As sentence-transformers names it."""
        return "openvino" if self.openvino else "onnx"

    @property
    def passage(self) -> str | None:
        """Name of the prompt for passages, else the default; None where there is none."""
        return _named(self.prompts, _PASSAGES) or self.default_prompt

    @property
    def query(self) -> str | None:
        """Name of the prompt for queries, else the default; None where there is none."""
        return _named(self.prompts, ("query",)) or self.default_prompt

    @property
    def prompted(self) -> bool:
        """True where queries are embedded in another way than passages."""
        return self.query != self.passage

    @property
    def asked(self) -> list[tuple[str, list[str]]]:
        """(result, texts behind their prompt) for programs that know no prompts; a query, if it has a prompt of its own."""
        rows = [("vectors", self.passage, TEXTS), ("queries", self.query, (QUERY,))]
        behind = {name: self.prompts[prompt] if prompt else "" for name, prompt, _ in rows}
        return [
            (name, [behind[name] + text for text in texts])
            for name, _, texts in rows[: 1 + self.prompted]
        ]


def _named(prompts: Mapping[str, str], endings: tuple[str, ...]) -> str | None:
    """The prompt of that name, else one whose name ends like it, such as `search_query`."""
    exact = [name for name in endings if name in prompts]
    return next((name for name in (*exact, *prompts) if name.endswith(endings)), None)


def _read() -> dict[str, Client]:
    table = yaml.safe_load(
        resources.files(__package__).joinpath("clients.yaml").read_text(encoding="utf-8")
    )
    for row in table["clients"].values():
        row["install"] = [text.format(**table["pins"]) for text in row["install"]]
    return {name: Client(**row) for name, row in table["clients"].items()}


CLIENTS: Mapping[str, Client] = _read()


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
    """The package that a client will open; an error if it cannot."""
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
    """The facts on a model that its lines depend on."""
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
    """Whether a program that pools by `1_Pooling` alone, and normalizes where it is asked to, gives the vectors of a model."""
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


def snippet(client: str, model: Model) -> str:
    """The lines that load a model in a client and run it."""
    return rendered(f"{client}.jinja", model=model)


def rendered(template: str, **facts: object) -> str:
    """A template of `snippets`, which sees the constants of this module too."""
    constants = {name: value for name, value in globals().items() if name.isupper()}
    templates = _templates()
    if template.endswith(".md.jinja"):
        templates = templates.overlay(finalize=_as_text)
    return templates.get_template(template).render(constants, **facts)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(__package__, "snippets")
    environment = Environment(  # of programs, not of markup
        loader=loader,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["written"] = _written
    environment.globals["keywords"] = _keywords
    return environment


def _as_text(value: object) -> object:
    """A value in Markdown: nothing in it is markup, as packages come from anybody, unless the template says `safe`."""
    from markupsafe import Markup

    from octobert.report.tables import as_markdown

    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return as_markdown(value)


def _written(value: object) -> str:
    """Texts and lists of them, as Python and JavaScript write them."""
    return json.dumps(value, ensure_ascii=False)


def _keywords(**keywords: object) -> str:
    """`, name=value` of those that are not None, as Python writes them."""
    return "".join(
        f", {name}={_written(value)}" for name, value in keywords.items() if value is not None
    )
