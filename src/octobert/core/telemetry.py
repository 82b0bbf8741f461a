"""Usage statistics of the packages that octobert uses: off, unless the user has switched them on.

octobert sends nothing. ONNX Runtime (since 1.29) stores a device id and events with names of models in the user's cache folder
and uploads them. OpenVINO tells an analytics host when it is imported. The packages of Hugging Face count downloads and
describe the machine to the Hub. Ray reports its version, the size of the cluster and the libraries in use. MLflow
reports which of its functions are called.
"""

from __future__ import annotations

import os
import sys

# Variables that the packages read when they are imported. A value of the user's own is kept.
_VARIABLES = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_OPENVINO = "openvino_telemetry"


def switch_off() -> None:
    """Switch usage statistics off in this process and in those that it starts. It has to come before the packages' imports."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    if not _openvino_allowed():
        # There is no variable for it. OpenVINO does without this package where it is not installed.
        sys.modules.setdefault(_OPENVINO, None)  # type: ignore[arg-type]


def is_off(name: str) -> bool:
    """Return whether a variable has the value that octobert gives it."""
    return os.environ.get(name) == _VARIABLES[name]


def _openvino_allowed() -> bool:
    """Return whether the user has agreed to OpenVINO's statistics: its command `opt_in_out` writes the answer into a file."""
    windows = sys.platform == "win32"
    folder = (
        os.path.join(os.environ.get("LOCALAPPDATA", ""), "Intel Corporation")
        if windows
        else os.path.expanduser("~/intel")
    )
    try:
        with open(os.path.join(folder, _OPENVINO), encoding="utf-8") as file:
            return file.read(1) == "1"
    except (OSError, UnicodeDecodeError):
        return False
