"""octobert quantizes BERT-family encoders to 8 bits, measures what that costs and gains, and explains it.

Everything public is here; `octobert.api` describes the functions. Nothing is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octobert.core import telemetry as _telemetry
from octobert.core.version import __version__ as __version__

if TYPE_CHECKING:
    from octobert.api.catalog import (
        doctor,
        list_placements,
        list_targets,
        list_tasks,
        recipe_schema,
    )
    from octobert.api.choosing import auto, auto_again, merge
    from octobert.api.clients import export
    from octobert.api.graphs import calibration_tables, check, fuse, read_calibration_table
    from octobert.api.models import benchmark, evaluate, inspect, load, predict_rows, tune
    from octobert.api.packages import manifest, packages, verify
    from octobert.api.pages import page
    from octobert.api.runs import (
        calibrate,
        clean,
        dry_run,
        finetune,
        import_olive,
        load_recipe,
        parse_recipe,
        quantize,
        run,
        setup,
        stored,
    )
    from octobert.api.training import attach
    from octobert.config.recipe import Recipe
    from octobert.core.errors import (
        AccuracyError,
        BusyError,
        DataError,
        DownloadWarning,
        IgnoredFileWarning,
        ModelError,
        OctobertError,
        OtherMachineWarning,
        ParityError,
        PlanError,
        PublishedFileWarning,
        RecipeError,
        StorageError,
        TargetError,
    )
    from octobert.report.events import ProgressEvent
    from octobert.report.progress import ProgressBar

_telemetry.switch_off()

# Module → the public names in it.
_PUBLIC = {
    "octobert.api.catalog": "doctor list_placements list_targets list_tasks recipe_schema",
    "octobert.api.choosing": "auto auto_again merge",
    "octobert.api.clients": "export",
    "octobert.api.graphs": "calibration_tables check fuse read_calibration_table",
    "octobert.api.models": "benchmark evaluate inspect load predict_rows tune",
    "octobert.api.packages": "manifest packages verify",
    "octobert.api.pages": "page",
    "octobert.api.runs": "calibrate clean dry_run finetune import_olive load_recipe parse_recipe quantize run setup stored",
    "octobert.api.training": "attach",
    "octobert.config.recipe": "Recipe",
    "octobert.core.errors": (
        "AccuracyError BusyError DataError DownloadWarning IgnoredFileWarning ModelError OctobertError "
        "OtherMachineWarning ParityError PlanError PublishedFileWarning RecipeError StorageError TargetError"
    ),
    "octobert.report.events": "ProgressEvent",
    "octobert.report.progress": "ProgressBar",
}
_MODULES = {name: module for module, names in _PUBLIC.items() for name in names.split()}

__all__ = [
    "AccuracyError",
    "BusyError",
    "DataError",
    "DownloadWarning",
    "IgnoredFileWarning",
    "ModelError",
    "OctobertError",
    "OtherMachineWarning",
    "ParityError",
    "PlanError",
    "ProgressBar",
    "ProgressEvent",
    "PublishedFileWarning",
    "Recipe",
    "RecipeError",
    "StorageError",
    "TargetError",
    "attach",
    "auto",
    "auto_again",
    "benchmark",
    "calibrate",
    "calibration_tables",
    "check",
    "clean",
    "doctor",
    "dry_run",
    "evaluate",
    "export",
    "finetune",
    "fuse",
    "import_olive",
    "inspect",
    "list_placements",
    "list_targets",
    "list_tasks",
    "load",
    "load_recipe",
    "manifest",
    "merge",
    "packages",
    "page",
    "parse_recipe",
    "predict_rows",
    "quantize",
    "read_calibration_table",
    "recipe_schema",
    "run",
    "setup",
    "stored",
    "tune",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'octobert' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
