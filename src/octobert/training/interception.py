"""Intercepts the operators of a running PyTorch model, and finds the part of the graph that each belongs to. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from octobert.core.family import NORM_PARTS, EncoderFamily, part_of
from octobert.core.plan import QuantPlan
from octobert.training.fake_quantization import (
    ActivationRanges,
    FakeQuantize,
    FakeQuantizeLearned,
    product_of_codes,
)

# Percentage of a batch's values inside an observed range: all of them.
ALL_VALUES = 100.0
# The output of these parts is read by one linear layer only, and quantized as that layer's input.
_READ_BY = {"attention": "attention_output", "activation": "ffn_down"}
# The linear layers whose outputs enter the first product of attention.
_PROJECTIONS = ("query", "key", "value", "qkv")


class ModuleNames:
    """The names that the parts of a PyTorch model have in the graph.

    Args:
        model: PyTorch model of transformers.
        plan: names the sites.
        family: of the model.

    Attributes:
        linears: id of a weight → path of its linear layer, without the prefix of the base model.
        norms: id of a weight → path of its norm.
        unshifted: ids of the weights of norms without a bias.
        tables: id of a weight → path of its embedding.
        calls: path of a module → its names in the graph, one for each use in a forward pass.
        reader: part whose output one linear layer reads → that linear layer.
        branch: residual add → the linear layer, or the norm behind it, that is one of its summands.
        branches: all of these.
        attention: linear layer of Q, K or V → its attention.
    """

    def __init__(self, model: Any, plan: QuantPlan, family: EncoderFamily) -> None:
        sites = [decision.site for decision in plan.decisions]
        self.calls: dict[str, list[str]] = {}
        self.reader: dict[str, str] = {}
        self.attention: dict[str, str] = {}
        norms = {family.embeddings_norm, family.final_norm}
        for layer in range(
            1 + max((site.layer for site in sites if site.layer is not None), default=-1)
        ):
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
        self._family, self._norm_paths = family, norms
        self.identify(model)

    def identify(self, model: Any) -> None:
        """Take down which parameter is the weight of which module. A copy of a model has other parameters."""
        self.linears: dict[int, str] = {}
        self.norms: dict[int, str] = {}
        self.unshifted: set[int] = set()
        self.tables: dict[int, str] = {}
        modules = dict(model.named_modules())
        # A decoder over the vocabulary and the word embeddings are two modules with one parameter.
        for name, parameter in model.named_parameters(remove_duplicate=False):
            module, _, kind = name.rpartition(".")
            path = self._family.strip_prefix(module)
            if kind != "weight":
                continue
            if isinstance(modules[module], torch.nn.Linear):
                self.linears[id(parameter)] = path
            elif isinstance(modules[module], torch.nn.Embedding):
                self.tables[id(parameter)] = path
            elif path in self._norm_paths:
                self.norms[id(parameter)] = path
                if getattr(modules[module], "bias", None) is None:
                    self.unshifted.add(id(parameter))

    def at_call(self, path: str | None, call: int) -> str | None:
        """Return the name in the graph of a module at its n-th use in a forward pass; None without such a part."""
        if path is None:
            return None
        names = self.calls.get(path, (path,))
        return names[call] if call < len(names) else None


class SimulatedModel(Protocol):
    """The quantization of a model: a `simulation.Simulation`, which describes the attributes."""

    model: Any
    quantizing: bool
    observing: bool
    keep: float
    names: ModuleNames
    ranges: ActivationRanges
    indices: dict[tuple[str, str], int]
    visited: set[int]

    def quantized_weight(self, path: str, weight: Any) -> tuple[Any, Any]: ...
    def quantized_rows(self, path: str, rows: Any) -> Any: ...


class Interceptor(TorchFunctionMode):
    """A torch function mode that quantizes and observes the operators of one forward pass.

    Args:
        simulation: says what is quantized, and how.
    """

    def __init__(self, simulation: SimulatedModel) -> None:
        super().__init__()
        self._simulation, self._names = simulation, simulation.names
        # Operators whose inputs are quantized.
        self._around: dict[Any, Callable[..., Any]] = {
            F.linear: self._linear,
            **dict.fromkeys((torch.Tensor.add, torch.Tensor.__radd__, torch.add), self._add),
            **dict.fromkeys((torch.matmul, torch.bmm, torch.Tensor.matmul), self._product),
        }
        # Operators whose outputs are quantized, or marked for the operators that read them.
        moves = (
            torch.Tensor.view,
            torch.Tensor.reshape,
            torch.Tensor.contiguous,
            torch.Tensor.transpose,
            torch.Tensor.permute,
        )
        self._after: dict[Any, Callable[..., Any]] = {
            F.layer_norm: self._norm,
            F.embedding: self._embedding,
            F.softmax: self._softmax,
            torch.Tensor.mul: self._scale,
            torch.Tensor.div: self._divide,
            **dict.fromkeys((F.dropout, torch.Tensor.to, torch.Tensor.type_as, *moves), self._same),
        }

    def start(self, mask: Any) -> None:
        """Reset the state for a new forward pass.

        Args:
            mask: [B, S], true at tokens that are not padding; None without padding.
        """
        ranges = self._simulation.ranges
        self._mask = mask
        self._calls: dict[Any, int] = {}
        self._weights: dict[str, Any] = {}
        self._attention: str | None = None
        self._scored = False
        # Indices of ranges, and the ends of what was observed of each.
        self.observations: tuple[list[int], list[Any], list[Any]] = [], [], []
        self._parameters = ranges.parameters_of_quantization()
        self._bounds = [bounds.unbind() for bounds in ranges.bounds()] if ranges.learned else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._around:
            return self._around[func](func, args, kwargs)
        output = func(*args, **kwargs)
        return self._after[func](output, args, kwargs) if func in self._after else output

    def _count(self, key: Any) -> int:
        self._calls[key] = self._calls.get(key, -1) + 1
        return self._calls[key]

    def _linear(self, func: Any, args: Any, kwargs: Any) -> Any:
        x, weight, *rest = args
        module = self._names.linears.get(id(weight))
        path = self._names.at_call(module, self._count(id(weight)))
        if module is None or path is None:
            # Not a layer of the graph, or a use that the graph lacks, such as DeBERTa's projections of positions.
            return func(*args, **kwargs)
        if module not in self._weights:
            self._weights[module] = self._simulation.quantized_weight(module, weight)
        bias = rest[0] if rest else kwargs.get("bias")
        scaled = self._scaled("linear.input", path, x)
        output = product_of_codes(func, scaled, self._weights[module], bias)
        output = self._quantized("linear.output", path, output)
        if path in self._names.attention:
            self._attention, self._scored = self._names.attention[path], False
        output.octobert_path = path
        return output

    def _norm(self, output: Any, args: Any, kwargs: Any) -> Any:
        return self._normed(args[2] if len(args) > 2 else kwargs.get("weight"), output)

    def _normed(self, weight: Any, output: Any) -> Any:
        path = self._names.at_call(self._names.norms.get(id(weight)), self._count(id(weight)))
        if path is None:
            return output
        output = self._quantized("norm.output", path, output)
        if path in self._names.branches:
            output.octobert_path = path
        return output

    def _scale(self, output: Any, args: Any, _: Any) -> Any:
        """The end of an RMS norm, or the first half of a norm that scales and shifts in operators of its own."""
        for factor in (getattr(each, "octobert_weight", each) for each in args):
            if id(factor) in self._names.unshifted:
                return self._normed(factor, output)
            if id(factor) in self._names.norms:
                output.octobert_scaled = factor
        return output

    def _embedding(self, rows: Any, args: Any, _: Any) -> Any:
        path = self._names.tables.get(id(args[1]))
        return rows if path is None else self._simulation.quantized_rows(path, rows)

    def _softmax(self, output: Any, *_: Any) -> Any:
        if self._attention is None or not self._scored:
            return output
        output = self._quantized("probs.output", self._attention, output)
        output.octobert_probs = True
        return output

    def _same(self, output: Any, args: Any, _: Any) -> Any:
        """Operators that pass a value on, so that its output is still the same part of the graph."""
        if isinstance(output, torch.Tensor):
            for name in ("octobert_path", "octobert_probs"):
                if hasattr(args[0], name):
                    setattr(output, name, getattr(args[0], name))
        return output

    def _divide(self, output: Any, args: Any, _: Any) -> Any:
        """DeBERTa divides K before the product with Q; the graph divides after it."""
        if self._attention is not None and not self._scored and args[0].dim() >= 3:
            output.octobert_divided = (args[0], args[1])
        return output

    def _product(self, func: Any, args: Any, kwargs: Any) -> Any:
        left, right = args[:2]
        if self._attention is None or left.dim() < 3:
            return func(*args, **kwargs)
        if getattr(left, "octobert_probs", False):
            module, self._attention = self._attention, None
            value = self._scaled("context.value", module, right)
            return product_of_codes(func, self._scaled("context.probs", module, left), value)
        if self._scored:
            return func(*args, **kwargs)
        self._scored = True
        right, divisor = getattr(right, "octobert_divided", (right, None))
        key = self._scaled("scores.key", self._attention, right, transposed=True)
        scores = product_of_codes(func, self._scaled("scores.query", self._attention, left), key)
        scores = self._quantized("scores.output", self._attention, scores, token_columns=True)
        return scores if divisor is None else scores / divisor

    def _add(self, func: Any, args: Any, kwargs: Any) -> Any:
        left, right, *rest = args
        weight = next((each for each in args if id(each) in self._names.unshifted), None)
        if weight is not None:
            # Gemma multiplies by one more than the weight of a norm.
            output = func(*args, **kwargs)
            output.octobert_weight = weight
            return output
        scaled = getattr(left, "octobert_scaled", None)
        if scaled is not None:
            return self._normed(scaled, func(*args, **kwargs))
        for branch in (left, right):
            path = getattr(branch, "octobert_path", None)
            if path not in self._names.branches:
                continue
            roles = ("residual.branch", "residual.skip")
            first, second = roles if branch is left else reversed(roles)
            total = func(
                self._quantized(first, path, left),
                self._quantized(second, path, right),
                *rest,
                **kwargs,
            )
            return self._quantized("residual.output", path, total)
        return func(*args, **kwargs)

    def _scaled(self, role: str, path: str, x: Any, *, transposed: bool = False) -> tuple[Any, Any]:
        """A side of a product as its site quantizes it, and its scale; None for the scale where it stays float."""
        value, scale = self._quantized(role, path, x, transposed=transposed), np.nan
        index = self._simulation.indices.get((role, path))
        if index is not None and self._simulation.quantizing:
            scale = self._parameters[index][0]
        return value, None if np.isnan(scale) else torch.tensor(scale, dtype=torch.float32)

    def _quantized(
        self,
        role: str,
        module: str,
        x: Any,
        *,
        transposed: bool = False,
        token_columns: bool = False,
    ) -> Any:
        """The value at a site: observed, and fake-quantized as the plan says.

        Args:
            role: of the site.
            module: name of the module in the graph.
            x: the float value.
            transposed: x is [..., D, S]: tokens are columns.
            token_columns: x is [..., S, S]: rows and columns are tokens.
        """
        index, simulation = self._simulation.indices.get((role, module)), self._simulation
        if index is None:
            return x
        simulation.visited.add(index)
        quantized_before = (
            x.__dict__.setdefault("octobert_quantized", {}) if hasattr(x, "__dict__") else {}
        )
        if index in quantized_before:
            return quantized_before[index]
        if simulation.observing and simulation.model.training:
            self._observe(index, x.detach(), transposed=transposed, token_columns=token_columns)
        output = self._fake_quantized(index, x) if simulation.quantizing else x
        if output is not x:
            quantized_before[index] = output
        return output

    def _fake_quantized(self, index: int, x: Any) -> Any:
        scale, lowest, highest = self._parameters[index]
        if np.isnan(scale):
            return x
        if self._bounds is None:
            return FakeQuantize.apply(x, scale, lowest, highest)  # type: ignore[no-untyped-call]
        low, high = self._bounds[0][index], self._bounds[1][index]
        symmetric = self._simulation.ranges.quantizers[index].symmetric
        return FakeQuantizeLearned.apply(x, low, high, scale, lowest, highest, symmetric)  # type: ignore[no-untyped-call]

    def _observe(self, index: int, x: Any, *, transposed: bool, token_columns: bool) -> None:
        """Record the range of a batch, without padding."""
        if self._mask is not None and x.dim() > 2:
            x = _without_padding(
                x.transpose(-1, -2) if transposed else x, self._mask, token_columns=token_columns
            )
        if x.numel() == 0:
            return
        keep = self._simulation.keep
        if keep >= ALL_VALUES:
            low, high = x.aminmax()
        else:
            flat = x.reshape(-1)
            # Half of the values outside the range lie below it, half above.
            outside = max(1, round(flat.numel() * (1 - keep / 100) / 2))
            high, low = flat.topk(outside).values[-1], flat.topk(outside, largest=False).values[-1]
        for observed, value in zip(self.observations, (index, low, high), strict=True):
            observed.append(value)


def _without_padding(x: Any, mask: Any, *, token_columns: bool) -> Any:
    """The rows of tokens that are not padding, of [B, S, ...], [B, H, S, ...] or [B * H, S, ...]; padded columns become 0."""
    batch = mask.shape[0]
    if x.dim() == 3 and x.shape[0] != batch:
        x = x.view(batch, -1, *x.shape[1:])
    if token_columns:
        x = x.masked_fill(~mask[:, None, None, :], 0.0)
    return (x.transpose(1, 2) if x.dim() == 4 else x)[mask]
