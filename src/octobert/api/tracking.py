"""Finished runs in MLflow: what `report.json` says, as parameters, metrics and artifacts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from octobert.api import pages
from octobert.api._arguments import PathLike, path_of
from octobert.core.errors import OctobertError, RecipeError, reason

EXPERIMENT = "octobert"


def log_run(folder: PathLike, uri: str) -> str:
    """Log a finished run to MLflow, with one nested run for each model that was measured.

    Args:
        folder: Output directory of `run`, `quantize` or `auto`.
        uri: A tracking server or store, as MLflow names it: `http://…`, or `sqlite:///mlflow.db` for a local file.

    Returns:
        The id of the run in MLflow, in the experiment `octobert`.

    Raises:
        RecipeError: The folder is no output directory, or MLflow is not installed.
        StorageError: `report.json` is damaged, or comes from a newer octobert.
        OctobertError: MLflow does not take the run.
    """
    from octobert.core import environment
    from octobert.report.page.runs import headline

    out = path_of(folder, "folder")
    report = pages.report_of(out)
    try:
        import mlflow
    except ModuleNotFoundError as error:
        raise RecipeError(
            f"{error.name} is not installed", where="--mlflow", fix=environment.install("mlflow")
        ) from None
    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(EXPERIMENT)
        with mlflow.start_run(run_name=headline(report), nested=True) as run:
            mlflow.log_params(dict(_flat(report.recipe)))
            mlflow.log_dict(report.recipe, "recipe.yaml")
            for name in ("report.json", pages.PAGE):
                if (out / name).is_file():
                    mlflow.log_artifact(str(out / name))
            for row in report.to_rows():
                name = row.pop("model")
                figures = {
                    **row,
                    **{
                        f"speedup over {s.reference} {s.batch} × {s.sequence}": s.ratio.value
                        for s in report.of(name).speedups
                    },
                }
                with mlflow.start_run(run_name=name, nested=True):
                    mlflow.log_param("precision", figures.pop("precision"))
                    # The sign of multiplication is in no name of a metric.
                    mlflow.log_metrics(
                        {key.replace("×", "x"): x for key, x in figures.items() if x is not None}
                    )
    except Exception as error:  # of its stores, its client and the system
        raise OctobertError(
            "MLflow does not take the run",
            where=uri,
            got=f"{type(error).__name__}: {reason(error, 0)}",
            fix="check the address",
        ) from error
    return str(run.info.run_id)


def _flat(keys: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Return the leaves of a recipe that are set, by their whole names."""
    for key, value in keys.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", value
