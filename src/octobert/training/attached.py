"""A model of the user in a training loop of the user's own: the quantization of a plan, and what came of it as files.

`attach` makes the forward pass of a transformers model round values as a plan says. The user trains the model. `finish` writes
a checkpoint with its ranges, from which a recipe goes on: `qat: {trained: FOLDER}`. Needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core.errors import ModelError, PlanError, RecipeError, StorageError, did_you_mean
from octobert.core.families import family_of, model_types
from octobert.core.files import atomic_write, storage_errors
from octobert.core.frozen import FrozenModel
from octobert.core.plan import QuantPlan
from octobert.core.ranges import Interval, Ranges
from octobert.training.interception import ALL_VALUES
from octobert.training.job import non_finite_weight
from octobert.training.simulation import Simulation

# The file that `finish` writes beside the checkpoint, last of all.
QUANTIZATION = "quantization.json"


class Quantization(FrozenModel):
    """`quantization.json`: what a training has done besides its weights.

    Args:
        plan: that was attached.
        ranges: how ranges changed: `moving-average` or `learned`.
        intervals: value → its range after the training.
        scales: module → scales of its weight, where they do not follow the weight.
    """

    plan: QuantPlan
    ranges: str
    intervals: dict[str, Interval]
    scales: dict[str, list[float] | float]


@dataclass(frozen=True)
class Attached:
    """A model whose forward pass is quantized, from `attach` until `finish` or `detach`.

    Args:
        model: PyTorch model of transformers. Train it in any loop.
        plan: its quantization.
        learned: ranges are trained by gradients. They are parameters of the model, so make the optimizer after `attach`.
    """

    model: Any
    plan: QuantPlan
    learned: bool
    _simulation: Simulation

    @property
    def ranges(self) -> dict[str, Interval]:
        """Return the current range of each value.

        Raises:
            PlanError: A range has seen no data, or the model does not compute a value of the plan.
        """
        return self._simulation.intervals()

    def observe(self, on: bool = True) -> None:
        """Let ranges follow the batches in training mode, as they do from the start unless they are learned, or freeze them."""
        self._simulation.observing = on

    def quantize(self, on: bool = True) -> None:
        """Round values, as from the start, or compute in float. Ranges can be observed in both."""
        self._simulation.quantizing = on

    def detach(self) -> None:
        """Make the model a float model again, with its current weights."""
        self._simulation.detach()

    def finish(self, folder: str | Path) -> Path:
        """Detach the model and write it with its ranges. A recipe goes on from there: `qat: {trained: FOLDER}`.

        Args:
            folder: A new or empty folder.

        Returns:
            The folder.

        Raises:
            ModelError: A weight is not a number.
            PlanError: A range has seen no data, or the model does not compute a value of the plan.
            StorageError: The folder is not empty, or cannot be written.
        """
        path = Path(folder)
        bad = non_finite_weight(self.model)
        if bad is not None:
            raise ModelError(
                "after the training, weights are not numbers",
                where=bad,
                fix="lower the learning rate",
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StorageError("the folder is not empty", where=str(path), fix="give a new folder")
        scales = {
            name: np.asarray(scale, np.float64).tolist()
            for name, scale in self._simulation.weight_scales().items()
        }
        kind = "learned" if self.learned else "moving-average"
        record = Quantization(plan=self.plan, ranges=kind, intervals=self.ranges, scales=scales)
        self.detach()
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            self.model.save_pretrained(path)
            with atomic_write(path / QUANTIZATION) as partial:
                partial.write_text(record.model_dump_json(), encoding="utf-8")
        return path


def attach(
    model: Any,
    plan: QuantPlan,
    ranges: Ranges | None = None,
    *,
    learned: bool = False,
    keep: float = ALL_VALUES,
    average: float = 0.01,
) -> Attached:
    """Attach a plan to a model, see `octobert.attach`."""
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    if model_type is None or not hasattr(model, "save_pretrained"):
        raise RecipeError(
            "not a model that can be quantized",
            where="model",
            got=type(model).__name__,
            expected="a model of transformers, such as AutoModelForSequenceClassification.from_pretrained(…)",
        )
    family = family_of(str(model_type))
    if family is None:
        raise ModelError(
            f'model type "{model_type}" is not supported',
            where="model.config",
            fix=did_you_mean(str(model_type), model_types()),
        )
    if hasattr(model, Simulation.ATTRIBUTE):
        raise PlanError(
            "a plan is attached to the model already",
            where="model",
            fix="call detach() of what attach returned",
        )
    if not plan.quantized:
        raise PlanError(
            "the plan quantizes nothing",
            where="plan",
            fix="give the plan of a package: octobert.manifest(…).plan",
        )
    started = plan if ranges is None else with_ranges(plan, ranges.intervals)
    simulation = Simulation(
        model, started, family, learned=learned, keep=keep, rate=average
    ).attach()
    simulation.observing = not learned
    return Attached(model, plan, learned, simulation)


def with_ranges(plan: QuantPlan, intervals: dict[str, Interval]) -> QuantPlan:
    """Return a plan with other ranges.

    Raises:
        PlanError: there is no range of a value that the plan quantizes.
    """
    decisions = []
    for decision in plan.decisions:
        quantizer, value = decision.quantizer, decision.site.value
        if quantizer is not None and quantizer.low is not None:
            if value not in intervals:
                raise PlanError(
                    "there is no range of a value that the plan quantizes",
                    where=value,
                    fix="give the ranges of the same run: octobert.manifest(…).ranges",
                )
            interval = intervals[value]
            low, high = (
                (-interval.bound, interval.bound)
                if quantizer.symmetric
                else (interval.low, interval.high)
            )
            decision = decision.replaced(quantizer=quantizer.replaced(low=low, high=high))
        decisions.append(decision)
    return plan.replaced(decisions=tuple(decisions))


def read(folder: Path) -> Quantization:
    """Return the quantization that `finish` wrote.

    Raises:
        ModelError: the folder has no such file, or it is damaged.
    """
    path = folder / QUANTIZATION
    if not path.is_file():
        raise ModelError(
            "the folder holds no finished training",
            where=str(folder),
            got=f"no {QUANTIZATION}",
            fix="give the folder that finish() of octobert.attach wrote",
        )
    return Quantization.of_file(path, ModelError, "train again")
