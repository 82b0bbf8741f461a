"""Dynamic quantization: static weights, activations quantized with ranges of the run. It needs no calibration.

ONNX Runtime takes one range per batch: it fuses the result into DynamicQuantizeMatMul and MatMulIntegerToFloat, and Q, K and V
share one quantization. OpenVINO takes one range per token and group of channels, which is closer to float and takes longer.
So does ONNX Runtime where weights have 4 bits: it fuses them with their product into MatMulNBits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from octobert.core.axes import Axis, Form, Offer
from octobert.core.capability import Capabilities
from octobert.core.plan import FloatType, Quantizer, QuantPlan, Site
from octobert.core.ranges import Ranges
from octobert.quantization.methods import _common


class Dynamic(_common.LinearMethod):
    """Inputs of linear layers are quantized with ranges of the run.

    Args:
        reduce_range: 8-bit weights whose products cannot saturate, for CPUs without VNNI: neighbours whose sum would be more
            than 128 have a larger scale. `auto` depends on this CPU.
    """

    name: ClassVar[str] = "dynamic"

    def plan(
        self, sites: tuple[Site, ...], ranges: Ranges, capabilities: Capabilities
    ) -> QuantPlan:
        """Make a plan: a decision for every site; see `plan_of_linears`.

        Raises:
            PlanError: as of `linear_weight` and `plan_of_linears`.
        """
        return self.plan_of_linears(
            sites,
            capabilities,
            placement="linear",
            inputs=self._activation(capabilities),
            weights=self.linear_weight(capabilities, "token"),
            reason="linear layer",
            otherwise="only linear layers can be quantized dynamically",
        )

    def smoothed(self, capabilities: Capabilities) -> bool:
        """Return whether smoothing helps: where all tokens of a batch share a range."""
        return capabilities.activations.dynamic != "token" and self.bits == 8

    def _activation(self, capabilities: Capabilities) -> Quantizer:
        """Return the quantizer of a dynamically quantized activation, in the form that a target computes."""
        if capabilities.activations.dynamic == "token" or self.bits == 4:
            return Quantizer(dtype="int8", symmetric=True, dynamic=True, group=self.group)
        return Quantizer(dtype="uint8", symmetric=False, dynamic=True)

    def offer(self, capabilities: Capabilities, problems: Mapping[FloatType, str | None]) -> Offer:
        """Return one form per size of weights, for targets that compute such activations in integers."""
        per_token = capabilities.activations.dynamic == "token"
        why = None
        if capabilities.activations.dynamic is None:
            why = f"{capabilities.name} computes dynamically quantized activations in float"
        elif per_token and self.reduce_range is True:
            why = f"without 8-bit units {capabilities.name} quantizes no activations per token"
        forms = [Form(precision="int8 dynamic", why_not=why)]
        if "token" in capabilities.weights.int4:
            # BERT-base against the static model of NNCF in OpenVINO, AVX512-VNNI: in OpenVINO 0.91 × its time at 1 × 16 and
            # 1.12 at 1 × 64, in ONNX Runtime 1.5 and 2.2 (2026-11-24).
            forms.append(
                Form(
                    precision="int4 dynamic",
                    options={"bits": 4},
                    saves=("time", "size", "memory") if per_token else ("size", "memory"),
                    why_not=why if per_token else None,
                )
            )
        groups = Axis(
            # BERT-base at 1 × 64, AVX512-VNNI: 29.0 ms in groups of 32, 24.0 of 128, 23.2 of 768 (2026-11-24).
            key="quantize.dynamic.group",
            values=(32,),
            names=("groups of 32",),
            changes=("numbers",),
            invalidates="quantize",
            prior=0.6,
        )
        axes = (groups,) if per_token else ()
        return self.offer_of_linears(*forms, axes=axes, smoothed=not per_token)
