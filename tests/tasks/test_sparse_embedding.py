"""Sparse embeddings: pooling against NumPy, entries that are kept, similarities, the cost of a search, and runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import octobert
from octobert.core.errors import DataError, ModelError, RecipeError
from octobert.core.heads import head_of
from octobert.core.results import ModelMetadata
from octobert.data.encoded import Encoded, feeds_of
from octobert.data.tokenization import EncodedTexts, Tokenizer
from octobert.engine.executors import inline
from octobert.models.pooling import pooling_of
from octobert.pipeline import runner
from octobert.tasks import Result
from octobert.tasks._vectors import similarities
from octobert.tasks.sparse_embedding import INDICES, VALUES, SparseRow, SparseVectors
from tests.support.retrieval import OPTIONS, recipe_of, rows_in
from tests.support.runs import FAST
from tests.support.sparse import ENCODER, TABLE, routed, stated
from tests.support.tasks import build

# Sums of float32 in another order; the logarithm of 1 + x rounds x where it is small.
SAME_FLOAT = 1e-5
ROUNDING = 1e-12
NO_TEXTS = EncodedTexts([], [])
SETTINGS = [("max", "relu"), ("sum", "relu"), ("max", "log1p_relu"), ("sum", "log1p_relu")]


def reference(
    folder: Path, rows: list[Encoded], mode: str = "max", activation: str = "relu"
) -> np.ndarray:
    """[rows, vocabulary], text by text, in float64, from the logits of transformers."""
    import torch
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    vectors = []
    for row in rows:
        feeds = {name: torch.from_numpy(array) for name, array in feeds_of([row], 0).items()}
        with torch.inference_mode():
            logits = model(**feeds).logits[0].numpy().astype(np.float64)
        weights = np.log1p(np.maximum(logits, 0))
        weights = np.log1p(weights) if activation == "log1p_relu" else weights
        vectors.append(weights.max(axis=0) if mode == "max" else weights.sum(axis=0))
    return np.array(vectors)


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
@pytest.mark.parametrize(("mode", "activation"), SETTINGS)
def test_the_captured_graph_pools_as_sentence_transformers(
    checkpoint, tmp_path: Path, family: str, mode: str, activation: str
) -> None:
    import shutil

    import onnxruntime as ort

    from octobert.graph import operators
    from octobert.graph.capture.capture import capture
    from octobert.models.source import resolve
    from octobert.pipeline.stages.capture import parity_batches

    folder = stated(
        shutil.copytree(checkpoint(family, "masked-lm"), tmp_path / "model"), mode, activation
    )
    source = resolve(folder)
    tokenizer = Tokenizer(source.tokenizer_folder)
    found = capture(source, "sparse-embedding", parity_batches(tokenizer, "sparse-embedding"))
    assert [str(value.name) for value in found.model.graph.outputs] == [
        "logits",
        "sentence_embedding",
    ]
    operators.save(found.model, tmp_path / "model.onnx")
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    rows = tokenizer.encode([("the of and",), ("a",), ("it was his and he had this",)])
    names = {value.name for value in session.get_inputs()}
    feeds = {k: v for k, v in feeds_of(rows, tokenizer.pad_id).items() if k in names}
    (vectors,) = session.run(["sentence_embedding"], feeds)
    np.testing.assert_allclose(
        vectors, reference(folder, rows, mode, activation), rtol=SAME_FLOAT, atol=SAME_FLOAT
    )


def test_what_a_folder_states(checkpoint, tmp_path: Path, golden) -> None:
    import shutil

    head = head_of("sparse-embedding")
    plain = checkpoint("bert", "masked-lm")
    assert (pooling_of(plain, head).modes, pooling_of(plain, head).saturation) == (("max",), 1)
    folder = stated(shutil.copytree(plain, tmp_path / "a"), "sum", "log1p_relu")
    assert (pooling_of(folder, head).modes, pooling_of(folder, head).saturation) == (("sum",), 2)
    for mode, activation in (("mean", "relu"), ("max", "tanh")):
        (folder / "1_SpladePooling" / "config.json").write_text(
            json.dumps({"pooling_strategy": mode, "activation_function": activation})
        )
        with golden.raises(octobert.ModelError):
            pooling_of(folder, head)


def test_the_largest_entries_are_kept_by_rising_index() -> None:
    vector = np.zeros(50, np.float32)
    vector[[3, 7, 20, 41]] = [0.5, 2.0, 0.1, 1.0]
    row = SparseRow(np.zeros(2), np.zeros(2), False, 3, 50)
    kept = row.kept({"logits": np.zeros((2, 50)), "sentence_embedding": vector})
    assert kept[INDICES].tolist() == [[3, 7, 41]]
    np.testing.assert_array_equal(kept[VALUES], np.array([[0.5, 2.0, 1.0]], np.float32))
    empty = row.kept({"sentence_embedding": np.zeros(50, np.float32)})
    assert not empty[VALUES].any()


ROW = SparseRow(np.zeros(2), np.zeros(2), False, 40, 40)


def outputs_of(vectors: np.ndarray) -> dict[str, np.ndarray]:
    """What is kept of vectors [n, 40]."""
    kept = [ROW.kept({"sentence_embedding": each}) for each in vectors]
    return {name: np.concatenate([each[name] for each in kept]) for name in kept[0]}


def sparse(count: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(dense vectors, the same as outputs)."""
    dense = np.maximum(np.random.default_rng(seed).standard_normal((count, 40)) - 0.7, 0)
    dense = dense.astype(np.float32)
    return dense, outputs_of(dense)


@pytest.mark.parametrize("kind", ["dot", "cosine", "euclidean", "manhattan"])
def test_similarities_are_those_of_dense_vectors(kind) -> None:
    form = SparseVectors(40)
    (first, one), (second, other) = sparse(7, 1), sparse(9, 2)
    found = form.similarities(kind, form.read(one, NO_TEXTS), form.read(other, NO_TEXTS))
    np.testing.assert_allclose(found, similarities(kind, first, second), atol=SAME_FLOAT)


def test_overlap_error_and_cost_by_loops() -> None:
    form = SparseVectors(40)
    (first, one), (second, other) = sparse(6, 1), sparse(6, 2)
    ours, theirs = form.read(one, NO_TEXTS), form.read(other, NO_TEXTS)
    has = first > 0, second > 0
    name, overlap, kind = form.agreement(ours, theirs)
    expected = [(a & b).sum() / (a | b).sum() for a, b in zip(*has, strict=True)]
    assert (name, kind) == ("overlap of terms", "share")
    np.testing.assert_allclose(overlap, expected, rtol=ROUNDING)
    either = (has[0] | has[1]).sum()
    error = np.sqrt(((first.astype(np.float64) - second) ** 2).sum() / either)
    assert form.error(ours, theirs) == pytest.approx(error)
    products = [np.mean([(a & b).sum() for b in has[1]]) for a in has[0]]
    relevant = [np.array([i, 0]) for i in range(6)]
    terms = [has[1][places].sum(axis=1).mean() for places in relevant]
    np.testing.assert_allclose(
        form.cost(ours, theirs, relevant), np.stack([products, terms], axis=1), rtol=ROUNDING
    )


def test_a_filled_vector_costs_more_and_ranks_the_same() -> None:
    """What 8 bits must not do unseen."""
    task = build("sparse-embedding", OPTIONS, ModelMetadata())
    rows = [{"query": f"q{i}", "document": [f"d{i}"]} for i in range(6)]
    texts, gold = task.inputs(rows, where="rows"), task.gold(rows, where="rows")
    dense, _ = sparse(6, 1)
    both = np.concatenate([dense, dense])

    def scores(vectors: np.ndarray) -> dict[str, float]:
        items = task.items(Result(outputs_of(vectors), EncodedTexts(texts, []), gold))
        wrong, right = task.extremes(items)
        assert wrong.shape[1:] == right.shape[1:] == items.shape[1:]
        return {name: metric(items) for name, metric in task.metrics.items()}

    trained, filled = scores(both), scores(np.where(both > 0, both, np.float32(1e-3)))
    assert filled["ndcg@10"] == trained["ndcg@10"]
    assert filled["flops"] == 40 > 2 * trained["flops"]
    assert filled["document_terms"] == 40
    assert "flops" in task.costs
    assert "flops" not in task.chance(np.ones((6, 14)))


def test_an_answer_reads_its_own_vector_alone(tokenizer_folder, monkeypatch) -> None:
    """Answers are made one by one: reading all vectors for each would take quadratic time."""
    task = build("sparse-embedding", OPTIONS, ModelMetadata())
    encoded = task.encode(Tokenizer(tokenizer_folder), [("the",), ("of",), ("a",)])
    dense, outputs = sparse(3, 1)
    read = SparseVectors.read
    seen: list[int] = []

    def counted(form, outputs, encoded):
        seen.append(len(encoded.texts))
        return read(form, outputs, encoded)

    monkeypatch.setattr(SparseVectors, "read", counted)
    for index, vector in enumerate(dense):
        answer = task.answer(Result(outputs, encoded), index, None)
        assert answer["values"] == pytest.approx(sorted(vector[vector > 0], reverse=True))
    assert seen == [1, 1, 1]


def test_queries_of_a_table_need_no_row(checkpoint, tmp_path: Path) -> None:
    from octobert.models.source import read_metadata, resolve

    source = resolve(routed(checkpoint("bert", "masked-lm"), tmp_path / "model"))
    assert pooling_of(source.tokenizer_folder, head_of("sparse-embedding")).modes == ("max",)
    metadata = read_metadata(source)
    assert metadata.query_table
    task = build("sparse-embedding", {}, metadata)
    tokenizer = Tokenizer(source.tokenizer_folder)
    asked = ["the of", {"text": "of a the of", "prompt": "query"}, "and", "it was"]
    asked.append({"text": "was", "prompt": "query"})
    encoded = task.encode(tokenizer, [task.parse(text, where="input") for text in asked])
    assert [len(rows) for rows in encoded.rows] == [1, 0, 1, 1, 0]
    width = tokenizer.vocabulary
    dense = np.maximum(np.random.default_rng(1).standard_normal((3, width)) - 1, 0)
    kept = [
        row.kept({"sentence_embedding": vector.astype(np.float32)})
        for row, vector in zip(encoded.flat, dense, strict=True)
    ]
    outputs = {name: np.concatenate([each[name] for each in kept]) for name in kept[0]}
    vectors = task.vectors(Result(outputs, encoded)).toarray()
    np.testing.assert_allclose(vectors[[0, 2, 3], :width], dense, rtol=SAME_FLOAT)
    weights = np.random.default_rng(3).random(width).astype(np.float32)
    for place, words in ((1, ("of", "a", "the")), (4, ("was",))):
        expected = np.zeros(width, np.float32)
        ids = [tokenizer.id_of(word) for word in words]
        expected[ids] = weights[ids]
        np.testing.assert_array_equal(vectors[place, :width], expected)
    alone = task.encode(tokenizer, encoded.texts[1:2])
    empty = {"sentence_embedding": np.zeros((0,))}
    assert len(task.answer(Result(empty, alone), 0, None)["values"]) == 3


def test_tables_that_do_not_fit(checkpoint, tmp_path: Path, golden, monkeypatch) -> None:
    from octobert.models.source import resolve

    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))

    folder = routed(checkpoint("bert", "masked-lm"), tmp_path / "a")
    tokenizer = folder / TABLE / "tokenizer.json"
    other = json.loads(tokenizer.read_text())
    vocabulary = other["model"]["vocab"]
    vocabulary["the"], vocabulary["of"] = vocabulary["of"], vocabulary["the"]
    tokenizer.write_text(json.dumps(other))
    with golden.raises(ModelError):
        resolve(folder)
    short = resolve(routed(checkpoint("bert", "masked-lm"), tmp_path / "b", weights=5))
    with golden.raises(ModelError):
        Tokenizer(short.tokenizer_folder)
    (short.tokenizer_folder / TABLE / "model.safetensors").write_bytes(b"no")
    with golden.raises(ModelError):
        Tokenizer(short.tokenizer_folder)
    # Two encoders: no route is the model.
    route = json.loads((folder / "router_config.json").read_text())
    route["structure"]["query"] = route["structure"]["document"]
    (folder / "router_config.json").write_text(json.dumps(route))
    with golden.raises(ModelError):
        resolve(folder)
    route["structure"]["query"] = ["../elsewhere"]
    (folder / "router_config.json").write_text(json.dumps(route))
    with golden.raises(ModelError):
        resolve(folder)


@pytest.mark.parametrize(
    "query",
    [5, True, None, TABLE, {TABLE: 1}, [[TABLE]], [{"a": 1}], [5], ["nowhere"], ["/tmp"]],
    ids=str,
)
def test_routes_that_are_none(checkpoint, tmp_path: Path, golden, query: object) -> None:
    from octobert.models.source import resolve

    folder = routed(checkpoint("bert", "masked-lm"), tmp_path / "model")
    route = json.loads((folder / "router_config.json").read_text())
    route["structure"]["query"] = query
    (folder / "router_config.json").write_text(json.dumps(route))
    with golden.raises(ModelError):
        resolve(folder)


def test_modules_of_one_name_are_all_read(checkpoint, tmp_path: Path) -> None:
    import shutil

    from octobert.models.sentence_transformers import modules_of
    from octobert.models.source import resolve

    folder = routed(checkpoint("bert", "masked-lm"), tmp_path / "model")
    for name in ("a", "b"):
        shutil.copytree(folder / "document_1_SpladePooling", folder / name / "pool")
    route = json.loads((folder / "router_config.json").read_text())
    names = [ENCODER, "a/pool", "b/pool"]
    route["types"] |= dict.fromkeys(names[1:], "sentence_transformers.models.SpladePooling")
    route["structure"]["document"] = names
    (folder / "router_config.json").write_text(json.dumps(route))
    modules = modules_of(resolve(folder).tokenizer_folder)
    assert [place.name for _, place in modules[1:]] == ["1_pool", "2_pool"]
    assert all((place / "config.json").is_file() for _, place in modules[1:])


def test_what_no_model_reads_says_nothing_about_it(checkpoint, tmp_path: Path, golden) -> None:
    from octobert.data.tokenization import TuningPart
    from octobert.evaluation import probing
    from octobert.evaluation.judging import AccuracyJudge
    from octobert.models.source import read_metadata, resolve

    source = resolve(routed(checkpoint("bert", "masked-lm"), tmp_path / "model"))
    metadata, tokenizer = read_metadata(source), Tokenizer(source.tokenizer_folder)
    task = build("sparse-embedding", OPTIONS, metadata)
    width = tokenizer.vocabulary

    class Model:
        """The tokens of a text, or those beside them."""

        outputs, streams, prepares_shapes = ("logits", "sentence_embedding"), 1, False

        def __init__(self, moved: int) -> None:
            self.moved = moved

        def run(self, feeds):
            ids = (feeds["input_ids"] + self.moved) % width
            vectors = np.zeros((len(ids), width), np.float32)
            np.put_along_axis(vectors, ids, 1, axis=1)
            return {"sentence_embedding": vectors}

    documents = ["the of and", "it was"]
    rows = [{"query": query, "document": documents} for query in ("the of", "was")]
    # Of the second part only a query is new.
    parts = [
        TuningPart(task.inputs(part, where="rows"), task.gold(part, where="rows"))
        for part in (rows[:1], rows)
    ]
    judge = AccuracyJudge(
        [],
        task,
        parts,
        tokenizer,
        open_float=lambda: Model(0),
        cache=tmp_path / "c",
        seed=0,
        main=True,
    )
    assert judge.judge(Model(0)).rows == 2
    # All texts that a model is probed with are read by it.
    probe = probing.rows_like(("the", "query"), task, tokenizer)
    assert all(probe.rows)
    asked = task.encode(tokenizer, [("the of", "query"), ("it", "document")])
    fidelity = task.fidelity(
        *(
            Result(outputs_of_rows(asked, Model(moved), tokenizer), asked, [[(1, 1.0)]])
            for moved in (0, 3)
        )
    )
    assert fidelity.agreement == 0
    with golden.raises(DataError):
        task.parse(["the of", "was"], where="input")
    with golden.raises(DataError):
        build("sparse-embedding", {"text": "text", "prompt": "query"}, metadata)


def outputs_of_rows(encoded: EncodedTexts, model, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """What is kept of the outputs of all rows."""
    from octobert.inference.batching import run_rows

    return run_rows(model, encoded.flat, tokenizer.pad_id, per_token=True)


@pytest.mark.slow
def test_a_model_with_a_table_of_queries_runs(checkpoint, tmp_path: Path, golden) -> None:
    folder = routed(checkpoint("bert", "masked-lm"), tmp_path / "model")
    recipe = recipe_of(
        folder,
        "sparse-embedding",
        rows_in(tmp_path / "data"),
        targets=["ort-cpu"],
        benchmark=FAST,
        accuracy={"metric": "ndcg@10", "max_drop": 1},
    )
    report = runner.run(recipe, tmp_path / "out", executor=inline.run)
    assert {score.metric for score in report.of("ort-cpu").scores} >= {"ndcg@10", "flops"}
    package = tmp_path / "out" / "ort-cpu"
    assert (package / TABLE / "model.safetensors").read_bytes() == (
        folder / TABLE / "model.safetensors"
    ).read_bytes()
    route = json.loads((package / "router_config.json").read_text())
    assert route["structure"] == {"query": [TABLE], "document": ["", "1_SpladePooling"]}
    model = octobert.load(package)
    query, document = model([{"text": "of the", "prompt": "query"}, "of the"])
    assert sorted(query["tokens"]) == ["of", "the"]
    assert query["values"] != document["values"]
    with golden.raises(ModelError):
        octobert.export(package, "fastembed", tmp_path / "fastembed")
    # Queries alone run nothing.
    assert model([{"text": "of the", "prompt": "query"}]) == [query]
    pq.write_table(pa.table({"text": ["of the", "a"]}), tmp_path / "corpus.parquet")
    octobert.embed(package, tmp_path / "corpus.parquet", tmp_path / "v.parquet", prompt="query")
    first = pq.read_table(tmp_path / "v.parquet")["embedding"].to_pylist()[0]
    assert sorted(first["indices"]) == sorted(query["indices"])


def test_a_cost_limits_nothing(checkpoint, tmp_path: Path, golden) -> None:
    recipe = recipe_of(
        checkpoint("bert", "masked-lm"),
        "sparse-embedding",
        {"source": str(rows_in(tmp_path / "data")), "tune": {"from": "train[20:]"}},
        accuracy={"metric": "flops", "max_drop": 1},
    )
    with golden.raises(RecipeError):
        runner.run(recipe, tmp_path / "out", executor=inline.run)


@pytest.mark.slow
def test_a_run_writes_packages_that_answer(checkpoint, tmp_path: Path, golden) -> None:
    import shutil

    folder = stated(
        shutil.copytree(checkpoint("bert", "masked-lm"), tmp_path / "model"), max_active_dims=50
    )
    recipe = recipe_of(
        folder,
        "sparse-embedding",
        rows_in(tmp_path / "data"),
        targets=["ort-cpu", "openvino-cpu"],
        baselines=["ort-f32"],
        benchmark=FAST,
    )
    report = runner.run(recipe, tmp_path / "out", executor=inline.run)
    figures = report.of("ort-cpu")
    assert figures.against_float is not None
    assert figures.against_float.fidelity_name == "overlap of terms"
    assert {score.metric for score in figures.scores} >= {"ndcg@10", "flops", "document_terms"}
    assert not figures.stored
    texts = ["the of and", "a"]
    for target in recipe.targets:
        package = tmp_path / "out" / target
        answers = octobert.load(package)(texts)
        assert all(len(answer["indices"]) <= 50 for answer in answers)
        assert all(np.diff(answer["values"]).max(initial=0) <= 0 for answer in answers)
        modules = json.loads((package / "modules.json").read_text())
        assert [module["type"].rpartition(".")[2] for module in modules] == [
            "MLMTransformer",
            "SpladePooling",
        ]
        about = json.loads((package / "config_sentence_transformers.json").read_text())
        assert about == {"model_type": "SparseEncoder", "max_active_dims": 50}
    pq.write_table(pa.table({"text": texts}), tmp_path / "corpus.parquet")
    out = tmp_path / "vectors.parquet"
    octobert.embed(tmp_path / "out" / "ort-cpu", tmp_path / "corpus.parquet", out)
    for row, answer in zip(
        pq.read_table(out)["embedding"].to_pylist(),
        octobert.load(tmp_path / "out" / "ort-cpu")(texts),
        strict=True,
    ):
        assert row["indices"] == sorted(answer["indices"])
        assert sorted(row["values"], reverse=True) == pytest.approx(answer["values"])
    with golden.raises(DataError):
        octobert.embed(
            tmp_path / "out" / "ort-cpu",
            tmp_path / "corpus.parquet",
            tmp_path / "x.parquet",
            vectors="int8",
        )
