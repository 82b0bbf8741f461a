"""The key of a step: the sha256 of everything its result depends on.

    stage        its name
    octobert     the version of this package
    code         digest of all files of this package
    packages     versions of the other packages that compute
    plugins      versions and contents of the packages whose plugins the step may use
    options      of the step
    inputs       content digests of the artifacts it reads

Names and paths of models and data are not part of it; their content is. All code of this package counts, because much of it is
loaded by names, which no reader of imports can follow. A change can make a step run again without need, but an old result is
never served for new code.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from octobert.core import imports, plugins, version
from octobert.core.files import canonical_digest, file_digest
from octobert.engine.contract import NOT_IN_KEY, Step

# Packages whose versions count for all steps, and for those that know of targets: a new runtime trains nothing again.
_PACKAGES = (
    *("torch", "transformers", "tokenizers", "sentencepiece", "safetensors", "accelerate"),
    *("onnx", "onnx-ir", "onnxscript", "onnxruntime", "ml-dtypes", "numpy", "scipy"),
    *("datasets", "pandas", "pyarrow", "pydantic", "PyYAML"),
    # Training takes the best epoch by a metric.
    *("evaluate", "ir-measures"),
)
_OF_TARGETS = (
    *("openvino", "onnxruntime-gpu", "onnxruntime-qnn"),
    *("optuna", "flatbuffers"),
)
_WITHOUT_TARGETS = ("data", "finetune", "capture", "transform", "observe", "calibrate")
# Plugins of these families are among the options of the steps that they work in. All others may be found on the way.
_GIVEN = ("calibrators", "corrections", "methods", "tasks", "transforms")

_ANYTHING = TypeAdapter(Any)


def key_of(step: Step, digests: Mapping[str, str]) -> str:
    """The key of a step.

    Args:
        digests: input name → content digest of its artifact.
    """
    options = key_data(step.options)
    return canonical_digest(
        {
            "stage": step.stage,
            "octobert": version.__version__,
            "code": code_digest(),
            "packages": package_versions(step.stage),
            "plugins": plugin_digests(options),
            "options": options,
            "inputs": dict(digests),
        }
    )


def key_data(value: Any) -> Any:
    """Plain data with what counts for a key.

    Data with a `digest` counts by it alone, wherever it lies. Other data is its class and its fields, but for those that are
    annotated with `NOT_IN_KEY`.
    """
    if isinstance(value, BaseModel):
        kind = type(value)
        # An option of a plugin may be called so, too.
        if kind.__module__.startswith("octobert.") and hasattr(value, "digest"):
            return value.digest
        counted = {
            name: key_data(getattr(value, name))
            for name, field in kind.model_fields.items()
            if NOT_IN_KEY not in field.metadata
        }
        return {"class": [kind.__module__, kind.__qualname__], **counted}
    if isinstance(value, Mapping):
        return {str(key): key_data(inner) for key, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(key_data, value), key=json.dumps)
    if isinstance(value, list | tuple):
        return [key_data(inner) for inner in value]
    return _ANYTHING.dump_python(value, mode="json")


# Files do not change while a process runs.
@functools.cache
def code_digest() -> str:
    """sha256 over all files of this package."""
    return _digest(imports.files_of("octobert"))


def package_versions(stage: str) -> dict[str, str]:
    """Versions of the packages that count for a stage, of those that are installed."""
    names = _PACKAGES if stage in _WITHOUT_TARGETS else _PACKAGES + _OF_TARGETS
    return {name: found for name in names if (found := _version(name))}


def plugin_digests(options: Any) -> dict[str, str]:
    """Packages with plugins that a step may use → digest of all that they consist of.

    Args:
        options: of the step, as plain data.
    """
    text = json.dumps(options)
    return {
        plugins.title_of(point.dist): _content(point.dist)
        for family in plugins.FAMILIES
        for points in plugins.installed(family).values()
        for point in points
        # All files of octobert count already.
        if point.dist and point.dist.name != "octobert"
        if family not in _GIVEN or json.dumps(point.value.replace(":", ".")) in text
    }


@functools.cache
def _content(package: metadata.Distribution) -> str:
    """Digest of a package with plugins: the files that its installer lists, those of its plugins, and what it requires.

    Installers list neither the sources of editable packages nor modules that only lie on Python's path. These count with what
    they import from their folder.
    """
    points = [point for point in package.entry_points if point.group.startswith(plugins.GROUP)]
    files, required = dict[str, Path](), dict[str, str]()
    # The facts of a package may be damaged in any way.
    with suppress(Exception):
        required = {
            name: _version(name)
            for name in re.findall(r"^[\w.-]+", "\n".join(package.requires or ()), re.M)
        }
        files = {
            str(file): path
            for file in package.files or ()
            if not {"..", "__pycache__"} & {*file.parts} and ".dist-info" not in file.parts[0]
            if (path := Path(str(file.locate()))).is_file()
        }
    for point in points:
        found = imports.files_of(point.module)
        files |= found if found.items() <= files.items() else imports.with_imports(found)
    facts = sorted((point.group, point.name, point.value) for point in points)
    return canonical_digest([_digest(files), required, facts])


def _digest(files: Mapping[str, Path]) -> str:
    return canonical_digest({name: file_digest(path) for name, path in files.items()})


@functools.cache
def _version(package: str) -> str:
    """The version of an installed package, or nothing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
