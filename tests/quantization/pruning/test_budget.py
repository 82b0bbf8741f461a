"""Budgets are corrected until models are as fast as wanted, not until their predicted times are."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from octobert.core.estimate import Estimate
from octobert.core.pruning import LevelTimes, Sublayer
from octobert.quantization.pruning.budget import CORRECTIONS, NEAR, NOISE, Table, reach

LAYERS, UNITS = 6, tuple(range(0, 1537, 64))
SUBLAYERS = [
    Sublayer(layer=i, kind="ffn", module=f"layer.{i}", units=UNITS[-1], width=1)
    for i in range(LAYERS)
]
# One of four milliseconds belongs to no neuron. The last layer takes half.
WHOLE_MS, MS = 4.0, tuple(3.0 / (LAYERS - 0.5) * units / UNITS[-1] for units in UNITS)


def table() -> Table:
    # Later layers lose less; the first neurons cost least.
    losses = {
        each.module: [(1 - units / each.units) ** 2 / (1 + each.layer) for units in UNITS]
        for each in SUBLAYERS
    }
    times = [LevelTimes(kind="ffn", units=UNITS, ms=MS, last=0.5)]
    return Table(SUBLAYERS, dict.fromkeys(losses, UNITS), losses, times, WHOLE_MS)


class Kernels:
    """A machine on which removed neurons save a share of what the table promises.

    Args:
        share: of all that may be saved.
        power: 1 where each neuron saves as much; above 1 the first ones save less than the last ones.
    """

    def __init__(self, share: float, noise: float = 0.0, power: float = 1.0) -> None:
        self.share, self.noise, self.power, self.timed = share, noise, power, 0

    def __call__(self, units: Mapping[str, int]) -> Estimate:
        self.timed += 1
        saved = sum(
            (0.5 if each.layer == LAYERS - 1 else 1) * (MS[-1] - MS[units[each.module] // 64])
            for each in SUBLAYERS
        )
        saved = 3.0 * (saved / 3.0) ** self.power
        speedup = WHOLE_MS / (WHOLE_MS - self.share * saved)
        return Estimate(
            value=speedup, low=speedup * (1 - self.noise), high=speedup * (1 + self.noise)
        )


@pytest.mark.parametrize("wanted", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("share", [0.6, 0.85, 1.3])
def test_the_measured_speedup_is_the_wanted_one_where_predictions_are_wrong(
    share: float, wanted: float
) -> None:
    kernels = Kernels(share)
    if share * 0.75 < 1 - 1 / wanted:  # not even without any neurons
        assert reach(table(), wanted, kernels) is None
        return
    found = reach(table(), wanted, kernels)
    assert found is not None
    assert found.measured == Kernels(share)(found.units)
    # A step of 64 neurons is less than the tolerance.
    assert found.measured.value == pytest.approx(wanted, rel=NEAR)
    assert abs(found.predicted / wanted - 1) > NEAR
    assert found.predicted == pytest.approx(Kernels(1.0)(found.units).value, rel=1e-9)
    assert 1 < kernels.timed <= 1 + CORRECTIONS


@pytest.mark.parametrize("power", [0.6, 2.0])
@pytest.mark.parametrize("wanted", [1.3, 1.5, 2.0])
def test_savings_that_are_not_proportional_are_found_between_too_little_and_too_much(
    power: float, wanted: float
) -> None:
    kernels = Kernels(1.0, power=power)
    found = reach(table(), wanted, kernels)
    assert found is not None
    assert found.measured.value == pytest.approx(wanted, rel=NOISE)
    assert kernels.timed <= 1 + CORRECTIONS


def test_a_true_prediction_is_timed_once_and_noise_is_not_corrected() -> None:
    for kernels in (Kernels(1.0), Kernels(0.9, noise=0.05)):
        found = reach(table(), 1.4, kernels)
        assert found is not None
        assert kernels.timed == 1
        assert found.predicted == pytest.approx(1.4, rel=0.01)


def test_an_interval_that_holds_anything_is_no_excuse() -> None:
    # On a busy machine; without a bound on the noise the first model would do.
    kernels = Kernels(0.6, noise=0.5)
    found = reach(table(), 1.4, kernels)
    assert found is not None
    assert kernels.timed > 1
    assert found.measured.value == pytest.approx(1.4, rel=NOISE)


def test_where_no_model_is_fast_enough_there_is_none() -> None:
    # All neurons together are three of four milliseconds.
    never = Kernels(1.0)
    assert reach(table(), 4.1, never) is None
    assert never.timed == 0
    promised = Kernels(0.5)
    assert reach(table(), 2.5, promised) is None
    assert promised.timed >= 1
