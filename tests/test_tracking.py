"""Runs in MLflow, logged by its own client into a store on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

import octobert
from tests.support.cli import octobert as command
from tests.support.columns import columns


def test_a_run_is_logged_with_one_nested_run_for_each_model(
    finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    pytest.importorskip("alembic", reason="alembic is not installed")
    # Artifacts of a local store lie in the working directory.
    monkeypatch.chdir(tmp_path)
    _, out, report = finished
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    done = command("report", out, "--out", tmp_path / "page.html", "--mlflow", uri)
    assert done.returncode == 0, done.stderr
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("octobert")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    rows = {row["model"]: row for row in report.to_rows()}
    (top,) = runs.keys() - rows.keys()
    parent = runs[top]
    assert parent.info.run_id in done.stdout
    assert parent.data.params["task.name"] == "text-classification"
    assert parent.data.params["data.calibrate.samples"] == "24"
    files = {file.path for file in client.list_artifacts(parent.info.run_id)}
    assert {"recipe.yaml", "report.html", "report.json"} <= files
    recipe = client.download_artifacts(parent.info.run_id, "recipe.yaml", str(tmp_path))
    assert yaml.safe_load(Path(recipe).read_text()) == report.recipe
    for name, row in rows.items():
        run = runs[name]
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert (run.info.status, run.data.params) == ("FINISHED", {"precision": row["precision"]})
        for key, value in row.items():
            if isinstance(value, float):
                assert run.data.metrics[key.replace("×", "x")] == pytest.approx(value, rel=1e-9)
    speedup = columns(report).speedups[0]
    key = f"speedup over {speedup.reference} {speedup.shape}".replace("×", "x")
    logged = runs[speedup.candidate].data.metrics[key]
    assert logged == pytest.approx(speedup.ratio.value, rel=1e-9)


def test_a_store_that_is_none_is_a_sentence(finished) -> None:
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    with pytest.raises(octobert.OctobertError, match="MLflow does not take the run"):
        octobert.log_run(finished[1], "nonsense://nowhere")


def test_mlflow_is_named_where_it_is_missing(
    golden, finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with golden.raises(octobert.RecipeError):
        octobert.log_run(finished[1], "sqlite:///mlflow.db")
    with golden.raises(octobert.RecipeError):
        octobert.log_run(tmp_path / "nothing", "sqlite:///mlflow.db")
