"""Files in other opsets: valid there, the same outputs, and what an opset cannot hold is refused with the least that can."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from octobert.config.loading import parse
from octobert.core import families
from octobert.core.errors import ModelError, RecipeError
from octobert.core.heads import HEADS
from octobert.core.session import ExportOptions, StaticShape, WrittenOpset
from octobert.graph import operators, parity, qdq
from octobert.graph.passes import float16, opset
from octobert.pipeline import preflight
from octobert.targets import qnn, vitisai
from tests.support.graphs import capabilities, plan_for

MICROSOFT = (operators.MICROSOFT,)
# Two float32 graphs that sum in another order.
REORDERED = 2e-6


def difference(ours: ir.Model, theirs: ir.Model) -> float:
    batches = parity.sample_batches(theirs)
    runs = [parity.onnx_outputs(model, batches, optimized=False) for model in (ours, theirs)]
    return parity.largest_difference(*runs)


def checked(model: ir.Model, folder: Path) -> None:
    operators.save(model, folder / "model.onnx")
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [*((name, 14) for name in families.names()), *(("bert", each) for each in (16, 17, 20, 25))],
)
def test_a_float_graph_in_every_opset(captured, tmp_path: Path, name: str, wanted: int) -> None:
    model = captured(name, "sequence-classification").model
    copy = model.clone()
    norms = sum(node.op_type == "LayerNormalization" for node in model.graph)
    done = opset.convert_(copy, wanted)
    assert (done.opset, done.before, done.norms) == (wanted, 18, norms if wanted < 17 else 0)
    assert copy.opset_imports[""] == wanted
    checked(copy, tmp_path)
    if name in ("bert", "modernbert") and wanted in (14, 17):
        assert difference(copy, model) <= REORDERED


# Of graphs that other tests capture too.
FAMILY_OF = {"token-classification": "electra", "masked-lm": "roberta"}


@pytest.mark.parametrize("head", [name for name, head in HEADS.items() if head.auto_class])
def test_every_head_holds_in_an_older_opset(captured, tmp_path: Path, head: str) -> None:
    copy = captured(FAMILY_OF.get(head, "bert"), head).model.clone()
    opset.convert_(copy, 14)
    checked(copy, tmp_path)


@pytest.mark.parametrize(
    ("options", "domains", "least"),
    [
        ({"activations": "uint8"}, (), 14),
        ({"activations": "uint16"}, (), 21),
        ({"activations": "uint16"}, MICROSOFT, 14),
        ({"activations": "float8e4m3"}, MICROSOFT, 19),
        ({"activations": "uint8", "float_parts": "float16"}, (), 19),
        ({"activations": "uint8", "float_parts": "float16"}, MICROSOFT, 14),
    ],
)
def test_what_an_opset_cannot_hold_names_the_least_that_can(
    golden, captured, options: dict[str, str], domains: tuple[str, ...], least: int
) -> None:
    got = captured("bert", "sequence-classification")
    model = got.model.clone()
    plan = plan_for(model, got.family, **options)
    qdq.write(model, plan)
    float16.convert_(model, plan.float_parts)
    if least > 14:
        with golden.raises(ModelError):
            opset.convert_(model.clone(), 14, domains=domains)
    copy = model.clone()
    opset.convert_checked_(copy, WrittenOpset(opset=least, domains=domains))
    assert copy.opset_imports[""] == least
    pairs = {node.domain for node in copy.graph if node.op_type in operators.PAIR}
    assert pairs == {
        operators.MICROSOFT if domains and options != {"activations": "float8e4m3"} else ""
    }
    assert "largest relative difference" in copy.metadata_props.get(
        opset.METADATA, "largest relative difference"
    )


@pytest.mark.parametrize("wanted", [17, 18])
def test_float16_pairs_may_move_to_the_next_step(captured, wanted: int) -> None:
    """Without kernels for them on the CPU, ONNX Runtime leaves out casts before its own pairs."""
    got = captured("bert", "sequence-classification")
    model = got.model.clone()
    qdq.write(model, plan_for(model, got.family, float_parts="float16"))
    float16.convert_(model)
    assert opset.convert_checked_(model, WrittenOpset(opset=wanted, domains=MICROSOFT))
    assert "largest relative difference" in model.metadata_props[opset.METADATA]


def test_pairs_without_norms_taken_apart_are_exact(captured) -> None:
    got = captured("bert", "sequence-classification")
    model = got.model.clone()
    qdq.write(model, plan_for(model, got.family, activations="uint16"))
    copy = model.clone()
    done = opset.convert_(copy, 17, domains=MICROSOFT)
    assert done.norms == 0 < done.moved
    assert difference(copy, model) == 0


def test_a_static_integer_file_keeps_its_norms(captured, tmp_path: Path) -> None:
    got = captured("bert", "sequence-classification")
    model = got.model.clone()
    qdq.write(model, plan_for(model, got.family, "vitisai"))
    operators.save(model, tmp_path / "quantized.onnx")
    wanted = WrittenOpset(opset=17, domains=vitisai.CAPABILITIES.onnx.domains, whole_graph=True)
    options = ExportOptions(shape=StaticShape(batch=2, sequence=16), opset=wanted)
    vitisai.TARGET.export(tmp_path / "quantized.onnx", tmp_path / "out", options)
    written = ir.load(vitisai.TARGET.model_file(tmp_path / "out"))
    assert written.opset_imports[""] == 17
    assert (
        "from 20 to 17, 2 operators of ONNX Runtime's own; largest relative"
        in written.metadata_props[opset.METADATA]
    )
    older = options.model_copy(update={"opset": wanted.model_copy(update={"opset": 16})})
    with pytest.raises(ModelError, match="opset 16 cannot hold the model"):
        vitisai.TARGET.export(tmp_path / "quantized.onnx", tmp_path / "older", older)


def test_shape_with_an_end_is_a_slice_before_opset_15() -> None:
    x = ir.Value(name="x", shape=ir.Shape(["a", "b", 3]), type=ir.TensorType(ir.DataType.FLOAT))
    node = operators.make_node("Shape", [x], "y", {"start": 1, "end": 2}, dtype=ir.DataType.INT64)
    model = ir.Model(
        ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 18}, name="shape"),
        ir_version=8,
    )
    model.graph.outputs[:] = []
    model.graph.append(
        last := operators.make_node("Identity", [node.outputs[0]], "z", dtype=ir.DataType.INT64)
    )
    model.graph.outputs.append(last.outputs[0])
    opset.convert_(model, 14)
    import onnx.reference

    (result,) = onnx.reference.ReferenceEvaluator(ir.to_proto(model)).run(
        None, {"x": np.zeros((2, 5, 3), np.float32)}
    )
    assert result.tolist() == [5]


def test_an_opset_that_a_target_does_not_take_is_refused_before_the_run(golden) -> None:
    with golden.raises(RecipeError):
        preflight._check_opset(qnn.CAPABILITIES, 23)
    preflight._check_opset(capabilities("ort-cpu"), 17)


@pytest.mark.parametrize("number", [12, 26, "new"])
def test_a_number_that_is_no_opset(number: object) -> None:
    with pytest.raises(RecipeError, match="opset: input should be"):
        parse({"model": "m", "task": "mrpc", "data": "d", "opset": number})
