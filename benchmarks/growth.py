"""How time and memory of a cold run grow with the number of parameters, with rows, and with their length.

    python benchmarks/growth.py OUT [--sizes 22 110 335 560] [--rows 64 1024] [--words 8 128] [--target openvino-cpu]
    python benchmarks/growth.py OUT --draw FILE.svg

Models have the shapes of BERT (22 million parameters: MiniLM-L6, 110: base, 335: large) and of XLM-R large (560), with random
weights of BERT's own initialization, and a vocabulary of made-up words. Sizes are measured with 256 rows of 32 words, rows and
lengths with the first size above 22 (else that). A run makes one target's model and measures nothing, in an empty store.
`OUT/growth.json` keeps each result; what it has is not measured again. `--draw` needs matplotlib.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from cost import Cost, cost_of, steps_of

# Millions of parameters → layers, hidden size, heads, inner size, words of the vocabulary, class.
SHAPES = {
    22: (6, 384, 12, 1536, 30_522, "bert"),
    110: (12, 768, 12, 3072, 30_522, "bert"),
    335: (24, 1024, 16, 4096, 30_522, "bert"),
    560: (24, 1024, 16, 4096, 250_002, "xlm-roberta"),
}
ROWS, WORDS = 256, 32
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]


def make(folder: Path, size: int) -> None:
    """Write a checkpoint with random weights."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    layers, hidden, heads, inner, vocabulary, family = SHAPES[size]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        family,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position_embeddings=514,
        type_vocab_size=1 if family == "xlm-roberta" else 2,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    auto: Any = transformers.AutoModel
    model = auto.from_config(config, add_pooling_layer=False)
    model.save_pretrained(folder)
    names = [*SPECIAL, *(f"w{i}" for i in range(vocabulary - len(SPECIAL)))]
    tokenizer = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    marks = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    ends = {"cls_token": "<s>", "sep_token": "</s>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **marks, **ends})
    )


def measure(out: Path, size: int, rows: int, words: int, target: str) -> dict[str, Any]:
    """Quantize a model, and return what it cost, with the sizes of the files."""
    folder = out / f"model-{size}"
    if not (folder / "tokenizer_config.json").is_file():
        make(folder, size)
    chance, most = random.Random(0), SHAPES[size][4] - len(SPECIAL)
    with tempfile.TemporaryDirectory(prefix="growth-", dir=out) as temporary:
        data, run = Path(temporary) / "texts.jsonl", Path(temporary) / "run"
        data.write_text(
            "".join(
                json.dumps({"text": " ".join(f"w{chance.randrange(most)}" for _ in range(words))})
                + "\n"
                for _ in range(2 * rows)
            )
        )
        command = [sys.executable, "-m", "octobert", "quantize", str(folder), "--task", "embedding"]
        command += ["--data", str(data), "--out", str(run), "--target", target]
        command += ["--samples", str(rows), "--set", "measure=false"]
        cost = cost_of(command, out / "log")
        print(f"steps: {steps_of(run)}", file=sys.stderr, flush=True)
        stored = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
    floating = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return {**dataclasses.asdict(cost), "stored": stored / 2**20, "float": floating / 2**20}


def draw(results: dict[str, dict[str, Any]], path: Path) -> None:
    """Draw processor seconds and the largest process against parameters, rows and words."""
    import matplotlib.pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), sharey="row")
    points = {tuple(map(int, key.split("/")[1:])): cost for key, cost in results.items()}
    middle = next(iter(sorted({s for s, r, w in points if (r, w) != (ROWS, WORDS)})), None)
    curves = (
        (
            "million parameters",
            {s: c for (s, r, w), c in points.items() if (r, w) == (ROWS, WORDS)},
        ),
        ("rows", {r: c for (s, r, w), c in points.items() if (s, w) == (middle, WORDS)}),
        ("words of a row", {w: c for (s, r, w), c in points.items() if (s, r) == (middle, ROWS)}),
    )
    for column, (title, costs) in zip(axes.T, curves, strict=True):
        for axis, figure_of in zip(column, ("processor", "largest"), strict=True):
            xs = sorted(costs)
            axis.plot(
                xs,
                [costs[x][figure_of] / (1 if figure_of == "processor" else 1024) for x in xs],
                "o-",
                color="#0b7285",
            )
            axis.set_ylim(bottom=0)
            axis.set_xlim(left=0)
        column[1].set_xlabel(title)
    axes[0][0].set_ylabel("processor seconds")
    axes[1][0].set_ylabel("largest process, GiB")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure, print, or draw."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="*", default=[64, 1024])
    parser.add_argument("--words", type=int, nargs="*", default=[8, 128])
    parser.add_argument("--target", default="openvino-cpu")
    parser.add_argument("--draw", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "growth.json"
    results: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.is_file() else {}
    if given.draw:
        draw(results, given.draw)
        return
    middle = next((size for size in given.sizes if size > 22), given.sizes[0])
    print(
        "| million parameters | rows | words | wall, processor, peaks in MiB | stored ÷ float file |"
    )
    for size, rows, words in (
        *((size, ROWS, WORDS) for size in given.sizes),
        *((middle, rows, WORDS) for rows in given.rows),
        *((middle, ROWS, words) for words in given.words),
    ):
        key = f"{given.target}/{size}/{rows}/{words}"
        if key not in results:
            results[key] = measure(given.out, size, rows, words, given.target)
            kept.write_text(json.dumps(results, indent=1))
        found = results[key]
        cost = Cost(*(found[field.name] for field in dataclasses.fields(Cost)))
        print(
            f"| {size} | {rows} | {words} | {cost} | {found['stored'] / found['float']:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
