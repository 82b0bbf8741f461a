"""ONNX Runtime: probe it, open an ONNX file on one of its providers, run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from octobert import environment
from octobert.artifact import canonical_digest, file_digest
from octobert.capability import Probe
from octobert.errors import TargetError
from octobert.session import Feeds, SessionOptions

INSTALL = "pip install onnxruntime"


def probe(provider: str, install: str = INSTALL) -> Probe:
    """Whether onnxruntime is installed and has a provider."""
    if importlib.util.find_spec("onnxruntime") is None:
        return Probe(available=False, missing="the package onnxruntime is not installed", install=install)
    import onnxruntime as ort

    providers = ort.get_available_providers()
    if provider not in providers:
        missing = f"this build of onnxruntime has no {provider} (it has {', '.join(providers)})"
        return Probe(available=False, version=ort.__version__, missing=missing, install=install)
    return Probe(available=True, version=ort.__version__)


class OrtSession:
    """An ONNX file opened on one provider, all graph optimizations on."""

    def __init__(self, path: Path, options: SessionOptions, provider: str) -> None:
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.log_severity_level = 0 if options.log else 3
        if options.threads:
            settings.intra_op_num_threads = options.threads
        opened = _cached(path, Path(options.cache), settings) if options.cache else path
        try:
            self._session: Any = ort.InferenceSession(str(opened), settings, providers=[provider])
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


def _cached(path: Path, folder: Path, settings: Any) -> Path:
    """The optimized form of a model, to open as it is where it is there already; otherwise `settings` will write it."""
    import onnxruntime as ort

    folder.mkdir(parents=True, exist_ok=True)
    # What the optimizer makes depends on its version and on the CPU.
    key = canonical_digest([file_digest(path), ort.__version__, environment.current().features])[:16]
    found = folder / f"{path.stem}-{key}.onnx"
    if found.is_file():
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return found
    settings.optimized_model_filepath = str(found)
    return path


def _default_threads() -> int:
    import psutil

    return psutil.cpu_count(logical=False) or 1
