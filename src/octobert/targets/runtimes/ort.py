"""ONNX Runtime: probe it, open an ONNX file with one of its execution providers, run it."""

from __future__ import annotations

import importlib
import importlib.util
import math
import platform
import queue
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from octobert.core import budget, environment, logs, telemetry
from octobert.core.capability import Probe
from octobert.core.errors import IgnoredFileWarning, RecipeError, TargetError, did_you_mean, reason
from octobert.core.files import (
    atomic_write,
    canonical_digest,
    digest_or_none,
    file_digest,
    read_sealed,
    sync,
    write_sealed,
)
from octobert.core.onnx_files import DTYPES, TensorInfo, external_files
from octobert.core.plain import preview
from octobert.core.session import (
    GRAPH_METADATA,
    SHORT_METADATA,
    SHORTER_METADATA,
    Feeds,
    RuntimeOption,
    Session,
    SessionEntries,
    SessionOptions,
    length_of,
    most_threads,
)
from octobert.targets.runtimes import Runtime
from octobert.targets.shared import sessions

INSTALL = "pip install onnxruntime"
CPU = "CPUExecutionProvider"
_IO_BINDING, _THREADS = "io_binding", "_num_threads"
# What `octobert tune` tries, the default first: fields and config entries of onnxruntime's SessionOptions, and IO binding.
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {
    "graph_optimization_level": ("ORT_ENABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_BASIC"),
    "execution_mode": ("ORT_SEQUENTIAL", "ORT_PARALLEL"),
    "enable_cpu_mem_arena": (True, False),
    "enable_mem_pattern": (True, False),
    "session.set_denormal_as_zero": (False, True),
    "session.intra_op.allow_spinning": (True, False),
    _IO_BINDING: (False, True),
}
# Products of float32 numbers in bfloat16 with sums in float32, on Arm CPUs that have them.
FAST_MATH = "mlas.enable_gemm_fastmath_arm64_bfloat16"
# Where inputs are bound for providers with memory of their own.
_DEVICES = {
    "CUDAExecutionProvider": "cuda",
    "DmlExecutionProvider": "dml",
    "TensorrtExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "cuda",
    "MIGraphXExecutionProvider": "cuda",
}


class OrtRuntime(Runtime):
    """ONNX Runtime, whose CPU provider runs float32 on every machine."""

    title: str = "ONNX Runtime"
    packages: tuple[str, ...] = ("onnxruntime",)
    suffixes: tuple[str, ...] = (".onnx",)
    cpu_target: str = "ort-cpu"

    def check_entries(self, entries: SessionEntries, device: str) -> None:
        """Check what a recipe sets for sessions. Config entries and options of providers are free text.

        Raises:
            RecipeError: onnxruntime's SessionOptions has no such field, or does not take the value.
        """
        import onnxruntime as ort

        set_options_(ort.SessionOptions(), entries.options)

    def precision_problem(self, precision: str) -> str | None:
        """Return why this CPU does not multiply in bfloat16, or None if it does. x86 has another name for that."""
        is_missing = precision == "bf16" and "bf16" not in environment.features()
        return "this CPU does not compute in bfloat16" if is_missing else None


def set_options_(settings: Any, options: Mapping[str, RuntimeOption]) -> None:
    """Set session options by onnxruntime's names: those with a dot are config entries.

    Args:
        settings: onnxruntime's `SessionOptions`.
        options: what a recipe says, or what was tuned.

    Raises:
        RecipeError: there is no such field, or it does not take the value.
    """
    import onnxruntime as ort

    fields = tuple(
        name for name, member in vars(ort.SessionOptions).items() if isinstance(member, property)
    )
    for name, value in options.items():
        if name == _IO_BINDING:
            continue
        if "." in name:
            settings.add_session_config_entry(name, _text(value))
            continue
        if name not in fields:
            raise RecipeError(
                "onnxruntime's SessionOptions has no such field",
                where="session.options",
                got=name,
                fix=did_you_mean(name, (*fields, _IO_BINDING)),
            )
        # It starts them all, however many they are.
        if name.endswith(_THREADS) and isinstance(value, int) and value > most_threads():
            raise RecipeError(
                "too many threads for this machine",
                where=f"session.options.{name}",
                got=str(value),
                expected=f"at most {most_threads()}",
            )
        try:
            setattr(settings, name, _field_value(getattr(settings, name), value))
        except (TypeError, ValueError, KeyError) as error:
            kind = type(getattr(settings, name))
            raise RecipeError(
                "onnxruntime does not take this value",
                where=f"session.options.{name}",
                got=preview(value),
                expected=" or ".join(getattr(kind, "__members__", ())) or kind.__name__,
            ) from error


def _text(value: RuntimeOption) -> str:
    """A value as onnxruntime's text options have it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _field_value(current: Any, value: RuntimeOption) -> Any:
    """A value in the type of a field; enumerations are given by name or number."""
    members = getattr(type(current), "__members__", None)
    if members is None:
        if isinstance(current, bool) != isinstance(value, bool):
            raise TypeError
        return value
    return members[value] if isinstance(value, str) else type(current)(value)


@dataclass(frozen=True)
class Provider:
    """An execution provider as targets have it: `probe` and `open_session`.

    Args:
        name: in onnxruntime.
        install: the command that installs it, for error messages.
        settings: (model file, how it is opened) → options of the provider.
        optimize, refuse_fallback: as for `OrtSession`.
        plugin: the Python package that holds the provider's library; None for a provider that is built into onnxruntime.
    """

    name: str
    install: str = INSTALL
    settings: Callable[[Path, SessionOptions], dict[str, str]] = lambda path, options: {}
    optimize: bool = True
    refuse_fallback: bool = False
    plugin: str | None = None

    def probe(self) -> Probe:
        """Return whether onnxruntime has the provider on this machine."""
        problem = sessions.unavailable("onnxruntime", INSTALL if self.plugin else self.install)
        if problem is not None:
            return problem
        import onnxruntime as ort

        providers = ort.get_available_providers()
        if self.plugin and importlib.util.find_spec(self.plugin) is None:
            missing = f"the package {self.plugin.replace('_', '-')} is not installed"
        elif not self.plugin and self.name not in providers:
            missing = (
                f"this build of onnxruntime has no {self.name} (it has {', '.join(providers)})"
            )
        else:
            return Probe(available=True, version=ort.__version__)
        return Probe(
            available=False, version=ort.__version__, missing=missing, install=self.install
        )

    def open_session(self, path: Path, options: SessionOptions) -> Session:
        """Open an ONNX file. Batches are padded to the axes that are fixed in it."""
        devices = _plugin_devices(self.plugin, self.name) if self.plugin else None

        def opened(file: Path) -> OrtSession:
            return OrtSession(
                file,
                options,
                self.name,
                self.settings(file, options),
                devices=devices,
                optimize=self.optimize,
                refuse_fallback=self.refuse_fallback,
            )

        return sessions.static_if_fixed(path, opened)


def _plugin_devices(package: str, provider: str) -> list[Any]:
    """Return the devices of a plugin provider.

    Raises:
        TargetError: the provider has no device on this machine.
    """
    import onnxruntime as ort

    plugin: Any = importlib.import_module(package)
    if not any(device.ep_name == provider for device in ort.get_ep_devices()):
        ort.register_execution_provider_library(plugin.get_ep_name(), plugin.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == provider]
    if not devices:
        raise TargetError(
            f"{package} finds no device",
            where=provider,
            fix="see the package's documentation for its requirements",
        )
    return devices


class OrtSession:
    """An ONNX file opened with one execution provider, all graph optimizations on.

    Args:
        path: the ONNX file.
        options: how to open it.
        provider, provider_options: as onnxruntime names them.
        devices: the devices of a plugin provider; None for a provider that is built into onnxruntime.
        optimize: let onnxruntime's own optimizer change the graph before the provider gets it.
        refuse_fallback: an error if operators would run on the CPU instead, unless `options` allow that. Set it to False for
            providers that leave operators on shapes to the CPU on purpose. That the provider is used at all is always checked.

    Raises:
        TargetError: onnxruntime cannot open the file, or runs it without the provider.
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
        refuse_fallback: bool = False,
    ) -> None:
        import onnxruntime as ort

        if telemetry.is_off("ORT_DISABLE_TELEMETRY"):
            # On Windows events go to the system's own service, which the variable does not stop.
            ort.disable_telemetry_events()
        options = sessions.with_streams(options)
        self._path, self.streams, self.device = path, options.streams, None
        share = max(1, environment.cores() // self.streams)
        settings = _settings(
            options, options.threads or share, optimize=optimize, refuse_fallback=refuse_fallback
        )
        self.threads = settings.intra_op_num_threads or share
        tuned = {
            name: value
            for name, value in options.runtime_options.items()
            if name not in RUNTIME_OPTIONS
        }
        entries = {**tuned, **options.entries.provider}
        provider_options = {
            **(provider_options or {}),
            **{name: _text(value) for name, value in entries.items()},
        }
        # Other providers compile the graph themselves and have their own caches.
        # An optimized file would name the weights outside of the first one as if they lay beside it.
        caches = options.cache and optimize and provider == CPU and not external_files(path)
        file = _cached(path, options) if caches else path
        if file != path:
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        providers = [(provider, provider_options)] if devices is None else None
        # A session has one thread pool. With one thread there is no pool, and one session serves all callers.
        count = 1 if self.threads == 1 else self.streams
        with sessions.runtime_errors("onnxruntime cannot open the model", path):
            if devices is not None:
                settings.add_provider_for_devices(devices, provider_options)
            pool: list[Any] = [
                ort.InferenceSession(str(file), settings, providers=providers) for _ in range(count)
            ]
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for index in range(self.streams):
            self._free.put(pool[index % count])
        session = pool[0]
        used = session.get_providers()
        if provider not in used and not options.allow_fallback:
            # onnxruntime drops a provider that does not start, writes a line to its log, and runs everything on the CPU.
            raise TargetError(
                f"onnxruntime runs the model without {provider}",
                where=str(path),
                got=f"it uses {', '.join(used)}",
                fix="see its log (--runtime-log), or allow it with --allow-fallback",
            )
        self._inputs = sessions.Inputs([port_of(port) for port in session.get_inputs()], path)
        stated = session.get_modelmeta().custom_metadata_map
        every = GRAPH_METADATA in stated
        self._reads = options.outputs_of([o.name for o in session.get_outputs()], every=every)
        self.outputs, self.shorter = tuple(self._reads), stated.get(SHORTER_METADATA, "")
        self.shape = (-1, -1) if every else self._inputs.shape
        # Free axes (batch, sequence) have names, the others are numbers.
        self.per_token = {
            o.name
            for o in session.get_outputs()
            if len(o.shape) > 1 and isinstance(o.shape[1], str)
        }
        fast = _text(options.entries.options.get(FAST_MATH, options.precision == "bf16")) == "1"
        self.precision = "bf16" if fast and "bf16" in environment.features() else "f32"
        self._short = None if every else length_of(stated.get(SHORT_METADATA, ""))
        self._attention = budget.AttentionMemory(
            options.heads if provider == CPU and not every else 0, short=self._short
        )
        self.prepares_shapes = provider != CPU
        self._binds = bool(
            options.entries.options.get(_IO_BINDING, options.runtime_options.get(_IO_BINDING))
        )
        self._device = _DEVICES.get(provider, "cpu"), int(provider_options.get("device_id", 0))

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name.

        A row is computed as the file computes texts of its length, whatever its padding: its answer stays the same.
        """
        mask, short = feeds.get("attention_mask"), self._short
        if short is not None and mask is not None and mask.shape[1] > short:
            is_long = np.asarray(mask[:, short:].any(axis=1))
            if not is_long.all():
                return self._run_apart(feeds, is_long, short)
        inputs = self._inputs.model_feeds(feeds)
        ids = feeds.get("input_ids")
        rows, length = (1, 0) if ids is None or ids.ndim != 2 else ids.shape
        together = self._attention.rows_at_once(rows, length)
        parts = [inputs]
        if together < rows:
            starts = range(0, rows, together)
            parts = [{n: a[i : i + together] for n, a in inputs.items()} for i in starts]
        outputs = [
            np.concatenate(p) if len(p) > 1 else p[0]
            for p in zip(*map(self._run, parts), strict=True)
        ]
        return {
            name: sessions.wide(array) for name, array in zip(self._reads, outputs, strict=True)
        }

    def _run_apart(self, feeds: Feeds, is_long: np.ndarray, short: int) -> dict[str, np.ndarray]:
        """Run the long rows of a batch, and the short ones without the padding that is for the long ones."""
        outputs: dict[str, np.ndarray] = {}
        for rows, length in ((is_long, None), (~is_long, short)):
            part = {name: array[rows, :length] for name, array in feeds.items()}
            for name, array in (self.run(part) if rows.any() else {}).items():
                count = np.count_nonzero(rows)
                # What a file of unknown origin answers need not have a row for each text.
                if array.ndim < 2 or len(array) != count:
                    raise TargetError(
                        "the model does not answer each text",
                        where=str(self._path),
                        got=f'"{name}" {list(array.shape)} for {count} texts',
                        expected=f"[{count}, …]",
                        fix="export it with a batch axis in all outputs",
                    )
                if name not in outputs:
                    whole = (len(rows), *array.shape[1:])
                    needed = math.prod(whole) * array.itemsize
                    budget.check_size(TargetError, "the outputs", needed, where=self._path)
                    outputs[name] = np.zeros(whole, array.dtype)
                outputs[name][rows, : array.shape[1]] = array
        return outputs

    def _run(self, inputs: Feeds) -> list[np.ndarray]:
        session, names = self._free.get(), list(self._reads.values())
        try:
            with sessions.runtime_errors("onnxruntime cannot run the model", self._path):
                results: list[np.ndarray] = (
                    self._run_bound(session, inputs) if self._binds else session.run(names, inputs)
                )
                return results
        finally:
            self._free.put(session)

    def _run_bound(self, session: Any, inputs: Feeds) -> list[np.ndarray]:
        """Run with bound inputs and outputs: on the CPU that saves a copy of the inputs, on a device copies in between."""
        import onnxruntime as ort

        binding = session.io_binding()
        for name, array in inputs.items():
            if self._device[0] == "cpu":
                binding.bind_cpu_input(name, array)
            else:
                binding.bind_ortvalue_input(
                    name, ort.OrtValue.ortvalue_from_numpy(array, *self._device)
                )
        for name in self._reads.values():
            binding.bind_output(name, *self._device)
        session.run_with_iobinding(binding)
        outputs: list[np.ndarray] = binding.copy_outputs_to_cpu()
        return outputs


def port_of(port: Any) -> TensorInfo:
    """Return an input or an output as onnxruntime describes it."""
    dtype = str(port.type).removeprefix("tensor(").removesuffix(")")
    return TensorInfo(
        name=port.name,
        dtype=DTYPES.get(dtype, dtype),
        shape=tuple(size if isinstance(size, int) else -1 for size in port.shape),
    )


def _settings(
    options: SessionOptions, threads: int, *, optimize: bool = True, refuse_fallback: bool = False
) -> Any:
    """Return onnxruntime's session options: the target's, then tuned ones, then those of the recipe."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = logs.LEVELS.index(
        "debug" if options.log else logs.level() or "error"
    )
    # By default onnxruntime starts a thread for every core of the machine, also for cores that this process may not use.
    if options.threads or options.streams > 1 or environment.thread_limit():
        settings.intra_op_num_threads = threads
    # The others are of the provider.
    tuned = {n: value for n, value in options.runtime_options.items() if n in RUNTIME_OPTIONS}
    set_options_(settings, tuned)
    if refuse_fallback and not options.allow_fallback:
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if not optimize:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if options.precision == "bf16":
        settings.add_session_config_entry(FAST_MATH, "1")
    set_options_(settings, options.entries.options)
    return settings


def _cached(path: Path, options: SessionOptions) -> Path:
    """Return the optimized form of a model in the cache, so that it opens faster the next time; or the model itself.

    The name of a file has the digest of what it was made from, and a file beside it that of its content: a damaged file is made
    again. One process makes it, and others that open the model for the first time wait.
    """
    folder = Path(str(options.cache))
    try:
        return _optimized(path, folder, options)
    except Exception as error:  # noqa: BLE001  # of the disk, or of onnxruntime, which has no base class for its errors
        # Whatever it is, the model may open without its cache.
        got = reason(error)
        warnings.warn(
            f"{folder}: the optimized model cannot be stored ({got})",
            IgnoredFileWarning,
            stacklevel=2,
        )
        return path


def _optimized(path: Path, folder: Path, options: SessionOptions) -> Path:
    import onnxruntime as ort

    content = {path.name: file_digest(path)}
    machine = [platform.machine(), environment.features()]
    made_by = [ort.__version__, dict(options.runtime_options), options.entries.model_dump()]
    stem = f"{path.stem}-{canonical_digest([content, machine, made_by])[:16]}"
    file, seal = folder / f"{stem}.onnx", folder / f"{stem}.sha256"

    def is_whole() -> bool:
        return read_sealed(seal) == (digest_or_none(file) or "").encode()

    # What is there needs no lock: the folder may be one that can only be read.
    if is_whole():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f"{stem}.lock"):
        # Another process may have made it meanwhile.
        if not is_whole():
            settings = _settings(options, 1)
            with atomic_write(file) as partial:
                settings.optimized_model_filepath = str(partial)
                ort.InferenceSession(str(path), settings, providers=[CPU])
                sync(partial)
            write_sealed(seal, file_digest(file).encode())
    return file
