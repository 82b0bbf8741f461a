"""Training loops of one's own: attach a plan to a PyTorch model, train it, and go on with a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octobert.core.errors import RecipeError

if TYPE_CHECKING:
    from octobert.core.plan import QuantPlan
    from octobert.core.ranges import Ranges
    from octobert.training.attached import Attached


def attach(
    model: Any,
    plan: QuantPlan,
    ranges: Ranges | None = None,
    *,
    learned: bool = False,
    keep: float = 100.0,
    average: float = 0.01,
) -> Attached:
    """Let a PyTorch model compute as a plan says: from now on its forward pass rounds values, and gradients pass through.

    Train the model in any loop, then call `finish(folder)` of the result. The recipe key `qat: {trained: folder}` makes
    packages of it.

    Args:
        model: A model of transformers, with the weights that the plan was made for.
        plan: The plan of a package that was made without transforms: `octobert.manifest(package).plan`.
        ranges: The ranges at the start, such as `octobert.manifest(package).ranges`. Default: those in the plan.
        learned: Ranges are trained by gradients (LSQ). They become parameters of the model. Otherwise they follow the batches.
        keep: Percentage of a batch's values inside an observed range. 100: minimum and maximum.
        average: Update rate of observed ranges.

    Returns:
        The attached model.

    Raises:
        RecipeError: The model is not one of transformers, or an argument is not valid.
        ModelError: The family of the model is not supported.
        PlanError: The plan does not fit the model, or ranges are missing.
    """
    from octobert.core.plan import QuantPlan
    from octobert.core.ranges import Ranges
    from octobert.training import attached

    for name, value, kind in (("plan", plan, QuantPlan), ("ranges", ranges, Ranges)):
        if not isinstance(value, kind) and not (name == "ranges" and value is None):
            raise RecipeError(
                f"not the {name} of a model",
                where=name,
                got=type(value).__name__,
                expected=f"octobert.manifest(package).{name}",
            )
    if not 50 < keep <= 100 or not 0 < average <= 1:
        raise RecipeError(
            "the value is out of range",
            where="keep, average",
            got=f"{keep}, {average}",
            expected="keep above 50 and up to 100, average above 0 and up to 1",
        )
    return attached.attach(model, plan, ranges, learned=learned, keep=keep, average=average)
