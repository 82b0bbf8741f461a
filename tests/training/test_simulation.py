"""A simulated PyTorch model against the Q/DQ graph of the same plan, for every family; observers and what leaves no trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch

from octobert import targets
from octobert.core import plugins
from octobert.core.errors import PlanError
from octobert.core.plan import Decision, Quantizer, QuantPlan
from octobert.core.ranges import Interval, Provenance, Ranges
from octobert.graph import operators, qdq, sites
from octobert.models import checkpoint as checkpoints
from octobert.quantization.methods.static import Static
from octobert.training.simulation import Simulation
from tests.support.checkpoints import batch, pad_of, parity_feeds

FAMILIES = plugins.names("families")
# What enters operators, and what leaves them.
PLACEMENTS: dict[str, str | tuple[str, ...]] = {"qdqbert": "qdqbert", "every site": ("*",)}
# Float32 sums in another order; the outputs are of the size of 1.
EXACT = 5e-6
# Values inside the model may be large.
FLOATS = {"rel": 1e-5, "abs": 1e-4}
# Such a difference may put a value at the border of two codes on the other side, and all that follows with it.
UNTOUCHED = 0.75
PROVENANCE = Provenance(samples=0, tokens=0, data_digest="", model_digest="", source="")


def session(model: ir.Model | Path, folder: Path) -> ort.InferenceSession:
    """A graph as it is written, nothing fused."""
    path = folder / "graph.onnx" if isinstance(model, ir.Model) else model
    if isinstance(model, ir.Model):
        operators.save(model, path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run(
    opened: ort.InferenceSession, feeds: dict, names: Sequence[str] | None = None
) -> list[np.ndarray]:
    wanted = {i.name for i in opened.get_inputs()}
    return opened.run(names, {k: v for k, v in feeds.items() if k in wanted})


class Case:
    """One family: its float graph, and ranges in which some values are clipped."""

    def __init__(self, captured, source: Path, folder: Path, head: str) -> None:
        self.source, self.folder, self.family, self.head = source, folder, captured.family, head
        self.path = folder / "float.onnx"
        operators.save(captured.model, self.path)
        self.sites = sites.find_sites(captured.model.graph, captured.family)
        self.feeds = parity_feeds(pad_of(source))
        values = sorted({site.value for site in self.sites if not site.is_weight})
        model = onnx.load(self.path)
        model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(v) for v in values)
        onnx.save(model, folder / "seen.onnx")
        seen = [run(session(folder / "seen.onnx", folder), feeds, values) for feeds in self.feeds]
        self.seen = {v: [batch[i] for batch in seen] for i, v in enumerate(values)}
        ends = {
            v: (0.7 * min(a.min() for a in s), 0.7 * max(a.max() for a in s))
            for v, s in self.seen.items()
        }
        intervals = {
            v: Interval(low=low, high=high, bound=max(-low, high))
            for v, (low, high) in ends.items()
        }
        self.ranges = Ranges(calibrator="", options={}, intervals=intervals, provenance=PROVENANCE)

    def plan(
        self, placement: str | tuple[str, ...], target: str = "ort-cpu", **options: object
    ) -> QuantPlan:
        capabilities = targets.load(target).capabilities
        return Static(placement=placement, **options).plan(self.sites, self.ranges, capabilities)

    def written(self, plan: QuantPlan) -> list[np.ndarray]:
        model = ir.load(self.path)
        qdq.write(model, plan)
        opened = session(model, self.folder)
        return [run(opened, feeds)[0] for feeds in self.feeds]

    def model(self, attention: str | None = None):
        return checkpoints.load_torch(self.source, self.head, attention=attention)


def outputs(model, feeds: dict) -> np.ndarray:
    accepted = checkpoints.inputs_of(model)
    with torch.no_grad():
        return model(
            **{k: torch.from_numpy(v) for k, v in feeds.items() if k in accepted}
        ).logits.numpy()


def assert_follows(model, subject: Case, expected: list[np.ndarray]) -> np.ndarray:
    """Outputs of a simulated model are those of a graph, but for values at the border of two codes; they are returned."""
    result = np.concatenate([outputs(model, feeds).ravel() for feeds in subject.feeds])
    difference = np.abs(result - np.concatenate([a.ravel() for a in expected]))
    assert (difference <= EXACT).mean() >= UNTOUCHED, difference
    return result


@pytest.fixture(scope="module")
def case(checkpoint, captured, tmp_path_factory):
    made: dict[str, Case] = {}

    def get(family: str, head: str = "sequence-classification") -> Case:
        name = f"{family}-{head}"
        if name not in made:
            made[name] = Case(
                captured(family, head),
                checkpoint(family, head),
                tmp_path_factory.mktemp(name),
                head,
            )
        return made[name]

    return get


def test_a_decoder_with_the_weights_of_the_word_embeddings_is_simulated(case) -> None:
    subject = case("distilbert", "masked-lm")
    plan = subject.plan("matmul")
    assert {site.part for site, _ in plan.quantized if site.is_weight} >= {"decoder", "embeddings"}
    model = subject.model()
    assert model.vocab_projector.weight is model.distilbert.embeddings.word_embeddings.weight
    simulation = Simulation(model, plan, subject.family).attach()
    assert_follows(model, subject, subject.written(plan))
    assert set(simulation.intervals()) == {
        site.value for site, _ in plan.quantized if not site.is_weight
    }


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_simulation_equals_the_written_graph(case, family: str, placement: str) -> None:
    subject = case(family)
    plan = subject.plan(PLACEMENTS[placement])
    model = subject.model()
    simulation = Simulation(model, plan, subject.family).attach()
    result = assert_follows(model, subject, subject.written(plan))
    simulation.quantizing = False
    floats = np.concatenate([outputs(model, feeds).ravel() for feeds in subject.feeds])
    # The test can fail: 8 bits are far from float here.
    assert np.median(np.abs(result - floats)) > 100 * EXACT


@pytest.mark.parametrize(
    "options",
    [
        {"per_channel": False},
        {"fuse_qkv": True, "per_channel": False},
        {"clip_gelu": 0.5},
        {"reduce_range": True},
        {"weight_ranges": "mse"},
        {"disable": ("layer.1",)},
        {"enable": ("classifier", "pooler")},
        {"embeddings": "float"},
    ],
    ids=lambda o: "+".join(o),
)
@pytest.mark.parametrize("target", ["ort-cpu", "openvino-cpu"])
def test_every_option_of_the_plan_is_simulated(case, options: dict, target: str) -> None:
    subject = case("bert")
    plan = subject.plan("qdqbert", target, **options)
    model = subject.model()
    Simulation(model, plan, subject.family).attach()
    assert_follows(model, subject, subject.written(plan))


def test_detached_it_is_the_model_that_it_was(case) -> None:
    subject = case("bert")
    model = subject.model()
    before, names = outputs(model, subject.feeds[0]), set(model.state_dict())
    simulation = Simulation(model, subject.plan("qdqbert"), subject.family, learned=True).attach()
    assert set(model.state_dict()) > names
    outputs(model, subject.feeds[0])
    simulation.detach()
    assert set(model.state_dict()) == names
    np.testing.assert_allclose(outputs(model, subject.feeds[0]), before, atol=EXACT)


def without_ranges(plan: QuantPlan) -> QuantPlan:
    """A plan whose activations have no range yet."""

    def bare(quantizer: Quantizer | None, site) -> Quantizer | None:
        return (
            quantizer
            if quantizer is None or site.is_weight
            else quantizer.model_copy(update={"low": None, "high": None})
        )

    decisions = tuple(
        Decision(site=d.site, quantizer=bare(d.quantizer, d.site), reason=d.reason)
        for d in plan.decisions
    )
    return plan.model_copy(update={"decisions": decisions})


@pytest.mark.parametrize(
    "family",
    [
        "bert",
        "modernbert",
        "deberta",
        "deberta-v2",
        "eurobert",
        "mobilebert",
        "albert",
        "mpnet",
        "gte",
    ],
)
def test_observers_see_real_tokens_only(case, family: str) -> None:
    """What the float graph has at real tokens, computed row by row without any padding, is what is observed of a padded batch."""
    subject = case(family)
    lengths, pad = [9, 4, 1], pad_of(subject.source)
    padded = batch(lengths, pad_id=pad, seed=5)
    alone = [{k: v[i : i + 1, :n] for k, v in padded.items()} for i, n in enumerate(lengths)]
    plan = without_ranges(subject.plan(("*",), activations="uint8", symmetric=False))
    model = subject.model().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.config.update({key: 0.0 for key in checkpoints.dropouts(model.config.to_dict())})
    simulation = Simulation(model, plan, subject.family, rate=1.0).attach()
    simulation.observing, simulation.quantizing = True, False
    outputs(model, padded)
    result = simulation.intervals()
    opened = session(subject.folder / "seen.onnx", subject.folder)
    names = sorted(result)
    rows = [run(opened, feeds, names) for feeds in alone]
    for index, name in enumerate(names):
        low, high = (
            min(0.0, *(r[index].min() for r in rows)),
            max(0.0, *(r[index].max() for r in rows)),
        )
        assert (result[name].low, result[name].high) == (
            pytest.approx(low, **FLOATS),
            pytest.approx(high, **FLOATS),
        ), name


def test_an_observed_percentile_leaves_out_the_share_it_says(case) -> None:
    subject = case("bert")
    plan = without_ranges(subject.plan("matmul"))
    widths = {}
    for keep in (100.0, 90.0):
        model = subject.model().train()
        simulation = Simulation(model, plan, subject.family, keep=keep, rate=1.0).attach()
        simulation.observing, simulation.quantizing = True, False
        torch.manual_seed(0)
        outputs(model, batch([30] * 8, seed=3))
        widths[keep] = simulation.intervals()
    name = "encoder.layer.0.output.LayerNorm"
    seen = [widths[keep][name] for keep in (100.0, 90.0)]
    assert seen[1].high < 0.8 * seen[0].high
    assert seen[1].low > 0.8 * seen[0].low


def test_a_range_that_saw_nothing_is_named(golden, case) -> None:
    subject = case("bert")
    simulation = Simulation(
        subject.model(), without_ranges(subject.plan("matmul")), subject.family
    ).attach()
    with golden.raises(PlanError):
        simulation.intervals()


def test_a_plan_of_another_model_is_refused(case) -> None:
    subject = case("bert")
    plan = subject.plan("matmul")
    moved = [
        d.model_copy(
            update={
                "site": d.site.model_copy(
                    update={"value": d.site.value.replace("layer.1.", "layer.7.")}
                )
            }
        )
        for d in plan.decisions
    ]
    with pytest.raises(PlanError, match=r"layer.7.*the plan does not fit the model"):
        Simulation(
            subject.model(), plan.model_copy(update={"decisions": tuple(moved)}), subject.family
        )


def test_dynamic_activations_are_refused(case) -> None:
    from octobert.quantization.methods.dynamic import Dynamic

    subject = case("bert")
    plan = Dynamic().plan(subject.sites, subject.ranges, targets.load("ort-cpu").capabilities)
    with pytest.raises(PlanError, match=r"needs fixed ranges .*use the method static"):
        Simulation(subject.model(), plan, subject.family)


def test_learned_ranges_and_scales_come_out_as_they_are_simulated(case) -> None:
    """Moved ends of activations and weights, written as Q/DQ, give what the simulation gives."""
    subject = case("bert")
    model = subject.model()
    simulation = Simulation(model, subject.plan("qdqbert"), subject.family, learned=True).attach()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".log_" in name:
                parameter.uniform_(-0.3, 0.2, generator=generator)
    ranges = Ranges(
        calibrator="", options={}, intervals=simulation.intervals(), provenance=PROVENANCE
    )
    plan = Static(placement="qdqbert").plan(
        subject.sites, ranges, targets.load("ort-cpu").capabilities
    )
    graph = ir.load(subject.path)
    nodes = {str(node.name): node for node in graph.graph}
    scales = {
        str(sites.linear_node(nodes, m).inputs[1].name): s
        for m, s in simulation.weight_scales().items()
    }
    qdq.write(graph, plan, scales)
    opened = session(graph, subject.folder)
    assert_follows(model, subject, [run(opened, feeds)[0] for feeds in subject.feeds])
    # A model that is loaded again computes the same with the scales that were kept.
    again = subject.model()
    Simulation(again, plan, subject.family, scales=simulation.weight_scales()).attach()
    np.testing.assert_allclose(
        outputs(again, subject.feeds[2]), outputs(model, subject.feeds[2]), atol=EXACT
    )


def test_a_value_that_the_model_does_not_compute_is_named(golden, case, monkeypatch) -> None:
    """What a change of transformers' code would do: a product that is not recognised must not stay float in silence."""
    from octobert.training.interception import Interceptor

    subject = case("bert")
    monkeypatch.setattr(
        Interceptor, "_product", lambda self, func, args, kwargs: func(*args, **kwargs)
    )
    model = subject.model()
    simulation = Simulation(model, subject.plan("qdqbert"), subject.family).attach()
    outputs(model, subject.feeds[0])
    with golden.raises(PlanError):
        simulation.intervals()
