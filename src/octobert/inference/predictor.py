"""A packaged directory that predicts: texts in, answers out, in order. Needs the target's runtime and `tokenizers` only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from octobert.core import environment, plugins
from octobert.core.errors import DataError, ModelError, TargetError
from octobert.core.results import PACKAGE_FILE, PackageManifest
from octobert.data import tokenization
from octobert.inference import cost_model
from octobert.inference.batching import assumed_cost, run_rows
from octobert.inference.settings import Goal, Setting, default_setting, kept
from octobert.inference.streaming import Flow
from octobert.tasks._task import rebuild

# Up to so many inputs are answered on the thread that asks.
_FEW = 4


class Predictor:
    """A finished model. Any number of threads may use it.

    Args:
        folder: a packaged directory, `OUT/<target>`.
        goal: `latency` gives one inference all cores; `throughput` gives every core an inference of its own, and measures
            once on each machine, for about a second, which rows are best run together. What `octobert tune` found for the
            goal on this machine is used.
        streams: inferences at the same time; 0 leaves it to the goal.
        threads: of one inference; 0 leaves it to the goal. Where either is given, what was tuned is left aside.
        cache: folder where the runtime keeps what it compiled, so that it opens faster the next time.
        runtime_log: the runtime says on stderr what it does.
        allow_fallback: what the target's device does not take may run on the CPU, instead of being an error.

    Raises:
        ModelError: the folder is no packaged directory.
        TargetError: its runtime is not installed here.

    Example:
        >>> model = octobert.load("out/ort-cpu")          # doctest: +SKIP
        >>> model([("He left.", "He went away.")])        # doctest: +SKIP
        [{'label': 'equivalent', 'score': 0.97}]
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        goal: Goal = "latency",
        streams: int = 0,
        threads: int = 0,
        cache: str | Path | None = None,
        runtime_log: bool = False,
        allow_fallback: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        self.task = rebuild(self.manifest.task)
        self.target = self.manifest.target
        target = plugins.load("targets", self.target)
        probe = target.probe()
        if not probe.available:
            raise TargetError(
                f"the target {self.target} cannot run here", where=str(folder), got=probe.missing, fix=probe.install
            )
        self._encoder = tokenization.TextEncoder(self.folder, self.task.max_length)
        self.setting = _setting(self.folder, goal, streams, threads)
        options = self.setting.options(cache=str(cache) if cache else None, log=runtime_log, allow_fallback=allow_fallback)
        session = self._session = target.open_session(target.model_file(self.folder), options)
        longest = self._encoder.max_length
        cost = (
            cost_model.measured(self.manifest, session, longest)
            if goal == "throughput"
            else cost_model.known(self.manifest, session)
        )
        self._cost = cost or assumed_cost(session)
        self._flow = Flow(self.task, self._encoder, session, self._cost, self.setting.tokens)

    def __call__(self, inputs: Any) -> list[dict[str, Any]]:
        """Answers to what is asked, in order.

        Args:
            inputs: one text or a list. For classification and embeddings of texts, or of pairs of texts; for question answering
                of (question, context) pairs or {"question", "context"}; for tagging of texts or lists of words.

        Returns:
            For classification {"label", "score"}; for embeddings {"embedding"}; for question answering {"answer", "score",
            "start", "end"}, characters of the context, with other answers under "others"; for tagging {"words", "tags",
            "entities"}. Each has "truncated": true where something was longer than the model takes.

        Raises:
            DataError: an input that is none of these.
        """
        if isinstance(inputs, (str, Mapping)):
            inputs = [inputs]
        if not isinstance(inputs, Iterable):
            raise DataError("the input is neither a text nor a list of texts", got=repr(inputs)[:100])
        given = list(inputs)
        return self._flow.at_once(given) if len(given) <= _FEW else list(self._flow.answers(given))

    def stream(self, inputs: Iterable[Any]) -> Iterator[dict[str, Any]]:
        """Answers in the order of the inputs, as they come: for more inputs than fit in memory, or for endless ones.

        While the model works, the next inputs are read, on the thread that takes the answers, and tokenized. At most about
        three thousand inputs are held.

        Args:
            inputs: any iterable of what a call takes.

        Raises:
            DataError: an input that is none of these, after the answers to inputs well before it.
        """
        return self._flow.answers(inputs)

    def close(self) -> None:
        """End the threads of this model; it also happens when nothing refers to it any more."""
        self._flow.close()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def outputs(self, rows: Sequence[tokenization.Encoded]) -> dict[str, np.ndarray]:
        """Raw outputs of tokenized rows, in order; rows run in batches of similar length, without fixed padding."""
        pad_id = self._encoder.pad_id
        return run_rows(self._session, rows, pad_id, per_token=self.task.per_token, cost=self._cost)


# As it is called in public.
load = Predictor


def _setting(folder: Path, goal: Goal, streams: int, threads: int) -> Setting:
    """What was asked for, what was tuned, or the default."""
    if not (streams or threads):
        found = kept(folder).get(goal)
        return found.setting if found is not None else default_setting(goal)
    shared = environment.cores() // (threads or 1) if goal == "throughput" else 1
    return Setting(streams=streams or max(1, shared), threads=threads)


def read_manifest(folder: Path) -> PackageManifest:
    """`octobert.json` of a packaged directory.

    Raises:
        ModelError: there is none, or it cannot be read.
    """
    path = folder / PACKAGE_FILE
    if not path.is_file():
        inner = sorted(p.parent.name for p in folder.glob(f"*/{PACKAGE_FILE}")) if folder.is_dir() else []
        fix = f"choose one of its targets: {', '.join(str(folder / name) for name in inner)}" if inner else "check the path"
        raise ModelError("the directory holds no finished model", where=str(folder), expected=PACKAGE_FILE, fix=fix)
    try:
        return PackageManifest.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        got = str(error).strip().splitlines()[0]
        raise ModelError("octobert.json cannot be read", where=str(path), got=got, fix="package the model again") from error
