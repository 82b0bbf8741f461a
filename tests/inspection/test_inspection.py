"""What runtimes make of models: integers that ran, products that fell back and why, conversions, places, and the sentences."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from octobert import targets
from octobert.cli.main import app
from octobert.core import capability, environment, families
from octobert.core.errors import ModelError, TargetError
from octobert.core.files import file_digest
from octobert.core.measurements import Latency
from octobert.core.plan import QuantPlan, Site
from octobert.core.profile import Inspection, Operand, Operator, Product, Profile, split
from octobert.core.ranges import Interval, Ranges
from octobert.core.results import PACKAGE_FILE, PackageManifest
from octobert.core.session import SessionOptions
from octobert.evaluation import latency as timing
from octobert.graph import operators as ops
from octobert.graph import qdq, sites
from octobert.inference.opened import open_model
from octobert.inspection import answers, inspector, profilers
from octobert.quantization.methods.dynamic import Dynamic
from octobert.quantization.methods.static import Static
from octobert.targets.runtimes import openvino as _openvino
from octobert.targets.shared import ir_files
from tests.support.checkpoints import exact_method

FEATURES = frozenset(environment.current().features)
LINEARS = 6 * 2
FEEDS = timing.random_workload(2, 12, 90, seed=0).rounds[0]
ort, openvino = profilers.load("ort"), profilers.load("openvino")


@pytest.fixture(scope="module")
def captured(captured):
    return captured("bert")


def ranges_for(found: tuple[Site, ...]) -> Ranges:
    """Ranges that fit random weights."""
    provenance = {
        "samples": 1,
        "tokens": 1,
        "data_digest": "",
        "model_digest": "",
        "source": "test",
    }
    interval = Interval(low=-4.0, high=4.0, bound=4.0)
    values = {site.value: interval for site in found if not site.is_weight}
    return Ranges(calibrator="minmax", options={}, intervals=values, provenance=provenance)


def plan_for(captured, method=Static, target: str = "ort-cpu", **options: object) -> QuantPlan:
    """A plan for the tiny BERT."""
    found = sites.find_sites(captured.model.graph, captured.family)
    capabilities = targets.load(target).capabilities
    plan: QuantPlan = exact_method(method, target, **options).plan(
        found, ranges_for(found), capabilities
    )
    capability.check(plan, capabilities)
    return plan


def written(captured, path: Path, **plan: object) -> Path:
    """The tiny BERT, quantized."""
    ops.save(captured.model, path)
    model = ir.load(path)
    qdq.write(model, plan_for(captured, **plan))
    ops.save(model, path)
    return path


@pytest.fixture(scope="module")
def package(captured, checkpoint, tmp_path_factory) -> Path:
    """As much of a packaged directory for ort-cpu as can be looked into."""
    folder = tmp_path_factory.mktemp("package")
    (folder / "onnx").mkdir()
    ops.save(captured.model, folder / "onnx" / "model.onnx")
    written(captured, folder / "onnx" / "model_quantized.onnx", placement="matmul")
    (folder / "config.json").write_bytes((checkpoint("bert") / "config.json").read_bytes())
    parity = {"against": "", "batches": (), "largest_difference": 0.0, "tolerance": 0.0}
    sizes = {"layers": 2, "heads": 4, "hidden": 32}
    head = "sequence-classification"
    manifest = PackageManifest(
        octobert=None,
        target="ort-cpu",
        task={
            "name": "text-classification",
            "options": {},
            "labels": ("a", "b"),
            "head": head,
            "primary": None,
        },
        recipe={},
        model={"family": "bert", "head": head, "sizes": sizes, "parity": parity},
        model_digest="",
        plan=plan_for(captured),
        ranges=ranges_for(sites.find_sites(captured.model.graph, captured.family)),
        scores={},
        comparison=None,
        environment=environment.current(),
        files={"onnx/model.onnx": file_digest(folder / "onnx" / "model.onnx")},
        sizes={},
    )
    (folder / PACKAGE_FILE).write_text(manifest.model_dump_json())
    return folder


def profiled(runtime, path: Path) -> Profile:
    return runtime.profile(path, FEEDS, SessionOptions(threads=1), warmup=1, runs=3, family="bert")


def fallen_back(runtime, path: Path, profile: Profile):
    products = runtime.products(path)
    matched, fallbacks = inspector.fallen_back(
        products, profile.operators, lambda one: runtime.why(one, FEATURES)
    )
    return products, matched, fallbacks


def by_place(profile: Profile) -> dict[tuple[int | None, str], list[Operator]]:
    found: dict[tuple[int | None, str], list[Operator]] = {}
    for one in profile.operators:
        if one.kind == "product":
            found.setdefault((one.layer, one.part), []).append(one)
    return found


def test_every_linear_layer_runs_in_integers_in_onnxruntime(captured, tmp_path) -> None:
    path = written(captured, tmp_path / "model.onnx", placement="matmul")
    profile = profiled(ort, path)
    computed = by_place(profile)
    for layer in range(2):
        for part in ("query", "key", "value", "attention_output", "ffn_up", "ffn_down"):
            (one,) = computed[layer, part]
            assert (one.type, one.precision, one.integer) == ("MatMulIntegerToFloat", "int8", True)
        attention = computed[layer, "attention"]
        assert len(attention) == 2
        assert not any(one.integer for one in attention)
    products, matched, fallbacks = fallen_back(ort, path, profile)
    assert len([one for one in products if one.name.startswith("encoder.")]) == LINEARS
    assert matched == len(products)
    assert not fallbacks


def test_int8_activations_run_in_float_in_onnxruntime_and_that_is_why(captured, tmp_path) -> None:
    path = written(captured, tmp_path / "model.onnx", placement="matmul", activations="int8")
    profile = profiled(ort, path)
    products, matched, fallbacks = fallen_back(ort, path, profile)
    assert matched == len(products)
    assert {one.inputs[0] for one in products} == {Operand(dtype="int8", symmetric=True)}
    if "avx2" in FEATURES:
        # With one reader an int8 activation is turned into uint8; Q, K and V read one.
        shared = {one.name for one in products if one.siblings}
        assert {name.split(".")[-2] for name in shared} == {"query", "key", "value"}
        assert {one.name for one in fallbacks} == shared
        assert {one.why for one in fallbacks} == {
            "several of them read one int8 activation; ONNX Runtime on x86 computes only uint8 activations in integers, and converts int8 to uint8 for a single reader only"
        }
        assert sum(one.integer for one in profile.operators) == len(products) - len(shared)


def test_conversions_that_are_left_are_those_of_the_optimized_graph(captured, tmp_path) -> None:
    import onnxruntime

    path = written(captured, tmp_path / "model.onnx", placement="qdqbert")
    profile = profiled(ort, path)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level, settings.optimized_model_filepath = (
        3,
        str(tmp_path / "optimized.onnx"),
    )
    onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    nodes = onnx.load(tmp_path / "optimized.onnx").graph.node
    left = [node.name for node in nodes if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert profile.split.conversions == len(left)
    assert {one.name for one in profile.operators if one.kind == "conversion"} == set(left)
    assert {one.name for one in profile.operators} == {node.name for node in nodes}


def test_dynamic_quantization_is_seen_as_such(captured, tmp_path) -> None:
    path = written(captured, tmp_path / "model.onnx", method=Dynamic)
    profile = profiled(ort, path)
    products, matched, fallbacks = fallen_back(ort, path, profile)
    assert all(one.dynamic for one in products)
    assert matched == len(products) >= LINEARS
    assert not fallbacks
    found = inspection(profile, products=products, matched=matched)
    text = " ".join(answers.answers(found))
    assert (
        f"Quantization is dynamic: every run measures the input ranges of {len(products)} products"
        in text
    )


def test_openvino_shows_what_it_computed_in_8_bits(captured, tmp_path) -> None:
    pytest.importorskip("openvino")
    path = written(
        captured, tmp_path / "model.onnx", target="openvino-cpu", placement="matmul-attention"
    )
    profile = profiled(openvino, path)
    products, matched, fallbacks = fallen_back(openvino, path, profile)
    # OpenVINO reads from the file what ONNX says of it.
    read = lambda found: {(one.name, one.inputs, one.weight) for one in found}  # noqa: E731
    assert read(products) == read(ort.products(path))
    assert matched == len(products)
    # Which products run in integers is for the CPU to say; whatever does not is a fallback, and nothing else is.
    computed = {
        name: one for one in profile.operators if one.kind == "product" for name in one.covers
    }
    fell = {one.name for one in fallbacks}
    for one in products:
        if one.weight:
            assert (one.name in fell) == (not computed[one.name].integer)
    linear = [
        ops[0]
        for (layer, part), ops in by_place(profile).items()
        if layer is not None and part != "attention"
    ]
    assert len(linear) == LINEARS
    if "avx2" in FEATURES:
        assert {(one.type, one.precision, one.integer) for one in linear} == {
            ("FullyConnected", "int8", True)
        }


def test_openvino_is_profiled_as_its_target_runs_it(captured, tmp_path) -> None:
    pytest.importorskip("openvino")
    import openvino as runtime

    path = written(captured, tmp_path / "model.onnx", target="openvino-cpu")
    session = targets.load("openvino-cpu").open_session(path, SessionOptions(threads=1))
    theirs = session._compiled
    model = runtime.Core().read_model(str(path))
    settings = _openvino.settings_of(SessionOptions(threads=1), ir_files.group_of(model))
    ours = runtime.Core().compile_model(model, "CPU", settings)
    for name in (
        "INFERENCE_PRECISION_HINT",
        "PERFORMANCE_HINT",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE",
        "INFERENCE_NUM_THREADS",
    ):
        assert ours.get_property(name) == theirs.get_property(name)


@pytest.mark.parametrize("runtime", [ort, openvino], ids=["ort", "openvino"])
def test_times_are_positive_and_add_up(captured, tmp_path, runtime) -> None:
    if runtime is openvino:
        pytest.importorskip("openvino")
    path = written(captured, tmp_path / "model.onnx", placement="matmul")
    found = profiled(runtime, path)
    parts = found.split
    assert found.operators
    assert all(one.ms >= 0 for one in found.operators)
    assert parts.total_ms > 0
    assert parts.between_ms >= 0
    assert parts.total_ms == pytest.approx(sum(one.ms for one in found.operators))
    assert parts.products_ms + parts.conversions_ms + parts.others_ms == pytest.approx(
        parts.total_ms
    )
    assert {one.layer for one in found.operators} == {None, 0, 1}
    unplaced = [one.name for one in found.operators if one.layer is None and not one.part]
    assert len(unplaced) <= len(found.operators) // 20


def test_float_models_have_nothing_in_8_bits(captured, tmp_path) -> None:
    path = tmp_path / "model.onnx"
    ops.save(captured.model, path)
    assert not ort.products(path)
    found = profiled(ort, path)
    assert found.split.integer_ms == found.split.conversions == 0
    assert {one.precision for one in found.operators if one.kind == "product"} == {"f32"}


@pytest.mark.parametrize(
    ("name", "family", "expected"),
    [
        ("encoder.layer.11.attention.self.query.matmul", "bert", (11, "query")),
        ("encoder.layer.1.attention.self.scores", "bert", (1, "attention")),
        ("encoder.layer.1.attention.self.query_split", "bert", (1, "attention")),
        ("encoder.layer.1.output.LayerNorm.input", "bert", (1, "ffn_norm")),
        ("transformer.layer.2.ffn.lin1", "distilbert", (2, "ffn_up")),
        ("pooler.dense.matmul", "bert", (None, "pooler")),
        ("SkipLayerNormalization", "bert", (None, "")),
    ],
)
def test_names_say_where_an_operator_belongs(name: str, family: str, expected: tuple) -> None:
    assert profilers.place(name, families.load(family)) == expected


def ran(
    name: str, *reads: str, kind: str = "other", covers: tuple[str, ...] = ()
) -> tuple[Operator, tuple[str, ...]]:
    facts = {
        "name": name,
        "type": "T",
        "kind": kind,
        "precision": "f32",
        "integer": False,
        "ms": 1.0,
        "layer": None,
        "part": "",
    }
    return Operator.model_validate({**facts, "covers": covers or (name,)}), reads


def test_operators_without_names_go_where_their_readers_go() -> None:
    layer = "encoder.layer.{}.attention.{}"
    found = profilers.placed(
        [
            ran("Convert_1"),
            ran("MVN_2", "Convert_1"),
            ran(layer.format(0, "output.LayerNorm"), "MVN_2"),
            ran(
                layer.format(1, "self.query"),
                covers=(layer.format(1, "self.query"), "pooler.x"),
                kind="product",
            ),
            ran("Last_3", layer.format(1, "self.query")),
            ran("Alone"),
        ],
        None,
    )
    expected = [(0, "attention_norm")] * 3 + [(1, "query")] * 2 + [(None, "")]
    assert [(one.layer, one.part) for one in found] == expected


def operator(type_: str, ms: float, kind: str = "other", precision: str = "f32") -> Operator:
    return Operator(
        name=type_,
        type=type_,
        kind=kind,
        precision=precision,
        integer=precision == "int8",
        ms=ms,
        layer=None,
        part="",
    )  # type: ignore[arg-type]


def profile_of(*operators: Operator) -> Profile:
    return Profile(precision="f32", runs=3, split=split(operators, 0.0), operators=operators)


def inspection(profile: Profile, **more: object) -> Inspection:
    here = environment.current().model_copy(update={"features": ("avx2",)})
    plain = {
        "model": "m.onnx",
        "target": "ort-cpu",
        "runtime": "ort",
        "version": "1",
        "batch": 1,
        "sequence": 8,
        "threads": 1,
    }
    return Inspection(
        **{
            **plain,
            "environment": here,
            "products": (),
            "matched": 0,
            "fallbacks": (),
            "profile": profile,
            **more,
        }
    )


def latency(name: str, ms: float) -> Latency:
    return Latency(candidate=name, batch=1, sequence=8, samples_ms=(ms,) * 5, rows=5, tokens=40)


def test_answers_are_made_of_the_figures(golden) -> None:
    eight = Product(
        name="a",
        inputs=(Operand(dtype="uint8", symmetric=False), Operand(dtype="int8", symmetric=True)),
    )
    ours = profile_of(
        operator("MatMulIntegerToFloat", 4.0, "product", "int8"),
        operator("QuantizeLinear", 1.0, "conversion", "mixed"),
        operator("Erf", 3.0),
    )
    theirs = profile_of(operator("MatMul", 4.0, "product"), operator("BiasGelu", 1.0))
    found = inspection(
        ours,
        floating=theirs,
        products=(eight,),
        matched=1,
        latencies=(latency("ort-cpu", 8.0), latency("ort-f32", 5.0)),
    )
    assert answers.ratio(found) == pytest.approx(5 / 8)
    golden("\n".join(answers.answers(found)))
    fast = found.environment.model_copy(update={"features": ("avx2", "avx512_vnni")})
    busy = found.model_copy(
        update={
            "latencies": (latency("ort-cpu", 80.0), latency("ort-f32", 90.0)),
            "environment": fast,
        }
    )
    golden("\n".join(answers.answers(busy)))
    # Nothing of VNNI where the CPU has it, and no float model means no comparison.
    alone = answers.answers(
        inspection(
            ours,
            products=(eight,),
            matched=1,
            latencies=(latency("ort-cpu", 8.0),),
            environment=fast,
        )
    )
    golden("\n".join(alone))
    assert not any("VNNI" in one or "float model's" in one for one in alone)


def test_reasons_come_from_the_file() -> None:
    int8, uint8, wide = (
        Operand(dtype=t, symmetric=t == "int8") for t in ("int8", "uint8", "uint16")
    )
    avx2 = frozenset(("avx2",))
    cases = {
        (None, int8): "only the weights are 8-bit in the file",
        (wide, int8): "16-bit activations are simulated in float",
        (uint8, int8): None,
    }
    for inputs, expected in cases.items():
        assert ort.why(Product(name="a", inputs=inputs), avx2) == expected
        assert openvino.why(Product(name="a", inputs=inputs), avx2) == expected
    assert ort.why(Product(name="a", inputs=(int8, int8)), frozenset()) is None
    attention = Product(name="a", inputs=(uint8, uint8), weight=False)
    assert "two activations that are not symmetric" in (openvino.why(attention, avx2) or "")
    half = Product(name="a", inputs=(uint8, None), weight=False)
    assert (
        ort.why(half, avx2)
        == openvino.why(half, avx2)
        == "only one of the two inputs is 8-bit in the file"
    )


def test_a_package_through_the_command(package, monkeypatch) -> None:
    command = [
        "inspect",
        str(package),
        "--runtime",
        "--sequence",
        "8",
        "--repeats",
        "3",
        "--threads",
        "1",
    ]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    (plain,) = json.loads(done.stdout)
    found = Inspection.model_validate(plain)
    assert Inspection.model_validate_json(found.model_dump_json()) == found
    assert found.floating is not None
    assert found.matched == len(found.products)
    assert [one.candidate for one in found.latencies] == ["ort-cpu", "ort-f32"]
    assert found.answers[0].startswith("INT8 is ")
    monkeypatch.setattr(inspector, "inspect", lambda *_, **__: found)
    shown = CliRunner().invoke(app, command).stdout
    for text in (
        "Time per operator type",
        "MatMulIntegerToFloat int8",
        "• INT8 is",
        "matrix products that are 8-bit in the file",
    ):
        assert text in shown


def test_errors_are_sentences(golden, package, tmp_path) -> None:
    file = package / "onnx" / "model_quantized.onnx"
    with pytest.raises(ModelError, match="not a package"):
        open_model(tmp_path)
    with pytest.raises(ModelError, match=r"none\.onnx: there is no such file; check the path"):
        open_model(tmp_path / "none.onnx")
    with pytest.raises(TargetError, match=r'there is no target "ort-cup"; did you mean "ort-cpu"'):
        open_model(file, target="ort-cup")
    with golden.raises(TargetError):
        open_model(package, target="openvino-cpu")
    (tmp_path / "m.xml").touch()
    with golden.raises(TargetError):
        open_model(tmp_path / "m.xml", target="ort-cpu")
    with golden.raises(ModelError):
        inspector.inspect(open_model(package), sequence=65)
    if not targets.load("ort-cuda").probe().available:
        with pytest.raises(TargetError, match="the target ort-cuda cannot run here"):
            inspector.inspect(open_model(file, target="ort-cuda"))
    (tmp_path / "broken.onnx").write_bytes(b"x")
    for runtime in (
        ort,
        *([openvino] if targets.load("openvino-cpu").probe().available else []),
    ):
        with pytest.raises(TargetError, match=r"cannot (open|compile) and run the model"):
            runtime.profile(
                tmp_path / "broken.onnx",
                FEEDS,
                SessionOptions(threads=1),
                warmup=1,
                runs=1,
                family=None,
            )


def test_models_that_are_no_encoders_are_refused(golden, tmp_path) -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("Relu", ["pixels"], ["y"], name="relu")
    graph = helper.make_graph(
        [node], "g", [value("pixels", TensorProto.FLOAT, [1])], [value("y", TensorProto.FLOAT, [1])]
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "m.onnx",
    )
    with golden.raises(ModelError):
        ort.profile(
            tmp_path / "m.onnx", FEEDS, SessionOptions(threads=1), warmup=1, runs=1, family=None
        )
