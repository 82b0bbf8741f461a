"""The record of a sweep: calibrators compared on the same rows."""

from __future__ import annotations

from pydantic import Field

from octobert.core.frozen import FrozenModel
from octobert.core.tabular import Row, Tabular


class Swept(FrozenModel):
    """One calibrator of a sweep.

    Args:
        calibrator: its name, and the options that the sweep sets.
        problem: why it could not be used, or None.
        agreement: how closely the quantized model follows the float model, on rows that are not calibration rows.
        output_error: root mean square difference of the outputs, on the same rows.
        signal_to_noise_db: name of a value → signal-to-noise ratio.
    """

    calibrator: str
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
    """

    target: str
    fidelity: str
    calibration_rows: int
    judged_rows: int
    ranges: dict[str, tuple[float, float]]
    swept: tuple[Swept, ...]

    def to_rows(self) -> list[Row]:
        """One row per calibrator. `agreement` has the name of the task's measure."""
        return [
            {"calibrator": s.calibrator, self.fidelity: s.agreement, "output_error": s.output_error, "problem": s.problem}
            for s in self.swept
        ]
