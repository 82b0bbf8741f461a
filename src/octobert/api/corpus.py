"""Whole corpora: Parquet files with the embeddings of their rows."""

from __future__ import annotations

from collections.abc import Sequence

from octobert.api._arguments import (
    Names,
    PathLike,
    Positive,
    TaskLike,
    names_of,
    numbers_of,
    path_of,
    paths_of,
    progress_step,
)
from octobert.api.models import opened_model
from octobert.core import environment
from octobert.core.errors import RecipeError
from octobert.core.frozen import first_problem
from octobert.core.progress import ProgressCallback


def embed(
    package: PathLike,
    data: PathLike | Sequence[PathLike],
    out: PathLike,
    *,
    column: str = "text",
    keep: Names = (),
    vectors: str = "float32",
    dimensions: Positive | None = None,
    prompt: str | None = None,
    task: TaskLike | None = None,
    target: str | None = None,
    tokenizer: PathLike | None = None,
    device: str | None = None,
    rows: Positive = 2048,
    progress: ProgressCallback | None = None,
) -> int:
    """Write the rows of Parquet files with an embedding for each. The same call goes on where a killed one has stopped.

    Args:
        package: A package, `OUT/TARGET`, or an `.onnx` or `.xml` file.
        data: Parquet files, and folders of them. The rows stay in order: that of the files, in folders of their names.
        out: A Parquet file: the rows with the column `embedding`, lists of numbers of one length.
        column: Column with the texts.
        keep: Columns that are written beside the embedding. Default: all.
        vectors: Their type: `float32`, `float16`, `int8` with an interval for each dimension, from all rows, or `binary`: a bit
            for each dimension, eight in a uint8. `octobert.StoredVectors.read` has the intervals. The report says what is lost.
        dimensions: The first so many are kept, for models that are trained to be cut. Default: all.
        prompt: Name of the model's prompt that is put before texts, such as passage. Default: the model's.
        task: What a file is for: the name of a task, or one name with its options. A package has its own.
        target: Target that opens a file. Default: ort-cpu for `.onnx`, openvino-cpu for `.xml`.
        tokenizer: Folder of a file's tokenizer and config. Default: the folder of the file, or the one above.
        device: For OpenVINO targets: `CPU`, `GPU`, `NPU`, `AUTO`, `MULTI:…` or `HETERO:…`. Default: the target's.
        rows: Rows that are in memory at once, and the most that a kill costs.
        progress: Called after each batch.

    Returns:
        The number of rows.

    Raises:
        DataError: The files cannot be read, a row has no text, or vectors have fewer dimensions.
        RecipeError: There is no such form of vectors.
        StorageError: Something else is at `out`, or a call with another model, input or option began there.
        ModelError: The path is neither, or the model does not embed texts.
    """
    environment.require("quantize")
    from octobert.core.stored_vectors import StoredVectors
    from octobert.inference.corpus import embed as write
    from octobert.inference.embedder import Embedder

    numbers_of(rows, "rows")
    try:
        form = StoredVectors.model_validate({"type": vectors, "dimensions": dimensions})
    except ValueError as error:
        raise RecipeError(
            "there is no such form of vectors",
            where="vectors and dimensions",
            got=first_problem(error),
        ) from error
    model = opened_model(package, "package", task=task, target=target, tokenizer=tokenizer)
    embedder = Embedder(model, column, prompt, {"device": device})
    with progress_step(progress, "embed") as on_progress:
        return write(
            embedder,
            paths_of(data, "data"),
            path_of(out, "out"),
            keep=names_of(keep, "keep"),
            form=form,
            rows=rows,
            on_progress=on_progress,
        )
