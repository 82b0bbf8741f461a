"""ONNX Runtime: probe it, open an ONNX file on one of its providers, run."""

from __future__ import annotations

import importlib.util
import queue
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import environment
from octobert.core.capability import Probe
from octobert.core.errors import TargetError
from octobert.core.files import canonical_digest, file_digest
from octobert.core.session import Feeds, RuntimeOption, SessionOptions

INSTALL = "pip install onnxruntime"
CPU = "CPUExecutionProvider"
# What may be set otherwise for speed, the default first; a provider's own options are set the same way.
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {
    "graph_optimization": ("all", "extended", "basic"),
    "execution": ("sequential", "parallel"),
    "memory_arena": (True, False),
    "memory_pattern": (True, False),
    "denormals_as_zero": (False, True),
    "spinning": (True, False),
    "io_binding": (False, True),
}


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


def plugin_probe(package: str, install: str) -> Probe:
    """Whether onnxruntime and a package that plugs a provider into it are installed."""
    found = probe(CPU)
    if not found.available or importlib.util.find_spec(package) is not None:
        return found
    missing = f"the package {package.replace('_', '-')} is not installed"
    return Probe(available=False, version=found.version, missing=missing, install=install)


def plugin_devices(package: str, provider: str) -> list[Any]:
    """The devices of a provider that a package plugs into onnxruntime.

    Raises:
        TargetError: it finds none.
    """
    import onnxruntime as ort

    plugin: Any = importlib.import_module(package)
    if not any(device.ep_name == provider for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(plugin.get_ep_name(), plugin.get_library_path())
    found = [device for device in ort.get_ep_devices() if device.ep_name == provider]
    if not found:
        raise TargetError(f"{package} finds no device", where=provider, fix="see its documentation for what it needs")
    return found


class OrtSession:
    """An ONNX file opened on one provider, all graph optimizations on.

    Args:
        provider, provider_options: as onnxruntime names them.
        devices: of a provider that is plugged in (`plugin_devices`); those that onnxruntime was built with need none.
        optimize: onnxruntime changes the graph before the provider sees it.
        whole: nothing of the graph may run on the CPU instead, unless `options` allow it. Providers that leave a few operators
            on shapes to the CPU on purpose cannot promise that; that they are there at all is always checked.

    Raises:
        TargetError: it cannot be opened, or the provider does not take it.
    """

    def __init__(
        self,
        path: Path,
        options: SessionOptions,
        provider: str,
        provider_options: dict[str, str] | None = None,
        *,
        devices: list[Any] | None = None,
        optimize: bool = True,
        whole: bool = False,
    ) -> None:
        import onnxruntime as ort

        settings = ort.SessionOptions()
        settings.log_severity_level = 0 if options.log else 3
        self.streams = options.streams
        self.threads = options.threads or max(1, environment.cores() // self.streams)
        # Left alone, onnxruntime takes a thread for each core of the machine, also of those that this process may not use.
        if options.threads or self.streams > 1 or environment.restricted():
            settings.intra_op_num_threads = self.threads
        _set_knobs_(settings, options.runtime_options)
        if whole and not options.allow_fallback:
            settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        if not optimize:
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        # Other providers compile the whole graph themselves, and have caches of their own.
        own = {name: str(value) for name, value in options.runtime_options.items() if name not in RUNTIME_OPTIONS}
        if own:
            provider_options = {**(provider_options or {}), **own}
        caches = options.cache and provider == CPU
        opened = _cached(path, Path(str(options.cache)), settings) if caches else path
        try:
            if devices is not None:
                settings.add_provider_for_devices(devices, provider_options or {})
            named = [(provider, provider_options or {})] if devices is None else None
            session: Any = ort.InferenceSession(str(opened), settings, providers=named)
            # A session has one pool of threads; without any, each run stays on the thread that asks for it.
            others = 0 if self.threads == 1 else self.streams - 1
            sessions = [session, *(ort.InferenceSession(str(opened), settings, providers=named) for _ in range(others))]
        except Exception as error:  # onnxruntime has no public base class for its errors
            raise TargetError(
                "onnxruntime cannot open the model", where=str(path), got=str(error).strip().splitlines()[-1][:300]
            ) from error
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for index in range(self.streams):
            self._free.put(sessions[index % len(sessions)])
        used = session.get_providers()
        if provider not in used and not options.allow_fallback:
            # A provider that cannot start is left out with a line in the log, and everything runs on the CPU.
            raise TargetError(
                f"onnxruntime runs the model without {provider}",
                where=str(path),
                got=f"it uses {', '.join(used)}",
                fix="see its log (--runtime-log), or allow it with --allow-fallback",
            )
        self.inputs = tuple(i.name for i in session.get_inputs())
        self.outputs = tuple(o.name for o in session.get_outputs())
        self.shape = tuple(size if isinstance(size, int) else -1 for size in session.get_inputs()[0].shape)
        # Axes that follow batch and sequence have names, the others numbers.
        self.per_token = {o.name for o in session.get_outputs() if len(o.shape) > 1 and isinstance(o.shape[1], str)}
        self.precision = "f32"
        self.prepares_shapes = provider != CPU
        self._binds = bool(options.runtime_options.get("io_binding"))

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        session, given = self._free.get(), {name: feeds[name] for name in self.inputs}
        try:
            results = self._bound(session, given) if self._binds else session.run(None, given)
        finally:
            self._free.put(session)
        return dict(zip(self.outputs, results, strict=True))

    def _bound(self, session: Any, given: Feeds) -> list[np.ndarray]:
        """A run whose inputs and outputs are bound, which copies nothing on the way in."""
        binding = session.io_binding()
        for name, array in given.items():
            binding.bind_cpu_input(name, array)
        for name in self.outputs:
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()


def _set_knobs_(settings: Any, runtime_options: Mapping[str, RuntimeOption]) -> None:
    """Session settings that are listed in `KNOBS`."""
    import onnxruntime as ort

    levels = ort.GraphOptimizationLevel
    named = {"all": levels.ORT_ENABLE_ALL, "extended": levels.ORT_ENABLE_EXTENDED, "basic": levels.ORT_ENABLE_BASIC}
    if "graph_optimization" in runtime_options:
        settings.graph_optimization_level = named[str(runtime_options["graph_optimization"])]
    if runtime_options.get("execution") == "parallel":
        settings.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    settings.enable_cpu_mem_arena = bool(runtime_options.get("memory_arena", True))
    settings.enable_mem_pattern = bool(runtime_options.get("memory_pattern", True))
    if runtime_options.get("denormals_as_zero"):
        settings.add_session_config_entry("session.set_denormal_as_zero", "1")
    if not runtime_options.get("spinning", True):
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")


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
