"""Finished packages and model files: what is in them, whether they are as they were written, and checks, fusion and tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from octobert.api._arguments import Names, PathLike, names_of, optional_path, path_of
from octobert.core import environment
from octobert.core.errors import ModelError, RecipeError, did_you_mean
from octobert.core.files import atomic_write, storage_errors

if TYPE_CHECKING:
    from octobert.core.profile import Lint
    from octobert.core.ranges import Interval
    from octobert.core.results import PackageManifest
    from octobert.graph.passes.fusion import Fused
    from octobert.inference.package_files import Verified


# Targets with operators to fuse.
FUSED = ("ort-cpu", "ort-cuda")


def packages(folder: PathLike) -> list[Path]:
    """Return the packages in an output directory; a package itself gives a list of one."""
    from octobert.core.results import PACKAGE_FILE

    root = path_of(folder, "folder")
    inside = sorted(path.parent for path in root.glob(f"*/{PACKAGE_FILE}"))
    return inside if inside and not (root / PACKAGE_FILE).is_file() else [root]


def manifest(package: PathLike) -> PackageManifest:
    """Return the manifest of a package: the recipe, the plan, the ranges, the scores.

    Args:
        package: A package, `OUT/TARGET`.

    Raises:
        ModelError: The folder is not a package.
    """
    from octobert.inference.package_files import read_manifest

    return read_manifest(path_of(package, "package"))


def verify(package: PathLike, *, run: bool = True) -> Verified:
    """Compare the content of every file of a package with the sha256 in its manifest, and measure what batches do to answers.

    Args:
        package: A package, `OUT/TARGET`.
        run: Run the model, where its target runs here: are answers the same alone, padded and in any batch, and how near are
            they to the float model's on texts that nothing was fitted to? False: only the files are compared, and the runtime
            does not open the model.

    Returns:
        The files, those that were added after it was packaged, what batches do, and the nearness to float.

    Raises:
        ModelError: Files are missing or have another content, all named; or the folder is not a package.
    """
    from octobert import targets
    from octobert.inference import package_files

    path = path_of(package, "package")
    verified = package_files.verify(path)
    if not run or not path.is_dir() or not targets.load(manifest(path).target).probe().available:
        return verified
    from octobert.evaluation.probing import probed
    from octobert.inference.invariance import batch_effect
    from octobert.inference.opened import open_model

    model = open_model(path)
    return verified.replaced(batches=batch_effect(model), probe=probed(model))


def check(model: PathLike, targets: Names = ()) -> list[Lint]:
    """Check an ONNX file against targets: what each refuses, what it runs in float and why, and how to fix it.

    Args:
        model: An ONNX file from any tool, or a package.
        targets: Names of targets. Default: the package's own; ort-cpu for a file.

    Raises:
        RecipeError: There is no target of that name.
        ModelError: The file cannot be read.
    """
    from octobert import targets as plugins
    from octobert.inspection import linter

    path = path_of(model, "model")
    names = names_of(targets, "targets")
    names = names or (manifest(path).target if path.is_dir() else "ort-cpu",)
    if path.suffix == ".xml" and not path.is_dir():
        raise ModelError(
            "an IR is not checked",
            where=str(path),
            expected="an .onnx file",
            fix="check the ONNX file that it was made of, or see what runs in 8 bits: octobert inspect FILE.xml --runtime",
        )
    capabilities = [plugins.load(name, where="--target").capabilities for name in names]
    return [
        linter.lint(path / target.file if path.is_dir() else path, target)
        for target in capabilities
    ]


def fuse(model: PathLike, out: PathLike, *, for_: str = "ort-cpu") -> Fused:
    """Write a copy of a graph with ONNX Runtime's fused operators.

    Args:
        model: An ONNX file of an encoder, float or with Q/DQ pairs: of a package or of any tool. A float file of another
            tool is brought into octobert's canonical form first, by the family that the config beside it names.
        out: The file to write.
        for_: The target. Default: ort-cpu, whose operators are float. For ort-cuda the Q/DQ pairs become int8 operators
            (QOrdered…); every output must be quantized, to symmetric int8. What their kernels compute is compared, on the CPU.

    Returns:
        The number of each fused operator, and the comparison with the original.

    Raises:
        ModelError: The file is missing, is not that of a supported encoder, or computes with integer operators.
        TargetError: Its Q/DQ pairs are not where the int8 operators need them.
        ParityError: The fused graph computes something else.
    """
    environment.require("quantize")
    from octobert.core.onnx_files import read_onnx
    from octobert.graph import operators
    from octobert.graph.capture.capture import canonical_of
    from octobert.graph.passes import fusion, qordered
    from octobert.models.source import resolve

    path, target = path_of(model, "model"), path_of(out, "out")
    if for_ not in FUSED:
        raise RecipeError(
            f'no operators are fused for "{for_}"', where="--for", fix=did_you_mean(for_, FUSED)
        )
    if path.suffix != ".onnx":
        raise ModelError(
            "only ONNX files are fused",
            where=str(path),
            got=path.suffix or "no suffix",
            expected="an .onnx file",
        )
    graph = read_onnx(path)
    if graph.metadata_props.get("producer") != "octobert":
        graph = canonical_of(path, resolve(path).family)
    if for_ == "ort-cuda":
        if not operators.quantizes_activations(graph.graph):
            raise ModelError(
                "the file has no Q/DQ pairs to fuse",
                where=str(path),
                fix="quantize it first: octobert quantize MODEL --target ort-cuda --transforms none, or leave --for out",
            )
        fused = qordered.checked(graph)
    else:
        fused = fusion.fuse(graph)
    if not fused.counts:
        # Tools that quantize every operator leave Q/DQ pairs between all that could be fused.
        raise ModelError(
            "no fused operator fits anywhere in the graph",
            where=str(path),
            fix="quantize linear layers only (onnxruntime: op_types_to_quantize=['MatMul'])",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with storage_errors(target), atomic_write(target) as partial:
        operators.save(fused.model, partial)
    return fused


def calibration_tables(
    package: PathLike, out: PathLike | None = None, *, tensorrt: int | None = None
) -> list[Path]:
    """Write the ranges of a package as calibration tables for ONNX Runtime's TensorRT and MIGraphX providers.

    Args:
        package: A package that was made without graph transforms.
        out: Folder for the tables. Default: `calibration` in the package.
        tensorrt: Also write the cache of this TensorRT version: 101401 is 10.14.1.

    Returns:
        The files.

    Raises:
        ModelError: The ranges belong to a transformed graph.
    """
    environment.require("quantize")
    from octobert.quantization import tables

    folder = path_of(package, "package")
    facts = manifest(folder)
    transforms = facts.recipe.get("transforms", facts.recipe.get("prepare"))
    if transforms:
        # A transformed graph computes the same outputs from other values; the package holds the graph without transforms.
        raise ModelError(
            "the ranges are those of a transformed graph, not of the float model in the package",
            where=str(folder),
            got=f"transforms: {', '.join(choice['name'] for choice in transforms)}",
            fix="quantize the model without them: transforms: [] in the recipe, --transforms none on the command line",
        )
    return tables.write(
        facts.ranges.intervals,
        optional_path(out, "out") or folder / "calibration",
        tensorrt=tensorrt,
    )


def read_calibration_table(path: PathLike) -> dict[str, Interval]:
    """Return the ranges in a calibration table.

    Raises:
        OctobertError: The file is not a calibration table.
    """
    from octobert.quantization import tables

    return tables.read(path_of(path, "path"))
