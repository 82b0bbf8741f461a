"""One static file for each of several lengths: which lengths are chosen, that all share their weights, and which one a row takes."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import octobert
from octobert import targets
from octobert.config.loading import parse
from octobert.core.errors import ModelError, OctobertError, RecipeError
from octobert.core.session import SHORTER_METADATA, Session, SessionOptions, StaticShape, file_of
from octobert.engine.executors import inline
from octobert.graph import operators
from octobert.inference.opened import open_model
from octobert.inference.package_files import files_of
from octobert.pipeline import runner
from octobert.pipeline.stages.export import shorter_lengths
from octobert.targets import openvino_cpu
from octobert.targets.runtimes import openvino
from tests.support.checkpoints import batch
from tests.support.runs import made_once, write_pairs
from tests.support.tolerances import assert_same_rounding

LONGEST, SHORTER = 64, (16, 32)
FIXED = ("qnn", "vitisai", "migraphx", "openvino-npu")
TARGETS = ("ort-cpu", *FIXED)


@pytest.fixture(scope="module")
def made(checkpoint, tmp_path_factory) -> Path:
    """Packages of targets of fixed shapes, with lengths by the rows; and of all, with lengths that are given."""

    def make(folder: Path) -> None:
        plain = {
            "model": str(checkpoint("bert", "sequence-classification")),
            "task": "text-classification",
            "data": {
                "source": str(write_pairs(folder / "data")),
                "calibrate": {"from": "train", "samples": 24},
            },
            "transforms": [],
            "corrections": [],
            "sensitivity": False,
            "measure": False,
        }
        shape = {"batch": 2, "sequence": LONGEST, "shorter": SHORTER}
        given = parse(plain | {"targets": list(TARGETS), "shape": shape})
        chosen = parse(plain | {"targets": list(FIXED)})
        runner.run(given, folder / "given", executor=inline.run)
        runner.run(chosen, folder / "chosen", executor=inline.run)

    return made_once(tmp_path_factory, "several-lengths", make)


def model_file(package: Path) -> Path:
    return targets.load(package.name).model_file(package)


def onnx_file(package: Path) -> Path:
    return package / targets.load(package.name).capabilities.file


def opened(package: Path) -> Session:
    """A package on the CPU."""
    path = model_file(package)
    if path.suffix == ".xml":
        return openvino.OpenvinoDevice("CPU").open_session(path, SessionOptions())
    return targets.load("ort-cpu").open_session(onnx_file(package), SessionOptions())


@pytest.mark.parametrize("target", TARGETS)
def test_every_length_has_a_file_and_all_files_share_their_weights(made, target: str) -> None:
    path = onnx_file(made / "given" / target)
    assert {file.name for file in path.parent.iterdir() if ".onnx" in file.name} - {
        "model.onnx"
    } == {
        path.name,
        f"{path.name}.data",
        *(file_of(path, length).name for length in SHORTER),
    }
    longest = ir.load(path)
    for length in (LONGEST, *SHORTER):
        model = ir.load(path if length == LONGEST else file_of(path, length))
        assert [value.shape.numpy() for value in model.graph.inputs] == [(2, length)] * 3
        common = [
            value.const_value
            for name, value in model.graph.initializers.items()
            if name in longest.graph.initializers
            and np.array_equal(
                operators.constant_of(value),
                operators.constant_of(longest.graph.initializers[name]),
            )
        ]
        large = [each for each in common if each.nbytes >= 512]
        assert len(large) >= 14
        # Masks and positions are of one length; all else is in one place.
        assert {each.location for each in large} == {f"{path.name}.data"}
    assert ir.load(path).metadata_props[SHORTER_METADATA] == "32,16"


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_takes_the_next_longer_file(made, target: str, monkeypatch) -> None:
    session = opened(made / "given" / target)
    longest = session._session
    shorter = {length: own._session for length, own in session._shorter.items()}
    assert sorted(shorter) == list(SHORTER)
    used = []
    for length, one in (shorter | {LONGEST: longest}).items():
        run = one.run
        monkeypatch.setattr(
            one, "run", lambda feeds, n=length, run=run: (used.append(n), run(feeds))[1]
        )
    for length, fitting in ((3, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64)):
        feeds, used[:] = batch([length, 2, length]), []
        found = session.run(feeds)["logits"]
        # Three rows are two batches of two.
        assert used == [fitting] * 2
        # The longest file computes the same with more padding.
        padded = {
            name: np.pad(array, ((0, 1), (0, LONGEST - length))) for name, array in feeds.items()
        }
        padded["attention_mask"][3, 0] = 1
        whole = np.concatenate(
            [longest.run({n: a[i : i + 2] for n, a in padded.items()})["logits"] for i in (0, 2)]
        )[:3]
        np.testing.assert_allclose(found, whole, atol=2e-2 * np.abs(whole).max())


def test_irs_share_one_file_of_weights_and_compute_what_their_onnx_files_do(
    made, tmp_path: Path
) -> None:
    package = made / "given/openvino-npu"
    xml = model_file(package)
    assert [file.name for file in package.glob("*.bin")] == [xml.with_suffix(".bin").name]
    own = []
    for length in SHORTER:
        openvino_cpu.convert(file_of(onnx_file(package), length), tmp_path / "ir.xml")
        own.append((tmp_path / "ir.bin").stat().st_size)
    openvino_cpu.convert(onnx_file(package), tmp_path / "ir.xml")
    longest = (tmp_path / "ir.bin").stat().st_size
    # What is of one length is added.
    assert longest < xml.with_suffix(".bin").stat().st_size < longest + sum(own) / 2
    for length in SHORTER:
        feeds = batch([length, length - 3])
        ours, theirs = (
            openvino.OpenvinoSession(file_of(path, length), SessionOptions(), "CPU").run(feeds)
            for path in (xml, onnx_file(package))
        )
        floats = openvino.OpenvinoSession(package / "onnx/model.onnx", SessionOptions(), "CPU")
        assert_same_rounding(ours["logits"], theirs["logits"], floats.run(feeds)["logits"])


@pytest.mark.parametrize("target", FIXED)
def test_lengths_follow_from_the_rows_where_no_shape_is_given(made, target: str) -> None:
    """Pairs of a few words: they fit in 16 or 32 tokens, and texts up to the model's limit have a file too."""
    package = made / "chosen" / target
    manifest = json.loads((package / "octobert.json").read_text())
    assert file_of(onnx_file(package), 16).name in {Path(name).name for name in manifest["files"]}
    assert ir.load(onnx_file(package)).metadata_props[SHORTER_METADATA] == "32,16"
    assert opened(package).run(batch([64]))["logits"].shape == (1, 2)
    octobert.verify(package)


@pytest.mark.parametrize(("asked", "runs"), [(9, 16), (16, 16), (20, 32), (64, 64)])
def test_inspection_is_of_the_file_that_a_row_takes(made, asked: int, runs: int) -> None:
    package = made / "given/ort-cpu"
    found = octobert.inspect(package, sequence=asked, repeats=3)
    name = "model_quantized.onnx" if runs == 64 else f"model_quantized.{runs}.onnx"
    assert (found.batch, found.sequence, Path(found.model).name) == (2, runs, name)


def test_the_report_says_which_lengths_there_are(made, tmp_path: Path) -> None:
    text = octobert.page(made / "given", out=tmp_path / "r.md", format="markdown").read_text()
    sentence = "qnn: there is a file for rows of each of 16, 32, 64 tokens, and a row takes the next longer one."
    assert sentence in text


def test_one_given_length_is_one_file() -> None:
    assert StaticShape(sequence=64).lengths == (64,)
    assert StaticShape(sequence=64, shorter=(16, 32)).lengths == (64, 32, 16)


def padded(tokens: np.ndarray, lengths: tuple[int, ...]) -> int:
    return sum(min(length for length in lengths if length >= count) for count in tokens)


@pytest.mark.parametrize("seed", range(6))
def test_chosen_lengths_are_few_take_most_rows_and_pad_little(seed: int) -> None:
    """Beside every other choice of as many lengths."""
    generator = np.random.default_rng(seed)
    tokens = generator.lognormal(3 + seed / 4, 0.6, 300).clip(2, 256).astype(int)
    found = shorter_lengths(tokens.tolist(), 256)
    assert 1 <= len(found) <= 3
    assert np.mean(tokens <= found[-1]) >= 0.95
    assert all(length % 16 == 0 for length in found)
    ours = padded(tokens, (*found, 256))
    assert ours < 256 * len(tokens)
    for others in itertools.combinations(range(16, found[-1], 16), len(found) - 1):
        assert ours <= padded(tokens, (*others, found[-1], 256))
    # One more would hardly help.
    if len(found) < 3:
        more = min(
            padded(tokens, (*others, found[-1], 256))
            for others in itertools.combinations(range(16, found[-1], 16), len(found))
        )
        assert more > 0.9 * ours


def test_rows_as_long_as_the_model_takes_need_no_shorter_file() -> None:
    assert shorter_lengths([250] * 10, 256) == ()
    assert shorter_lengths([3], 16) == ()


@pytest.mark.parametrize("shorter", [[32, 16], [16, 64], [128], [16, 16]])
def test_lengths_that_do_not_ascend_are_refused(shorter: list[int]) -> None:
    shape = {"sequence": 64, "shorter": shorter}
    with pytest.raises(RecipeError, match="lengths of shorter ascend, and are below sequence"):
        parse({"model": "m", "task": "mrpc", "data": "d", "targets": ["qnn"], "shape": shape})


@pytest.fixture
def copied(made, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "given/ort-cpu", tmp_path / "ort-cpu"))


def test_a_file_for_shorter_rows_that_is_gone_is_a_sentence(copied: Path) -> None:
    file_of(onnx_file(copied), 16).unlink()
    with pytest.raises(OctobertError, match=r"model_quantized\.16\.onnx"):
        octobert.load(copied)


def test_a_file_of_another_length_than_its_name_says_is_refused(copied: Path) -> None:
    path = onnx_file(copied)
    shutil.copy(file_of(path, 32), file_of(path, 16))
    with pytest.raises(ModelError, match=r"made for other rows than its name says .*got \[2, 32\]"):
        opened(copied)


def test_a_file_that_the_package_does_not_list_is_not_opened(copied: Path) -> None:
    manifest = json.loads((copied / "octobert.json").read_text())
    for key in ("files", "sizes"):
        manifest[key] = {n: v for n, v in manifest[key].items() if ".16." not in n}
    (copied / "octobert.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"model_quantized.16.onnx is not listed in octobert.json"):
        octobert.load(copied)


@pytest.mark.parametrize("stated", ["9" * 5000, "\u0663\u0662", "../16", "-16", ",,", "17"])
def test_lengths_that_a_file_names_open_nothing_else(copied: Path, stated: str) -> None:
    path = onnx_file(copied)
    model = ir.load(path)
    model.metadata_props[SHORTER_METADATA] = stated
    ir.save(model, path)
    session = opened(copied)
    assert not session._shorter
    assert session.run(batch([5]))["logits"].shape == (1, 2)


def test_the_longest_file_alone_takes_all_rows(made, tmp_path: Path) -> None:
    path = onnx_file(made / "given/ort-cpu")
    for name in (path.name, f"{path.name}.data"):
        shutil.copy(path.with_name(name), tmp_path / name)
    session = targets.load("ort-cpu").open_session(tmp_path / path.name, SessionOptions())
    assert session.run(batch([5]))["logits"].shape == (1, 2)


def test_a_cache_of_optimized_files_is_not_used_for_shared_weights(
    copied: Path, tmp_path: Path
) -> None:
    with octobert.load(copied, cache=tmp_path / "cache", measure=False) as model:
        assert model([("the of", "and")])[0]["label"]


def test_all_files_of_a_model_are_known(made) -> None:
    package = made / "given/ort-cpu"
    path = onnx_file(package)
    names = {file.name for file in files_of(path)}
    assert names == {
        path.name,
        f"{path.name}.data",
        "model_quantized.16.onnx",
        "model_quantized.32.onnx",
    }
    package = made / "given/openvino-npu"
    names = {file.name for file in files_of(model_file(package))}
    stem = model_file(package).stem
    assert names == {f"{stem}.xml", f"{stem}.16.xml", f"{stem}.32.xml", f"{stem}.bin"}
    file, shape = open_model(package).fitting(10)
    assert (file.name, shape) == (f"{stem}.16.xml", (2, 16))


def test_long_models_choose_among_few_lengths() -> None:
    assert shorter_lengths([], 512) == ()
    assert shorter_lengths([0], 512) == (16,)
    found = shorter_lengths(list(range(1, 8000, 3)), 8192)
    assert all(length % 128 == 0 for length in found)
