"""A folder as an enemy would send it: Python files with the names of modules that octobert imports."""

from __future__ import annotations

from pathlib import Path

# Of the standard library, of octobert's dependencies, and of what these import where it is installed.
NAMES = (
    "datasets importlib json multiprocessing numpy onnx onnxruntime openvino pathlib pickle pydantic runpy sitecustomize socket "
    "subprocess threading tokenizers torch transformers typing usercustomize yaml tensorflow wandb"
)
MARKER = "a file of the working directory was imported"


def hostile_folder(folder: Path) -> Path:
    """Make a folder whose Python files write a marker when they are imported, and fail."""
    folder.mkdir()
    marker = f"open({str(folder / MARKER)!r}, 'a').write(__name__)\nraise ImportError('hostile')\n"
    for name in NAMES.split():
        (folder / f"{name}.py").write_text(marker)
    return folder


def imported_from(folder: Path) -> str:
    """What was imported from a hostile folder; empty if nothing was."""
    return (folder / MARKER).read_text() if (folder / MARKER).exists() else ""
