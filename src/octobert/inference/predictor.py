"""Prediction with a finished model: texts in, answers out, in order. Needs `tokenizers` and the runtime of the target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from octobert import targets
from octobert.core import environment
from octobert.core.errors import DataError, IgnoredFileWarning, ModelError, RecipeError
from octobert.core.plain import preview
from octobert.core.session import (
    LONGEST_STATIC,
    Goal,
    RuntimeOption,
    Session,
    SessionOptions,
    Setting,
    default_setting,
    goal_named,
    static_lengths,
)
from octobert.data.encoded import Encoded
from octobert.data.tokenization import Tokenizer
from octobert.inference import cost_model, package_files
from octobert.inference.batching import run_rows
from octobert.inference.cost_model import CostModel
from octobert.inference.forks import PerProcess, on_live_thread
from octobert.inference.opened import FinishedModel, open_model
from octobert.inference.package_files import files_of, read_tuned
from octobert.inference.streaming import Scheduler
from octobert.targets import runtimes

Listed = Mapping[str, tuple[RuntimeOption, ...]]
# A list of up to this many inputs is answered on the calling thread.
_FEW = 4
# By default single texts of up to so many tokens have models of static lengths, if the weights of all of these are less than
# so many bytes: those of MiniLM with 12 layers fit, those of DistilBERT do not.
_STATIC_UP_TO, _STATIC_BYTES = 128, 300 * 10**6


@dataclass(frozen=True)
class _Engine:
    """The resources of a process that answers texts: none of them survives a fork."""

    tokenizer: Tokenizer
    session: Session
    scheduler: Scheduler


class Predictor:
    """A finished model that answers texts. Safe to use from several threads, and in processes forked after it was loaded.

    A forked process opens the model again at its first use; with OpenVINO, which does not survive a fork, that is an error.

    Args:
        model: a package, `OUT/<target>`; or what `open_model` makes of a model file.
        goal: `latency` gives one inference all cores. `throughput` runs one inference per core. The first use of a shape of
            model on a machine takes up to about five seconds longer, to measure the time by length: which rows are
            best run together, and whether a padded text is faster. Settings that `octobert tune` stored for the goal on this
            machine are used.
        streams: inferences that run at the same time; 0 leaves the number to the goal.
        threads: threads of one inference; 0 leaves the number to the goal. With `streams` or `threads`, tuned settings are
            ignored.
        cache: folder in which the runtime stores compiled models, for a faster start next time.
        runtime_log: write the messages of the runtime to stderr.
        allow_fallback: run operators that the device does not support on the CPU, instead of raising an error.
        verify: compare the content of all files with the manifest first. Otherwise only the sizes of the model files are.
        device: for OpenVINO targets, the device to open the model on instead of the target's, as OpenVINO names it: `AUTO`,
            `GPU.1`, `MULTI:GPU,CPU`. Tuned settings are those of the target's device, and are not used then.
        precision: of the float operators; None for what the target prefers.
        static_up_to: tokens, for OpenVINO targets. Single texts of so many tokens are answered by models of the lengths 16, 32,
            48, …, and from 128 in steps of 32. Each is compiled when the first text of its length comes, and takes memory for
            another copy of the weights. An 8-bit answer may differ from that of the model for all shapes, by about a fifth of
            the error of quantization. None: 128 with the goal `latency` on the CPU, where these copies are small; 0 with a
            device, and without `measure`.
        measure: measure the time by length where that was not yet done on this machine.
        alone: answer every text in an inference of its own, so that its answer does not depend on other texts.

    Raises:
        RecipeError: there is no such goal, or the streams and threads are too many for this machine.
        ModelError: the folder is not a package, or its files are not the ones that were packaged.
        TargetError: the runtime of the target is not installed.

    Example:
        >>> model = octobert.load("out/ort-cpu")          # doctest: +SKIP
        >>> model([("He left.", "He went away.")])        # doctest: +SKIP
        [{'label': 'equivalent', 'score': 0.97}]
    """

    def __init__(
        self,
        model: str | Path | FinishedModel,
        *,
        goal: Goal = "latency",
        streams: int = 0,
        threads: int = 0,
        cache: str | Path | None = None,
        runtime_log: bool = False,
        allow_fallback: bool = False,
        verify: bool = False,
        device: str | None = None,
        precision: str | None = None,
        static_up_to: int | None = None,
        measure: bool = True,
        alone: bool = False,
    ) -> None:
        goal = goal_named(goal)
        self.opened = model if isinstance(model, FinishedModel) else open_model(Path(model))
        self.folder, self.manifest = self.opened.path, self.opened.manifest
        self.target, self.task = self.opened.target, self.opened.rebuilt()
        target = targets.load(self.target)
        if device:
            runtimes.load(target.capabilities.runtime).check_device(device)
        else:
            self.opened.check_runs()
        if self.manifest is not None and verify:
            package_files.verify(self.folder)
        elif self.manifest is not None:
            package_files.check_sizes(self.folder, self.manifest, self.opened.file)
        if static_up_to is None:
            wanted = goal == "latency" and measure and device is None
            static_up_to = _default_static(self.opened) if wanted else 0
        elif static_up_to:
            _check_static(static_up_to, self.opened)
        self.setting = _setting(
            None if device else self.folder, target.runtime_options, goal, streams, threads
        )
        options = self.setting.options(
            cache=str(cache) if cache else None,
            log=runtime_log,
            allow_fallback=allow_fallback,
            entries=self.opened.entries_on(device),
            device=device,
            precision=precision,
            static_up_to=static_up_to,
        )
        # Without a reference to this object, so that it is freed as soon as nobody uses it.
        self._engine = PerProcess(
            partial(_engine, self.opened, goal, self.setting, options, measure=measure, alone=alone)
        )

    def __call__(self, inputs: Any) -> list[dict[str, Any]]:
        """Answer one input or a list of inputs, in order.

        Args:
            inputs: for classification and embeddings, texts or pairs of texts. Embeddings also take {"text", "prompt"} with
                the name of one of the model's prompts. For question answering, (question, context) pairs or {"question",
                "context"} dicts. For token classification, texts or lists of words. For masked language models, texts with
                masks or {"text", "top"} with the number of fillers for each.

        Returns:
            One dict per input. Classification: {"label", "score"}; several labels: {"labels", "scores"}; a model with one
            logit: {"score"}. Embeddings: {"embedding"}. Question answering: {"answer", "score", "start", "end"} with
            character positions in the context, and further answers under "others". Token classification: {"words", "tags",
            "entities"}. Masked language models: {"masks", "text"}, for each mask a list of {"token", "text", "score"}, and the
            text with the first of each. Feature extraction: {"tokens", "states"}. "truncated" is true where an input was longer
            than the model accepts. {"error"}, a sentence, where an input has a token that the model has no embedding for.

        Raises:
            DataError: an input has another form.
        """
        items, scheduler = list(_several(inputs)), self._engine.get().scheduler
        return scheduler.answer_now(items) if len(items) <= _FEW else list(scheduler.answers(items))

    def stream(self, inputs: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Answer inputs in order, as they arrive. For more inputs than fit in memory, and for endless sources.

        While the model computes, the next inputs are read, on the thread that takes the answers, and tokenized. At most about
        three thousand inputs are in memory.

        Args:
            inputs: any iterable of inputs as for a call, or one input.

        Raises:
            DataError: an input has another form; raised after the answers to the windows before it.
        """
        return self._engine.get().scheduler.answers(_several(inputs))

    @property
    def device(self) -> str:
        """Return what runs the model: the device of the target, or what OpenVINO says it uses of a chosen device."""
        return self._engine.get().session.device or targets.load(self.target).capabilities.device

    @property
    def precision(self) -> str:
        """Return the precision of the float operators, as the runtime reports it."""
        return self._engine.get().session.precision

    def close(self) -> None:
        """Finish the work in progress, end the threads of this model and free its memory. Later calls are errors.

        It also happens when the object is garbage-collected. In a forked process the memory is kept until the process ends.
        """
        engine = self._engine.end()
        if engine is not None:
            engine.scheduler.close()

    def __repr__(self) -> str:
        return f"<Predictor: {self.target}, {self.folder}>"

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def outputs(
        self, rows: Sequence[Encoded], on_done: Callable[[int], None] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the raw outputs of tokenized rows, in order.

        Args:
            rows: tokenized rows.
            on_done: called after each batch with the number of rows that are done.

        Returns:
            Output name to [rows, …], or to [tokens of all rows, …] for tasks with an output per token.
        """
        engine, per_token = self._engine.get(), self.task.per_token
        return on_live_thread(
            lambda: run_rows(
                engine.session, rows, engine.tokenizer.pad_id, on_done, per_token=per_token
            )
        )


def _several(inputs: Any) -> Iterator[Any]:
    """Return one input or several, as several."""
    try:
        return iter([inputs] if isinstance(inputs, (str, Mapping)) else inputs)
    except TypeError:  # also of an array without dimensions, which says that it is iterable
        raise DataError(
            "the input is neither a text nor a list of texts", got=preview(inputs)
        ) from None


# The public name is `octobert.load`.
load = Predictor


def _engine(
    model: FinishedModel,
    goal: Goal,
    setting: Setting,
    options: SessionOptions,
    *,
    measure: bool,
    alone: bool,
) -> _Engine:
    """Open a model."""
    task = model.rebuilt()
    tokenizer, session = model.tokenizer(task), model.session(options)
    # Batches of one row follow from no times.
    measure = measure and not alone
    cost = _cost(model, goal, options, session, tokenizer.max_length, measure=measure)
    static = static_lengths(options.static_up_to) if model.ignores_padding else ()
    scheduler = Scheduler(
        task,
        tokenizer,
        session,
        cost,
        setting.tokens,
        static,
        pads=model.ignores_padding,
        alone=alone,
    )
    return _Engine(tokenizer, session, scheduler)


def _cost(
    model: FinishedModel,
    goal: Goal,
    options: SessionOptions,
    session: Session,
    max_length: int,
    *,
    measure: bool,
) -> CostModel:
    """Return the measured times of a session, or a default where measuring is of no use."""
    # What is measured, and chosen by it, is the model for all shapes.
    free = options.replaced(static_up_to=0)
    plain = free.model_dump(mode="json", exclude={"cache", "log"})
    path = cost_model.stored_path(model.shape_facts, session, plain, max_length)
    # Without padding there is nothing to choose for a single text.
    if measure and (goal == "throughput" or model.ignores_padding):
        cost = cost_model.read_or_measure_cost_model(
            path,
            lambda: model.session(free) if options.static_up_to else session,
            max_length,
            only_if_stored=goal == "latency",
        )
    else:
        cost = cost_model.read_cost_model(path)
    cost = cost or cost_model.default_cost_model(session)
    return cost if model.ignores_padding else cost.replaced(lengths=())


def _default_static(model: FinishedModel) -> int:
    """Return up to how many tokens single texts get models of static lengths, where the caller leaves it open.

    They save the preparation of a shape, which is the same time for every text: much of that of a small model.
    """
    table = targets.load(model.target).capabilities
    if not (table.static_lengths and table.device == "CPU" and model.ignores_padding):
        return 0
    up_to = min(_STATIC_UP_TO, model.longest or _STATIC_UP_TO)
    weights = sum(file.stat().st_size for file in files_of(model.file))
    return up_to if weights * len(static_lengths(up_to)) <= _STATIC_BYTES else 0


def _check_static(up_to: int, model: FinishedModel) -> None:
    """Check that a model can be opened with static lengths.

    Raises:
        RecipeError: the target has none, or the model takes no texts as long as that.
    """
    if not targets.load(model.target).capabilities.static_lengths:
        raise RecipeError(
            f"the target {model.target} has no static lengths",
            where="static_up_to",
            expected=", ".join(
                name for name, each in targets.each() if each.capabilities.static_lengths
            ),
        )
    if model.shape != (-1, -1):
        raise RecipeError(
            "the file has a static shape already", where="static_up_to", fix="omit static_up_to"
        )
    longest = min(LONGEST_STATIC, model.longest or LONGEST_STATIC)
    if not 0 < up_to <= longest:
        raise RecipeError(
            "not a number of tokens",
            where="static_up_to",
            got=str(up_to),
            expected=f"0 to {longest}",
        )


def _setting(
    folder: Path | None, listed: Listed, goal: Goal, streams: int, threads: int
) -> Setting:
    """Return the setting of the arguments, else the tuned one in the folder, else the default."""
    if streams or threads:
        for name, count in (("streams", streams), ("threads", threads)):
            if count < 0:
                raise RecipeError(
                    "not a number of streams or threads",
                    where=name,
                    got=str(count),
                    expected="0 or more",
                )
        fitting = environment.cores() // (threads or 1) if goal == "throughput" else 1
        setting = Setting(streams=streams or max(1, fitting), threads=threads)
        setting.check(listed, where="streams and threads")
        return setting
    try:
        tuned = read_tuned(folder, listed).get(goal) if folder else None
    except ModelError as error:
        # The model is whole, and the settings only make it faster.
        warnings.warn(f"{error} The default settings are used", IgnoredFileWarning, stacklevel=4)
        tuned = None
    return tuned.setting if tuned is not None else default_setting(goal)
