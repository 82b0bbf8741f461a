"""The models of a recipe: everything that a run depends on, as frozen data. `loading` reads and writes them; this file loads no
plugin.

The `Args` section of each class describes its keys; the JSON Schema (`schema`) and the command line take their texts from it.
`RecipeKeys` has the same keys as keyword arguments, for type checkers and editors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from pydantic import Field, field_validator, model_validator

from octobert.config.choosing import Accuracy, Choose, Search, Speed
from octobert.config.measuring import Benchmark, EvaluateMetric
from octobert.config.rows import Data, Revision
from octobert.config.training import Finetune, Qat, Training
from octobert.core.frozen import FrozenModel, Seed
from octobert.core.logs import Level
from octobert.core.session import Goal, SessionEntries, StaticShape
from octobert.core.user_code import names_code

SPLITS = ("train", "validation", "test")
# Keys that only the user gives, on the command line or in Python → what a recipe file of somebody else would do with them. (The
# processes of a distributed training open pickled data of the rendezvous.)
PERMISSIONS = {
    "allow_pickle": "run code",
    "allow_code": "run code",
    "training.rendezvous": "run code",
    "training.tensorboard": "write outside of the output directory",
    "cache": "write outside of the output directory",
    "executor": "open this machine to programs from the network",
}

# Keys that make a search.
_WAYS = ("choose", "search")
# Pairs of keys that exclude each other, and why. The first pair of a recipe is its error.
_EXCLUSIONS = [
    ("transforms", "qat", ": the model runs as it was trained"),
    ("corrections", "qat", ": the model runs as it was trained"),
    ("choose", "search", ": octobert decides what to try, or you list it"),
    *(
        (way, key, f"; {way}.limits say what a model must keep")
        for way in _WAYS
        for key in ("qat", "accuracy", "speed")
    ),
]
# Keys that need figures → what they need.
_MEASURED = {**dict.fromkeys(_WAYS, "models have"), "speed": "a speedup has"}


@dataclass(frozen=True)
class PluginOf:
    """Marks a recipe key whose values are plugins of a family, a key of `octobert.core.plugins.PACKAGES`."""

    family: str


class Choice(FrozenModel):
    """A plugin and its options.

    Args:
        name: The plugin's name.
        options: The plugin's options.
    """

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class Recipe(FrozenModel):
    """Everything that a run depends on.

    Args:
        model: Hub id, folder, package:NAME/PATH, an .onnx file next to its tokenizer, or a .zip file or URL of one of these; or
            `file.py:function` that returns a path, or a PyTorch model and the folder of its tokenizer.
        revision: Revision of the model on the Hub.
        tokenizer: Folder or Hub id of the tokenizer, where it does not lie beside the model.
        family: Model type of a checkpoint whose config.json names none, such as bert.
        allow_pickle: Accept pickle weights. Loading them can run code. Not in a recipe file.
        allow_code: Run the Python functions that the recipe names as `file.py:function`, and let `session` name files that a
            runtime loads or writes. Not in a recipe file.
        task: The task: a name, or a name with options.
        data: Where the rows come from.
        preprocess: `file.py:function` that changes each row, or leaves it out. Needs `--allow-code`.
        postprocess: `file.py:function` that makes predictions of outputs, for the metrics. Needs `--allow-code`.
        metric: Metrics, the main one first: names such as `auroc`, `{evaluate: NAME}`, or `file.py:function`. The latter two
            need `--allow-code`. Default: those of the task.
        finetune: Training in float, before everything else.
        qat: Quantization-aware training, after calibration. It excludes transforms and corrections, which would change the
            trained weights.
        training: How training runs: processes, machines, checkpoints.
        transforms: Graph transforms before calibration. Default: the few neurons of a feed-forward with the largest values in
            float, then SmoothQuant, and on CPUs neurons relative to the largest of their token; none where no two tokens share
            a range (methods `float` and `weight-only`, and `dynamic` on openvino-cpu), or all targets have 16-bit activations.
        calibrate: The calibrator. Default: `held-out`; `mse` where residual adds are quantized.
        calibration_provider: ONNX Runtime's execution provider that runs the float graph over the calibration rows, such as
            CUDAExecutionProvider.
        quantize: The quantization method.
        corrections: Weight corrections after quantization.
        sensitivity: Estimate the output error of each quantized value, and keep units in float that would make most of it.
        accuracy: Search for the fastest plan that meets an accuracy criterion.
        choose: Let octobert find the best model for this machine: runtime, precision, method and its options.
        search: Try the combinations of listed values of recipe keys.
        executor: Where the trials of `choose` and `search` are made and judged: in processes of this machine, or on a Ray
            cluster (`RAY_ADDRESS`) whose machines share the output directory. Timings stay on this machine. Not in a recipe
            file.
        speed: The speedup that every target must reach. The models are not changed for it; the report and the exit code say
            whether it is met.
        repair: Repair a plan that breaks rules of its target, and list the changes in the report. Otherwise such a plan is
            an error.
        targets: The targets to write models for.
        shape: Input shape for targets with static shapes, and of the file of `ort-cpu`; the largest of a TensorRT profile.
            Default: one row of the task's `max_length`; for `ort-cpu` none; a profile also holds what is timed.
        format: Quantized products between Quantize/DequantizeLinear (`qdq`), or as integer operators with their biases
            (`qoperator`), for targets that take both; `auto` takes integer operators where the target computes all products of
            the plan that way.
        opset: ONNX opset of the written files, 13 to 25. Default: the least that the model needs, 18 for most.
        session: Target → how its models are opened: `options` of the runtime and of its `provider`. They are used in the whole
            run, for the float baseline on the same target too, and recorded in the package. They take the place of tuned
            settings.
        token_states: For embeddings: write the states of all tokens as a second output, which other programs pool themselves.
            Without it a model that reads the first token only computes only that in its last layer.
        float_model: Put the float graph, several times larger than the model in 8 bits, into each package: evaluate, benchmark,
            compare and inspect hold the model against it.
        measure: Evaluate and time every model. Otherwise models are only written.
        profile: Run each model that was measured under its runtime's profiler, where that has one (ONNX Runtime and OpenVINO on
            the CPU): the report shows what was executed in 8 bits, and the time of each part.
        quick: Measure less, in less than half of the time: at most 128 evaluation rows, few rounds of timing at the smallest
            batch size, and only the float models on the runtimes of the targets. The written models are the same.
        tune: Goals, `latency` and `throughput`, for which packages that can run here are tuned: the fastest settings on this
            machine are stored beside the model.
        log_level: How much octobert and the runtimes write to their logs, on stderr.
        cache: Folder where results of stages are stored instead of in the output directory, so that runs with other output
            directories reuse them. One run at a time uses it. Not in a recipe file.
        baselines: Names of float baselines, such as `ort-f32`, that are timed and scored. Default: the float model of every
            runtime on the CPU. Of those in float32, which compute the same, only that of ONNX Runtime is scored then.
        benchmark: What is timed.
        seed: Seed of every random choice.
    """

    model: str
    revision: Revision = None
    tokenizer: str | None = None
    family: str | None = None
    allow_pickle: bool = False
    allow_code: bool = False
    task: Annotated[Choice, PluginOf("tasks")]
    data: Data
    preprocess: str | None = None
    postprocess: str | None = None
    metric: tuple[str | EvaluateMetric, ...] = ()
    finetune: Finetune | None = None
    qat: Qat | None = None
    training: Training = Training()
    transforms: Annotated[tuple[Choice, ...], PluginOf("transforms")] = (
        Choice(name="outlier-neurons"),
        Choice(name="smoothquant"),
        Choice(name="token-scales"),
    )
    calibrate: Annotated[Choice, PluginOf("calibrators")] = Choice(name="held-out")
    calibration_provider: str = "CPUExecutionProvider"
    quantize: Annotated[Choice, PluginOf("methods")] = Choice(name="static")
    corrections: Annotated[tuple[Choice, ...], PluginOf("corrections")] = (
        Choice(name="weight-rounding"),
    )
    sensitivity: bool = True
    accuracy: Accuracy | None = None
    choose: Choose | None = None
    search: Search | None = None
    executor: Literal["local", "ray"] = "local"
    speed: Speed | None = None
    repair: bool = False
    targets: Annotated[tuple[str, ...], PluginOf("targets")] = Field(
        default=("ort-cpu",), min_length=1
    )
    shape: StaticShape | None = None
    format: Literal["auto", "qdq", "qoperator"] = "auto"
    opset: int | None = Field(default=None, ge=13, le=25)
    session: dict[str, SessionEntries] = Field(default_factory=dict)
    token_states: bool = True
    float_model: bool = True
    measure: bool = True
    profile: bool = True
    quick: bool = False
    tune: tuple[Goal, ...] = ()
    log_level: Level | None = None
    cache: str | None = None
    baselines: tuple[str, ...] | None = None
    benchmark: Benchmark = Benchmark()
    seed: Seed = 0

    def __repr__(self) -> str:
        return f"<Recipe: {self.model}, {self.task.name}, {', '.join(self.targets)}>"

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        for one, other, reason in _EXCLUSIONS:
            if getattr(self, one) and getattr(self, other):
                raise ValueError(f"{one} and {other} exclude each other{reason}")
        for key, what in _MEASURED.items():
            if getattr(self, key) and not self.measure:
                raise ValueError(f"{key}: {what} to be measured; remove measure: false")
        return self

    @model_validator(mode="after")
    def _fits_training(self) -> Recipe:
        if self.qat is not None and self.quantize.name != "static":
            raise ValueError(f"qat needs the method static, not {self.quantize.name}")
        for stage in (self.finetune, self.qat):
            if stage is not None and stage.batch % (
                self.training.processes * self.training.machines
            ):
                raise ValueError(
                    f"a batch of {stage.batch} rows cannot be shared evenly among all processes"
                )
        distill = self.finetune and self.finetune.layers is None and self.finetune.distill
        if distill and distill.teacher is None:
            raise ValueError(
                "finetune.distill needs a teacher; only with finetune.layers is it the model itself"
            )
        return self

    @model_validator(mode="after")
    def _fits_session(self) -> Recipe:
        for target, entries in self.session.items():
            if target not in self.targets:
                raise ValueError(
                    f"session.{target}: the recipe has no such target; it has {', '.join(self.targets)}"
                )
            if entries.on_files and not self.allow_code:
                raise ValueError(
                    f"session.{target}.{entries.on_files[0]} may make the runtime load or write files; allow it with "
                    "--allow-code (in Python: allow_code=True)"
                )
        return self

    @model_validator(mode="after")
    def _code_is_allowed(self) -> Recipe:
        if self.metric and self.task.options.get("metric"):
            raise ValueError(
                f"metric and task.{self.task.name}.metric name the main metric twice; leave out the latter"
            )
        for key, text in self.code.items():
            if not self.allow_code:
                raise ValueError(
                    f"{key} {text} runs that code; allow it with --allow-code (in Python: allow_code=True)"
                )
        return self

    @property
    def searches(self) -> Choose | Search | None:
        """How it searches for the best model; None where it does not."""
        return self.choose or self.search

    @property
    def code(self) -> dict[str, str]:
        """Key → the code of the user that it names."""
        places = {
            "model": self.model,
            **{f"data.{key}": getattr(self.data, key) for key in ("source", *SPLITS)},
        }
        functions = {
            "finetune.code": self.finetune and self.finetune.code,
            "qat.code": self.qat and self.qat.code,
            "preprocess": self.preprocess,
            "postprocess": self.postprocess,
        }
        named = {key: text for key, text in places.items() if text is not None and names_code(text)}
        named |= {key: text for key, text in functions.items() if text is not None}
        metrics = [
            metric if isinstance(metric, str) else f"{{evaluate: {metric.name}}}"
            for metric in self.metric
        ]
        others = [text for text in metrics if names_code(text) or text.startswith("{")]
        named |= {f"metric.{i}" if i else "metric": text for i, text in enumerate(others)}
        return named

    @field_validator("metric", mode="before")
    @classmethod
    def _one_metric(cls, value: Any) -> Any:
        values = (value,) if isinstance(value, str | Mapping | EvaluateMetric) else value
        for metric in values if isinstance(values, list | tuple) else (values,):
            named = (
                isinstance(metric, Mapping)
                and set(metric) == {"evaluate"}
                and isinstance(metric["evaluate"], str | Mapping)
            )
            if not isinstance(metric, str | EvaluateMetric) and not named:
                raise ValueError("a metric is a name, {evaluate: NAME} or file.py:function")
        return values

    @field_validator("targets", "baselines", "tune")
    @classmethod
    def _each_once(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("a name is listed twice")
        return value


def plugin_families() -> dict[str, str]:
    """Recipe keys whose values are plugins → the family.

    Example:
        >>> plugin_families()["quantize"]
        'methods'
    """
    marks = {name: mark for name, field in Recipe.model_fields.items() for mark in field.metadata}
    return {name: mark.family for name, mark in marks.items() if isinstance(mark, PluginOf)}


# Values of keys as plain data.
Options: TypeAlias = Mapping[str, Any]
# A recipe as plain data.
PlainRecipe: TypeAlias = dict[str, Any]
# A name, or one name with its options.
Plugin: TypeAlias = str | Options


class RecipeKeys(TypedDict, total=False):
    """Keys of a recipe besides model, task and data, as plain data."""

    revision: str | None
    tokenizer: str | None
    family: str | None
    allow_pickle: bool
    allow_code: bool
    preprocess: str | None
    postprocess: str | None
    metric: Plugin | Sequence[Plugin]
    finetune: Options | None
    qat: Options | None
    training: Options
    transforms: Sequence[Plugin]
    calibrate: Plugin
    calibration_provider: str
    quantize: Plugin
    corrections: Sequence[Plugin]
    sensitivity: bool
    accuracy: Options | None
    choose: Options | None
    search: Options | None
    executor: Literal["local", "ray"]
    speed: Options | None
    repair: bool
    targets: Sequence[str]
    shape: Options | None
    format: Literal["auto", "qdq", "qoperator"]
    opset: int | None
    session: Mapping[str, Options]
    token_states: bool
    float_model: bool
    measure: bool
    profile: bool
    quick: bool
    tune: Sequence[Goal]
    log_level: Level | None
    cache: str | None
    baselines: Sequence[str] | None
    benchmark: Options
    seed: int
