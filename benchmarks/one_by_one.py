"""Single texts through `octobert.load`, and through another IR in the loop that users usually write, in turn.

    python benchmarks/one_by_one.py PACKAGE MODEL.xml --texts mrpc/validation.tsv [--rows 100] [--rounds 8]

Both take strings and return labels, with the same tokenizer. The other model runs without padding, and once more padded to 128
tokens. All texts are answered once before; then each system answers five texts, in an order that changes. Unlike in
`speed.py`, a text comes after another one, mostly of another length, as it does in a program.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np
from speed_cases import read_texts
from speed_systems import Octobert, Sessions

TURN = 5


def main() -> None:
    """Print a table: milliseconds of a text, and the other model's plain loop divided by it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    texts = read_texts(options.texts, options.rows)[0]
    other = Sessions("openvino-cpu", str(options.model), str(options.package))
    ours = {limit: Octobert(str(options.package), limit) for limit in (None, 0)}
    systems = {
        "other, plain": (other, "plain"),
        "other, padded to 128": (other, "padded"),
        "octobert.load": (ours[None], "latency, one by one"),
        "octobert.load, static_up_to=0": (ours[0], "latency, one by one"),
    }
    for system, how in systems.values():
        system.labels(texts, how)
    ms = {name: np.zeros((options.rounds, len(texts))) for name in systems}
    generator = random.Random(0)
    for each in range(options.rounds):
        for first in range(0, len(texts), TURN):
            for name in generator.sample(list(systems), len(systems)):
                system, how = systems[name]
                for i, text in enumerate(texts[first : first + TURN], first):
                    started = time.perf_counter()
                    system.labels([text], how)
                    ms[name][each, i] = 1e3 * (time.perf_counter() - started)
    plain = ms["other, plain"]
    print("| system | median ms | ratio, median | ratio of the fastest rounds of each text |")
    print("| --- | --- | --- | --- |")
    for name, own in ms.items():
        fastest = plain.min(axis=0).sum() / own.min(axis=0).sum()
        print(f"| {name} | {np.median(own):.2f} | {np.median(plain / own):.2f} | {fastest:.2f} |")


if __name__ == "__main__":
    main()
