"""Speed compared with other tools, in one interleaved run: on shapes, on single texts, and on many texts.

    python benchmarks/speed.py [--model base] [--model minilm] [--texts FILE] [--rounds 15]
    python benchmarks/speed.py --checkpoint FOLDER --data FOLDER --task mrpc

base is BERT-base with random weights, minilm is all-MiniLM-L6-v2, both with a head of two classes on the first token. With
`--checkpoint` it is a model that was trained: calibration takes rows of the file train of
`--data`; texts and accuracy are those of its file validation.

Each run writes one JSON file for each model into benchmarks/results. Its name says the kind of CPU, the model and the cores; a
run with the same name replaces it. Then docs/evidence/speed.md is made of all files, as `speed_page.py` does alone. Runs of a
part (`--shapes`, `--only`) and runs on a simulated CPU write into runs/speed/results and leave the page as it is.

Each system runs in its own process with all cores that this one may use (`taskset` limits them). The systems run in turn, in an
order that changes every round. Figures are medians; the JSON files have quartiles too. Float and INT8 models of ONNX Runtime
and OpenVINO come from one float graph, which octobert captures. INT8 models use the same calibration rows. CTranslate2 and
torchao convert the checkpoint. The tables show the precision of float parts: octobert asks for float32, and OpenVINO's own
default is bfloat16 where the CPU has it.

Texts are rows of a file with text columns (MRPC's #1 String and #2 String, sentence, or text), and a mixture of lengths by
Zipf's law. Models that were not trained for pairs read a pair as one text. Every system takes strings and returns labels, with
the tokenizer of the model: as the NNCF notebook does (padded to 128, one by one), one by one without padding, and through
octobert.load. Rows of shapes are padded as octobert.load pads single texts. For the latency of single texts all systems answer
one text, after an untimed answer to it, before the next one.

Ratios are those of medians of the same rounds, with a 95 % interval by the bootstrap over the rounds, or over the texts.

The limit is the time of the matrix products alone at the throughput measured here: the 8-bit kernels of ONNX Runtime or
OpenVINO, whichever is faster, and PyTorch's float32 kernels, at 128 × 768 × 3072.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from speed_cases import (
    TITLES,
    Case,
    named_case,
    systems_of,
    trained_case,
)
from speed_measuring import limit_of, limits, opened, starts, time_shapes, time_singles, time_texts
from speed_page import PAGE, merge, section
from speed_results import (
    RESULTS,
    RIVALS,
    Compared,
    Loop,
    Made,
    Result,
    Singles,
    Throughput,
    change_of_accuracy,
    compared,
    kind_of,
    per_text,
    spread,
    without_paths,
    write,
)

from octobert.core import environment
from octobert.core.errors import OctobertError
from octobert.evaluation.latency import CpuTimes

SHAPES = ((1, 16), (1, 53), (1, 128), (1, 384), (8, 64), (32, 128))
PACKAGES = (
    "octobert",
    "nncf",
    "ctranslate2",
    "torchao",
    "onnxruntime",
    "openvino",
    "torch",
    "transformers",
)
# The float model that accuracy is compared with.
FLOAT_LOOP = "OpenVINO: plain"


def measured(case: Case, options: argparse.Namespace, out: Path) -> Result:
    """All figures of one model."""
    here, shapes = environment.current(), options.shapes or SHAPES
    config = json.loads((case.checkpoint / "config.json").read_text())
    wanted = _wanted(options)
    systems, failures = systems_of(case, out, wanted)
    if not systems:
        expected = "names that systems begin with, such as NNCF or octobert"
        raise OctobertError(
            "no system has such a name",
            where="--only and --without",
            expected=expected,
            fix="change them",
        )
    running = opened(systems, failures)
    try:
        before = CpuTimes.now()
        times = time_shapes(running, shapes, options.rounds, config["vocab_size"], failures)
        sources = {} if options.shapes else case.sources
        singles = {
            source: _singles(
                time_singles(running, texts[: options.singles], failures),
                len(texts[: options.singles]),
            )
            for source, texts in sources.items()
            if options.singles
        }
        throughput = {
            source: _throughput(
                case, source, *time_texts(running, texts, options.text_rounds, failures)
            )
            for source, texts in sources.items()
            if options.text_rounds
        }
        others = before.load_until(CpuTimes.now()).others
        made = {
            system.name: Made(kind=system.system.kind, float_parts=system.precision)
            for system in running
        }
    finally:
        for system in running:
            system.stop()
    first = next(iter(case.sources.values()))[0]
    return Result(
        kind=kind_of(here.features, here.cpu),
        model=case.name,
        title=case.title,
        date=datetime.now(UTC).date().isoformat(),
        cpu=here.cpu,
        features=here.features,
        cores=environment.cores(),
        versions=environment.versions(PACKAGES),
        command=f"python benchmarks/speed.py {shlex.join(map(without_paths, sys.argv[1:]))}".strip(),
        rounds=options.rounds,
        others=round(others, 2),
        note=" ".join(filter(None, (options.note, simulated()))),
        systems=made,
        shapes={
            name: {shape: spread(own) for shape, own in each.items()}
            for name, each in times.items()
        },
        compared=_compared(times),
        singles=singles,
        throughput=throughput,
        starts={
            what: round(seconds, 3)
            for target in RIVALS
            for what, seconds in starts(
                out / "octobert" / target.removeprefix("octobert "), first
            ).items()
        },
        limit=limit_of(config, shapes, limits(out)),
        left_out={name: without_paths(reason) for name, reason in failures.items()}
        | _not_asked(options),
    )


def _wanted(options: argparse.Namespace) -> Callable[[str], bool]:
    """Whether a system of this name is measured."""
    only, without = tuple(options.only or ()), tuple(options.without or ())
    return lambda name: (
        (not only or name.startswith(only)) and not (without and name.startswith(without))
    )


def _not_asked(options: argparse.Namespace) -> dict[str, str]:
    return dict.fromkeys(options.without or (), "left out to save time")


def _compared(times: dict[str, dict[str, list[float]]]) -> tuple[Compared, ...]:
    """Every target of octobert with the rivals that were timed."""
    targets = {name: RIVALS[name.split(",")[0]] for name in times if name.startswith("octobert ")}
    pairs = [
        (target, rival)
        for target, rivals in targets.items()
        for names in rivals.values()
        for rival in names
    ]
    return tuple(compared(target, rival, times) for target, rival in pairs if rival in times)


def _singles(times: dict[str, list[float]], texts: int) -> Singles:
    targets = [name for name in times if name.startswith("octobert ")]
    return Singles(
        texts=texts,
        systems={name: spread(own) for name, own in times.items()},
        ratios={
            t: {name: per_text(times[t], own) for name, own in times.items() if name not in targets}
            for t in targets
        },
    )


def _throughput(
    case: Case, source: str, rates: dict[str, list[float]], labels: dict[str, list[int | str]]
) -> Throughput:
    gold = case.gold.get(source)
    numbers = {name: i for i, name in enumerate(case.classes)}
    right = {
        loop: [
            numbers.get(str(label), label) == truth for label, truth in zip(own, gold, strict=True)
        ]
        for loop, own in labels.items()
        if gold
    }
    floating = right.get(FLOAT_LOOP)
    return Throughput(
        rows=len(case.sources[source]),
        loops={
            loop: Loop(
                rate=spread(own),
                accuracy=round(sum(right[loop]) / len(right[loop]), 4) if loop in right else None,
                change=change_of_accuracy(right[loop], floating)
                if floating and loop in right and loop != FLOAT_LOOP
                else None,
            )
            for loop, own in rates.items()
        },
    )


def simulated() -> str:
    """A sentence on variables that make runtimes use fewer instructions than the CPU has, or ""."""
    settings = [
        f"{name}={os.environ[name]}" for name in environment.SIMULATING if name in os.environ
    ]
    return (
        f"Simulated with {', '.join(settings)}: not figures of this kind of CPU."
        if settings
        else ""
    )


def shape(text: str) -> tuple[int, int]:
    """`1x128` → (1, 128)."""
    batch, length = text.split("x")
    return int(batch), int(length)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", choices=tuple(TITLES), action="append", help="default: both")
    which.add_argument(
        "--checkpoint", type=Path, help="a sequence classifier that was trained, instead of --model"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with the files train and validation of the checkpoint's task",
    )
    parser.add_argument("--task", default="mrpc", help="of the checkpoint")
    parser.add_argument(
        "--texts", type=Path, action="append", help="a file of rows; repeat for several files"
    )
    parser.add_argument("--rows", type=int, default=408, help="texts of the throughput")
    parser.add_argument(
        "--singles", type=int, default=200, help="texts of the latency of single texts; 0 for none"
    )
    parser.add_argument(
        "--shapes",
        type=shape,
        nargs="*",
        help="time only these shapes, for example 1x128, and no texts",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=15,
        help="of the shapes: three times as many of short ones, a third of long ones",
    )
    parser.add_argument("--text-rounds", type=int, default=3, help="of the throughput; 0 for none")
    parser.add_argument("--only", nargs="*", help="only systems whose names have these prefixes")
    parser.add_argument("--without", nargs="*", help="no systems whose names have these prefixes")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/speed"), help="models and files of the run"
    )
    parser.add_argument("--results", type=Path, help="folder of the JSON files")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--note", default="", help="a note on this run for the page")
    return parser


def check(options: argparse.Namespace) -> None:
    """Refuse what could not be measured, before anything is.

    Raises:
        OctobertError: options that do not go together, or files that do not exist.
    """
    if options.checkpoint is None and options.data:
        raise OctobertError(
            "only a checkpoint that was trained has it",
            where="--data",
            fix="add --checkpoint FOLDER",
        )
    if options.checkpoint is not None and options.data is None:
        raise OctobertError(
            "a checkpoint needs the data of its task", where="--checkpoint", fix="add --data FOLDER"
        )
    files = [
        path
        for path in (
            options.checkpoint and options.checkpoint / "config.json",
            *(options.texts or ()),
        )
        if path
    ]
    for path in files:
        if not path.is_file():
            raise OctobertError("there is no such file", where=str(path), fix="check the path")
    if options.rows < 1 or options.rounds < 1:
        raise OctobertError(
            "nothing would be measured",
            where="--rows and --rounds",
            expected="at least 1",
            fix="raise them",
        )


def cases(options: argparse.Namespace) -> list[Callable[[], tuple[Case, Path]]]:
    """What makes each model with its texts, and the folder of its files."""

    def trained() -> tuple[Case, Path]:
        case = trained_case(options.checkpoint, options.data, options.task, options.rows)
        return case, options.out / case.name

    def named(name: str) -> tuple[Case, Path]:
        (options.out / name).mkdir(parents=True, exist_ok=True)
        return named_case(name, options, options.out / name), options.out / name

    return (
        [trained]
        if options.checkpoint
        else [partial(named, name) for name in options.model or TITLES]
    )


def main() -> None:
    """Measure, write results and the page."""
    options = arguments().parse_args()
    is_part = bool(options.shapes or options.only or simulated())
    folder = options.results or (options.out / "results" if is_part else RESULTS)
    try:
        check(options)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
        # What octobert measures of the machine is measured in this run, not on another day.
        os.environ.setdefault(
            "OCTOBERT_CACHE", str(options.out.absolute() / "cache" / str(os.getpid()))
        )
        for make in cases(options):
            case, out = make()
            out.mkdir(parents=True, exist_ok=True)
            result = measured(case, options, out)
            print(section([result]), write(result, folder), sep="\n")
        if folder.resolve() == RESULTS:
            merge(folder, options.page)
    except OctobertError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
