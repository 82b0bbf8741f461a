"""Where the rows of a run come from, and which of them are used: the keys below `data`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from octobert.core.files import stays_inside
from octobert.core.frozen import FrozenModel

# Evaluate the validation split, or the test split of data that has no validation split.
AUTO = "auto"


class RowSelection(FrozenModel):
    """Which rows of the data to use.

    Args:
        from: Split name, or a file.
        samples: Number of rows, sampled at random with the recipe's seed. Default: all rows; 256 for calibration; 1,000 for
            tuning.
        drop_evaluated: Drop rows that are also evaluated. By default such rows are an error (calibration and fine-tuning).
    """

    from_: str = Field(alias="from")
    samples: int | None = Field(default=None, ge=1)
    drop_evaluated: bool = False


def _checked_revision(value: str | None) -> str | None:
    """A revision becomes a part of paths in the cache of the Hub's client."""
    if value is not None and not stays_inside(value):
        raise ValueError("a revision is a branch, a tag or a commit")
    return value


Revision = Annotated[str | None, AfterValidator(_checked_revision)]


class Data(FrozenModel):
    """Where the rows come from.

    Args:
        source: File, folder, Hub id, or `file.py:function` that gives the rows of a split.
        config: Configuration name of a Hub data set.
        revision: Revision of a Hub data set.
        train: File or function with the training rows, in addition to or instead of `source`.
        validation: File or function with the validation rows, in addition to or instead of `source`.
        test: File or function with the test rows, in addition to or instead of `source`.
        corpus: File or split with documents that are searched beside those of the evaluated queries. `auto` takes the
            corpus of a BEIR folder.
        columns: Column names, for files without a header.
        calibrate: Calibration rows.
        evaluate: Evaluation rows. `auto` takes the validation split, or the test split of data without one.
        tune: Rows on which an accuracy criterion is checked during the search for a plan.
        finetune: Training rows.
        supplement: Calibrate smoothing and ranges on 235 short texts of octobert's own, too: questions, chat, code, numbers,
            several languages. Texts unlike the calibration rows exceed the ranges without them. Weights are rounded on the rows
            alone.
        allow_leakage: Accept calibration or training rows that are also evaluated. The report says so.
    """

    source: str | None = None
    config: str | None = None
    revision: Revision = None
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    corpus: str | None = AUTO
    columns: tuple[str, ...] = ()
    calibrate: RowSelection = RowSelection.model_validate({"from": "train", "samples": 256})
    evaluate: RowSelection = RowSelection.model_validate({"from": AUTO})
    tune: RowSelection = RowSelection.model_validate({"from": "train", "samples": 1000})
    finetune: RowSelection = RowSelection.model_validate({"from": "train"})
    supplement: bool = True
    allow_leakage: bool = False

    @field_validator("calibrate", "evaluate", "tune", "finetune", mode="before")
    @classmethod
    def _short_form(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            return {"from": value}
        default = AUTO if info.field_name == "evaluate" else "train"
        return (
            {"from": default, **value}
            if isinstance(value, dict) and "from_" not in value
            else value
        )

    @field_validator("calibrate", "tune")
    @classmethod
    def _default_samples(cls, value: RowSelection, info: ValidationInfo) -> RowSelection:
        default = 256 if info.field_name == "calibrate" else 1000
        return value if value.samples else value.replaced(samples=default)

    @model_validator(mode="after")
    def _some_source(self) -> Data:
        if not (self.source or self.train or self.validation or self.test):
            raise ValueError("give a source, or files for train and validation")
        return self
