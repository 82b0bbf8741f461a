"""OpenVINO: probe it, compile an IR or an ONNX file for a device or for several, run it."""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import environment, logs
from octobert.core.capability import Probe, x86_saturates
from octobert.core.errors import RecipeError, TargetError, did_you_mean
from octobert.core.onnx_files import ModelSignature
from octobert.core.session import (
    GRAPH_METADATA,
    SHORTER_METADATA,
    Feeds,
    RuntimeOption,
    Session,
    SessionEntries,
    SessionOptions,
    static_lengths,
)
from octobert.targets.runtimes import Runtime
from octobert.targets.shared import sessions
from octobert.targets.shared.ir_files import GROUP_OPTION, group_of, model_at, port_of

_LOG_LEVELS = {
    "debug": "LOG_DEBUG",
    "info": "LOG_INFO",
    "warning": "LOG_WARNING",
    "error": "LOG_ERR",
}

# Values of ONEDNN_MAX_CPU_ISA without AVX-512, without units for bfloat16, and for float16.
_WITHOUT_AVX512 = ("SSE41", "AVX", "AVX2")
_WITHOUT_BF16 = (
    *_WITHOUT_AVX512,
    "AVX2_VNNI",
    "AVX2_VNNI_2",
    "AVX512_CORE",
    "AVX512_CORE_VNNI",
)
_WITHOUT_F16 = (*_WITHOUT_BF16, "AVX512_CORE_BF16")
# Precision → its name, OpenVINO's name for CPUs that compute in it, and limits that exclude it.
_NATIVE = {"bf16": ("bfloat16", "BF16", _WITHOUT_BF16), "f16": ("float16", "FP16", _WITHOUT_F16)}

_THREADS = "INFERENCE_NUM_THREADS"
# Kernels that each stream of a model on the CPU keeps, of shapes that it has seen: about ten for a shape and 0.15 MB each, for
# MiniLM. OpenVINO keeps 5,000 (2026.4), so that the memory of a service grows with every other length.
CPU_CACHE = {"CPU_RUNTIME_CACHE_CAPACITY": 1000}

# Devices that choose among others: the first may choose among all; the others need a list, `MULTI:GPU,CPU`.
_CHOOSERS = ("AUTO", "MULTI", "HETERO")

# Options that `octobert tune` tries, the default first.
RUNTIME_OPTIONS: dict[str, tuple[RuntimeOption, ...]] = {
    "PERFORMANCE_HINT": ("LATENCY", "THROUGHPUT"),
    "ENABLE_CPU_PINNING": (True, False),
    "ENABLE_HYPER_THREADING": (False, True),
    "SCHEDULING_CORE_TYPE": ("ANY_CORE", "PCORE_ONLY"),
}


class OpenvinoRuntime(Runtime):
    """OpenVINO, whose targets also run on other devices that it names."""

    title: str = "OpenVINO"
    packages: tuple[str, ...] = ("openvino",)
    suffixes: tuple[str, ...] = (".xml", ".onnx")
    cpu_target: str = "openvino-cpu"

    def precision_problem(self, precision: str) -> str | None:
        """Return why this CPU cannot compute in a precision natively, or None if it can.

        On other CPUs with AVX-512, OpenVINO imitates bfloat16. For float16 it takes bfloat16 where it has that (2026.4).
        """
        if precision not in _NATIVE:
            return None
        problem = _unavailable()
        if problem is not None:
            return problem.missing
        name, capability, limits = _NATIVE[precision]
        if capability not in _cpu_types():
            return f"this CPU does not compute in {name}"
        # The limit is for simulating other CPUs. OpenVINO does not know it, and cannot open models in the type.
        limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
        return f"ONEDNN_MAX_CPU_ISA={limit} excludes {name}" if limit in limits else None

    def check_device(self, device: str) -> None:
        """Check that this machine has a device, or all devices that `AUTO:…`, `MULTI:…` or `HETERO:…` name."""
        present = _core("OpenVINO cannot be used", "device").available_devices
        chooser, _, listed = device.partition(":")
        # AUTO:-GPU takes all devices but that one, and MULTI:CPU(2) gives a device two requests.
        names = (
            [name.partition("(")[0].removeprefix("-") for name in listed.split(",")]
            if chooser in _CHOOSERS
            else [device]
        )
        device_names = {*present, *(name.partition(".")[0] for name in present)}
        if device == _CHOOSERS[0] or device_names.issuperset(names):
            return
        raise TargetError(
            f"OpenVINO does not have the device {device}",
            where="device",
            got=", ".join(name for name in names if name not in device_names)
            or "no list of devices",
            expected=f"{', '.join(present)}, AUTO, or a list of them such as MULTI:{','.join(present)}",
            fix="use one of these; a GPU or an NPU needs its driver",
        )

    def check_entries(self, entries: SessionEntries, device: str) -> None:
        """Check what a recipe sets for sessions: properties of the device.

        Raises:
            RecipeError: the device has no such property, or something is set for an execution provider.
        """
        import openvino

        if entries.provider:
            raise RecipeError(
                "OpenVINO has no execution providers",
                where="session.provider",
                got=", ".join(entries.provider)[:200],
                fix="move them to options",
            )
        core, short = openvino.Core(), device.split()[-1]
        if short not in {name.split(".")[0] for name in core.available_devices}:
            return
        properties = (*map(str, core.get_property(short, "SUPPORTED_PROPERTIES")), *CPU_CACHE)
        for name in entries.options:
            if name not in properties:
                raise RecipeError(
                    f"OpenVINO has no such property of the {short}",
                    where="session.options",
                    got=name,
                    fix=did_you_mean(name, properties),
                )


def _unavailable() -> Probe | None:
    return sessions.unavailable("openvino", environment.install("openvino"))


def _core(what: str, where: str) -> Any:
    """Return OpenVINO's core.

    Raises:
        TargetError: openvino cannot be used.
    """
    problem = _unavailable()
    if problem is not None:
        raise TargetError(what, where=where, got=problem.missing, fix=problem.install)
    return new_core()


def new_core() -> Any:
    """Return a core whose CPU keeps to the cores of this process, and keeps a limited number of kernels.

    These are defaults of the device, so that they also hold where AUTO chooses it; options of a session go before them.
    """
    import openvino

    core = openvino.Core()
    # OpenVINO knows the cores on which a process may run, and no quota of a container; 0 leaves the number to it.
    core.set_property("CPU", {**CPU_CACHE, _THREADS: environment.thread_limit()})
    return core


@functools.cache
def _cpu_types() -> tuple[str, ...]:
    """Return OpenVINO's names of the types that this CPU computes in."""
    import openvino

    return tuple(openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))


def probe(device: str) -> Probe:
    """Return whether openvino is installed and has a device.

    Args:
        device: as OpenVINO names it, such as `CPU` or `GPU`.
    """
    problem = _unavailable()
    if problem is not None:
        return problem
    import openvino

    version = openvino.__version__.split("-")[0]
    devices = openvino.Core().available_devices
    if not any(name.split(".")[0] == device for name in devices):
        return Probe(
            available=False,
            version=version,
            missing=f"openvino has no {device} device (it has {', '.join(devices) or 'none'})",
        )
    return Probe(available=True, version=version)


def ports_of(path: Path) -> ModelSignature:
    """Return the inputs and outputs of an IR.

    Raises:
        TargetError: openvino is not installed, or cannot read the file.
    """
    model = _read(path)
    return ModelSignature(tuple(map(port_of, model.inputs)), tuple(map(port_of, model.outputs)))


def _read(path: Path) -> Any:
    with sessions.runtime_errors("openvino cannot read the model", path):
        return model_at(_core("an IR is read by openvino", str(path)), path)


def integers_of(path: Path) -> str | None:
    """Return the type of the quantized numbers in an IR: `int8`, `int4`; None where its operators are all float.

    Raises:
        TargetError: openvino is not installed, or cannot read the file.
    """
    nodes = _read(path).get_ops()
    # Weights are matrices; other small integers are shapes and axes.
    weights = [
        node
        for node in nodes
        if node.get_type_name() == "Constant" and len(node.get_output_shape(0)) > 1
    ]
    types = {node.get_output_element_type(0).get_type_name() for node in weights}
    if types & {"i4", "u4", "nf4"}:
        return "int4"
    return (
        "int8"
        if types & {"i8", "u8"} or any(node.get_type_name() == "FakeQuantize" for node in nodes)
        else None
    )


def _check_process(path: Path) -> None:
    global _first_process
    _first_process = _first_process or os.getpid()
    if _first_process != os.getpid():
        raise TargetError(
            "OpenVINO does not work in a process that was forked after a model was opened",
            where=str(path),
            fix="load the model after the fork (gunicorn: without --preload), or use an ONNX Runtime target",
        )


def settings_of(options: SessionOptions, group: str = "0") -> dict[str, Any]:
    """Return the properties to compile a model with.

    Args:
        group: `group_of` the model.
    """
    hint = "LATENCY" if options.streams else "THROUGHPUT"
    settings: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": options.precision or "f32",
        "PERFORMANCE_HINT": hint,
    }
    # By default OpenVINO quantizes float activations of layers with 8-bit weights to 8 bits, unless the model says otherwise.
    # Nor does it know the limit that simulates other CPUs.
    limited = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper() in _WITHOUT_AVX512
    settings[GROUP_OPTION[-1]] = "0" if limited else group
    if options.cache:
        settings["CACHE_DIR"] = options.cache
    if level := "debug" if options.log else logs.level():
        settings["LOG_LEVEL"] = _LOG_LEVELS[level]
    if options.streams > 1:
        settings["NUM_STREAMS"] = options.streams
    if options.threads:
        settings[_THREADS] = options.threads * options.streams
    return {**settings, **options.runtime_options, **options.entries.options}


# The binding builds its table of types at the first use, and waits for itself for ever if two threads are first (2026.4).
_FIRST_USE = threading.Lock()
# The process that opened the first model. The thread pool of OpenVINO (TBB) does not survive a fork: models that a child opens
# crash now and then (2026.4).
_first_process: int | None = None


# In place of the length of a static model: the model for all shapes.
_ANY_SHAPE = 0


@dataclass(frozen=True)
class OpenvinoDevice:
    """A device as targets have it: `probe` and `open_session`.

    Args:
        name: in OpenVINO, such as `CPU` or `GPU`.
        precision: of float operators where the options of a session name none; None for float32.
    """

    name: str
    precision: str | None = None

    def probe(self) -> Probe:
        """Return whether openvino is installed and has the device."""
        return probe(self.name)

    def open_session(self, path: Path, options: SessionOptions) -> Session:
        """Compile an IR or an ONNX file. Batches are padded to the axes that are fixed in it."""
        precise = options.replaced(precision=options.precision or self.precision)
        return sessions.static_if_fixed(
            path, lambda file: OpenvinoSession(file, precise, self.name)
        )


class OpenvinoSession:
    """An IR or an ONNX file, compiled for one device.

    The precision is always set explicitly. OpenVINO's default is the fastest float type of the device, which is bf16 on recent
    CPUs.

    Args:
        path: the IR (`.xml`) or the ONNX file.
        options: how to open it.
        device: as OpenVINO names it, where `options` name none.

    Raises:
        TargetError: OpenVINO cannot compile the model, or the process was forked from one that used OpenVINO.
    """

    def __init__(self, path: Path, options: SessionOptions, device: str) -> None:
        import openvino

        _check_process(path)
        with _FIRST_USE:
            _ = openvino.Tensor(np.zeros(1, np.int64)).data, openvino.Type.i64.to_dtype()
        if options.threads:
            options = sessions.with_streams(options)
        core, self._path, self._chosen = new_core(), path, options.device
        if device != "CPU" and x86_saturates(environment.features()):
            # A plan of another device, where the user chose this CPU: its products are computed in float, which is exact.
            core.set_property("CPU", {"LP_TRANSFORMS_MODE": False})
        with sessions.runtime_errors("openvino cannot compile the model", path):
            model = model_at(core, path)
            # Once compiled, an output also has the names of values that were merged into it.
            inputs = [port_of(port) for port in model.inputs]
            every = model.has_rt_info(["framework", GRAPH_METADATA])
            names = [port_of(port).name for port in model.outputs]
            reads = options.outputs_of(names, every=every)
            # Other outputs are for other programs, and would be computed and copied.
            for port in list(model.outputs):
                if not {port_of(port).name, *port.get_names()} & {*reads.values()}:
                    model.remove_result(port.node)
            outputs = [port_of(port).name for port in model.outputs]
            settings = settings_of(options, group_of(model))
            self._compile: Callable[[Any], Any] = functools.partial(
                core.compile_model, device_name=options.device or device, config=settings
            )
            compiled = self._compile(model)
        self._compiled, self.prepares_shapes = compiled, True
        self.streams = options.streams or int(
            compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        )
        self._lengths = static_lengths(options.static_up_to)
        # Models of static lengths are made of it when the first row comes: by then the file may be another one.
        self._model: Any = model if self._lengths else None
        self._models, self._compiling = {_ANY_SHAPE: compiled}, threading.Lock()
        # Per stream the requests of all models: static length of a single row → request.
        self._free: queue.SimpleQueue[dict[int, Any]] = queue.SimpleQueue()
        for _ in range(self.streams):
            self._free.put({})
        self._inputs = sessions.Inputs(inputs, path)
        # An output may have several names, and in some files it has none.
        places = {
            name: i
            for i, port in enumerate(compiled.outputs)
            for name in (outputs[i], *port.get_names())
        }
        self._reads = {name: places[output] for name, output in reads.items()}
        self.outputs, self.shape = tuple(reads), (-1, -1) if every else self._inputs.shape
        place = ["framework", SHORTER_METADATA]
        self.shorter = str(model.get_rt_info(place).value) if model.has_rt_info(place) else ""
        types = {
            "<Type: 'float32'>": "f32",
            "<Type: 'bfloat16'>": "bf16",
            "<Type: 'float16'>": "f16",
        }
        precisions = _property(compiled, "INFERENCE_PRECISION_HINT")
        used = [types.get(repr(value), "unknown") for value in precisions]
        self.precision = ", ".join(dict.fromkeys(used)) or "unknown"
        # Only CPUs have threads.
        threads = max((int(value) for value in _property(compiled, _THREADS)), default=1)
        self.threads = max(1, threads // self.streams)

    @property
    def device(self) -> str | None:
        """The device that really runs the model, where the user chose one. AUTO may begin on one and go on on another."""
        if self._chosen is None:
            return None
        used = ", ".join(
            str(name).strip("()") for name in self._compiled.get_property("EXECUTION_DEVICES")
        )
        return used if used == self._chosen else f"{self._chosen} ({used})"

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Return the outputs of one batch by name."""
        import openvino

        # Arrays that are shared with OpenVINO have to be in one piece and writable. They live until the end of this call.
        arrays = [
            np.require(array, requirements=("C", "W"))
            for array in self._inputs.model_feeds(feeds).values()
        ]
        rows, length = next((array.shape for array in arrays if array.ndim == 2), (0, 0))
        static = length if rows == 1 and length in self._lengths else _ANY_SHAPE
        requests = self._free.get()
        try:
            with sessions.runtime_errors("openvino cannot run the model", self._path):
                if static not in requests:
                    requests[static] = self._compiled_for(static).create_infer_request()
                request = requests[static]
                for i, array in enumerate(arrays):
                    request.set_input_tensor(i, openvino.Tensor(array, shared_memory=True))
                request.infer(share_outputs=True)
                return self._outputs(request)
        finally:
            self._free.put(requests)

    def _compiled_for(self, length: int) -> Any:
        """The model for single rows of a static length. It has weights of its own: OpenVINO packs them for a shape."""
        with self._compiling:
            if length not in self._models:
                model = self._model.clone()
                model.reshape(
                    {
                        port: [1, length][: port.get_partial_shape().rank.get_length()]
                        for port in model.inputs
                    }
                )
                self._models[length] = self._compile(model)
            return self._models[length]

    def run_each(
        self, batches: Iterator[Feeds], requests: int, on_done: Callable[[int, float], None]
    ) -> None:
        """Run batches by OpenVINO's queue of asynchronous requests.

        Keep the session for some time afterwards: a thread of OpenVINO may still be on its way out of the last request. If it
        is the last to hold the model, it frees it, waits for itself, and the process is aborted (2026.4).
        """
        import openvino

        jobs: Any = openvino.AsyncInferQueue(self._compiled, requests)

        def finished(request: Any, started: tuple[int, float]) -> None:
            number, begun = started
            self._outputs(request)
            on_done(number, (time.perf_counter() - begun) * 1000)

        jobs.set_callback(finished)
        numbered = enumerate(batches)
        with sessions.runtime_errors("openvino cannot run the model", self._path):
            # It waits for a free request.
            while (
                jobs.get_idle_request_id() >= 0 and (following := next(numbered, None)) is not None
            ):
                (number, feeds), begun = following, time.perf_counter()
                jobs.start_async(
                    dict(enumerate(self._inputs.model_feeds(feeds).values())), (number, begun)
                )
            jobs.wait_all()

    def _outputs(self, request: Any) -> dict[str, np.ndarray]:
        return {
            name: sessions.wide(np.array(request.get_output_tensor(i).data))
            for name, i in self._reads.items()
        }


def _property(compiled: Any, name: str) -> list[Any]:
    """Return a property of each device that runs a model: AUTO, MULTI and HETERO keep those of their devices in a table."""
    listed = compiled.get_property("SUPPORTED_PROPERTIES")
    if name in listed:
        return [compiled.get_property(name)]
    tables = (
        compiled.get_property("DEVICE_PROPERTIES").values() if "DEVICE_PROPERTIES" in listed else ()
    )
    return [table[name] for table in tables if name in table]
