"""The command line: fast help, one JSON document, exit codes, and errors a user can act on."""

from __future__ import annotations

import csv
import inspect
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import octobert as library
from octobert import cli
from octobert.api._arguments import Names, PathLike, Positive
from octobert.cli import _options, _recipe, main
from octobert.config import loading, schema
from octobert.config import recipe as recipe_models
from octobert.config.loading import as_yaml
from octobert.config.recipe import Recipe
from octobert.core import environment, plugins
from octobert.core.errors import (
    DataError,
    ModelError,
    OctobertError,
    PlanError,
    RecipeError,
    StorageError,
)
from octobert.evaluation.benchmarking import BenchmarkResult
from octobert.report import commands
from tests.support.checkpoints import reduces
from tests.support.cli import octobert
from tests.support.runs import TARGETS, pairs_of_sentences, warmed

COMMANDS = tuple(
    p.stem
    for p in Path(cli.__file__).parent.glob("*.py")
    if p.stem != "main" and not p.stem.startswith("_")
)
HEAVY = (
    "torch",
    "transformers",
    "onnxruntime",
    "openvino",
    "onnx",
    "onnx_ir",
    "datasets",
    "sklearn",
    "scipy",
    "numpy",
)


@pytest.fixture(scope="module")
def package(finished) -> Path:
    """A finished package for ort-cpu."""
    return finished[1] / "ort-cpu"


def test_run_prints_what_it_found_and_reuses_what_is_there(finished, tmp_path) -> None:
    recipe, out, report = finished
    (tmp_path / "recipe.yaml").write_text(as_yaml(recipe))
    done = octobert(
        "run", tmp_path / "recipe.yaml", "--out", shutil.copytree(out, tmp_path / "out")
    )
    assert done.returncode == 0, done.stderr
    assert "Latency in ms" in done.stdout
    assert done.stderr.count("reused") >= len(report.stages)
    commands = [
        line.partition("try")[2] for line in done.stdout.splitlines() if line.startswith("   try")
    ]
    assert len(commands) == len(TARGETS)
    answered = octobert(*shlex.split(commands[0])[1:])
    assert answered.returncode == 0, answered.stderr
    assert " ⇄ " in answered.stdout


@pytest.mark.parametrize(
    ("head", "texts", "words"),
    [
        ("sequence-classification", ["It's\tgood\nnow."], ["It's good now."]),
        ("sequence-classification", ["- one", "two"], ["--pair", "--", "- one", "two"]),
        ("embedding", ["word " * 30 + "end"], [" ".join(["word"] * 12)]),
        ("sequence-classification", ["\x1b[31m" + "x" * 99], ["[31m" + "x" * 56]),
        ("token-classification", ["EU", "rejects", "$5"], ["EU rejects $5"]),
        (
            "question-answering",
            ["-who?", "it $was"],
            ["--question", "-who?", "--context", "it $was"],
        ),
    ],
)
def test_next_steps_can_be_pasted_into_a_shell(
    head: str, texts: list[str], words: list[str]
) -> None:
    command = commands.predict_command(Path("an out/ort-cpu"), head, texts)
    assert shlex.split(command) == ["octobert", "predict", "an out/ort-cpu", *words]


def test_a_misspelled_command_has_a_suggestion() -> None:
    done = octobert("quantise", "./m")
    assert done.returncode == 2
    assert 'There is no command "quantise"; did you mean "quantize"?' in done.stderr


@pytest.mark.parametrize(
    ("task", "given", "options"),
    [
        (
            "text-classification",
            ["--text-column", "review", "--label-column", "stars"],
            {"text": "review", "label": "stars"},
        ),
        (
            "embedding",
            ["--text-column", "a", "--text-column", "b", "--label-column", "c"],
            {"text": ["a", "b"], "score": "c"},
        ),
        ("{squad: {max_length: 64}}", [], {"max_length": 64}),
        (
            "question-answering",
            ["--text-column", "q", "--text-column", "c"],
            {"question": "q", "context": "c"},
        ),
        (
            "token-classification",
            ["--text-column", "w", "--label-column", "t"],
            {"words": "w", "tags": "t"},
        ),
    ],
)
@pytest.mark.parametrize("command", ["quantize", "auto", "finetune", "calibrate"])
def test_columns_are_options(
    command: str, task: str, given: list[str], options: dict, monkeypatch
) -> None:
    recipes = []
    monkeypatch.setattr(
        library, "parse_recipe", lambda raw, **_: recipes.append(raw) or sys.exit(0)
    )
    octobert(command, "./m", "--task", task, "--data", "d", "--out", "o", *given)
    assert list(recipes[0]["task"].values()) == [options]


def test_columns_of_a_task_that_has_its_own(golden) -> None:
    printed = octobert(
        "quantize", "./m", "--task", "sst2", "--data", "d", "--out", "o", "--text-column", "review"
    ).stderr
    golden(printed)
    printed = octobert(
        "quantize", "./m", "--task", "squad-v2", "--data", "d", "--out", "o", "--label-column", "a"
    ).stderr
    golden(printed)
    command = [
        "quantize",
        "./m",
        "--task",
        "question-answering",
        "--data",
        "d",
        "--out",
        "o",
        "--text-column",
        "a",
    ]
    golden(octobert(*command).stderr)
    command = [
        "quantize",
        "./m",
        "--task",
        "embedding",
        "--data",
        "d",
        "--out",
        "o",
        *("--text-column", "a") * 3,
    ]
    golden(octobert(*command).stderr)


def test_a_package_is_evaluated_on_columns_of_other_names(golden, package, pairs, tmp_path) -> None:
    text = (
        (pairs / "validation.tsv")
        .read_text()
        .replace("sentence1\tsentence2\tlabel", "first\tsecond\tsame")
    )
    (tmp_path / "rows.tsv").write_text(text)
    command = ["evaluate", package, "--data", tmp_path / "rows.tsv"]
    told = octobert(*command)
    assert told.returncode == 3
    golden(told.stderr)
    named = octobert(
        *command, "--text-column", "first", "--text-column", "second", "--label-column", "same"
    )
    assert named.returncode == 0, named.stderr
    assert named.stdout == octobert("evaluate", package, "--data", pairs / "validation.tsv").stdout


def test_options_that_switch_off_say_what_they_do() -> None:
    """The texts of their keys describe what is on by default."""
    on = [key for key, field in Recipe.model_fields.items() if field.default is True]
    texts = schema.descriptions(Recipe)
    assert on
    for key in on:
        assert _recipe.keys().parameters[key].annotation.__metadata__[0].help != texts[key], key


def test_quick_is_an_option_of_runs(tmp_path, finished) -> None:
    (tmp_path / "recipe.yaml").write_text(as_yaml(finished[0]))
    rows = pairs_of_sentences(150, 1000)
    lines = ["sentence1\tsentence2\tlabel", *(f"{a}\t{b}\t{c}" for a, b, c in rows)]
    (tmp_path / "many.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = [
        "run",
        tmp_path / "recipe.yaml",
        "--set",
        "targets=[ort-cpu]",
        "--set",
        f"data.validation={tmp_path / 'many.tsv'}",
        "--set",
        f"data.train={Path(finished[0].data.source) / 'train.tsv'}",
        "--set",
        "data.source=null",
        "--dry-run",
        "--out",
        tmp_path / "out",
    ]
    full, quick = octobert(*command), octobert(*command, "--quick")
    assert "150 evaluation rows" in full.stdout
    assert "128 evaluation rows" in quick.stdout
    printed = octobert(
        "quantize", "./m", "--task", "mrpc", "--data", "d", "--out", "o", "--quick"
    ).stderr
    assert "quick: true" in printed


def test_errors_name_options_to_those_who_use_options(checkpoint, pairs, tmp_path) -> None:
    same = ["--data", f"train={pairs / 'train.tsv'}", "--data", f"validation={pairs / 'train.tsv'}"]
    command = [
        "quantize",
        checkpoint("bert"),
        "--task",
        "text-classification",
        *same,
        "--out",
        tmp_path / "out",
    ]
    done = octobert(*command, "--quiet")
    assert done.returncode == DataError.exit_code
    assert (
        "leave these out (--set data.calibrate.drop_evaluated=true), or accept them (--allow-leakage)"
        in done.stderr
    )
    recipe = {"model": str(checkpoint("bert")), "task": "text-classification"}
    recipe["data"] = {"train": str(pairs / "train.tsv"), "validation": str(pairs / "train.tsv")}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    done = octobert("run", tmp_path / "recipe.yaml", "--out", tmp_path / "out")
    assert (
        "(data.calibrate.drop_evaluated: true), or accept them (data.allow_leakage: true)"
        in done.stderr
    )
    assert _recipe.in_options("such as finetune: {epochs: 3}") == "such as finetune: {epochs: 3}"
    assert _recipe.in_options("or measure: false, repair: true") == "or --no-measure, --repair"


def test_a_target_that_cannot_run_here_is_said_before_the_run(finished, tmp_path) -> None:
    recipe, out, _ = finished
    other = recipe.model_copy(
        update={"targets": ("ort-cpu", "migraphx"), "measure": False, "sensitivity": False}
    )
    (tmp_path / "recipe.yaml").write_text(as_yaml(other))
    done = octobert(
        "run",
        tmp_path / "recipe.yaml",
        "--out",
        warmed(out, tmp_path / "out", "data", "capture", "transform"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith(
        "! migraphx is written, but cannot run here: this build of onnxruntime"
    )
    assert f"Model    {tmp_path / 'out' / 'migraphx'}   cannot run here: " in done.stdout
    assert done.stdout.count("   try   octobert predict") == 1
    assert f"\n  open   octobert report {tmp_path / 'out'} --open\n" in done.stdout
    assert f"\n  live   octobert compare {tmp_path / 'out'} --open\n" in done.stdout


def test_help_imports_nothing_heavy() -> None:
    """One process prints the help of every command; what is loaded after each is printed last."""
    code = f"""
import sys
from octobert.cli.main import app
loaded = {{}}
for arguments in {[["--version"], ["--help"], *([command, "--help"] for command in COMMANDS)]!r}:
    try:
        app(arguments)
    except SystemExit as end:
        assert not end.code, arguments
    loaded[arguments[0]] = [m for m in {HEAVY!r} if m in sys.modules]
print({{command: modules for command, modules in loaded.items() if modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "{}"


def test_help_names_every_command() -> None:
    started = time.perf_counter()
    text = octobert("--help").stdout
    # The bound that users were promised is 0.5 s; here only a gross mistake is caught, since test machines are slow.
    assert time.perf_counter() - started < 5
    for command in COMMANDS:
        assert command in text


@pytest.mark.parametrize("name", ["targets", "tasks", "doctor"])
def test_lists_have_a_json_form(name: str) -> None:
    done = octobert(name, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)
    assert octobert(name).stdout


def test_targets_say_what_is_missing_and_how_to_install_it() -> None:
    code = (
        "import sys, importlib.util as u\nreal = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'openvino' else real(n, *a)\n"
        "from octobert.cli.main import app\napp(['targets'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "missing: the package openvino is not installed" in done.stdout
    assert environment.install("openvino") in done.stdout


def test_predict(package) -> None:
    done = octobert("predict", package, "the of and", "a to in", "--pair", "--json")
    (answer,) = json.loads(done.stdout)
    assert answer["input"] == ["the of and", "a to in"]
    assert answer["label"] in ("different", "same")
    lines = octobert(
        "predict", package, "--pair", input="the of\tand a\nto\tin\n"
    ).stdout.splitlines()
    assert len(lines) == 2
    long = octobert("predict", package, "--pair", "the " * 300, "of")
    assert "some texts were longer than the model allows, and were truncated" in long.stderr
    assert long.returncode == 0


def test_inspect(package) -> None:
    folded, text = octobert("inspect", package).stdout, octobert("inspect", package, "--all").stdout
    assert "\nencoder.layer.0–1 " in folded
    assert "uint8 [" not in folded
    assert folded.count("attention.self.query ") == 1
    assert text.count("attention.self.query ") == 2 * 3  # layers, values
    assert "\nencoder.layer.1 " in text
    assert "uint8 [" in text
    assert f"int8 symmetric{' without saturation' if reduces() else ''}, axis 1" in text
    assert "linear.weight        12 of 12 quantized" in text
    assert "residual adds carry outliers" in text
    result = {
        entry["target"]: entry
        for entry in json.loads(octobert("inspect", package.parent, "--json").stdout)
    }
    assert set(result) == set(TARGETS)
    assert result["ort-cpu"]["ranges"]["provenance"]["samples"] == 24


def test_inspect_shows_what_every_value_costs(package) -> None:
    shown = octobert("inspect", package)
    assert "Sensitivity: expected error of the outputs with one value" in shown.stdout
    (manifest,) = json.loads(octobert("inspect", package, "--json").stdout)
    values = manifest["sensitivity"]["values"]
    quantized = {d["site"]["value"] for d in manifest["plan"]["decisions"] if d["quantizer"]}
    assert {entry["value"] for entry in values} == quantized


def test_placements_can_be_printed() -> None:
    result = {entry["name"]: entry for entry in json.loads(octobert("placements", "--json").stdout)}
    assert set(result) == set(plugins.names("placements"))
    assert result["ffn"]["kinds"] == ["linear.input@ffn_*", "linear.weight@ffn_*"]
    text = octobert("placements", "qdqbert").stdout
    assert "in 8 bits: linear.input, linear.weight, scores.query" in text
    assert 'did you mean "qdqbert"' in octobert("placements", "qdqber").stderr


def test_calibrators_side_by_side(checkpoint, pairs, out) -> None:
    command = (
        "calibrate",
        checkpoint("bert"),
        "--task",
        "text-classification",
        "--data",
        pairs,
        "--out",
        out,
    )
    done = octobert(*command, "--samples", 30, "--sweep", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    usable = [entry for entry in result["swept"] if entry["problem"] is None]
    names = [entry["calibrator"] for entry in result["swept"]]
    assert names[0].split()[0] == plugins.names("calibrators")[0]
    assert {n.split()[0] for n in names} == set(plugins.names("calibrators"))
    assert json.loads((out / "sweep.json").read_text()) == result
    assert [
        row["calibrator"] for row in csv.DictReader((out / "sweep.csv").read_text().splitlines())
    ] == names
    assert result["recommended"] in {entry["calibrator"] for entry in usable}
    assert "output error" in result["reason"]
    assert {
        yaml.safe_load(e["setting"]) if " " not in e["calibrator"] else e["calibrator"]
        for e in usable
    } <= set(names)
    printed = octobert(*command, "--samples", 30, "--sweep").stdout
    setting = next(e["setting"] for e in usable if e["calibrator"] == result["recommended"])
    assert printed.splitlines()[-1] == f"Use it with: --calibrate {shlex.quote(setting)}"
    assert all(set(entry["signal_to_noise_db"]) == set(result["ranges"]) for entry in usable)
    # mse minimizes exactly this.
    ratios = {entry["calibrator"]: sum(entry["signal_to_noise_db"].values()) for entry in usable}
    assert ratios["mse"] == max(ratios.values())
    again = octobert(*command, "--samples", 30, "--calibrate", "{percentile: {keep: 99}}")
    assert "percentile 99" in again.stdout
    assert "reused" in again.stderr
    dynamic = octobert(*command, "--samples", 30, "--method", "dynamic")
    assert dynamic.returncode == RecipeError.exit_code
    assert "the method calibrates nothing" in dynamic.stderr


def test_evaluate(package) -> None:
    source = package.parents[1] / "data"
    done = octobert("evaluate", package, "--data", source, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    report = json.loads((package.parent / "report.json").read_text())
    measured = {each["model"]: each["scores"] for each in report["models"]}
    for name in ("ort-cpu", "ort-f32"):
        assert result["scores"][name][0]["value"] == pytest.approx(measured[name][0]["value"])
    assert (
        "compared with ort-f32 (95 % confidence interval"
        in octobert("evaluate", package, "--data", source / "validation.tsv", "--samples", 9).stdout
    )


def test_benchmark(package) -> None:
    source = package.parents[1] / "data"  # its validation rows
    how = (
        "--batch",
        1,
        "--sequence",
        16,
        "--repeats",
        3,
        "--goal",
        "throughput",
        "--seconds",
        0.05,
        "--streams",
        2,
    )
    done = octobert("benchmark", package, *how, "--warmup", 1, "--data", source, "--json")
    assert done.returncode == 0, done.stderr
    result = BenchmarkResult.model_validate_json(done.stdout)
    models = {(c, s) for c in ("ort-f32", "ort-cpu") for s in (16, "data")}
    for measured in (result.latencies, result.throughputs):
        assert {(entry.candidate, entry.sequence) for entry in measured} == models
    assert {(one.candidate, one.reference) for one in (*result.speedups, *result.ratios)} == {
        ("ort-cpu", "ort-f32")
    }
    for one in result.throughputs:
        assert (one.streams, one.requests, one.threads, len(one.turns)) == (
            2,
            2,
            max(1, environment.cores() // 2),
            4,
        )
        # Batches of one row.
        assert sum(turn.rows for turn in one.turns) == len(one.samples_ms) >= 8
        assert one.sequence == "data" or sum(turn.tokens for turn in one.turns) == 16 * len(
            one.samples_ms
        )


def test_quantize_prints_its_recipe_and_can_only_plan(checkpoint, pairs, tmp_path) -> None:
    done = octobert(
        "quantize", checkpoint("bert"), "--task", "text-classification", "--data", pairs, "--out", tmp_path / "out",
        "--max-length", 32, "--samples", 20, "--target", "ort-cpu", "--save-recipe", tmp_path / "r" / "saved.yaml", "--dry-run",
    )  # fmt: skip
    # The default benchmark asks for 128 tokens, which the tiny model does not have; a default gives way.
    assert done.returncode == 0, done.stderr
    assert "max_length: 32" in done.stderr
    saved = yaml.safe_load((tmp_path / "r" / "saved.yaml").read_text())
    assert saved["data"]["calibrate"]["samples"] == 20
    assert Path(saved["model"]).is_absolute()
    planned = octobert(
        "run", tmp_path / "r" / "saved.yaml", "--out", tmp_path / "out", "--dry-run", "--json"
    )
    verdicts = json.loads(planned.stdout)
    rows = "20 calibration rows, 40 evaluation rows"
    assert verdicts[0] == {"step": "data", "action": "run", "reason": f"not in the store: {rows}"}
    assert verdicts[-1]["step"] == "package/ort-cpu"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "none.yaml"], RecipeError),
        (["predict", "."], ModelError),
        (["inspect", "nowhere"], ModelError),
        (["benchmark", ".", "--streams", "zero"], RecipeError),
        (["quantize", "m", "--task", "mrcp", "--data", "d", "--out", "o"], RecipeError),
        (["quantize", "m", "--task", "{a", "--data", "d", "--out", "o"], RecipeError),
        (["run", "."], RecipeError),
        (
            ["quantize", "m", "--task", "mrpc", "--data", "a.csv", "--data", "b.csv", "--out", "o"],
            RecipeError,
        ),
        (["quantize", "m", "--task", "mrpc", "--data", "trian=a.csv", "--out", "o"], RecipeError),
        (
            ["quantize", "m", "--task", "[1]", "--data", "d", "--out", "o", "--max-length", "16"],
            RecipeError,
        ),
        (["quantize", "./m", "--task", "mrpc", "--data", "d", "--out", "o"], ModelError),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(
    golden, tmp_path, arguments, code: type[OctobertError]
) -> None:
    done = octobert(*arguments, cwd=tmp_path)
    assert done.returncode == code.exit_code
    golden(done.stderr)
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_predict_suggests_the_targets_of_an_output_directory(package) -> None:
    done = octobert("predict", package.parent, "x")
    assert done.returncode == ModelError.exit_code
    listed = ", ".join(str(package.parent / target) for target in TARGETS)
    assert f"give the folder of one target: {listed}" in done.stderr


def test_predict_refuses_what_the_model_does_not_read(golden, package) -> None:
    single = octobert("predict", package, "the of and")
    assert single.returncode == DataError.exit_code
    golden(single.stderr)
    asked = octobert("predict", package, "--question", "the of", "--context", "a to in")
    assert asked.returncode == DataError.exit_code
    golden(asked.stderr)
    prompted = octobert("predict", package, "the of", "--prompt", "query")
    assert prompted.returncode == DataError.exit_code


def test_predict_with_an_odd_number_of_a_pair(package) -> None:
    done = octobert("predict", package, "a", "b", "c", "--pair")
    assert done.returncode == DataError.exit_code
    assert "pairs need an even number of texts (got 3)" in done.stderr


@pytest.mark.parametrize("given", [b"one\n", b"a\tb\n\xff\tc\n"])
def test_bad_lines_on_stdin(golden, package, given: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "octobert", "predict", str(package), "--pair"],
        input=given,
        capture_output=True,
    )
    assert done.returncode == DataError.exit_code
    golden(done.stderr.decode())


@pytest.mark.parametrize(
    "given", [None, [None], [1], [{"text": "a"}], [("a", "b", "c")], ["\udcff"], [""]]
)
def test_what_is_no_text_is_refused(package, given: object) -> None:
    with pytest.raises(DataError, match=r"the (input is (neither|not)|text is|model reads pairs)"):
        library.load(package)(given)


def test_interrupted_runs_say_how_to_go_on(checkpoint, pairs, tmp_path) -> None:
    import signal

    recipe = {"model": str(checkpoint("bert")), "task": "text-classification", "data": str(pairs)}
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    command = [
        sys.executable,
        "-m",
        "octobert",
        "run",
        str(tmp_path / "r.yaml"),
        "--out",
        str(tmp_path / "out"),
    ]

    def listen() -> None:
        # Whoever starts the tests in the background has its children ignore interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=listen) as child:
        while not list((tmp_path / "out" / ".octobert" / "store").glob("work-capture-*")):
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate()
    assert child.returncode == 130
    assert "interrupted; the same command resumes" in errors
    assert not list((tmp_path / "out" / ".octobert" / "store").glob("work-*"))


def test_errors_have_a_json_form(tmp_path) -> None:
    done = octobert("run", tmp_path / "none.yaml", "--json")
    assert json.loads(done.stdout)["error"]["what"] == "the recipe file does not exist"


@pytest.mark.parametrize("kind", [RecipeError, DataError, PlanError])
def test_errors_cross_processes_unchanged(kind: type[OctobertError]) -> None:
    error = kind("it broke", where="here", got="a", expected="b", fix="do c")
    assert str(error) == "here: it broke (got a, expected b); do c."
    copy = OctobertError.from_json(json.loads(json.dumps(error.to_json())))
    assert type(copy) is kind
    assert str(copy) == str(error)


def test_suggestions_fall_back_to_the_list() -> None:
    from octobert.core.errors import did_you_mean

    assert did_you_mean("openvino", ("ort-cpu", "openvino-cpu")) == 'did you mean "openvino-cpu"?'
    assert did_you_mean("zzz", ("b", "a")) == "known: a, b"


def test_short_help_and_general_options() -> None:
    assert octobert("-h").stdout == octobert("--help").stdout
    text = octobert("run", "-h").stdout
    assert all(option in text for option in ("--verbose", "--quiet", "--set", "General"))
    assert octobert("--version").stdout.strip() == library.__version__


@pytest.mark.parametrize("place", ["before", "after"])
def test_verbose_errors_have_a_traceback(tmp_path, place: str) -> None:
    command = ["run", tmp_path / "none.yaml"]
    done = octobert("--verbose", *command) if place == "before" else octobert(*command, "--verbose")
    assert done.returncode == RecipeError.exit_code
    assert "Traceback" in done.stderr
    assert done.stderr.rstrip().endswith("the recipe file does not exist; check the path.")


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_of_a_command_are_commands(name: str) -> None:
    module = main._module(name)
    command = main.Commands(name="octobert").get_command(None, name)
    assert module.EXAMPLES
    for example in module.EXAMPLES:
        program, called, *arguments = shlex.split(example)
        assert (program, called) == ("octobert", name)
        command.make_context(name, arguments)
    assert module.EXAMPLES[0].split()[2:3] == [] or module.EXAMPLES[0].split()[2] in command.epilog


def test_the_help_names_exit_codes_and_variables() -> None:
    text = " ".join(octobert("--help").stdout.split())
    codes = {kind.exit_code for kind in (OctobertError, *OctobertError.__subclasses__())}
    assert all(f" {code} " in text.partition("Exit codes:")[2] for code in codes)
    assert "OCTOBERT_CACHE" in text
    assert octobert("-q", "tasks").stdout == octobert("tasks", "-v").stdout


def test_predict_says_that_it_waits_for_a_terminal(package) -> None:
    """A pseudo terminal as stdin, with one line and the end."""
    primary, secondary = os.openpty()
    os.write(primary, b"the of and\n\x04")
    with open(secondary) as given:
        done = subprocess.run(
            [sys.executable, "-m", "octobert", "predict", str(package)],
            stdin=given,
            capture_output=True,
            text=True,
        )
    os.close(primary)
    assert "Waiting for texts from this terminal, one per line. Ctrl-D ends." in done.stderr


def test_hints_install_from_where_octobert_came(monkeypatch) -> None:
    origins = {
        '{"url": "file:///home/a%20b/octobert", "dir_info": {"editable": true}}': "pip install -e '/home/a b/octobert[torch]'",
        '{"url": "file:///src/octobert", "dir_info": {}}': "pip install '/src/octobert[torch]'",
        '{"url": "file:///dist/octobert-1.whl", "archive_info": {}}': "pip install '/dist/octobert-1.whl[torch]'",
        '{"url": "https://example.org/octobert.whl", "archive_info": {}}': "pip install 'octobert[torch]'",
        None: "pip install 'octobert[torch]'",
    }
    for text, command in origins.items():
        distribution = SimpleNamespace(read_text=lambda _, text=text: text)
        monkeypatch.setattr(
            environment.metadata, "distribution", lambda _, found=distribution: found
        )
        assert environment.install.__wrapped__("torch") == command


def test_quiet_prints_errors_only() -> None:
    command = ["quantize", "./m", "--task", "mrpc", "--data", "d", "--out", "o"]
    of_data = ["--config", "mrpc", "--data-revision", "v1", "--revision", "v2", "--family", "bert"]
    printed = octobert(*command, *of_data).stderr
    assert printed.startswith("# yaml-language-server: ")
    assert (
        "revision: v2\nfamily: bert\ntask: mrpc\ndata:\n  source: d\n  config: mrpc\n  revision: v1\n"
        in printed
    )
    (line,) = octobert(*command, "--quiet").stderr.splitlines()
    assert line.startswith("octobert: ./m: ")


def test_shells_complete_commands_and_options() -> None:
    def completions(words: str, place: int) -> list[str]:
        wanted = {
            "_OCTOBERT_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(place),
        }
        program = Path(sys.executable).parent / "octobert"
        done = subprocess.run(
            [program], capture_output=True, text=True, env={**os.environ, **wanted}
        )
        return done.stdout.split()

    assert completions("octobert qu", 1) == ["quantize"]
    assert completions("octobert quantize --no-sens", 2) == ["--no-sensitivity"]


def test_schema_is_one_json_document(tmp_path) -> None:
    printed = json.loads(octobert("schema").stdout)
    octobert("schema", "--out", tmp_path / "new" / "s.json")
    # A link stays one, and with it /dev/stdout.
    link = tmp_path / "link.json"
    link.symlink_to("new/s.json")
    assert octobert("schema", "--out", link).returncode == 0
    assert link.is_symlink()
    assert (
        json.loads((tmp_path / "new" / "s.json").read_text(encoding="utf-8"))
        == printed
        == library.recipe_schema()
    )


def test_clean_lists_and_removes(finished, tmp_path) -> None:
    copy = shutil.copytree(finished[1], tmp_path / "out")
    listed = json.loads(octobert("clean", copy, "--dry-run", "--json").stdout)
    assert listed
    assert json.loads(octobert("clean", copy, "--keep-last", "--json").stdout) == {}
    assert octobert("clean", copy).stdout.splitlines()[-1].endswith("removed")
    assert json.loads(octobert("clean", copy, "--dry-run", "--json").stdout) == {}
    done = octobert("clean", tmp_path)
    assert done.returncode == StorageError.exit_code
    assert "not an output directory of octobert" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")
def test_clean_asks_on_a_terminal(tmp_path) -> None:
    import pty

    result = tmp_path / ".octobert" / "store" / "data-0123456789abcdef"
    result.mkdir(parents=True)
    for options, answer, stays in (
        ([], b"n\n", True),
        (["--yes", "--dry-run"], b"", True),
        ([], b"y\n", False),
    ):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        command = [sys.executable, "-m", "octobert", "clean", str(tmp_path), *options]
        done = subprocess.run(
            command, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True
        )
        os.close(theirs)
        shown = os.read(ours, 10_000).decode() if answer else done.stdout
        os.close(ours)
        assert (done.returncode, result.exists()) == (answer == b"n\n", stays)
        assert "MB  data-0123456789abcdef" in shown


def test_options_are_generated_from_the_recipe() -> None:
    command = ["quantize", "./m", "--task", "mrpc", "--data", "d", "--out", "o"]
    given = [
        "--method",
        "{static: {placement: ffn}}",
        "--corrections",
        "none",
        "--target",
        "ort-cpu",
        "--target",
        "openvino-cpu",
    ]
    more = [
        "--no-measure",
        "--repair",
        "--seed",
        0,
        "--revision",
        "main",
        "--set",
        "benchmark.repeats=5",
        "--shape",
        "2x64",
    ]
    recipe = yaml.safe_load(octobert(*command, *given, *more).stderr.rpartition("octobert: ")[0])
    assert recipe["quantize"] == {"static": {"placement": "ffn"}}
    assert (recipe["corrections"], recipe["targets"]) == ([], ["ort-cpu", "openvino-cpu"])
    assert (recipe["measure"], recipe["repair"], recipe["revision"]) == (False, True, "main")
    assert (recipe["benchmark"], recipe["shape"]) == ({"repeats": 5}, {"batch": 2, "sequence": 64})


def test_options_follow_from_a_function() -> None:
    def count(
        model: PathLike,
        *,
        names: Names = (),
        rounds: Positive = 3,
        rate: float | None = None,
        fast: bool = False,
    ) -> None:
        """Count.

        Args:
            model: A model,
                or two.
            names: Names [a, b].
            rounds: Rounds.
            rate: Rate, instead of `rounds`; `none` is one.
            fast: Be fast.
        """

    options = _options.from_function(count)
    texts = {
        name: option.annotation.__metadata__[0].help for name, option in options.parameters.items()
    }
    assert texts == {
        "model": "A model, or two.",
        "names": r"Names \[a, b].",
        "rounds": "Rounds.",
        "rate": "Rate, instead of --rounds; none is one.",
        "fast": "Be fast.",
    }
    assert [option.default for option in options.parameters.values()] == [
        inspect.Parameter.empty,
        None,
        3,
        None,
        False,
    ]
    assert options.parameters["rounds"].annotation.__metadata__[0].min == 1
    assert options.read("names", ["a, b", "c"]) == ["a", "b", "c"]


def test_a_new_recipe_key_needs_no_other_change_to_be_an_option_and_in_the_schema(
    monkeypatch,
) -> None:
    class Extended(Recipe):
        """A recipe with one key more.

        Args:
            extra: A number of something.
        """

        extra: int = 3

    for module in (recipe_models, schema, loading):
        monkeypatch.setattr(module, "Recipe", Extended)
    _recipe.keys.cache_clear()
    info = _recipe.keys().parameters["extra"].annotation.__metadata__[0]
    _recipe.keys.cache_clear()
    assert (info.default, info.help) == ("--extra", "A number of something. Default: 3.")
    assert schema.recipe_schema()["properties"]["extra"]["description"] == "A number of something."
    assert loading.parse({"model": "m", "task": "mrpc", "data": "d", "extra": 4}).extra == 4


def test_a_name_that_is_too_long_is_a_sentence() -> None:
    done = octobert("predict", "x" * 300, "hi")
    assert done.returncode == StorageError.exit_code
    assert done.stderr.endswith(
        "the name is too long (got File name too long); choose a shorter one.\n"
    )
