"""The task of a run, as its steps hold it: its options as a value, what the model states, and metrics."""

from __future__ import annotations

from octobert.core.frozen import FrozenModel
from octobert.core.results import ModelMetadata
from octobert.tasks import MetricSpecs, Task, TaskField, measured


class TaskSpec(FrozenModel):
    """What makes the task of a run.

    Args:
        options: of the task.
        stated: what the model's files state.
    """

    options: TaskField
    stated: ModelMetadata

    def build(self) -> Task:
        """Return the task itself."""
        return self.options.build(self.stated)


class ScoredTask(TaskSpec):
    """A task with the metrics that a recipe asks for, for the stages that score.

    Args:
        measures: metrics, and what makes predictions of outputs.
    """

    measures: MetricSpecs

    def build(self) -> Task:
        """The task itself."""
        return measured(super().build(), self.measures)
