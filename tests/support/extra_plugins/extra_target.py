"""Target: ONNX Runtime on the CPU with one thread."""

from pathlib import Path

from octobert.core.capability import Probe
from octobert.core.session import ExportOptions, Session, SessionOptions
from octobert.targets import ort_cpu
from octobert.targets.runtimes import ort

CAPABILITIES = ort_cpu.CAPABILITIES.model_copy(
    update={
        "name": "extra-target",
        "description": "ONNX Runtime on one thread",
        "placement": "extra-placement",
    }
)
RUNTIME_OPTIONS = ort.RUNTIME_OPTIONS
model_file = ort_cpu.model_file


def probe() -> Probe:
    """Return whether ONNX Runtime is installed."""
    return ort_cpu.probe()


def export(quantized: Path, folder: Path, options: ExportOptions) -> None:
    """Write the Q/DQ graph as it is."""
    ort_cpu.export(quantized, folder, options)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file on one thread."""
    return ort_cpu.open_session(path, options.model_copy(update={"threads": 1}))
