"""Target: ONNX Runtime on the CPU with one thread."""

from pathlib import Path

from octobert.core.session import Session, SessionOptions
from octobert.targets import ort_cpu

CAPABILITIES = ort_cpu.CAPABILITIES.model_copy(
    update={
        "name": "extra-target",
        "description": "ONNX Runtime on one thread",
        "placement": "extra-placement",
    }
)


def open_session(path: Path, options: SessionOptions) -> Session:
    """Open an ONNX file on one thread."""
    return ort_cpu.TARGET.open_session(path, options.model_copy(update={"threads": 1}))


TARGET = ort_cpu.TARGET.replaced(capabilities=CAPABILITIES, open_session=open_session)
