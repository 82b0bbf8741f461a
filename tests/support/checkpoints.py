"""Tiny random encoders of every family, saved as checkpoints with a WordPiece tokenizer; nothing is downloaded."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from octobert import targets
from octobert.core import capability, environment, families
from octobert.core.heads import HEADS
from octobert.quantization.methods import Method

WORDS = tuple(
    [
        "the",
        "of",
        "and",
        "a",
        "to",
        "in",
        "is",
        "you",
        "that",
        "it",
        "he",
        "was",
        "for",
        "on",
        "are",
        "as",
        "with",
        "his",
        "they",
        "at",
        "be",
        "this",
        "have",
        "from",
        "or",
        "one",
        "had",
        "by",
    ]
)
_PIECES = [f"##{c}" for c in string.ascii_lowercase + string.digits]
_CHARACTERS = list(string.ascii_lowercase + string.digits + ".,")

# Settings of tiny models that most families have in common.
TINY = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
_ROBERTA = {
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
# Family → its own settings; a family without an entry has those of `TINY`.
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "albert": {
        "embedding_size": 16,
    },
    "deberta": {
        "relative_attention": True,
        "max_relative_positions": 8,
        "pos_att_type": ["c2p", "p2c"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "type_vocab_size": 0,
    },
    "distilbert": {
        "vocab_size": 120,
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": 64,
    },
    "electra": {
        "embedding_size": 16,
    },
    "data2vec-text": _ROBERTA,
    "eurobert": {
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "mask_token_id": 4,
    },
    "gemma3-text": {
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "query_pre_attn_scalar": 8,
        "sliding_window": 8,
        "sliding_window_pattern": 2,
        "use_bidirectional_attention": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "gte": {"intermediate_size": 48, "pad_token_id": 0},
    "jina-embeddings-v3": _ROBERTA,
    "mobilebert": {
        "embedding_size": 16,
        "intermediate_size": 48,
        "intra_bottleneck_size": 16,
        "num_feedforward_networks": 3,
    },
    "modernbert": {
        "intermediate_size": 48,
        "local_attention": 8,
        "global_attn_every_n_layers": 2,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "cls_token_id": 2,
        "sep_token_id": 3,
    },
    "mpnet": {
        "max_position_embeddings": 66,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    "nomic-bert": {"intermediate_size": 48},
    "qwen3": {
        "intermediate_size": 48,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    "rembert": {"input_embedding_size": 16, "output_embedding_size": 24},
    "roberta": _ROBERTA,
    "roberta-prelayernorm": _ROBERTA,
    "xlm-roberta-xl": _ROBERTA,
}


_FAMILIES = families.names()
# The heads that are one linear layer over all tokens are the same code in all families; these have the most different encoders.
_TAGGERS = ("bert", "deberta-v2", "mobilebert", "modernbert", "qwen3")
# Their heads for masked language models are those of BERT and RoBERTa.
_TWINS = ("data2vec-text", "ernie", "megatron-bert", "roberta-prelayernorm", "xlm-roberta-xl")


def has_no(family: str, head: str) -> bool:
    """Whether transformers has no such head for a family."""
    return head in families.load(family).without_heads


FAMILY_HEADS = (
    *((family, head) for family in _FAMILIES for head in ("sequence-classification", "embedding")),
    *((family, "token-classification") for family in _TAGGERS),
    ("bert", "question-answering"),
)
# Their models have one layer.
PRETRAINED_HEADS = (
    *(
        (family, "masked-lm")
        for family in _FAMILIES
        if family not in ("bert", *_TWINS) and not has_no(family, "masked-lm")
    ),
    ("bert", "next-sentence"),
    ("mobilebert", "next-sentence"),
    ("bert", "feature-extraction"),
)
# A classifier of each family, and the other heads of BERT.
FEW_HEADS = tuple(
    each for each in FAMILY_HEADS if each[0] == "bert" or each[1].startswith("sequence")
)


def tiny_settings(family: str) -> dict[str, Any]:
    """Keyword arguments for `AutoConfig.for_model(family)` that give a model of a few kilobytes."""
    own = OWN_SETTINGS.get(family, {})
    # DistilBERT has other names for the sizes.
    return own if "dim" in own else {**TINY, **own}


def make_checkpoint(
    folder: Path,
    family: str,
    head: str,
    labels: tuple[str, ...] = ("different", "same"),
    **overrides: object,
) -> Path:
    """A random model of a family with a head, its tokenizer beside it.

    Weights are drawn wide enough that attention is not uniform and logits differ from row to row.
    """
    import torch
    import transformers

    torch.manual_seed(7)
    settings = {**tiny_settings(family), "initializer_range": 0.3, **overrides}
    if "n_layers" in settings:
        settings["n_layers"] = settings.pop("num_hidden_layers", settings["n_layers"])
    named = families.load(family).model_types if family in _FAMILIES else (family,)
    config = transformers.AutoConfig.for_model(named[0], **settings)
    if head == "sequence-classification":
        config.id2label, config.label2id = (
            dict(enumerate(labels)),
            {name: i for i, name in enumerate(labels)},
        )
    model = getattr(transformers, HEADS[head].auto_class).from_config(config)
    norms = {n for n, m in model.named_modules() if type(m).__name__.endswith("Norm")}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.rpartition(".")[0] in norms:
                parameter.uniform_(0.7, 1.3) if name.endswith("weight") else parameter.uniform_(
                    -0.2, 0.2
                )
            elif name.endswith("bias"):
                parameter.uniform_(-0.2, 0.2)
    model.save_pretrained(folder)
    make_tokenizer(folder, pad_id=config.pad_token_id or 0)
    if HEADS[head].encoder == "MultiVectorEncoder":
        project(folder, config.hidden_size)
    return folder


def project(folder: Path, hidden: int) -> None:
    """Write the modules of a late-interaction model, as sentence-transformers 6 does."""
    from safetensors.numpy import save_file

    on_tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    identity = "torch.nn.modules.linear.Identity"
    sizes = {"in_features": hidden, "out_features": 8, "bias": False}
    configs = {
        "1_Dense": {**sizes, "activation_function": identity, **on_tokens},
        "2_Normalize": on_tokens,
    }
    entries = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    for index, (name, config) in enumerate(configs.items(), start=1):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
        kind = f"sentence_transformers.models.{name.partition('_')[2]}"
        entries.append({"idx": index, "name": str(index), "path": name, "type": kind})
    weight = np.random.default_rng(3).normal(0, 0.4, (8, hidden)).astype(np.float32)
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"model_type": "MultiVectorEncoder"})
    )


def make_tokenizer(folder: Path, *, pad_id: int) -> None:
    """A WordPiece tokenizer of under 120 tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    special = (
        ["[CLS]", "[PAD]", "[SEP]", "[UNK]"]
        if pad_id == 1
        else ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    )
    tokens = [*special, *WORDS, *(c for c in _CHARACTERS if c not in WORDS), *_PIECES, "[MASK]"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100)
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    tokenizer.add_special_tokens(["[MASK]"])
    tokenizer.save(str(folder / "tokenizer.json"))


def make_byte_level_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer with RoBERTa's four special tokens around a pair, and a config that says so."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 5, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"model_type": "roberta", "pad_token_id": 1, "max_position_embeddings": 514}
    (folder / "config.json").write_text(json.dumps(config))


def batch(
    lengths: list[int], *, pad_id: int = 0, vocabulary: int = 90, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random feeds with these row lengths, padded on the right."""
    generator = np.random.default_rng(seed)
    ids = np.full((len(lengths), max(lengths)), pad_id, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = generator.integers(4, vocabulary, length)
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def parity_feeds(pad_id: int = 0) -> list[dict[str, np.ndarray]]:
    """Batches of rows of one token and of more than any window or bucket of a tiny model."""
    return [
        batch(lengths, pad_id=pad_id, seed=i)
        for i, lengths in enumerate(([9, 4, 1], [2], [17, 30]))
    ]


def reduces(target: str = "ort-cpu") -> bool:
    """Whether `reduce_range: auto` limits the weights on this CPU; planners themselves, asked directly, do not."""
    return capability.saturates(targets.load(target).capabilities, environment.current().features)


M = TypeVar("M", bound=Method)


def exact_method(method: type[M], target: str = "ort-cpu", **options: object) -> M:
    """A method with which a target's products are exact on this CPU, as a run has it."""
    return method(**{"reduce_range": reduces(target), **options})


def pad_of(folder: Path) -> int:
    """The padding id of a checkpoint."""
    return json.loads((folder / "config.json").read_text())["pad_token_id"] or 0


def plant_outliers(source: Path, folder: Path, *, factor: float, channels: int) -> Path:
    """A copy of a BERT checkpoint that computes the same, with outlier channels that no per-tensor range survives.

    In every layer some channels of Q are scaled up and those of K down by the same factor, and some of V up and the rows of the
    output projection that read them down.
    """
    import shutil

    from safetensors.numpy import load_file, save_file

    shutil.copytree(source, folder)
    weights = {
        name: array.astype(np.float32)
        for name, array in load_file(folder / "model.safetensors").items()
    }
    generator = np.random.default_rng(0)
    for name in [n for n in weights if n.endswith("attention.self.query.weight")]:
        stem = name.removesuffix("self.query.weight")
        chosen = generator.permutation(len(weights[name]))[:channels]
        for part, power in (("self.query", 1), ("self.key", -1), ("self.value", 1)):
            weights[f"{stem}{part}.weight"][chosen] *= factor**power
            weights[f"{stem}{part}.bias"][chosen] *= factor**power
        weights[f"{stem}output.dense.weight"][:, chosen] /= factor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
