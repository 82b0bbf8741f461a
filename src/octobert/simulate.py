"""A stock transformers model that computes as its plan says: fake quantization at the plan's sites, in training and after.

No class is replaced. While the model runs with eager attention, a torch function mode sees every operator: it knows linear
layers, norms and embeddings by the identity of their weights, and the products of attention by the softmax between them. So it
is the same for every family, whether or not its code asks transformers' attention interface, which MPNet and DeBERTa do not,
and for residual adds, which no interface has. Sites are those of `graph.sites`. Needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from octobert.encoder import NORM_PARTS, Encoder, part_of
from octobert.errors import PlanError
from octobert.fakequant import Ranges, Rounded, RoundedLearned, rounded_weight, weight_bound
from octobert.graph.qdq import weight_scale
from octobert.plan import Quantizer, QuantPlan
from octobert.ranges import Interval

# What of a batch an observer takes as its range: everything.
WHOLE = 100.0
_ATTRIBUTE = "octobert"
# What one linear layer alone reads is rounded where that layer reads it.
_READ_BY = {"attention": "attention_output", "activation": "ffn_down"}
_OUTPUTS_READ = ("context.output", "activation.output")
# The layers whose outputs the next product of attention is made of.
_PROJECTIONS = ("query", "key", "value", "qkv")


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

    Raises:
        PlanError: the plan does not fit the model, or quantizes dynamically.
    """

    def __init__(
        self,
        model: Any,
        plan: QuantPlan,
        family: Encoder,
        *,
        learned: bool = False,
        scales: Mapping[str, np.ndarray] | None = None,
        keep: float = WHOLE,
        share: float = 0.01,
    ) -> None:
        self.model, self.quantizing, self.observing = model, True, False
        self.keep, self._share = keep, share
        names = _Names(model, plan, family)
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
        self._mode = _Mode(self)

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
            PlanError: a range was never known, because no value came by.
        """
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
            scales[path] = np.maximum(bound.reshape(bound.size if bound.ndim else ()), 0) / self._weights[path].limits[1]
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
            if scale is None and quantizer.least == "mse":
                scale = weight_scale(weight.detach().cpu().numpy().T, quantizer)
            if scale is None and not learned:
                continue
            name = self._bound_names[path] = f"w{number}"
            start = weight_bound(weight, quantizer.axis)
            if scale is not None:
                start = torch.from_numpy(np.asarray(scale * quantizer.limits[1])).to(start).reshape(start.shape)
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
        self._mode.begin(None if mask is None or bool(mask.all()) else mask.bool())
        self._mode.__enter__()

    def _end(self, *_: Any) -> None:
        self._mode.__exit__(None, None, None)
        if self.observing and self.model.training:
            self.ranges.follow(*self._mode.seen(), self._share)

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


class _Names:
    """What the parts of a model are called in the graph.

    Attributes:
        linears, norms, tables: id of a weight → path of its module, without the base model's prefix.
        calls: path of a module → its names in the graph, one for each time that a forward pass uses it.
        reader: name of what makes a value → the one linear layer that reads it.
        branch: name of a residual add → the linear layer that is one of its summands.
        attention: linear layer that makes Q, K or V → its attention.
    """

    def __init__(self, model: Any, plan: QuantPlan, family: Encoder) -> None:
        sites = [decision.site for decision in plan.decisions]
        layers = 1 + max((site.layer for site in sites if site.layer is not None), default=-1)
        self.calls: dict[str, list[str]] = {}
        self.reader: dict[str, str] = {}
        self.attention: dict[str, str] = {}
        norms = {family.embeddings_norm, family.final_norm}
        for layer in range(layers):
            for role in family.parts:
                name, part = family.part(layer, role), part_of(role)
                self.calls.setdefault(family.module(layer, role), []).append(name)
                if part in _READ_BY:
                    self.reader[name] = family.part(layer, role.replace(part, _READ_BY[part]))
                if part in _PROJECTIONS:
                    self.attention[name] = family.part(layer, "attention")
                if part in NORM_PARTS:
                    norms.add(family.module(layer, role))
        self.branch = {site.module: site.value for site in sites if site.role == "residual.branch"}
        self.branches = set(self.branch.values())
        self.linears: dict[int, str] = {}
        self.norms: dict[int, str] = {}
        self.tables: dict[int, str] = {}
        modules = dict(model.named_modules())
        for name, parameter in model.named_parameters():
            module, _, kind = name.rpartition(".")
            path = family.strip_prefix(module)
            if kind != "weight":
                continue
            if isinstance(modules[module], torch.nn.Linear):
                self.linears[id(parameter)] = path
            elif isinstance(modules[module], torch.nn.Embedding):
                self.tables[id(parameter)] = path
            elif path in norms:
                self.norms[id(parameter)] = path

    def at_call(self, path: str | None, call: int) -> str | None:
        """The graph's name of a module at its n-th use in a forward pass; None where the graph has no such part."""
        if path is None:
            return None
        names = self.calls.get(path, (path,))
        return names[call] if call < len(names) else None


class _Mode(TorchFunctionMode):
    """Sees the operators of one forward pass."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation, self._names = simulation, simulation.names
        self._handlers: dict[Any, Callable[..., Any]] = {
            F.linear: self._linear,
            F.layer_norm: self._norm,
            F.embedding: self._embedding,
            F.softmax: self._softmax,
            F.dropout: self._same,
            torch.Tensor.to: self._same,
            torch.Tensor.mul: self._scale,
            torch.Tensor.div: self._divide,
        }
        self._handlers |= dict.fromkeys((torch.Tensor.add, torch.add), self._add)
        self._handlers |= dict.fromkeys((torch.matmul, torch.bmm, torch.Tensor.matmul), self._product)
        self._handlers |= dict.fromkeys((torch.Tensor.view, torch.Tensor.reshape, torch.Tensor.contiguous), self._same)
        self._handlers |= dict.fromkeys((torch.Tensor.transpose, torch.Tensor.permute), self._same)

    def begin(self, mask: Any) -> None:
        """A new forward pass.

        Args:
            mask: [B, S] true at real tokens; None if all are.
        """
        simulation = self._simulation
        self._mask = mask
        self._calls: dict[Any, int] = {}
        self._weights: dict[str, Any] = {}
        self._attention: str | None = None
        self._scored = False
        self._seen: list[tuple[int, Any, Any]] = []
        self._rounding = simulation.ranges.parameters_now()
        self._ends = [ends.unbind() for ends in simulation.ranges.ends()] if simulation.ranges.learned else None

    def seen(self) -> tuple[list[int], list[Any], list[Any]]:
        """(ranges, lows, highs) of what came by."""
        return [s[0] for s in self._seen], [s[1] for s in self._seen], [s[2] for s in self._seen]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = self._handlers.get(func)
        return func(*args, **(kwargs or {})) if handler is None else handler(func, args, kwargs or {})

    def _count(self, key: Any) -> int:
        self._calls[key] = self._calls.get(key, -1) + 1
        return self._calls[key]

    def _linear(self, func: Any, args: Any, kwargs: Any) -> Any:
        x, weight, *rest = args
        own = self._names.linears.get(id(weight))
        path = self._names.at_call(own, self._count(id(weight)))
        if own is None or path is None:
            # Not a layer of the graph, or one over something else, such as DeBERTa's table of positions.
            return func(*args, **kwargs)
        if own not in self._weights:
            self._weights[own] = self._simulation.weight_of(own, weight)
        found = func(self._rounded("linear.input", path, x), self._weights[own], *rest, **kwargs)
        found = self._rounded("linear.output", path, found)
        if path in self._names.attention:
            self._attention, self._scored = self._names.attention[path], False
        found.octobert_path = path
        return found

    def _norm(self, func: Any, args: Any, kwargs: Any) -> Any:
        weight = args[2] if len(args) > 2 else kwargs.get("weight")
        found = func(*args, **kwargs)
        return self._normed(weight, found)

    def _normed(self, weight: Any, found: Any) -> Any:
        path = self._names.at_call(self._names.norms.get(id(weight)), self._count(id(weight)))
        return found if path is None else self._rounded("norm.output", path, found)

    def _scale(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The first half of a norm that only scales and shifts."""
        found = func(*args, **kwargs)
        if id(args[1]) in self._names.norms:
            found.octobert_scaled = args[1]
        return found

    def _embedding(self, func: Any, args: Any, kwargs: Any) -> Any:
        found = func(*args, **kwargs)
        path = self._names.tables.get(id(args[1]))
        return found if path is None else self._simulation.rows_of(path, found)

    def _softmax(self, func: Any, args: Any, kwargs: Any) -> Any:
        found = func(*args, **kwargs)
        if self._attention is None or not self._scored:
            return found
        found = self._rounded("probs.output", self._attention, found)
        found.octobert_probs = True
        return found

    def _same(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Operators behind which a value is still what it was."""
        found = func(*args, **kwargs)
        if isinstance(found, torch.Tensor):
            for name in ("octobert_path", "octobert_probs"):
                if hasattr(args[0], name):
                    setattr(found, name, getattr(args[0], name))
        return found

    def _divide(self, func: Any, args: Any, kwargs: Any) -> Any:
        """K divided before the product with Q, as DeBERTa has it: the graph divides after it."""
        found = func(*args, **kwargs)
        if self._attention is not None and not self._scored and args[0].dim() >= 3:
            found.octobert_divided = (args[0], args[1])
        return found

    def _product(self, func: Any, args: Any, kwargs: Any) -> Any:
        left, right, *rest = args
        if self._attention is None or left.dim() < 3:
            return func(*args, **kwargs)
        if getattr(left, "octobert_probs", False):
            module, self._attention = self._attention, None
            value = self._rounded("context.value", module, right)
            return func(self._rounded("context.probs", module, left), value, *rest, **kwargs)
        if self._scored:
            return func(*args, **kwargs)
        self._scored = True
        right, divisor = getattr(right, "octobert_divided", (right, None))
        key = self._rounded("scores.key", self._attention, right, turned=True)
        found = func(self._rounded("scores.query", self._attention, left), key, *rest, **kwargs)
        found = self._rounded("scores.output", self._attention, found, columns=True)
        return found if divisor is None else found / divisor

    def _add(self, func: Any, args: Any, kwargs: Any) -> Any:
        left, right, *rest = args
        scaled = getattr(left, "octobert_scaled", None)
        if scaled is not None:
            return self._normed(scaled, func(*args, **kwargs))
        for branch in (left, right):
            path = getattr(branch, "octobert_path", None)
            if path not in self._names.branches:
                continue
            roles = ("residual.branch", "residual.skip")
            first, second = roles if branch is left else reversed(roles)
            found = func(self._rounded(first, path, left), self._rounded(second, path, right), *rest, **kwargs)
            return self._rounded("residual.output", path, found)
        return func(*args, **kwargs)

    def _rounded(self, role: str, module: str, x: Any, *, turned: bool = False, columns: bool = False) -> Any:
        """A value at a site as the plan has it, and seen by its observer.

        Args:
            turned: [..., K, S]: tokens are columns.
            columns: columns are tokens as well.
        """
        slot, simulation = self._simulation.slot(role, module), self._simulation
        if slot is None:
            return x
        known = x.__dict__.setdefault("octobert_rounded", {}) if hasattr(x, "__dict__") else {}
        if slot in known:
            return known[slot]
        if simulation.observing and simulation.model.training:
            self._observe(slot, x.detach(), turned=turned, columns=columns)
        found = self._round(slot, x) if simulation.quantizing else x
        if found is not x:
            known[slot] = found
        return found

    def _round(self, slot: int, x: Any) -> Any:
        scale, lowest, highest = self._rounding[slot]
        if np.isnan(scale):
            return x
        if self._ends is None:
            return Rounded.apply(x, scale, lowest, highest)
        symmetric = self._simulation.ranges.quantizers[slot].symmetric
        return RoundedLearned.apply(x, self._ends[0][slot], self._ends[1][slot], scale, lowest, highest, symmetric)

    def _observe(self, slot: int, x: Any, *, turned: bool, columns: bool) -> None:
        """Take the range of the real tokens of a batch."""
        if self._mask is not None and x.dim() > 2:
            x = _real(x.transpose(-1, -2) if turned else x, self._mask, columns=columns)
        if x.numel() == 0:
            return
        keep = self._simulation.keep
        if keep >= WHOLE:
            low, high = x.aminmax()
        else:
            flat = x.reshape(-1)
            # The share of values outside is split between both ends.
            outside = max(1, round(flat.numel() * (1 - keep / 100) / 2))
            high, low = flat.topk(outside).values[-1], flat.topk(outside, largest=False).values[-1]
        self._seen.append((slot, low, high))


def _real(x: Any, mask: Any, *, columns: bool) -> Any:
    """The rows of real tokens of [B, S, ...], [B, H, S, ...] or [B * H, S, ...]."""
    batch = mask.shape[0]
    if x.dim() == 3 and x.shape[0] != batch:
        x = x.view(batch, -1, *x.shape[1:])
    if columns:
        x = x.masked_fill(~mask[:, None, None, :], 0.0)
    return (x.transpose(1, 2) if x.dim() == 4 else x)[mask]
