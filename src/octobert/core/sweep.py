"""The record of a sweep: calibrators compared on the same rows."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.tabular import Row, Tabular

# Output errors that differ by less are called equal: on other rows the order would change.
SAME_ERROR = 0.05


class Swept(FrozenModel):
    """One calibrator of a sweep.

    Args:
        calibrator: its name, and the options that the sweep sets.
        setting: the same as the value of the recipe's `calibrate`.
        problem: why it could not be used, or None.
        agreement: how closely the quantized model follows the float model, on rows that are not calibration rows.
        output_error: root mean square difference of the outputs, on the same rows.
        signal_to_noise_db: name of a value → signal-to-noise ratio.
    """

    calibrator: str
    setting: str
    problem: str | None = None
    agreement: float | None = None
    output_error: float | None = None
    signal_to_noise_db: dict[str, float] = Field(default_factory=dict)


class Sweep(Tabular):
    """`sweep.json`: a comparison of calibrators on the same calibration rows.

    Args:
        target: the plans are made for this target.
        fidelity: what `agreement` measures.
        calibration_rows: number of calibration rows.
        judged_rows: number of rows of the comparison.
        ranges: name of a value → (minimum, maximum) over the calibration rows.
        swept: one entry per setting.
        recommended: the `calibrator` to use; None where none could be used.
        reason: why.
    """

    target: str
    fidelity: str
    calibration_rows: int
    judged_rows: int
    ranges: dict[str, tuple[float, float]]
    swept: tuple[Swept, ...]
    recommended: str | None = None
    reason: str = ""

    def to_rows(self) -> list[Row]:
        """One row per calibrator. `agreement` has the name of the task's measure."""
        return [
            {
                "calibrator": s.calibrator,
                self.fidelity: s.agreement,
                "output_error": s.output_error,
                "problem": s.problem,
            }
            for s in self.swept
        ]


def recommendation(swept: Sequence[Swept], default: str) -> tuple[str | None, str]:
    """(the calibrator to use, why): that with the smallest output error, but the default where that is about as good.

    Args:
        swept: the compared settings.
        default: name of the calibrator that is used unless another is chosen.
    """
    errors = {each.calibrator: each.output_error for each in swept if each.output_error is not None}
    if not errors:
        return None, "no calibrator could be used"
    agreements = {each.calibrator: each.agreement for each in swept}
    best = min(errors, key=errors.__getitem__)
    figures = f"output error {errors[best]:.4f}, agreement {agreements[best]:.4f}"
    if default not in errors or len(errors) == 1:
        return best, f"{'the smallest' if len(errors) > 1 else 'the only'} {figures}"
    if errors[default] <= errors[best] * (1 + SAME_ERROR):
        least = (
            ""
            if best == default
            else f"; the smallest, of {best}, is {errors[best]:.4f}, which is no clear gain"
        )
        return (
            default,
            f"the default: output error {errors[default]:.4f}, agreement {agreements[default]:.4f}{least}",
        )
    more = errors[default] / errors[best] - 1
    return (
        best,
        f"the smallest {figures}; the output error of the default, {default}, is {more:.0%} larger ({errors[default]:.4f})",
    )
