"""What sees the operators of a simulated model while it runs, and which part of the graph each of them is. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from octobert.core.family import NORM_PARTS, EncoderFamily, part_of
from octobert.core.plan import QuantPlan
from octobert.training.fake_quantization import Rounded, RoundedLearned

if TYPE_CHECKING:
    from octobert.training.simulation import Simulation

# What of a batch an observer takes as its range: everything.
WHOLE = 100.0
# What one linear layer alone reads is rounded where that layer reads it.
_READ_BY = {"attention": "attention_output", "activation": "ffn_down"}
# The layers whose outputs the next product of attention is made of.
_PROJECTIONS = ("query", "key", "value", "qkv")


class Names:
    """What the parts of a model are called in the graph.

    Attributes:
        linears, norms, tables: id of a weight → path of its module, without the base model's prefix.
        calls: path of a module → its names in the graph, one for each time that a forward pass uses it.
        reader: name of what makes a value → the one linear layer that reads it.
        branch: name of a residual add → the linear layer that is one of its summands.
        attention: linear layer that makes Q, K or V → its attention.
    """

    def __init__(self, model: Any, plan: QuantPlan, family: EncoderFamily) -> None:
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


class Interceptor(TorchFunctionMode):
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
        simulation.visited.add(slot)
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
