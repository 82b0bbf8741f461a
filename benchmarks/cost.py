"""What quantizing costs: time, processor seconds and memory of a cold run, beside `nncf.quantize` on the same graph and rows.

    python benchmarks/cost.py MODEL [MODEL …] [--targets openvino-cpu ort-cpu] [--rows 256] [--texts FILE] [--peer]

A run makes models and measures nothing (`measure: false`). Each runs in a process of its own with an empty store. Processor
seconds are those of the process and of all its children. Peaks are the largest resident memory of one process, and that of all
processes together, read every 50 ms. `--peer` needs the extra `bench`. Texts are lines of a file; without one, sentences of
random words.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from soak_shapes import WORDS


@dataclass(frozen=True)
class Cost:
    """What a command cost: seconds, processor seconds, and MiB of its largest process and of all together."""

    wall: float
    processor: float
    largest: float
    together: float

    def __str__(self) -> str:
        return f"{self.wall:.0f} s | {self.processor:.0f} s | {self.largest:,.0f} | {self.together:,.0f}"


def cost_of(command: list[str], log: Path) -> Cost:
    """Run a command and return what it cost."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    peaks = [0.0, 0.0]

    def watch() -> None:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            sizes = []
            for each in (root, *_children(root)):
                try:
                    sizes.append(each.memory_info().rss / 2**20)
                except psutil.Error:
                    continue
            if sizes:
                peaks[:] = max(peaks[0], *sizes), max(peaks[1], sum(sizes))
            time.sleep(0.05)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    code = process.wait()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    watcher.join()
    if code:
        sys.exit(log.read_text()[-3000:])
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, used, *peaks)


def _children(root: psutil.Process) -> list[psutil.Process]:
    try:
        return list[psutil.Process](root.children(recursive=True))
    except psutil.Error:
        return []


def steps_of(out: Path) -> str:
    """Return the seconds of the steps of a run, the longest first."""
    steps: dict[str, float] = {}
    for manifest in (out / ".octobert" / "store").glob("*/artifact.json"):
        stored = json.loads(manifest.read_text())
        name = manifest.parent.name.rpartition("-")[0]
        steps[name] = steps.get(name, 0.0) + stored["seconds"]
    longest = sorted(steps.items(), key=lambda step: -step[1])
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in longest if seconds >= 0.5)


def quantize_with_nncf(floating: str, tokenizer: str, texts: str, to: str) -> None:
    """Quantize the float graph of a run with `nncf.quantize`; for a process of its own."""
    import onnx_ir as ir
    from peers import nncf_transformer

    from octobert.core.onnx_files import ports_of
    from octobert.data.encoded import feeds_of
    from octobert.data.tokenization import Tokenizer

    reader = Tokenizer(Path(tokenizer))
    rows = reader.encode([(text,) for text in json.loads(Path(texts).read_text())])
    names = [port.name for port in ports_of(ir.load(floating)).inputs]
    feeds = [{name: feeds_of([row], reader.pad_id)[name] for name in names} for row in rows]
    nncf_transformer(Path(floating), feeds, Path(to))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--targets", nargs="+", default=["openvino-cpu", "ort-cpu"])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument(
        "--keep", type=Path, help="the folder of the last run, instead of a temporary one"
    )
    parser.add_argument("--nncf", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nncf:
        quantize_with_nncf(*given.nncf)
        return
    chance = random.Random(0)
    lines = (
        [line.strip() for line in given.texts.read_text().splitlines() if line.strip()]
        if given.texts
        else [
            " ".join(chance.choices(WORDS, k=chance.randint(4, 40))) for _ in range(4 * given.rows)
        ]
    )
    chance.shuffle(lines)
    print(
        "| model | what | wall | processor | peak of a process, MiB | of all, MiB |\n| --- | --- | ---: | ---: | ---: | ---: |"
    )
    for model in given.models:
        with tempfile.TemporaryDirectory(prefix="cost-") as temporary:
            folder = given.keep or Path(temporary)
            folder.mkdir(exist_ok=True)
            texts, out = folder / "texts.json", folder / "out"
            rows = lines[: given.rows]
            texts.write_text(json.dumps(rows))
            data = folder / "texts.jsonl"
            data.write_text(
                "".join(json.dumps({"text": line}) + "\n" for line in lines[: 2 * given.rows])
            )
            command = [
                sys.executable,
                "-m",
                "octobert",
                "quantize",
                model,
                "--task",
                "embedding",
                "--data",
                str(data),
                "--out",
                str(out),
                *(word for target in given.targets for word in ("--target", target)),
                "--samples",
                str(given.rows),
                "--set",
                "measure=false",
            ]
            for setting in given.set:
                command += ["--set", setting]
            cost = cost_of(command, folder / "log")
            print(
                f"| {Path(model).name} | octobert, {' + '.join(given.targets)} | {cost} |",
                flush=True,
            )
            print(f"steps: {steps_of(out)}", file=sys.stderr, flush=True)
            if given.peer:
                package = out / given.targets[-1]
                (floating,) = package.rglob("model.onnx")
                command = [
                    sys.executable,
                    __file__,
                    "--nncf",
                    str(floating),
                    str(package),
                    str(texts),
                    str(folder),
                ]
                print(
                    f"| {Path(model).name} | nncf.quantize, {given.rows} rows | {cost_of(command, folder / 'nncf.log')} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
