"""Models of static lengths, which OpenVINO makes for single rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from octobert import targets
from octobert.core import families
from octobert.core.session import SessionOptions
from tests.support.tolerances import SUM_ORDER


@pytest.mark.parametrize("family", families.names())
def test_a_padded_row_has_the_outputs_of_the_model_for_all_shapes(
    captured, tmp_path: Path, family: str
) -> None:
    ir.save(captured(family, "sequence-classification").model, tmp_path / "model.onnx")
    free, static = (
        targets.load("openvino-cpu").open_session(
            tmp_path / "model.onnx", SessionOptions(threads=1, static_up_to=up_to)
        )
        for up_to in (0, 32)
    )
    for tokens, length in ((9, 16), (16, 16), (20, 32)):
        ids = np.arange(5, 5 + tokens).reshape(1, tokens)
        feeds = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        padded = {
            name: np.pad(array, ((0, 0), (0, length - tokens))) for name, array in feeds.items()
        }
        own, expected = static.run(padded)["logits"], free.run(feeds)["logits"]
        assert np.abs(own - expected).max() <= SUM_ORDER * max(1.0, float(np.abs(expected).max()))
    assert list(static._models) == [0, 16, 32]
