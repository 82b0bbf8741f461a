"""Run stages on a Ray cluster whose machines share the folder of the run. Stages that measure time stay on this machine.

A task of Ray runs a stage through `executors.local`, in a child process of the machine that Ray chose. Ray repeats a task whose
machine or process dies. An earlier attempt may still be alive then, on a machine that the others no longer see. So each attempt
has a folder of its own, and the files of the one whose answer arrives are moved:

    STORE/work-remote-<token>/           one call
        token                            is there for whoever sees the same folder
        progress.json                    what the stage has reported
        <attempt>/files, temporary, …    files of one attempt

Errors of a stage are answers, so that they are not repeated.
"""

from __future__ import annotations

import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from octobert.config.training import Training
from octobert.core import environment
from octobert.core.errors import OctobertError, RecipeError, StorageError, TargetError, reason
from octobert.core.files import storage_errors
from octobert.engine.contract import Progress, Request, Response, stage_named
from octobert.engine.executors import local
from octobert.engine.executors._remote import (
    FILES,
    PAUSE,
    PROGRESS,
    TOKEN,
    Order,
    attempt,
    kind_of,
    settles,
    sizes_in,
)

ADDRESS = "RAY_ADDRESS"
# CPUs of a stage, at most: the accuracy of models on few rows at a time gains little from more.
_CPUS = 4
# A stage is repeated after the death of its machine so many times.
_RETRIES = 3
# Seconds until a cluster answers, and between looks whether it still has a machine.
_CONNECTING, _ALONE = 10.0, 60.0
# Variables that change what runtimes compute, or what is downloaded. Those of this process hold on all machines.
_VARIABLES = ("OCTOBERT_LOG_LEVEL", "HF_HUB_OFFLINE", "OMP_NUM_THREADS", *environment.SIMULATING)


@contextmanager
def opened() -> Iterator[Cluster]:
    """Connect to the cluster at `RAY_ADDRESS`, or start Ray on this machine until the context ends.

    Raises:
        TargetError: the package ray is not installed.
        RecipeError: there is no cluster at the address, or none that this machine belongs to.
    """
    ray = _package()
    address = os.environ.get(ADDRESS) or "local"
    if ray.is_initialized():
        # The program has connected itself; so the connection stays.
        yield Cluster(ray, note=None)
        return
    _check_address(address)
    cores = (
        {"num_cpus": environment.cores(), "include_dashboard": False} if address == "local" else {}
    )
    # Ray replaces the handler.
    with _same_handler(signal.SIGTERM):
        try:
            ray.init(
                address=address,
                job_config=_job(ray),
                log_to_driver=False,
                logging_level="ERROR",
                **cores,
            )
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise _unreachable(address, reason(error)) from error
    note = (
        f"{ADDRESS} is not set: Ray was started on this machine alone, where it gains little"
        if address == "local"
        else None
    )
    # Ray prints to stdout that a machine has died, whatever `log_to_driver` says.
    ray._private.worker._worker_logs_enabled = False
    try:
        yield Cluster(ray, note)
    finally:
        ray.shutdown()
        ray._private.worker._worker_logs_enabled = True


class Cluster:
    """The executor.

    Args:
        note: for the user; None where there is nothing to say.
    """

    def __init__(self, ray: Any, note: str | None) -> None:
        self.note = note
        self._ray, self._stopped, self._turns = ray, threading.Event(), _Turns()
        sizes = _sizes_of_machines(ray)
        # A stage fits on every machine.
        self._cpus = max(1, min([_CPUS, *sizes]))
        self.concurrency = max(1, sum(size // self._cpus for size in sizes))
        # Timings are taken while this machine computes nothing else.
        this_node = ray.get_runtime_context().get_node_id()
        self._shares = any(
            node["NodeID"] == this_node and node["Resources"].get("CPU") for node in ray.nodes()
        )
        options = {
            "num_cpus": self._cpus,
            "max_retries": _RETRIES,
            "retry_exceptions": False,
            "scheduling_strategy": "SPREAD",
        }
        self._task = ray.remote(**options)(attempt)

    def __call__(
        self, request: Request, work: Path, progress: Progress, launch: Training | None = None
    ) -> Response:
        """Run a stage.

        Raises:
            OctobertError: what the stage raised, that its machines died, or that they cannot run it.
        """
        if not stage_named(request.stage).anywhere or (
            launch is not None and launch.processes * launch.machines > 1
        ):
            with self._turns.alone(others=self._shares):
                self._check()
                return local.run(request, work, self._checked(progress), launch)
        place = work.absolute().with_name(f"work-remote-{secrets.token_hex(4)}")
        with self._turns.shared(), storage_errors(place):
            self._check()
            place.mkdir()
            try:
                return self._run(_order(request, place, self._cpus), work, progress)
            finally:
                shutil.rmtree(place, ignore_errors=True)

    def stop(self) -> None:
        """End what runs: every call, also a later one, raises KeyboardInterrupt."""
        self._stopped.set()

    def _checked(self, progress: Progress) -> Progress:
        def checked(what: str, done: int, total: int) -> None:
            self._check()
            progress(what, done, total)

        return checked

    def _run(self, order: Order, work: Path, progress: Progress) -> Response:
        ray, stage = self._ray, json.loads(order.request)["stage"]
        running = self._task.remote(order)
        try:
            self._wait(running, order.place / PROGRESS, stage, progress)
            answer: dict[str, Any] = ray.get(running)
        except ray.exceptions.RayTaskError as error:
            raise _broken(stage, error) from error
        except ray.exceptions.RayError as error:
            raise OctobertError(
                "the machines that ran it died",
                where=stage,
                got=reason(error),
                fix="run the same command again; what is finished is kept",
            ) from error
        except BaseException:
            # The worker ends at once, and with it its child.
            with suppress(Exception):
                ray.cancel(running, force=True)
            raise
        if "error" in answer:
            raise OctobertError.from_json(answer["error"], answer["traceback"])
        _move(order.place / answer["attempt"] / FILES, work, answer["sizes"])
        return Response.model_validate(answer["response"])

    def _wait(self, running: Any, reported: Path, stage: str, progress: Progress) -> None:
        """Wait for an answer, and pass on what the stage reports.

        Raises:
            KeyboardInterrupt: the executor was stopped.
            OctobertError: no machine is left.
        """
        last: list[Any] = []
        checked = time.monotonic()
        while not self._ray.wait([running], timeout=PAUSE)[0]:
            self._check()
            with suppress(OSError, ValueError):
                if (report := json.loads(reported.read_bytes())) != last:
                    last = report
                    progress(*last)
            if time.monotonic() - checked > _ALONE:
                checked = time.monotonic()
                if max(_sizes_of_machines(self._ray), default=0) < self._cpus:
                    raise OctobertError(
                        "no machine of the cluster is left that could run it",
                        where=stage,
                        expected=f"{self._cpus} CPUs",
                        fix="add one, then run the same command again",
                    )

    def _check(self) -> None:
        if self._stopped.is_set():
            raise KeyboardInterrupt


class _Turns:
    """Stages on the cluster run side by side; a stage on this machine runs alone."""

    def __init__(self) -> None:
        self._changed, self._running, self._alone = threading.Condition(), 0, threading.Lock()
        self._waiting = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """While a stage runs on the cluster."""
        with self._changed:
            # Those that want to be alone come first.
            self._changed.wait_for(lambda: not self._waiting)
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self, *, others: bool) -> Iterator[None]:
        """While a stage runs on this machine.

        Args:
            others: those on the cluster wait as well.
        """
        with self._changed:
            self._waiting += others
        try:
            with self._alone:
                with self._changed:
                    self._changed.wait_for(lambda: not others or not self._running)
                yield
        finally:
            with self._changed:
                self._waiting -= others
                self._changed.notify_all()


def _order(request: Request, place: Path, cpus: int) -> Order:
    token = secrets.token_hex(16)
    (place / TOKEN).write_text(token, encoding="ascii")
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    variables[environment.CORES] = str(cpus)
    variables["OMP_NUM_THREADS"] = variables["OMP_NUM_THREADS"] or str(cpus)
    return Order(request.model_dump_json(), place, token, Path.cwd(), variables, kind_of(request))


def _move(files: Path, work: Path, sizes: dict[str, int]) -> None:
    """Make the files of the successful attempt those of the result."""
    # Folders on the network may show late what another machine wrote.
    if not settles(lambda: sizes_in(files) == sizes):
        raise StorageError(
            "files that a machine of the cluster wrote do not arrive",
            where=str(files.parents[1]),
            fix="check the shared folder, then run again",
        )
    work.rmdir()
    files.rename(work)


def _sizes_of_machines(ray: Any) -> list[int]:
    """The CPUs of each machine that has any."""
    cpus = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return [count for count in cpus if count]


def _package() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise TargetError(
            "the executor ray needs the package ray",
            where="executor",
            fix=environment.install("ray"),
        ) from error


def _check_address(address: str) -> None:
    """Raise RecipeError for an address where nothing answers: Ray itself would wait for it without an end."""
    if address in ("local", "auto"):
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "://" in address:
        raise RecipeError(
            "not the address of a Ray cluster",
            where=ADDRESS,
            got=address,
            expected="HOST:PORT",
            fix="octobert runs on a machine of the cluster; make this one join it with ray start --address=HOST:PORT",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECTING).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, reason(error)) from error


def _unreachable(address: str, got: str) -> RecipeError:
    return RecipeError(
        f"cannot connect to the Ray cluster at {address}",
        where=ADDRESS,
        got=got,
        fix="start Ray with ray start --head, and on the other machines ray start --address=HOST:PORT",
    )


def _broken(stage: str, error: Exception) -> OctobertError:
    """The error for a task that failed before or after its stage."""
    got = reason(error, -1)
    raised = OctobertError(
        "the stage failed unexpectedly",
        where=stage,
        got=got,
        fix="see the traceback in events.jsonl",
    )
    if "ModuleNotFoundError" in str(error) or "ImportError" in str(error):
        fix = "install the same octobert on all of them"
        raised = TargetError(
            "a machine of the cluster cannot import what the run needs",
            where=stage,
            got=got,
            fix=fix,
        )
    raised.traceback = str(error)
    return raised


@contextmanager
def _same_handler(number: signal.Signals) -> Iterator[None]:
    """Keep the handler of a signal, where it can be set at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(number)
    try:
        yield
    finally:
        signal.signal(number, before)


def _job(ray: Any) -> Any:
    class RayJob(ray.job_config.JobConfig):  # type: ignore[misc]
        """A job whose workers import nothing from this process's working directory, which Ray would put first on their path."""

        def _serialize(self) -> Any:
            self._py_driver_sys_path.clear()
            return super()._serialize()

    return RayJob()
