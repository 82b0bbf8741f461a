"""ONNX Runtime: probe it, open an ONNX file on one of its providers, run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from octobert.capability import Probe
from octobert.errors import TargetError
from octobert.session import Feeds, SessionOptions

INSTALL = "pip install onnxruntime"


def probe(provider: str) -> Probe:
    """Whether onnxruntime is installed and has a provider."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Probe(available=False, missing="the package onnxruntime is not installed", install=INSTALL)
    import onnxruntime as ort

    providers = ort.get_available_providers()
    if provider not in providers:
        missing = f"this build of onnxruntime has no {provider} (it has {', '.join(providers)})"
        return Probe(available=False, version=ort.__version__, missing=missing, install=INSTALL)
    return Probe(available=True, version=ort.__version__)


class OrtSession:
    """An ONNX file opened on one provider, all graph optimizations on."""

    def __init__(self, path: Path, options: SessionOptions, provider: str) -> None:
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.log_severity_level = 3
        if options.threads:
            settings.intra_op_num_threads = options.threads
        try:
            self._session: Any = ort.InferenceSession(str(path), settings, providers=[provider])
        except Exception as error:  # onnxruntime has no public base class for its errors
            raise TargetError(
                "onnxruntime cannot open the model", where=str(path), got=str(error).strip().splitlines()[-1][:300]
            ) from error
        self.inputs = tuple(i.name for i in self._session.get_inputs())
        self.outputs = tuple(o.name for o in self._session.get_outputs())
        self.precision = "f32"
        self.threads = options.threads or _default_threads()

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        results = self._session.run(None, {name: feeds[name] for name in self.inputs})
        return dict(zip(self.outputs, results, strict=True))


def _default_threads() -> int:
    import psutil

    return psutil.cpu_count(logical=False) or 1
