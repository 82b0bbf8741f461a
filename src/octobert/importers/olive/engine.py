"""Fields of the engine: search, caches, logs, packaging, and where results go."""

from __future__ import annotations

from collections.abc import Mapping

from octobert.importers.olive import searching
from octobert.importers.olive.draft import Draft, Rule, apply, false_is_default, needless, refuse
from octobert.importers.outcomes import Node

LEVELS = {0: "debug", 1: "info", 2: "warning", 3: "error", 4: "error"}
_ONE = "no pass has a field or an alternative to vary, so there is one combination"
_SEARCH = "octobert searches plans: layers go back to float by measured error per saved time until the accuracy is met"


def read(draft: Draft) -> None:
    """Set what is left at the top of the config."""
    apply(draft, draft.config.root, _FIELDS)


def _search(draft: Draft, node: Node) -> None:
    if draft.searching:
        searching.strategy(draft, node)
        return
    if not isinstance(node.value, Mapping):
        if node.value is True and not draft.has("accuracy"):
            node.refused("a search needs a goal for a metric")
        else:
            node.not_needed("the plan is searched if the recipe has an accuracy criterion, and only then")
        return
    apply(draft, node, _SEARCH_FIELDS)


def _packaging(draft: Draft, node: Node) -> None:
    for element in node.elements():
        kind = element.get("type")
        if kind is None or kind.text.lower() != "zipfile":
            element.refused("octobert packs folders as zip files; a registry or an image takes those")
            continue
        draft.set("zip", True, kind)
        apply(draft, element, {"name": refuse("the file is OUT/TARGET.zip"), **_ZIP})


def _log(draft: Draft, node: Node) -> None:
    if node.value in LEVELS:
        draft.set("log_level", LEVELS[node.value], node)
    else:
        node.refused("Olive's levels are 0 to 4")


def _cache(draft: Draft, node: Node) -> None:
    if isinstance(node.value, str):
        draft.set("cache", node.text, node)
    else:
        node.refused("octobert has one folder for stored results, on this machine")


def _minutes(draft: Draft, node: Node) -> None:
    if draft.has("accuracy"):
        draft.set("accuracy.minutes", node.value / 60, node, "from seconds")
    else:
        node.refused("a time limit needs an accuracy goal to search for")


_ZIP: dict[str, Rule] = {
    "include_runtime_packages": refuse("octobert run RECIPE --setup installs them on the other machine"),
    "include_sample_code": refuse("README.md of each package shows how to open it"),
    "export_in_mlflow_format": false_is_default("octobert writes no MLflow models"),
}
_SEARCH_FIELDS: dict[str, Rule] = {
    "execution_order": needless(f"{_SEARCH}, of all layers together"),
    "sampler": needless(f"{_SEARCH}; nothing is sampled"),
    "search_algorithm": needless(f"{_SEARCH}; nothing is sampled"),
    "seed": lambda draft, node: draft.set("seed", node.value, node),
    "max_samples": needless(_ONE),
    "num_samples": needless(_ONE),
    "max_iter": needless(_ONE),
    "max_time": _minutes,
    "stop_when_goals_met": needless("the search always ends when the accuracy is met"),
    "output_model_num": refuse("a run writes one model for each target"),
    "include_pass_params": needless(_SEARCH),
    "multivariate": needless(f"{_SEARCH}; nothing is sampled"),
    "group": needless(f"{_SEARCH}; nothing is sampled"),
}
_FIELDS: dict[str, Rule] = {
    "search_strategy": _search,
    "packaging_config": _packaging,
    "cache_dir": _cache,
    "log_severity_level": _log,
    "clean_cache": needless(
        "a stored result is used only where all that it depends on is the same; octobert clean OUT removes all"
    ),
    "clean_evaluation_cache": needless(
        "a stored result is used only where all that it depends on is the same; octobert clean OUT removes all"
    ),
    "clean_run_cache": needless("a stored result is used only where all that it depends on is the same"),
    "enable_shared_cache": false_is_default("octobert has no shared cache"),
    "cache_config": refuse("octobert has one folder for stored results: cache"),
    "output_dir": needless("--out of the command says where; by default runs/NAME"),
    "output_name": needless("a package has the name of its target"),
    "evaluate_input_model": needless("the float model is always measured, as every ratio and every drop is relative to it"),
    "plot_pareto_frontier": refuse("report.html has accuracy and speed of every model"),
    "no_artifacts": false_is_default("a run writes its packages"),
    "workflow_id": needless("an output directory is its folder"),
    "log_to_file": false_is_default("errors are in OUT/.octobert/events.jsonl; redirect stderr for more"),
    "ort_log_severity_level": refuse("the runtime's log is printed with --runtime-log of predict and benchmark"),
    "ort_py_log_severity_level": refuse("the runtime's log is printed with --runtime-log of predict and benchmark"),
    "azureml_client": refuse("octobert reads models of AzureML, and runs nothing there"),
    "max_concurrent_builds": needless("a run builds one recipe"),
    "$schema": needless("names the schema for editors"),
    "verbose": needless("-v prints more"),
}
