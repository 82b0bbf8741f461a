"""Run a graph to learn what depends on the numbers of its inputs.

`measure` finds which axes of every value are batch and sequence, by running the graph at two sizes. Unlike symbolic shape
inference this works for every operator, and it verifies that the graph is dynamic in both axes. `fold_` replaces values that do
not depend on the numbers of the inputs by constants.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import onnx_ir as ir

from octobert.core import environment
from octobert.core.errors import ModelError, reason
from octobert.core.session import KEEP_FLOAT, Feeds
from octobert.graph import operators, parts

# (rows, tokens): sizes that no fixed axis of a real encoder is likely to have.
_PROBES = ((2, 7), (3, 11))
# Seconds of a run, and numbers of its inputs a second: a hundredth of what the largest encoders take on one core.
_SECONDS, _PACE = 120, 10
# Entry of ONNX Runtime: where the weights are that a model in memory has in a file.
_FOLDER = "session.model_external_initializers_file_folder_path"
# What ONNX Runtime says where it gets no memory.
_NO_MEMORY = ("Failed to allocate memory", "bad_alloc", "bad allocation")


def measure(
    model: ir.Model, values: list[ir.Value], session: Any = None
) -> dict[str, tuple[int | str, ...]]:
    """Return the shapes of values, with "batch" and "sequence" for the axes that follow the inputs.

    Args:
        session: of the graph, whose outputs these values are; None to open one.

    Returns:
        value name → shape, such as ("batch", 12, "sequence", "sequence").

    Raises:
        ModelError: the graph does not run at both sizes, so its shapes are fixed.
    """
    names, probed = [str(value.name) for value in values], []

    def refused(rows: int, tokens: int) -> AbstractContextManager[None]:
        what = f"the graph does not run on {rows} rows of {tokens} tokens"
        return session_errors(
            what,
            expected="a graph with dynamic batch and sequence",
            fix="export it with dynamic axes",
        )

    with refused(*_PROBES[0]):
        session = session or open_session(model, values, optimized=False)
    for size in _PROBES:
        with refused(*size):
            feeds = {str(value.name): np.ones(size, dtype=np.int64) for value in model.graph.inputs}
            probed.append([result.shape for result in session.run(names, feeds)])
    (batch_1, sequence_1), (batch_2, sequence_2) = _PROBES
    axes = {(batch_1, batch_2): "batch", (sequence_1, sequence_2): "sequence"}
    axes[batch_1 * sequence_1, batch_2 * sequence_2] = "tokens"
    return {
        name: tuple(
            a if a == b else axes.get((a, b), "unknown") for a, b in zip(*both, strict=True)
        )
        for name, *both in zip(names, *probed, strict=True)
    }


def annotate_(model: ir.Model) -> None:
    """Write the measured shape to every value of a graph, in place."""
    values = [v for node in model.graph for v in node.outputs]
    measured = measure(model, values)
    for value in values:
        value.shape = ir.Shape(list(measured[str(value.name)]))


def fold_linears_(model: ir.Model) -> None:
    """Replace the outputs of linear layers over constants by constants, in place.

    A runtime folds linear layers over constants, such as projections of a table of relative positions (DeBERTa), when it loads
    a float model. Behind 8-bit weights it cannot, and would project the whole table for every text.
    """
    _pick_rows_last_(model.graph)
    constant: set[ir.Value] = set()
    through_linear: dict[ir.Value, None] = {}
    for node in model.graph:
        inputs = [v for v in node.inputs if v is not None]
        if inputs and all(v in constant or v.const_value is not None for v in inputs):
            constant.update(node.outputs)
            if node.op_type == "MatMul" or any(v in through_linear for v in inputs):
                through_linear.update(dict.fromkeys(node.outputs))
    fold_(model, through_linear, constant, "folded")


def _pick_rows_last_(graph: ir.Graph) -> None:
    """Rewrite linear layers over some rows of a constant as the same rows of the layer over all of them, in place.

    DeBERTa v1 projects only as many relative positions as the text is long.
    """
    for rows in operators.of_type(graph, "Slice"):
        if operators.const_array(rows.inputs[0]) is None or rows.inputs[3] is None:
            continue
        placed = operators.only_reader(rows.outputs[0], "Unsqueeze")
        if placed is None or operators.constant_of(rows.inputs[3]).tolist() != [0]:
            continue
        for matmul in operators.consumers(placed.outputs[0], "MatMul"):
            if not parts.is_weight(matmul.inputs[1]):
                continue
            linear = parts.linear_at(matmul)
            chain, readers = operators.Chain(graph, str(linear.y.name)), list(linear.y.uses())
            picked = chain.Slice("rows", linear.y, *rows.inputs[1:])
            chain.Unsqueeze("placed", picked, placed.inputs[1])
            matmul.replace_input_with(0, rows.inputs[0])
            operators.insert_behind_(graph, linear.add or matmul, chain.nodes, readers)


def fold_(
    model: ir.Model,
    values: Iterable[ir.Value],
    inside: Container[ir.Value],
    suffix: str,
    size: tuple[int, int] = (1, 2),
) -> None:
    """Replace values by constants of the same name and a suffix, in place, where an operator reads them from outside.

    Args:
        values: they depend on the shapes of the inputs at most.
        inside: the outputs of operators that are gone then.
        size: rows and tokens of inputs with free axes. All are filled with ones.
    """
    ends = [
        value
        for value in values
        if any(node.outputs[0] not in inside for node in operators.readers(value))
    ]
    if not ends:
        return
    session = open_session(model, ends)
    feeds = {
        str(value.name): np.ones(
            size if value.shape is None or not value.shape.is_static() else value.shape.numpy(),
            dtype=np.int64 if value.dtype is None else value.dtype.numpy(),
        )
        for value in model.graph.inputs
    }
    arrays = session.run([str(value.name) for value in ends], feeds)
    for value, array in zip(ends, arrays, strict=True):
        ir.convenience.replace_all_uses_with(
            value, operators.initializer(model.graph, f"{value.name}.{suffix}", array)
        )
    operators.clean_(model)


@contextmanager
def session_errors(what: str, *, fix: str, expected: str | None = None) -> Iterator[None]:
    """Turn errors of ONNX Runtime into one sentence; errors of the disk pass as they are.

    Raises:
        ModelError: ONNX Runtime cannot open or run a graph.
    """
    try:
        yield
    except (OSError, ModelError):
        raise
    except Exception as error:  # onnxruntime has no base class for its errors
        if any(words in str(error) for words in _NO_MEMORY):
            raise ModelError(
                "the graph asks for more memory than there is",
                got=reason(error, -1),
                fix="check what its constants and loops make; or do not trust it",
            ) from error
        raise ModelError(what, got=reason(error, -1), expected=expected, fix=fix) from error


def open_session(
    model: ir.Model,
    values: list[ir.Value] | None = None,
    *,
    optimized: bool = True,
    arena: bool = True,
    providers: Sequence[str | tuple[str, dict[str, str]]] = ("CPUExecutionProvider",),
) -> Any:
    """Open a graph in ONNX Runtime, which reads its weights where they are.

    Args:
        values: the outputs of the session; None for those of the graph.
        optimized: let ONNX Runtime optimize the graph; otherwise it runs every node as written.
        arena: keep memory for the next run, which is faster and takes more of it.
        providers: by default the CPU.
    """
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = environment.thread_limit()
    settings.enable_cpu_mem_arena = arena
    for name, value in KEEP_FLOAT.items():
        settings.add_session_config_entry(name, str(value))
    if not optimized:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    file, weights, folder = operators.in_memory(
        model, list(model.graph.outputs) if values is None else values
    )
    if folder is not None:
        settings.add_session_config_entry(_FOLDER, folder)
    held = [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
    settings.add_external_initializers(list(weights), held)
    session = _timed_session()(file, settings, providers=list(providers))
    # They are the session's as long as it lives.
    session.weights = held
    return session


@functools.cache
def _timed_session() -> Any:
    import onnxruntime as ort

    # One that refers to itself would keep its copy of the weights until the garbage is collected.
    class TimedSession(ort.InferenceSession):  # type: ignore[misc]
        def run(self, names: Sequence[str] | None, feeds: Feeds) -> Any:
            return _run_in_time(super().run, names, feeds)

    return TimedSession


def _run_in_time(
    run: Callable[..., list[np.ndarray]], names: Sequence[str] | None, feeds: Feeds
) -> list[np.ndarray]:
    """The outputs of a session of ONNX Runtime. What a graph of unknown origin computes may have no end.

    Raises:
        ModelError: it takes a hundred times longer than any encoder does.
    """
    import onnxruntime as ort

    options = ort.RunOptions()
    seconds = _SECONDS + sum(np.size(array) for array in feeds.values()) / _PACE
    done, start = threading.Event(), time.process_time()

    def watch() -> None:
        left = seconds
        # What a busy machine takes from it does not count.
        while left > 0 and not done.wait(left):
            left = seconds - (time.process_time() - start)
        options.terminate = not done.is_set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        return run(names, feeds, options)
    except Exception as error:
        if not options.terminate:
            raise
        raise ModelError(
            "the graph takes too long",
            got=f"no answer in {seconds:,.0f} s",
            fix="check how often its loops turn; or do not trust it",
        ) from error
    finally:
        done.set()
