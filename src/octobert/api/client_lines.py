"""The lines that load a model in another program and run it: a function for each program, which returns Python or JavaScript.

They compute what octobert computes: prompts stand before the texts, and scores of pairs are on the checkpoint's scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# Kinds of models: heads, and of classifiers what they read.
EMBEDDING, CLASSIFICATION = "embedding", "sequence-classification"
SINGLE, PAIRS, RERANKER = "classifier of single texts", "classifier of pairs", "reranker"
TAGGING, ANSWERING = "token-classification", "question-answering"
FILLING, FEATURES, NEXT = "masked-lm", "feature-extraction", "next-sentence"
# What the models are asked.
TEXTS = ("How old is the tower?", "It was built in 1889.")
QUERY = TEXTS[0]
ONE_TEXT = ("It was a pleasant surprise.",)
TWO_TEXTS = (("He left.", "He went away."),)
RANKED = ("How old is the tower?", ("It was built in 1889.", "He left."))
QUESTION, CONTEXT = "Who built it?", "Gustave Eiffel built it in 1889."

_PIPELINES = {
    SINGLE: "text-classification",
    PAIRS: "text-classification",
    TAGGING: "token-classification",
    ANSWERING: "question-answering",
    FILLING: "fill-mask",
    FEATURES: "feature-extraction",
}
# transformers 5 has no pipeline for question answering, and no release has one for the others.
_WITHOUT_PIPELINE = (EMBEDDING, ANSWERING, NEXT, RERANKER)
_CLASSES = {
    **dict.fromkeys((SINGLE, PAIRS, RERANKER), "SequenceClassification"),
    TAGGING: "TokenClassification",
    ANSWERING: "QuestionAnswering",
    FILLING: "MaskedLM",
    FEATURES: "FeatureExtraction",
}
# Names of prompts for passages, as sentence-transformers looks for them.
_PASSAGES = ("document", "passage", "corpus")


@dataclass(frozen=True)
class Model:
    """What the lines depend on.

    Args:
        folder: of the model.
        kind: of the model.
        openvino: whether the folder holds an IR, not an ONNX file.
        width: of a vector, or of the logits.
        activation: what makes the score of a reranker: `Identity`, `Sigmoid` or `Tanh`.
        multi_label: whether every logit is a decision of its own.
        normalized: whether vectors have length 1.
        prompts: name → text that is put before a text.
        default_prompt: name of the prompt that sentence-transformers puts before texts where none is chosen.
    """

    folder: str
    kind: str
    openvino: bool = False
    width: int = 0
    activation: str = "Identity"
    multi_label: bool = False
    normalized: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None

    def quoted(self, file: str = "") -> str:
        """The folder, or a file in it, as Python and JavaScript write it."""
        return written(self.folder + file)

    @property
    def backend(self) -> str:
        """As sentence-transformers names it."""
        return "openvino" if self.openvino else "onnx"

    @property
    def passage(self) -> str | None:
        """Name of the prompt for passages, else the default; None where there is none."""
        return _named(self.prompts, _PASSAGES) or self.default_prompt

    @property
    def query(self) -> str | None:
        """Name of the prompt for queries, else the default; None where there is none."""
        return _named(self.prompts, ("query",)) or self.default_prompt

    @property
    def prompted(self) -> bool:
        """Whether queries are embedded in another way than passages."""
        return self.query != self.passage

    @property
    def instructions(self) -> tuple[str | None, str | None]:
        """The texts of the prompts for passages and for queries, as Python writes them."""
        passage, query = (written(self.prompts[name]) if name else None for name in (self.passage, self.query))
        return passage, query

    def queries(self, expression: str) -> list[str]:
        """The line that embeds queries, where they are embedded in another way than passages."""
        return [f"queries = {expression}"] if self.prompted else []

    def after(self, prompt: str | None, texts: Iterable[str]) -> str:
        """Texts behind a prompt, as Python and JavaScript write them."""
        before = self.prompts[prompt] if prompt else ""
        return written([before + text for text in texts])


def _named(prompts: Mapping[str, str], endings: tuple[str, ...]) -> str | None:
    """The prompt of that name, else one whose name ends like it, such as `search_query`."""
    exact = [name for name in endings if name in prompts]
    return next((name for name in (*exact, *prompts) if name.endswith(endings)), None)


def written(value: object) -> str:
    """Texts and lists of them, as Python and JavaScript write them."""
    return json.dumps(value, ensure_ascii=False)


def _keywords(**keywords: str | None) -> str:
    """`, name=value` of those that are not None, as Python writes them."""
    return "".join(f", {name}={value}" for name, value in keywords.items() if value is not None)


def _chosen(name: str | None) -> str | None:
    """A prompt by its name, for what reaches `SentenceTransformer.encode`."""
    return None if name is None else written({"prompt_name": name})


def sentence_transformers(model: Model) -> list[str]:
    kind = "SentenceTransformer" if model.kind == EMBEDDING else "CrossEncoder"
    lines = [f"from sentence_transformers import {kind}", "", f'model = {kind}({model.quoted()}, backend="{model.backend}")']
    if model.kind != EMBEDDING:
        # CrossEncoder reads a list of texts as a pair.
        given = f"[model.predict(text) for text in {written(ONE_TEXT)}]"
        return [*lines, f"answers = {given}" if model.kind == SINGLE else f"answers = model.predict({written(TWO_TEXTS)})"]
    passage, query = (name and written(name) for name in (model.passage, model.query))
    lines += [f"vectors = model.encode({written(TEXTS)}{_keywords(prompt_name=passage)})"]
    return [*lines, *model.queries(f"model.encode({written([QUERY])}{_keywords(prompt_name=query)})")]


def optimum(model: Model) -> list[str]:
    module, prefix = ("optimum.intel", "OV") if model.openvino else ("optimum.onnxruntime", "ORT")
    kind = f"{prefix}ModelFor{_CLASSES.get(model.kind, 'CustomTasks')}"
    lines = [
        f"from {module} import {kind}",
        f"from transformers import AutoTokenizer{', pipeline' if model.kind not in _WITHOUT_PIPELINE else ''}",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({model.quoted()})",
        f"model = {kind}.from_pretrained({model.quoted()})",
    ]
    encoded = 'padding=True, truncation=True, return_tensors="pt")'
    if model.kind == EMBEDDING:
        for result, given in _asked(model):
            lines += [f"inputs = tokenizer({given}, {encoded}", f'{result} = model(**inputs)["sentence_embedding"]']
        return lines
    if model.kind == ANSWERING:
        lines += [f"inputs = tokenizer({written(QUESTION)}, {written(CONTEXT)}, {encoded}", "outputs = model(**inputs)"]
        lines += ["start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()"]
        return [*lines, 'answers = tokenizer.decode(inputs["input_ids"][0, start : end + 1])']
    if model.kind in (NEXT, RERANKER):
        lines += [f"inputs = tokenizer({written(TWO_TEXTS)}, {encoded}"]
        if model.kind == NEXT:
            return [*lines, 'answers = model(**inputs)["logits"]']
        made = {"Identity": "", "Sigmoid": ".sigmoid()", "Tanh": ".tanh()"}[model.activation]
        return [*lines, f"answers = model(**inputs).logits[:, 0]{made}"]
    lines += [f'run = pipeline("{_PIPELINES[model.kind]}", model=model, tokenizer=tokenizer)']
    options = _keywords(top_k="None", function_to_apply='"sigmoid"') if model.multi_label else ""
    if model.kind in (SINGLE, PAIRS):
        options += ", truncation=True"
    if model.kind == PAIRS:
        given = written([{"text": first, "text_pair": second} for first, second in TWO_TEXTS])
    else:
        given = 'f"It was a {tokenizer.mask_token} surprise."' if model.kind == FILLING else written(ONE_TEXT)
    return [*lines, f"answers = run({given}{options})"]


def _asked(model: Model) -> list[tuple[str, str]]:
    """(result, texts behind their prompt) for programs that know no prompts; a query, if it has a prompt of its own."""
    asked = [("vectors", model.after(model.passage, TEXTS))]
    return asked + ([("queries", model.after(model.query, [QUERY]))] if model.prompted else [])


def langchain(model: Model) -> list[str]:
    prompts = _keywords(
        encode_kwargs=_chosen(model.passage), query_encode_kwargs=_chosen(model.query) if model.prompted else None
    )
    lines = [
        "from langchain_huggingface import HuggingFaceEmbeddings",
        "",
        f'options = {{"backend": "{model.backend}"}}',
        f"model = HuggingFaceEmbeddings(model_name={model.quoted()}, model_kwargs=options{prompts})",
        f"vectors = model.embed_documents({written(TEXTS)})",
    ]
    return [*lines, *model.queries(f"[model.embed_query({written(QUERY)})]")]


def llama_index(model: Model) -> list[str]:
    passage, query = model.instructions
    options = _keywords(query_instruction=query, text_instruction=passage, normalize=None if model.normalized else "False")
    lines = [
        "from llama_index.embeddings.huggingface import HuggingFaceEmbedding",
        "",
        f'model = HuggingFaceEmbedding({model.quoted()}, backend="{model.backend}"{options})',
        f"vectors = model.get_text_embedding_batch({written(TEXTS)})",
    ]
    return [*lines, *model.queries(f"[model.get_query_embedding({written(QUERY)})]")]


def haystack(model: Model) -> list[str]:
    place, opened = "haystack_integrations.components", f'model={model.quoted()}, backend="{model.backend}"'
    if model.kind == RERANKER:
        query, documents = RANKED
        raw = ", scale_score=False" if model.activation != "Sigmoid" else ""
        return [
            "from haystack import Document",
            f"from {place}.rankers.sentence_transformers import SentenceTransformersSimilarityRanker",
            "",
            f"ranker = SentenceTransformersSimilarityRanker({opened}{raw})",
            f"documents = [Document(content=text) for text in {written(documents)}]",
            f"found = ranker.run(query={written(query)}, documents=documents)",
            'answers = [(document.content, document.score) for document in found["documents"]]',
            *_tanh(model, "answers = [(text, math.tanh(score)) for text, score in answers]"),
        ]
    kinds = ["SentenceTransformersDocumentEmbedder", *(["SentenceTransformersTextEmbedder"] if model.prompted else [])]
    passage, query_options = (_keywords(encode_kwargs=_chosen(name)) for name in (model.passage, model.query))
    lines = [
        "from haystack import Document",
        f"from {place}.embedders.sentence_transformers import {', '.join(kinds)}",
        "",
        f"embedder = {kinds[0]}({opened}{passage})",
        f"documents = [Document(content=text) for text in {written(TEXTS)}]",
        'vectors = [document.embedding for document in embedder.run(documents)["documents"]]',
    ]
    if model.prompted:
        lines += [f"asker = {kinds[1]}({opened}{query_options})", f'queries = [asker.run({written(QUERY)})["embedding"]]']
    return lines


def _tanh(model: Model, line: str) -> list[str]:
    return ["import math", line] if model.activation == "Tanh" else []


def fastembed(model: Model) -> list[str]:
    kind = "TextEmbedding" if model.kind == EMBEDDING else "TextCrossEncoder"
    place = "fastembed" if model.kind == EMBEDDING else "fastembed.rerank.cross_encoder"
    pooled = ["    pooling=PoolingType.DISABLED,", "    normalization=False,", '    output_name="sentence_embedding",']
    loaded = [
        *(["import math", ""] if model.kind != EMBEDDING and model.activation != "Identity" else []),
        f"from {place} import {kind}",
        f"from fastembed.common.model_description import ModelSource{', PoolingType' if model.kind == EMBEDDING else ''}",
        "",
        f"{kind}.add_custom_model(",
        '    model="quantized",',
        *(pooled if model.kind == EMBEDDING else []),
        '    sources=ModelSource(hf="quantized"),',
        *([f"    dim={model.width},"] if model.kind == EMBEDDING else []),
        '    model_file="model.onnx",',
        ")",
        f'model = {kind}("quantized", specific_model_path={model.quoted()})',
    ]
    if model.kind == EMBEDDING:
        return [*loaded, *(f"{result} = list(model.embed({given}))" for result, given in _asked(model))]
    made = {"Identity": "score", "Sigmoid": "1 / (1 + math.exp(-score))", "Tanh": "math.tanh(score)"}[model.activation]
    return [*loaded, f"answers = [{made} for score in model.rerank_pairs({written(TWO_TEXTS)})]"]


def txtai(model: Model) -> list[str]:
    prompts = {"query": model.query, "data": model.passage}
    stated = {category: model.prompts[name] for category, name in prompts.items() if name}
    lines = [
        "from txtai import Embeddings",
        "",
        f"model = Embeddings(path={model.quoted('/model.onnx')}{_keywords(instructions=written(stated) if stated else None)})",
        f'vectors = model.batchtransform({written(TEXTS)}, "data")',
    ]
    return [*lines, *model.queries(f'model.batchtransform({written([QUERY])}, "query")')]


def infinity(model: Model) -> list[str]:
    calls = [(name, f"embed(sentences={given})") for name, given in _asked(model)]
    if model.kind == SINGLE:
        calls = [("answers", f"classify(sentences={written(ONE_TEXT)})")]
    if model.kind == RERANKER:
        query, documents = RANKED
        raw = ", raw_scores=True" if model.activation != "Sigmoid" else ""
        calls = [("answers", f"rerank(query={written(query)}, docs={written(documents)}{raw})")]
    results = ", ".join(name for name, _ in calls)
    warm = ", model_warmup=False" if model.kind == SINGLE else ""
    return [
        "import asyncio",
        "import os",
        "",
        "# It would rewrite the model.",
        'os.environ["INFINITY_ONNX_DISABLE_OPTIMIZE"] = "1"',
        "from infinity_emb import AsyncEmbeddingEngine, EngineArgs",
        "",
        # The texts that it warms up with are too long for a classifier, as it does not cut them.
        f'options = EngineArgs(model_name_or_path={model.quoted()}, engine="optimum", device="cpu"{warm})',
        "",
        "",
        "async def run():",
        "    engine = AsyncEmbeddingEngine.from_args(options)",
        "    async with engine:",
        *(["        # It does not cut texts that are longer than the model reads."] if model.kind == SINGLE else []),
        *(f"        {name}, _ = await engine.{call}" for name, call in calls),
        f"        return {results}",
        "",
        "",
        f"{results} = asyncio.run(run())",
        *_tanh(model, "answers = [(each.index, math.tanh(each.relevance_score)) for each in answers]"),
    ]


def openvino_genai(model: Model) -> list[str]:
    if model.kind == RERANKER:
        query, documents = RANKED
        note = ["# Its scores are sigmoids; those of the model are not."] if model.activation != "Sigmoid" else []
        return [
            "from openvino_genai import TextRerankPipeline",
            "",
            f'model = TextRerankPipeline({model.quoted()}, "CPU", top_n={len(documents)})',
            *note,
            f"answers = model.rerank({written(query)}, {written(documents)})",
        ]
    passage, asking = model.instructions
    options = _keywords(embed_instruction=passage, query_instruction=asking, normalize=None if model.normalized else "False")
    lines = [
        "from openvino_genai import TextEmbeddingPipeline",
        "",
        f'model = TextEmbeddingPipeline({model.quoted()}, "CPU"{options})',
        f"vectors = model.embed_documents({written(TEXTS)})",
    ]
    return [*lines, *model.queries(f"[model.embed_query({written(QUERY)})]")]


def transformers_js(model: Model) -> list[str]:
    names = {EMBEDDING: "AutoModel, AutoTokenizer"}.get(model.kind, "pipeline")
    lines = [
        f'import {{ env, {names} }} from "@huggingface/transformers";',
        "",
        "env.allowRemoteModels = false;",
        'env.localModelPath = "";',
    ]
    if model.kind == EMBEDDING:
        lines += [
            f"const tokenizer = await AutoTokenizer.from_pretrained({model.quoted()});",
            f'const model = await AutoModel.from_pretrained({model.quoted()}, {{ dtype: "q8" }});',
        ]
        for result, given in _asked(model):
            encoded = f"tokenizer({given}, {{ padding: true, truncation: true }})"
            lines += [f"const {result} = (await model({encoded})).sentence_embedding.tolist();"]
        return lines
    task = _PIPELINES.get(model.kind, "text-classification")
    lines += [f'const run = await pipeline("{task}", {model.quoted()}, {{ dtype: "q8" }});']
    if model.kind in (PAIRS, RERANKER):
        # The pipeline of transformers.js takes single texts.
        first, second = (written([pair[side] for pair in TWO_TEXTS]) for side in (0, 1))
        made = {"Identity": "x", "Sigmoid": "1 / (1 + Math.exp(-x))", "Tanh": "Math.tanh(x)"}[model.activation]
        scores = f".map(([x]) => {made})" if model.kind == RERANKER else ""
        return [
            *lines,
            f"const inputs = run.tokenizer({first}, {{ text_pair: {second}, padding: true, truncation: true }});",
            f"const answers = (await run.model(inputs)).logits.tolist(){scores};",
        ]
    given = {
        ANSWERING: f"{written(QUESTION)}, {written(CONTEXT)}",
        FILLING: "`It was a ${run.tokenizer.mask_token} surprise.`",
    }.get(model.kind, written(ONE_TEXT))
    return [*lines, f"const answers = await run({given}{', { top_k: null }' if model.multi_label else ''});"]
