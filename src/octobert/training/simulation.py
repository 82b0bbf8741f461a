"""A transformers model with the quantization of a plan: fake quantization at the sites of the plan, in training and after.

No class of the model is replaced. While the model runs with eager attention, a torch function mode sees every operator. It
recognizes linear layers, norms and embeddings by the identity of their weights, and the products of attention by the softmax
between them. This works for every family: MPNet and DeBERTa do not use the attention interface of transformers, and residual
adds have no interface at all. Sites are those of `graph.sites`. Needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from octobert.core.errors import PlanError
from octobert.core.family import EncoderFamily
from octobert.core.plan import Quantizer, QuantPlan
from octobert.core.ranges import Interval
from octobert.graph.qdq import weight_scale
from octobert.training.fake_quantization import ActivationRanges, fake_quantize_weight, weight_bound
from octobert.training.interception import ALL_VALUES, Interceptor, ModuleNames

# The outputs of these roles are read by one linear layer only, and quantized as that layer's input.
_OUTPUTS_READ = ("context.output", "activation.output")


class Simulation:
    """Fake quantization of one model by one plan, between `attach` and `detach`.

    Args:
        model: PyTorch model of transformers.
        plan: of the method static. Ranges without bounds are observed.
        family: of the model.
        learned: ranges of activations and weights are trained.
        scales: module → scale of its weight, where it does not follow the weight; see `weight_scales`.
        keep: percentage of a batch's values inside an observed range.
        rate: update rate of the moving averages of observed ranges, from 0 to 1.

    Attributes:
        quantizing: values are fake-quantized.
        observing: in training mode, ranges follow the values of each batch.
        visited: indices of the ranges whose values were computed.
        indices: (role of a site, name of its module in the graph) → index of its range.

    Raises:
        PlanError: the plan does not fit the model, or quantizes dynamically.
    """

    # The name of the ranges in the model.
    ATTRIBUTE = "octobert"

    def __init__(
        self,
        model: Any,
        plan: QuantPlan,
        family: EncoderFamily,
        *,
        learned: bool = False,
        scales: Mapping[str, np.ndarray] | None = None,
        keep: float = ALL_VALUES,
        rate: float = 0.01,
    ) -> None:
        self.model, self.quantizing, self.observing = model, True, False
        self.keep, self._rate = keep, rate
        self.visited: set[int] = set()
        self.names = ModuleNames(model, plan, family)
        # Module → quantizer of its weight; index of a range → values that have it.
        self.indices: dict[tuple[str, str], int] = {}
        self._weights: dict[str, Quantizer] = {}
        self._values: dict[int, list[str]] = {}
        self.ranges = ActivationRanges(self._read(plan), learned=learned)
        self._bounds = self._weight_bounds(scales or {}, learned=learned)
        self._handles: list[Any] = []
        self._interceptor: Interceptor | None = Interceptor(self)

    def __getstate__(self) -> dict[str, Any]:
        """The state without what belongs to this model's tensors: a copy's parameters are others, and it starts anew."""
        return {**vars(self), "_interceptor": None}

    def _read(self, plan: QuantPlan) -> list[Quantizer]:
        """Read the sites of the plan; the quantizer of each range."""
        quantizers: dict[Any, tuple[int, Quantizer]] = {}
        for site, quantizer in plan.quantized:
            if quantizer.dynamic:
                raise PlanError(
                    "quantization-aware training needs fixed ranges",
                    where=site.node,
                    got="a dynamic activation",
                    fix="use the method static",
                )
            if site.is_weight and not quantizer.symmetric:
                raise PlanError(
                    "quantization-aware training rounds weights symmetrically",
                    where=site.node,
                    got=f"a {quantizer.dtype} weight with a zero point of its own",
                    fix="make the plan with weights_symmetric: true",
                )
            if site.is_weight:
                self._weights[site.value.removesuffix(".weight")] = quantizer
                continue
            key = (quantizer.shared or site.value, quantizer.dtype, quantizer.symmetric)
            index, _ = quantizers.setdefault(key, (len(quantizers), quantizer))
            role, place = site.role, site.module
            if role in _OUTPUTS_READ:
                role, place = "linear.input", self.names.reader[place]
            elif role == "head.input":
                role = "linear.input"
            elif role.startswith("residual."):
                place = self.names.branch[place]
            self.indices[role, place] = index
            self._values.setdefault(index, []).append(site.value)
        return [quantizer for _, quantizer in quantizers.values()]

    def attach(self) -> Simulation:
        """Start: from now on the model's forward is simulated, and its state contains the ranges."""
        self.model.set_attn_implementation("eager")
        device = next(self.model.parameters()).device
        self.model.add_module(
            self.ATTRIBUTE,
            torch.nn.ModuleDict({"ranges": self.ranges, "bounds": self._bounds}).to(device),
        )
        self._handles = [
            self.model.register_forward_pre_hook(self._start, with_kwargs=True),
            self.model.register_forward_hook(self._end, always_call=True),
        ]
        return self

    def detach(self) -> None:
        """Stop: the model is a float model again, with its current weights."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if hasattr(self.model, self.ATTRIBUTE):
            delattr(self.model, self.ATTRIBUTE)

    def intervals(self) -> dict[str, Interval]:
        """Return the current range of every value.

        Raises:
            PlanError: a range has seen no data, or the model runs without computing a value of the plan.
        """
        missed = sorted(set(self._values) - self.visited) if self.visited else []
        if missed:
            # A newer version of transformers may write a product or a sum in a form that is not recognized.
            raise PlanError(
                "the model does not compute a value that the plan quantizes",
                where=self._values[missed[0]][0],
                got=f"{len(missed)} of {len(self._values)} ranges without a value",
                fix="report the versions of torch and transformers; until then, disable these modules",
            )
        low, high = (bounds.detach().cpu().tolist() for bounds in self.ranges.bounds())
        intervals: dict[str, Interval] = {}
        for index, values in self._values.items():
            if np.isnan(low[index]):
                raise PlanError(
                    "a range has seen no data",
                    where=values[0],
                    fix="train on more rows, or calibrate before training",
                )
            symmetric = self.ranges.quantizers[index].symmetric
            for value in values:
                interval = Interval(
                    low=low[index], high=high[index], bound=max(-low[index], high[index])
                )
                other = intervals.get(value)
                # A value can have a symmetric and an asymmetric range: the one knows the bound, the other low and high.
                if other is not None:
                    ends, bound = (other, interval) if symmetric else (interval, other)
                    interval = Interval(low=ends.low, high=ends.high, bound=bound.bound)
                intervals[value] = interval
        return intervals

    def weight_scales(self) -> dict[str, np.ndarray]:
        """Return module → scale of its weight, [] or [out], for weights whose range is not the range of their values."""
        scales = {}
        for path in self._bound_names:
            bound = self._bound(path, None).detach().cpu().numpy()
            scales[path] = (
                np.maximum(bound.reshape(bound.size if bound.ndim else ()), 0)
                / self._weights[path].weight_limits[1]
            )
        return scales

    def _weight_bounds(self, scales: Mapping[str, np.ndarray], *, learned: bool) -> Any:
        """Bounds of weights that do not follow the weights: given, learned, or chosen by the least squared error."""
        weights = {path: p for path, p in self._matrices().items() if path in self._weights}
        missing = sorted(set(self._weights) - set(weights) - set(self.names.tables.values()))
        if missing:
            raise PlanError(
                "the plan does not fit the model",
                where=missing[0],
                got="no such weight in the model",
                fix=f'disable it: quantize: {{static: {{disable: ["{missing[0]}"]}}}}',
            )
        self._bound_names: dict[str, str] = {}
        bounds = torch.nn.Module()
        for number, (path, weight) in enumerate(weights.items()):
            quantizer = self._weights[path]
            scale = scales.get(path)
            if scale is None and quantizer.weight_ranges == "mse":
                scale = weight_scale(weight.detach().cpu().numpy().T, quantizer)
            if scale is None and not learned:
                continue
            name = self._bound_names[path] = f"w{number}"
            start = weight_bound(weight, quantizer)
            if scale is not None:
                start = (
                    torch.from_numpy(np.asarray(scale * quantizer.weight_limits[1]))
                    .to(start)
                    .reshape(start.shape)
                )
            bounds.register_buffer(name, start)
            if learned:
                bounds.register_parameter(
                    f"log_{name}", torch.nn.Parameter(torch.zeros_like(start))
                )
        return bounds

    def _matrices(self) -> dict[str, Any]:
        parameters = {id(p): p for p in self.model.parameters()}
        return {path: parameters[key] for key, path in self.names.linears.items()}

    def _bound(self, path: str, weight: Any) -> Any:
        """The current bound of a weight's range."""
        quantizer = self._weights[path]
        if path in self._bound_names:
            name = self._bound_names[path]
            bound = getattr(self._bounds, name)
            log = getattr(self._bounds, f"log_{name}", None)
            return bound if log is None else bound * log.exp()
        if quantizer.shared is None:
            return weight_bound(weight, quantizer)
        group = [p for p, q in self._weights.items() if q.shared == quantizer.shared]
        matrices = self._matrices()
        return torch.stack([weight_bound(matrices[p], quantizer) for p in group]).amax(dim=0)

    def _start(self, _: Any, args: Any, kwargs: Any) -> None:
        if self._interceptor is None:
            self.names.identify(self.model)
            self._interceptor = Interceptor(self)
        mask = kwargs.get("attention_mask")
        self._interceptor.start(None if mask is None or bool(mask.all()) else mask.bool())
        self._interceptor.__enter__()  # type: ignore[no-untyped-call]

    def _end(self, *_: Any) -> None:
        assert self._interceptor is not None
        self._interceptor.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if self.observing and self.model.training:
            self.ranges.update(*self._interceptor.observations, self._rate)

    def quantized_weight(self, path: str, weight: Any) -> tuple[Any, Any]:
        """Return the fake-quantized weight of a linear layer and its scale, [] or [out, 1]; None for a float weight.

        Args:
            path: of the module.
            weight: [out, in].
        """
        quantizer = self._weights.get(path)
        if quantizer is None or not self.quantizing:
            return weight, None
        return fake_quantize_weight(
            weight, quantizer, self._bound(path, weight), clips=path in self._bound_names
        )

    def quantized_rows(self, path: str, rows: Any) -> Any:
        """Return fake-quantized rows of an embedding.

        Args:
            path: of the module.
            rows: [..., D], each row with a range of its own.
        """
        quantizer = self._weights.get(path)
        if quantizer is None or not self.quantizing:
            return rows
        bound = rows.detach().abs().amax(dim=-1, keepdim=True)
        return fake_quantize_weight(rows, quantizer, bound, clips=False)[0]
