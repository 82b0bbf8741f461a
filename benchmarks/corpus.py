"""`octobert embed` on many short passages: rows per second, memory over the run, kills, and other programs.

    python benchmarks/corpus.py PACKAGE TEXTS [--rows 100000] [--kills 5] [--out runs/corpus]
    python benchmarks/corpus.py PACKAGE TEXTS --peers PYTHON --model FOLDER [--rounds 12] [--block 512] [--judge ROWS.jsonl]

TEXTS is a file with a passage on each line, of which rows are drawn with a fixed seed. The first form writes a corpus, embeds
it undisturbed while the memory of the process is read every second, then again with SIGKILLs at random moments, and compares
the bytes of both files.

The second form embeds new passages of TEXTS in turn by octobert, `SentenceTransformer.encode` with PyTorch, with its ONNX
backend in int8 (its dynamic export, and a static one by optimum) and with its OpenVINO backend in int8 (its static export), and
fastembed, all with their defaults, each in a process of its own that has loaded its model and embedded one block before. Static
models are calibrated on 300 passages, the last of TEXTS. Printed are the median and the range, over rounds, of the ratio of
times. PYTHON is an environment with `sentence-transformers[onnx,openvino]` and `fastembed`; FOLDER has the float model. With
--judge, all systems embed the texts of retrieval, whose columns are those of the package's task, and are compared with the
float model in PyTorch by nDCG@10.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FLOAT = "sentence-transformers"
# Name → the backend of sentence-transformers, and the file of its model.
INT8: dict[str, tuple[Any, str]] = {
    "sentence-transformers int8, dynamic": ("onnx", "onnx/model_qint8_avx512_vnni.onnx"),
    "optimum int8, static": ("onnx", "onnx/model_static.onnx"),
    "sentence-transformers int8, static": (
        "openvino",
        "openvino/openvino_model_qint8_quantized.xml",
    ),
}
PEERS = (FLOAT, *INT8, "fastembed")
PRESET = "avx512_vnni"
CALIBRATION = 300
# The kills take this part of the time of an undisturbed run, on average, so that all come before the end.
UNDER_KILLS = 0.75


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("texts", type=Path, metavar="TEXTS")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/corpus"))
    parser.add_argument("--peers", type=Path, metavar="PYTHON")
    parser.add_argument("--model", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--judge", type=Path, metavar="ROWS")
    parser.add_argument("--serve", choices=("octobert", *PEERS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.serve:
        serve(given)
    elif given.peers:
        compare(given)
    else:
        embed_and_kill(given)


def passages(given: argparse.Namespace) -> list[str]:
    """The lines of the file."""
    lines: list[str] = given.texts.read_text(encoding="utf-8").splitlines()
    return lines


def embed_and_kill(given: argparse.Namespace) -> None:
    """Embed a corpus undisturbed and with kills."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines, rng = passages(given), random.Random(0)
    texts = [rng.choice(lines) for _ in range(given.rows)]
    corpus = given.out / "corpus.parquet"
    pq.write_table(pa.table({"id": range(given.rows), "text": texts}), corpus)
    whole, resumed = given.out / "undisturbed.parquet", given.out / "killed.parquet"
    for out in (whole, resumed):
        out.unlink(missing_ok=True)
        shutil.rmtree(out.with_name(f".{out.name}.octobert"), ignore_errors=True)
    seconds, curve = run(given.package, corpus, whole)
    tenths = [curve[len(curve) * i // 10] for i in range(10)] + [curve[-1]]
    print(f"{given.rows:,} rows in {seconds:.0f} s: {given.rows / seconds:.0f} rows/s")
    print(f"MiB, at each tenth of the run: {tenths}; most: {max(curve)}", flush=True)
    longest = max(2, 2 * UNDER_KILLS * seconds / max(1, given.kills))
    moments = [rng.uniform(1, longest) for _ in range(given.kills)]
    killed = list[float]()
    for moment in moments:
        run(given.package, corpus, resumed, kill_after=moment)
        if resumed.exists():
            break
        killed.append(moment)
    else:
        run(given.package, corpus, resumed)
    same = digest(whole) == digest(resumed)
    at = ", ".join(f"{moment:.0f}" for moment in killed)
    print(
        f"killed {len(killed)} times, after {at} s: {'the same bytes' if same else 'OTHER BYTES'}"
    )
    sys.exit(not same)


def run(
    package: Path, corpus: Path, out: Path, kill_after: float | None = None
) -> tuple[float, list[int]]:
    """Embed a corpus in a process. Returns its seconds, and its memory in MiB at each second."""
    import psutil

    command = ["-m", "octobert", "embed", str(package), str(corpus), str(out), "--quiet"]
    began, curve = time.perf_counter(), [0]
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            curve.append(watched.memory_info().rss >> 20)
            if kill_after is not None and time.perf_counter() - began > kill_after:
                process.kill()
                break
            time.sleep(1 if kill_after is None else 0.05)
    if kill_after is None and process.returncode:
        sys.exit(f"octobert embed ended with {process.returncode}")
    return time.perf_counter() - began, curve[1:]


def digest(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def compare(given: argparse.Namespace) -> None:
    """Time octobert and its peers in turn."""
    systems = {name: started(given, name) for name in ("octobert", *PEERS)}
    lines = passages(given)
    random.Random(0).shuffle(lines)
    names, times = list(systems), list[dict[str, float]]()
    for number in range(-1, given.rounds):
        start = (number + 1) * given.block
        texts = lines[start : start + given.block]
        order = names if number % 2 else names[::-1]
        took = {name: asked(systems[name], texts) for name in order}
        if number >= 0:
            times.append(took)
    load = os.getloadavg()[0]
    print(
        f"{given.rounds} rounds of {given.block} texts; load {load:.1f} on {os.cpu_count()} cores"
    )
    for name in names:
        rate = statistics.median(given.block / took[name] for took in times)
        ratios = sorted(took[name] / took["octobert"] for took in times)
        print(
            f"{name:<36} {rate:6.0f} texts/s   octobert takes 1/{statistics.median(ratios):.2f} of its time "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    if given.judge:
        judge(given, systems)
    for process in systems.values():
        process.communicate()


def judge(given: argparse.Namespace, systems: dict[str, subprocess.Popen[str]]) -> None:
    """Print what each system finds, compared with the float model in PyTorch."""
    import numpy as np

    from octobert.data.readers import read_file
    from octobert.data.tokenization import EncodedTexts
    from octobert.evaluation import scoring
    from octobert.inference.opened import open_model
    from octobert.tasks import Result

    task, rows = open_model(given.package).rebuilt(), read_file(given.judge)
    texts, gold = task.inputs(rows, where=str(given.judge)), task.gold(rows, where=str(given.judge))
    encoded, found = EncodedTexts(texts, []), {}
    for name, process in systems.items():
        file = given.out / "vectors.npy"
        asked(process, [text for (text,) in texts], file)
        found[name] = Result({"sentence_embedding": np.load(file)}, encoded, gold)
    print(f"{len(gold):,} queries, {len(texts) - len(gold):,} documents")
    for name, result in found.items():
        score = scoring.scores(task, result, seed=0)[0]
        both = scoring.compare(task, (name, FLOAT), (result, found[FLOAT]), seed=0)
        print(
            f"{name:<36} {score.metric} {score.value:.4f}   {both.difference:+.4f} ({both.low:+.4f} to {both.high:+.4f})"
            f"   mean cosine {both.fidelity:.5f}"
        )


def started(given: argparse.Namespace, name: str) -> subprocess.Popen[str]:
    """A process that embeds what it is given."""
    python = sys.executable if name == "octobert" else str(given.peers)
    arguments = [__file__, str(given.package), str(given.texts), "--out", str(given.out)]
    process = subprocess.Popen(
        [python, *arguments, "--serve", name, "--model", str(given.model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        sys.exit(f"{name} did not start")
    return process


def asked(process: subprocess.Popen[str], texts: Sequence[str], file: Path | None = None) -> float:
    """Seconds that a process takes for texts. It writes their vectors into a file, if one is named."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([texts, file and str(file)]), file=process.stdin, flush=True)
    return float(process.stdout.readline())


def serve(given: argparse.Namespace) -> None:
    """Embed the texts of each line of stdin, and print the seconds."""
    import numpy as np

    answers = sys.stdout
    sys.stdout = sys.stderr
    embed = system(given)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        texts, file = json.loads(line)
        began = time.perf_counter()
        vectors = embed(texts)
        seconds = time.perf_counter() - began
        assert len(vectors) == len(texts)
        if file:
            np.save(file, np.asarray(vectors))
        print(seconds, file=answers, flush=True)


def system(given: argparse.Namespace) -> Callable[[list[str]], Any]:
    """What embeds texts by one of the systems."""
    if given.serve == "octobert":
        import octobert

        return octobert.Embedder(given.package).vectors
    if given.serve == "fastembed":
        from fastembed import TextEmbedding

        folder = exported(given)
        name = "sentence-transformers/all-MiniLM-L6-v2"
        embedding = TextEmbedding(name, specific_model_path=str(folder))
        return lambda texts: list(embedding.embed(texts))
    from sentence_transformers import SentenceTransformer

    if given.serve == FLOAT:
        encode: Callable[[list[str]], Any] = SentenceTransformer(
            str(given.model), device="cpu"
        ).encode
        return encode
    backend, file = INT8[given.serve]
    kept: Any = {"file_name": file}
    model = SentenceTransformer(str(exported(given)), backend=backend, model_kwargs=kept)
    int8: Callable[[list[str]], Any] = model.encode
    return int8


def exported(given: argparse.Namespace) -> Path:
    """The model as the other tools export it, in float and in int8."""
    folder: Path = given.out / "exported"
    if folder.is_dir():
        return folder
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoCalibrationConfig, AutoQuantizationConfig
    from sentence_transformers import (
        SentenceTransformer,
        export_dynamic_quantized_onnx_model,
        export_static_quantized_openvino_model,
    )

    rows = given.out / "calibration"
    rows.mkdir(exist_ok=True)
    with (rows / "train.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(
            json.dumps({"text": text}) + "\n" for text in passages(given)[-CALIBRATION:]
        )
    model = SentenceTransformer(str(given.model), backend="onnx")
    model.save_pretrained(str(folder))
    export_dynamic_quantized_onnx_model(model, PRESET, str(folder))
    shutil.copy(folder / "onnx" / "model.onnx", folder / "model.onnx")

    preset = AutoQuantizationConfig.avx512_vnni(is_static=True, per_channel=True)
    quantizer = ORTQuantizer.from_pretrained(folder, file_name="model.onnx")
    calibrated = quantizer.get_calibration_dataset(
        str(rows),
        dataset_split="train",
        num_samples=CALIBRATION,
        preprocess_function=lambda row: model.tokenizer(row["text"], truncation=True),
    )
    ranges = quantizer.fit(
        calibrated,
        AutoCalibrationConfig.minmax(calibrated),
        operators_to_quantize=preset.operators_to_quantize,
    )
    quantizer.quantize(preset, folder, file_suffix="static", calibration_tensors_range=ranges)
    (folder / "model_static.onnx").rename(folder / "onnx" / "model_static.onnx")

    described: dict[str, Any] = {"dataset_name": str(rows), "dataset_config_name": "default"}
    model = SentenceTransformer(str(given.model), backend="openvino")
    export_static_quantized_openvino_model(
        model, None, str(folder), dataset_split="train", column_name="text", **described
    )
    return folder


if __name__ == "__main__":
    main()
