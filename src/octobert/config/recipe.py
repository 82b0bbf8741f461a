"""The recipe: what the user wants, as frozen data. It reads YAML or JSON, reports every mistake at once, and has a digest.

Every plugin is written as a name (`static`) or a one-key object with its options (`{static: {placement: matmul}}`).
Relative paths are relative to the recipe's file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, Field, PositiveInt, ValidationError, ValidationInfo, field_validator, model_validator

from octobert.config.training import Finetune, Qat, Training
from octobert.core import plugins
from octobert.core.errors import RecipeError, did_you_mean
from octobert.core.frozen import FrozenModel
from octobert.core.session import Shape

SPLITS = ("train", "validation", "test")
# Rows to score that nobody named: the validation split, or where the data has none, the test split.
AUTO = "auto"
Baseline = Literal["torch-f32", "ort-f32", "openvino-f32", "openvino-bf16"]
BASELINES: tuple[Baseline, ...] = ("torch-f32", "ort-f32", "openvino-f32", "openvino-bf16")


class Choice(FrozenModel):
    """A plugin by name, with its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class Rows(FrozenModel):
    """Which rows: of a split by name, or of a file, and how many of them.

    Args:
        from_: split name or file.
        samples: at most so many, drawn at random by the recipe's seed; when absent, 256 for calibration and all for evaluation.
        drop_evaluated: leave out rows that are also evaluated, instead of refusing them (calibration and fine-tuning).
    """

    from_: str = Field(alias="from")
    samples: int | None = Field(default=None, ge=1)
    drop_evaluated: bool = False


class Data(FrozenModel):
    """Where the rows come from.

    Args:
        source: file, folder or hub id.
        config: configuration of a hub data set.
        revision: of a hub data set.
        train, validation, test: files, beside or instead of `source`.
        columns: column names, for files without a header.
        calibrate: rows that calibration sees.
        evaluate: rows that are scored; from `auto`, the validation split, or of data that has none, the test split.
        tune: rows that an accuracy criterion is held against while a plan is searched for; 1,000 when not said otherwise.
        finetune: rows that a model is fine-tuned on.
        allow_leakage: accept rows that are in both; the report says so.
    """

    source: str | None = None
    config: str | None = None
    revision: str | None = None
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    columns: tuple[str, ...] = ()
    calibrate: Rows = Rows.model_validate({"from": "train", "samples": 256})
    evaluate: Rows = Rows.model_validate({"from": AUTO})
    tune: Rows = Rows.model_validate({"from": "train", "samples": 1000})
    finetune: Rows = Rows.model_validate({"from": "train"})
    allow_leakage: bool = False

    @field_validator("calibrate", "evaluate", "tune", "finetune", mode="before")
    @classmethod
    def _short_form(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            return {"from": value}
        usual = AUTO if info.field_name == "evaluate" else "train"
        return {"from": usual, **value} if isinstance(value, dict) and "from_" not in value else value

    @field_validator("calibrate")
    @classmethod
    def _default_samples(cls, value: Rows) -> Rows:
        return value if value.samples else value.model_copy(update={"samples": 256})

    @field_validator("tune")
    @classmethod
    def _default_tuning_samples(cls, value: Rows) -> Rows:
        return value if value.samples else value.model_copy(update={"samples": 1000})

    @model_validator(mode="after")
    def _some_source(self) -> Data:
        if not (self.source or self.train or self.validation or self.test):
            raise ValueError("give a source, or files for train and validation")
        return self


class Accuracy(FrozenModel):
    """What a quantized model must still reach, on rows that are neither calibrated on nor evaluated in the end.

    Args:
        max_drop: largest drop of the metric against the float model of the same runtime.
        relative: `max_drop` is a share of the float model's figure.
        at_least: smallest value of the metric itself.
        metric: which; the task's first when absent.
        minutes: for the whole search; what is best by then is taken.
        fallback: what steps back: to `float`, or to 16-bit activations; `auto` takes 16 bits where the target computes them.
    """

    max_drop: float | None = Field(default=None, ge=0)
    relative: bool = False
    at_least: float | None = None
    metric: str | None = None
    minutes: float = Field(default=10, gt=0)
    fallback: Literal["auto", "float", "int16"] = "auto"

    @model_validator(mode="after")
    def _some_criterion(self) -> Accuracy:
        if self.max_drop is None and self.at_least is None:
            raise ValueError("give max_drop, at_least, or both")
        return self


class Benchmark(FrozenModel):
    """What is timed.

    Args:
        batch: batch sizes.
        sequence: lengths in tokens; `data` stands for the lengths of the evaluated rows, one row at a time.
        repeats: timed runs of each candidate at each shape.
        threads: threads of one inference; 0 lets each runtime choose.
    """

    batch: tuple[PositiveInt, ...] = Field(default=(1, 8), min_length=1)
    sequence: tuple[PositiveInt | Literal["data"], ...] = Field(default=("data", 128), min_length=1)
    repeats: int = Field(default=30, ge=3)
    threads: int = Field(default=0, ge=0)


class Recipe(FrozenModel):
    """All that a run depends on.

    Args:
        finetune: training in float, before anything else.
        qat: quantization-aware training, after calibration and before planning; what it makes is planned without preparers and
            refiners, which would move what was trained.
        training: how either is carried out.
        strict: a plan that breaks a rule of its target is an error; otherwise it is repaired, and says what was changed.
        shape: of models for targets that want it fixed, or a profile; one row of the task's `max_length` when absent.
        measure: evaluate and time every model; otherwise they are only made.
        allow_code: run the Python function that `finetune.code` or `qat.code` names.
    """

    model: str
    revision: str | None = None
    allow_pickle: bool = False
    allow_code: bool = False
    task: Choice
    data: Data
    finetune: Finetune | None = None
    qat: Qat | None = None
    training: Training = Training()
    prepare: tuple[Choice, ...] = (Choice(name="smoothquant"),)
    calibrate: Choice = Choice(name="minmax")
    quantize: Choice = Choice(name="static")
    refine: tuple[Choice, ...] = (Choice(name="bias-correction"),)
    sensitivity: bool = False
    accuracy: Accuracy | None = None
    strict: bool = True
    targets: tuple[str, ...] = Field(default=("ort-cpu",), min_length=1)
    shape: Shape | None = None
    measure: bool = True
    baselines: tuple[Baseline, ...] = BASELINES
    benchmark: Benchmark = Benchmark()
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _as_trained(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and raw.get("qat") is not None:
            return {"prepare": (), "refine": (), **raw}
        return raw

    @model_validator(mode="after")
    def _fits_training(self) -> Recipe:
        for name in ("prepare", "refine"):
            if self.qat is not None and getattr(self, name):
                raise ValueError(f"{name} and qat exclude each other: the model runs as it was trained")
        if self.qat is not None and self.quantize.name != "static":
            raise ValueError(f"qat trains for the method static, not {self.quantize.name}")
        for stage in (self.finetune, self.qat):
            if stage is not None and stage.code is not None and not self.allow_code:
                raise ValueError(f"training by {stage.code} runs code of yours; allow it with allow_code: true")
            if stage is not None and stage.batch % (self.training.processes * self.training.machines):
                raise ValueError(f"a batch of {stage.batch} rows cannot be shared evenly among all processes")
        if self.finetune is not None and self.finetune.distill is not None and self.finetune.distill.teacher is None:
            raise ValueError("finetune.distill needs a teacher")
        return self

    @field_validator("targets", "baselines")
    @classmethod
    def _each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("each may be named once")
        return value


_FAMILIES = {"task": "tasks", "calibrate": "calibrators", "quantize": "methods"}
_LISTS = {"prepare": "transforms", "refine": "corrections"}


def looks_local(name: str, suffixes: Container[str]) -> bool:
    """Whether a name that is not there is a mistyped path rather than a hub id."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or Path(name).suffix.lower() in suffixes


def load(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read a recipe file.

    Args:
        changes: parts that are to be otherwise, as `path=value` with a value in YAML: `benchmark.batch=[1, 8]`; paths in them
            are relative to the working directory.

    Raises:
        RecipeError: not there, not YAML, or wrong; with every mistake.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError("there is no such recipe", where=str(path), fix="check the path") from None
    except OSError as error:
        raise RecipeError("the recipe cannot be read", where=str(path), got=error.strerror) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError("the recipe is not YAML", where=str(path), got=" ".join(str(error).split())[:300]) from error
    if not isinstance(raw, dict):
        raise RecipeError("the recipe is not a mapping", where=str(path), expected="keys such as model, task and data")
    return parse(changed(raw, changes), where=str(path), base=path.parent)


def changed(raw: dict[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """A recipe as plain data with parts of it set otherwise (see `load`).

    Raises:
        RecipeError: a change that cannot be read, or of a part that cannot have parts.
    """
    for change in changes:
        _change(raw, change)
    return raw


def _change(raw: dict[str, Any], change: str) -> None:
    """Set one part of a recipe, `data.calibrate.samples=50`; parts on the way are made where there are none."""
    name, equals, text = change.partition("=")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError("the value is not YAML", where=f"--set {name}", got=text) from error
    *way, last = name.strip().split(".")
    if not equals or not last:
        raise RecipeError("a change is a path, an equals sign and a value", where="--set", got=change, expected="seed=1")
    place = raw
    for index, part in enumerate(way):
        # A plugin's name may be written with either.
        part = next((known for known in (part, part.replace("-", "_"), part.replace("_", "-")) if known in place), part)
        inner = place.get(part)
        # `task: squad` and `data: ./folder` are short for what can hold more.
        if isinstance(inner, str):
            inner = {"source": inner} if part == "data" and index == 0 else {inner: {}}
        if inner is not None and not isinstance(inner, dict):
            where = ".".join(way[: index + 1])
            raise RecipeError("the recipe has no part of that name in it", where=f"--set {name}", got=f"{where}: {inner!r}")
        place[part] = inner = dict(inner or {})
        place = inner
    # A path on the command line is relative to where the command is typed, not to the recipe.
    is_path = isinstance(value, str) and (os.sep in value or Path(value).suffix) and Path(value).exists()
    place[last] = os.path.abspath(value) if is_path else value


def parse(raw: dict[str, Any], *, where: str = "recipe", base: Path | None = None) -> Recipe:
    """Check a recipe given as plain data.

    Args:
        where: named in errors.
        base: folder that relative paths are relative to; None leaves them as they are.

    Raises:
        RecipeError: with every mistake, one a line.
    """
    raw = dict(raw)
    problems: list[str] = []
    for key, family in _FAMILIES.items():
        if key in raw:
            raw[key] = _choice(raw[key], key, family, problems)
    for key, family in _LISTS.items():
        if key in raw:
            given = raw[key] if isinstance(raw[key], list | tuple) else [] if raw[key] is None else [raw[key]]
            read = [_choice(one, key, family, problems) for one in given]
            raw[key] = _BROKEN if _BROKEN in read else read
    if isinstance(raw.get("data"), str):
        raw["data"] = {"source": raw["data"]}
    targets = raw.get("targets")
    raw["targets"] = [targets] if isinstance(targets, str) else targets if targets is not None else ["ort-cpu"]
    for index, name in enumerate(raw["targets"] if isinstance(raw["targets"], list) else []):
        if name not in plugins.names("targets"):
            problems.append(
                f'targets.{index}: there is no target "{name}"; {did_you_mean(str(name), plugins.names("targets"))}'
            )
    try:
        recipe = Recipe.model_validate({k: v for k, v in raw.items() if v is not _BROKEN})
    except ValidationError as error:
        broken = {key for key, value in raw.items() if value is _BROKEN}
        problems += [p for p in _sentences(error, Recipe) if p.split(":")[0] not in broken]
    if problems:
        count = f"{len(problems)} mistakes" if len(problems) > 1 else "1 mistake"
        raise RecipeError(f"the recipe has {count}:\n  - " + "\n  - ".join(problems), where=where)
    return _with_paths(recipe, base)


def options_of(choice: Choice, family: str) -> Any:
    """The checked options of a chosen plugin."""
    return plugins.load(family, choice.name).Options.model_validate(choice.options)


_BROKEN = object()


def _choice(value: Any, key: str, family: str, problems: list[str]) -> Any:
    """A plugin in either spelling as {name, options}; mistakes are added to `problems`."""
    if isinstance(value, dict) and set(value) <= {"name", "options"} and "name" in value:
        name, options = value["name"], value.get("options", {})
    elif isinstance(value, dict) and len(value) == 1:
        name, options = next(iter(value.items()))
    else:
        name, options = value, {}
    known = plugins.names(family)
    # The way files are named, and what a data set calls itself: squad_v2.
    name = name.replace("_", "-") if isinstance(name, str) else name
    if name not in known:
        shown = f'there is no {key} "{name}"' if isinstance(name, str) else "write a name, or one name with its options"
        problems.append(f"{key}: {shown}; {did_you_mean(str(name), known)}")
        return _BROKEN
    try:
        plugins.load(family, name).Options.model_validate(options or {})
    except ValidationError as error:
        model = plugins.load(family, name).Options
        problems += [f"{key}.{name}.{sentence}" for sentence in _sentences(error, model)]
        return _BROKEN
    return {"name": name, "options": options or {}}


def _sentences(error: ValidationError, model: type[BaseModel]) -> list[str]:
    found = []
    for one in error.errors():
        path = ".".join(str(part) for part in one["loc"]) or ("recipe" if model is Recipe else "options")
        if one["type"] == "extra_forbidden":
            found.append(f"{path}: unknown key; {did_you_mean(str(one['loc'][-1]), _fields(model, one['loc'][:-1]))}")
        elif one["type"] == "missing":
            found.append(f"{path}: missing")
        else:
            message = one["msg"].removeprefix("Value error, ")
            got = f" (got {one['input']!r})" if one["loc"] else ""
            found.append(f"{path}: {message[0].lower()}{message[1:]}{got}"[:300])
    return found


def _fields(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    for part in path:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        # Also inside `Finetune | None`.
        for one in (annotation, *get_args(annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                model = one
    return [field.alias or name for name, field in model.model_fields.items()]


def _with_paths(recipe: Recipe, base: Path | None) -> Recipe:
    """Paths as they can be opened: `~` expanded, and relative ones taken from the folder of the recipe's file."""

    def local(name: str | None) -> str | None:
        if name is None or name.startswith("package:"):
            return name
        path = Path(name).expanduser()
        if base is None or path.is_absolute():
            return str(path) if name.startswith("~") else name
        return os.path.normpath(base / path) if (base / path).exists() or name.startswith(".") else name

    data = recipe.data
    moved: dict[str, Any] = {key: local(getattr(data, key)) for key in ("source", "train", "validation", "test")}
    for key in ("calibrate", "evaluate", "tune", "finetune"):
        rows: Rows = getattr(data, key)
        moved[key] = rows.model_copy(update={"from_": local(rows.from_) if Path(rows.from_).suffix else rows.from_})
    changed: dict[str, Any] = {"model": local(recipe.model), "data": data.model_copy(update=moved)}
    for name in ("finetune", "qat"):
        stage = getattr(recipe, name)
        if stage is not None:
            distill = stage.distill and stage.distill.model_copy(update={"teacher": local(stage.distill.teacher)})
            file, colon, function = (stage.code or "").partition(":")
            code = f"{local(file)}:{function}" if colon else stage.code
            changed[name] = stage.model_copy(update={"distill": distill, "code": code})
    return recipe.model_copy(update=changed)


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The same recipe wherever its file lies: paths that exist are made absolute."""
    plain = recipe.model_dump(by_alias=True, exclude_unset=True)

    def absolute(name: Any) -> Any:
        return str(Path(name).resolve()) if isinstance(name, str) and Path(name).exists() else name

    plain["model"] = absolute(plain["model"])
    plain["data"] = {k: absolute(v) for k, v in plain["data"].items()}
    return Recipe.model_validate(plain)


def _short(choice: dict[str, Any]) -> Any:
    """A plugin as people write it."""
    options = choice.get("options")
    return {choice["name"]: options} if options else choice["name"]


def as_yaml(recipe: Recipe) -> str:
    """The recipe as the user would write it, defaults left out."""
    plain = json.loads(recipe.model_dump_json(by_alias=True, exclude_defaults=True))
    for key in _FAMILIES:
        if key in plain:
            plain[key] = _short(plain[key])
    for key in _LISTS:
        if key in plain:
            plain[key] = [_short(one) for one in plain[key]]
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
