"""A stock transformers model that computes as its plan says: fake quantization at the plan's sites, in training and after.

No class is replaced. While the model runs with eager attention, a torch function mode sees every operator: it knows linear
layers, norms and embeddings by the identity of their weights, and the products of attention by the softmax between them. So it
is the same for every family, whether or not its code asks transformers' attention interface, which MPNet and DeBERTa do not,
and for residual adds, which no interface has. Sites are those of `graph.sites`. Needs torch.
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
from octobert.training.fake_quantization import Ranges, rounded_weight, weight_bound
from octobert.training.interception import WHOLE, Interceptor, Names

_ATTRIBUTE = "octobert"
# What one linear layer alone reads is rounded where that layer reads it.
_OUTPUTS_READ = ("context.output", "activation.output")


class Simulation:
    """Fake quantization of one model by one plan, from `attach` to `detach`.

    Args:
        model: of transformers, with the weights that the plan was made for or any others.
        plan: static; ranges that it lacks are observed.
        family: of the model.
        learned: ranges of activations and weights are parameters.
        scales: of weights, by module, where they are not to be read off the weights (see `weight_scales`).
        keep: percentage of a batch's values that its range holds, for observers.
        share: of the way to a batch's range that observers go.

    Attributes:
        quantizing: values are rounded.
        observing: ranges follow what training batches have in them.
        visited: ranges whose values came by.

    Raises:
        PlanError: the plan does not fit the model, or quantizes dynamically.
    """

    def __init__(
        self,
        model: Any,
        plan: QuantPlan,
        family: EncoderFamily,
        *,
        learned: bool = False,
        scales: Mapping[str, np.ndarray] | None = None,
        keep: float = WHOLE,
        share: float = 0.01,
    ) -> None:
        self.model, self.quantizing, self.observing = model, True, False
        self.keep, self._share = keep, share
        self.visited: set[int] = set()
        names = Names(model, plan, family)
        self.names = names
        quantizers: dict[Any, tuple[int, Quantizer]] = {}
        # (role, module) or (role, branch) → range; weight's module → its quantizer.
        self._slots: dict[tuple[str, str], int] = {}
        self._weights: dict[str, Quantizer] = {}
        self._values: dict[int, list[str]] = {}
        for site, quantizer in plan.quantized:
            if quantizer.dynamic:
                what = "quantization-aware training needs fixed ranges"
                raise PlanError(what, where=site.node, got="a dynamic activation", fix="use the method static")
            if site.is_weight:
                self._weights[site.value.removesuffix(".weight")] = quantizer
                continue
            key = (quantizer.shared or site.value, quantizer.dtype, quantizer.symmetric)
            slot, _ = quantizers.setdefault(key, (len(quantizers), quantizer))
            role, place = site.role, site.module
            if role in _OUTPUTS_READ:
                role, place = "linear.input", names.reader[place]
            elif role == "head.input":
                role = "linear.input"
            elif role.startswith("residual."):
                place = names.branch[place]
            self._slots[role, place] = slot
            self._values.setdefault(slot, []).append(site.value)
        self.ranges = Ranges([q for _, q in quantizers.values()], learned=learned)
        self._bounds = self._weight_bounds(scales or {}, learned=learned)
        self._handles: list[Any] = []
        self._interceptor = Interceptor(self)

    def attach(self) -> Simulation:
        """Begin: the model's own calls are simulated from here on, and its state has the ranges in it."""
        self.model.set_attn_implementation("eager")
        device = next(self.model.parameters()).device
        self.model.add_module(_ATTRIBUTE, torch.nn.ModuleDict({"ranges": self.ranges, "bounds": self._bounds}).to(device))
        self._handles = [
            self.model.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.model.register_forward_hook(self._end, always_call=True),
        ]
        return self

    def detach(self) -> None:
        """End: the model is what it was, with the weights it has now."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if hasattr(self.model, _ATTRIBUTE):
            delattr(self.model, _ATTRIBUTE)

    def intervals(self) -> dict[str, Interval]:
        """Value → its range as it is now.

        Raises:
            PlanError: a range was never known, because no value came by; or the model does not compute what the plan rounds.
        """
        passed = sorted(set(self._values) - self.visited) if self.visited else []
        if passed:
            # A newer transformers may write a product or a sum in a way that is not recognised.
            raise PlanError(
                "the model ran without computing what the plan rounds",
                where=self._values[passed[0]][0],
                got=f"{len(passed)} of {len(self._values)} ranges were never met",
                fix="report the versions of torch and transformers; until then, disable these modules",
            )
        low, high = (ends.detach().cpu().tolist() for ends in self.ranges.ends())
        found: dict[str, Interval] = {}
        for slot, values in self._values.items():
            if np.isnan(low[slot]):
                raise PlanError(
                    "no data was seen for a range", where=values[0], fix="train on more rows, or calibrate before training"
                )
            symmetric = self.ranges.quantizers[slot].symmetric
            for value in values:
                own = Interval(low=low[slot], high=high[slot], bound=max(-low[slot], high[slot]))
                known = found.get(value)
                # One value may have a symmetric and an asymmetric range; each gives what the other does not say.
                if known is not None:
                    ends, bound = (known, own) if symmetric else (own, known)
                    own = Interval(low=ends.low, high=ends.high, bound=bound.bound)
                found[value] = own
        return found

    def weight_scales(self) -> dict[str, np.ndarray]:
        """Module → the scale of its weight, () or [out], where training has chosen it."""
        scales = {}
        for path in self._bound_names:
            bound = self._bound(path, None).detach().cpu().numpy()
            scales[path] = np.maximum(bound.reshape(bound.size if bound.ndim else ()), 0) / self._weights[path].weight_limits[1]
        return scales

    def _weight_bounds(self, scales: Mapping[str, np.ndarray], *, learned: bool) -> Any:
        """Bounds of weights that do not follow the weights themselves: learned ones, and those chosen by the least error."""
        weights = {path: p for path, p in self._matrices().items() if path in self._weights}
        missing = sorted(set(self._weights) - set(weights) - set(self.names.tables.values()))
        if missing:
            raise PlanError("the plan does not fit the model", where=missing[0], got="no such weight in the model")
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
            start = weight_bound(weight, quantizer.axis)
            if scale is not None:
                start = torch.from_numpy(np.asarray(scale * quantizer.weight_limits[1])).to(start).reshape(start.shape)
            bounds.register_buffer(name, start)
            if learned:
                bounds.register_parameter(f"log_{name}", torch.nn.Parameter(torch.zeros_like(start)))
        return bounds

    def _matrices(self) -> dict[str, Any]:
        named = {id(p): p for p in self.model.parameters()}
        return {path: named[key] for key, path in self.names.linears.items()}

    def _bound(self, path: str, weight: Any) -> Any:
        """The bound of a weight's range as it is now."""
        quantizer = self._weights[path]
        if path in self._bound_names:
            name = self._bound_names[path]
            bound = getattr(self._bounds, name)
            log = getattr(self._bounds, f"log_{name}", None)
            return bound if log is None else bound * log.exp()
        if quantizer.shared is None:
            return weight_bound(weight, quantizer.axis)
        group = [p for p, q in self._weights.items() if q.shared == quantizer.shared]
        matrices = self._matrices()
        return torch.stack([weight_bound(matrices[p], quantizer.axis) for p in group]).amax(dim=0)

    def _begin(self, _: Any, args: Any, kwargs: Any) -> None:
        mask = kwargs.get("attention_mask")
        self._interceptor.begin(None if mask is None or bool(mask.all()) else mask.bool())
        self._interceptor.__enter__()

    def _end(self, *_: Any) -> None:
        self._interceptor.__exit__(None, None, None)
        if self.observing and self.model.training:
            self.ranges.follow(*self._interceptor.seen(), self._share)

    def weight_of(self, path: str, weight: Any) -> Any:
        """A weight as the plan has it."""
        quantizer = self._weights.get(path)
        if quantizer is None or not self.quantizing:
            return weight
        clips = path in self._bound_names
        return rounded_weight(weight, quantizer, self._bound(path, weight), clips=clips)

    def rows_of(self, path: str, rows: Any) -> Any:
        """Rows of an embedding table as the plan has them."""
        quantizer = self._weights.get(path)
        if quantizer is None or not self.quantizing:
            return rows
        return rounded_weight(rows, quantizer, rows.detach().abs().amax(dim=-1, keepdim=True), clips=False)

    def slot(self, role: str, module: str) -> int | None:
        """The range of a site, if the plan quantizes it."""
        return self._slots.get((role, module))
