"""Evaluators: metrics, goals, what is timed, and the settings of inference sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octobert.core.session import SessionEntries
from octobert.importers.olive import scripts, searching, systems
from octobert.importers.olive.data import post_process
from octobert.importers.olive.draft import Draft, Rule, apply, key, needless, refuse
from octobert.importers.olive.model import path_of_script
from octobert.importers.outcomes import Node

# Names of metrics in torchmetrics and in `evaluate` → octobert's own.
METRICS = {
    "accuracy_score": "accuracy",
    "accuracy": "accuracy",
    "f1_score": "f1",
    "f1": "f1",
    "auroc": "auroc",
    "precision": "precision",
    "recall": "recall",
    "matthews_correlation": "matthews",
    "pearsonr": "pearson",
    "spearmanr": "spearman",
    "exact_match": "exact_match",
    "perplexity": "pseudo_perplexity",
}
# Metrics that a task always has.
_OWN = {
    "mrpc": ("accuracy", "f1"),
    "sst2": ("accuracy",),
    "imdb": ("accuracy",),
    "text-classification": ("accuracy", "f1", "matthews"),
    "token-classification": ("f1", "precision", "recall", "accuracy"),
    "question-answering": ("f1", "exact_match"),
    "squad": ("f1", "exact_match"),
    "squad-v2": ("f1", "exact_match"),
    "next-sentence": ("accuracy", "f1"),
    "fill-mask": ("accuracy", "pseudo_perplexity"),
}
_LAST = 1000
_TIMES = ("avg", "min", "max", "p50", "p90", "p99")
_ONE = "a recipe has one accuracy criterion, and a goal with a higher priority is it"


def metrics_of(evaluator: Node | None) -> list[Node]:
    """The metrics of an evaluator."""
    metrics = evaluator.get("metrics") if evaluator is not None else None
    return metrics.elements() if metrics is not None else []


def leading(draft: Draft, metrics: list[Node]) -> Node | None:
    """The data config of the first metric of answers, or of the first metric that has one."""
    ranked = sorted(metrics, key=lambda metric: _type(metric) not in ("accuracy", "custom"))
    for metric in ranked:
        reference = metric.get("data_config")
        if reference is not None:
            if isinstance(reference.value, str):
                reference.mapped("data.evaluate")
            return draft.config.named("data_configs", reference)
    return None


def read(draft: Draft, metrics: list[Node]) -> None:
    """Set metrics, criteria and what is timed."""
    wanted: list[Any] = []
    goals: list[tuple[int, Node, str, Node]] = []
    searched: list[tuple[int, Node, str]] = []
    for metric in metrics:
        kind = _type(metric)
        for part in _subs(metric):
            priority = part.get("priority")
            rank = priority.value if priority is not None and type(priority.value) is int and priority.value > 0 else _LAST
            name = None
            if kind in ("latency", "throughput"):
                _timed(draft, part, kind)
            else:
                name = _scored(draft, metric, part, kind, wanted)
                if (goal := part.get("goal")) is not None and name and not draft.searching:
                    goals.append((rank, goal, name, part))
            if draft.searching and (figure := name or _figure(part, kind)) is not None:
                searched.append((rank, part, figure))
                if rank < _LAST and priority is not None:
                    priority.mapped("search.goals")
            apply(draft, part, _SUB)
        _metric(draft, metric, kind)
    own = _OWN.get(draft.task, ())
    for rank, part, figure in searched:
        _searched(draft, part, figure, rank, default=next(iter([*wanted, *own]), ""))
    if any(each not in own for each in wanted):
        draft.set("metric", wanted)
    for index, (_, goal, name, _) in enumerate(sorted(goals, key=lambda each: each[0])):
        accuracy_goal(draft, goal, name, default=next(iter([*wanted, *own]), name)) if not index else goal.refused(_ONE)


def _figure(part: Node, kind: str) -> str | None:
    """The figure that a sub type of times or sizes means."""
    name = part.get("name") or part.get("sub_type")
    if kind == "size_on_disk":
        return "size"
    if kind not in ("latency", "throughput"):
        return None
    percentile = name is not None and kind == "latency" and name.text in ("p50", "p75", "p90", "p95", "p99")
    return f"latency@{name.text}" if percentile and name is not None else kind


def _searched(draft: Draft, part: Node, figure: str, rank: int, default: str) -> None:
    """A goal and a limit of the search."""
    figure = "metric" if figure == default else figure
    if rank < _LAST:
        draft.goals.append((rank, figure))
    if (goal := part.get("goal")) is not None:
        searching.limit(draft, goal, figure)


def _type(metric: Node) -> str:
    kind = metric.get("type")
    return kind.text.lower() if kind is not None else "accuracy"


def _subs(metric: Node) -> list[Node]:
    subs = metric.get("sub_types")
    if subs is None:
        # Configs of Olive 0.1 and 0.2 have one.
        name = metric.get("sub_type")
        return [metric] if name is not None else []
    return subs.elements()


def _scored(draft: Draft, metric: Node, part: Node, kind: str, wanted: list[Any]) -> str | None:
    """The metric that a sub type means; it is added to the wanted ones."""
    field = part.get("name") or part.get("sub_type")
    if field is None:
        return None
    if kind == "size_on_disk":
        field.not_needed("every report has the size of every model")
        return None
    if kind == "custom":
        return _custom(draft, metric, field, wanted)
    if draft.task in ("feature-extraction", "embedding"):
        field.refused("octobert scores features by their similarity to those of the float model")
        return None
    backend = metric.get("backend")
    if field.text in METRICS:
        name = METRICS[field.text]
        wanted += [name] if name not in wanted else []
        field.mapped("metric" if name not in _OWN.get(draft.task, ()) else "task", f"{name}, with an interval")
        return name
    if backend is not None and backend.text == "huggingface_metrics":
        wanted += [{"evaluate": field.text}] if {"evaluate": field.text} not in wanted else []
        field.mapped("metric", "by the library evaluate")
        return field.text
    field.refused("octobert has no such metric; a function can be given as metric: file.py:function")
    return None


def _custom(draft: Draft, metric: Node, field: Node, wanted: list[Any]) -> str | None:
    """A function evaluates the model: a metric that octobert has if the script says so, otherwise nothing."""
    function = metric.get("evaluate_func") or metric.get("metric_func")
    script = metric.get("user_script")
    own = _OWN.get(draft.task, ("accuracy",))
    if function is None or script is None:
        field.refused("a custom metric needs evaluate_func and user_script")
        return None
    found = scripts.read(draft.config.folder / path_of_script(draft, metric, script))
    name = found.metric(function.text) if found is not None else None
    if name is not None:
        why = f"{function.text} computes {name}; octobert computes it itself, on its own rows, and runs no code"
        for each in (field, function, script):
            each.mapped("task" if name in own else "metric", why)
        wanted += [name] if name not in wanted else []
        return name
    why = (
        "the function gets a model of Olive and runs it; octobert runs the model: write a function of predictions and labels, "
        f"and give it as metric: {script.text}:NAME; until then the criterion is {own[0]}"
    )
    for each in (function, script):
        each.refused(why)
    field.refused(why)
    return own[0]


def accuracy_goal(draft: Draft, goal: Node, metric: str, default: str) -> None:
    """Set the accuracy criterion from a goal."""
    kind, value = goal.get("type"), goal.get("value")
    if kind is None or value is None or not isinstance(value.value, int | float):
        goal.refused("a goal has a type and a number")
        return
    number, note = float(value.value), ""
    if kind.text == "max-degradation":
        criterion: dict[str, Any] = {"max_drop": number}
    elif kind.text == "percent-max-degradation":
        criterion, note = {"max_drop": _rounded(number / 100), "relative": True}, "a share of the float model's metric"
    elif kind.text == "threshold":
        criterion = {"at_least": number}
    else:
        goal.refused("quantization does not improve a metric; ask for a largest drop, or for a least value with threshold")
        return
    if metric != default:
        criterion["metric"] = metric
    draft.set("accuracy", criterion)
    goal.mapped("accuracy", note)


def _timed(draft: Draft, part: Node, kind: str) -> None:
    """One statistic of times, and a goal for it."""
    name, goal = part.get("name"), part.get("goal")
    if name is not None and name.text in _TIMES:
        name.not_needed(f"every report has {name.text} of each model, and rows per second")
    elif name is not None:
        name.refused(f"reports have {', '.join(_TIMES)}; report.json has every sample")
    if goal is not None and not draft.searching:
        _speed_goal(draft, goal, kind)
    settings = part.get("metric_config")
    if settings is not None:
        apply(draft, settings, _TIMING)


def _speed_goal(draft: Draft, goal: Node, kind: str) -> None:
    what, value = goal.get("type"), goal.get("value")
    number = float(value.value) if value is not None and isinstance(value.value, int | float) else None
    if what is None or number is None or what.text != "percent-min-improvement" or (kind == "latency" and number >= 100):
        goal.refused("octobert's speed criterion is a least speedup over the float model on the same runtime")
        return
    speedup = _rounded(1 / (1 - number / 100) if kind == "latency" else 1 + number / 100)
    draft.set("speed.min_speedup", max(speedup, draft.recipe.get("speed", {}).get("min_speedup", 0.0)))
    goal.mapped("speed.min_speedup", "over the float model on the same runtime, not over PyTorch")


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")


def _metric(draft: Draft, metric: Node, kind: str) -> None:
    """The other fields of a metric: sessions, post-processing, and names."""
    after, script = metric.get("post_processing_func"), metric.get("user_script")
    if after is not None and script is not None:
        post_process(draft, after, path_of_script(draft, metric, script))
        script.not_needed("only its post_processing_func is named, which see")
    for name, field in metric.items():
        if name == "inference_settings" and field.value is not None:
            _session(draft, field)
    reference = metric.get("data_config")
    if reference is not None:
        draft.config.named("data_configs", reference)
    apply(draft, metric, _METRIC)


def _session(draft: Draft, settings: Node) -> None:
    """Inference settings of ONNX Runtime, directly or under `onnx`."""
    for framework, node in settings.items():
        if framework in ("pytorch", "snpe", "openvino", "qnn", "tensorflow"):
            node.refused(
                "octobert opens ONNX files with ONNX Runtime, and OpenVINO models with OpenVINO; session: takes their options"
            )
    inner = settings.get("onnx") or settings
    provider = inner.get("execution_provider")
    names = (
        [str(e.value[0] if isinstance(e.value, list) else e.value) for e in provider.elements()] if provider is not None else []
    )
    for name in names:
        assert provider is not None
        systems.add_provider(draft, name, provider)
    options = inner.get("provider_options")
    for index, element in enumerate(options.elements() if options is not None else ()):
        if index < len(names) and isinstance(element.value, Mapping):
            draft.settings.append((names[index], "provider", element.value, element))
    session = inner.get("session_options")
    if session is not None:
        extra = session.get("extra_session_config")
        plain = {key: node.value for key, node in session.items() if key != "extra_session_config"}
        entries = dict(extra.value) if extra is not None and isinstance(extra.value, Mapping) else {}
        draft.settings.append((names[0] if names else "CPU", "options", {**plain, **entries}, session))
    apply(draft, inner, _SESSION)


def finish(draft: Draft) -> None:
    """Set the sessions' options, now that the targets are known."""
    for provider, kind, options, node in draft.settings:
        known = [key for key in draft.providers if key[0] == systems.provider_of(provider)]
        target = systems.target_of(draft, *(known[0] if known else (systems.provider_of(provider), "")))
        if target is None or target not in draft.recipe["targets"]:
            node.refused(f"the recipe has no target for {provider}")
            continue
        place = draft.recipe.setdefault("session", {}).setdefault(target, {}).setdefault(kind, {})
        on_files = SessionEntries.model_validate({kind: options}).on_files if _are_plain(options) else ()
        for name, value in options.items():
            field = node.inside(name)
            if name == "backend_path" and target == "qnn" and "htp" in str(value).lower():
                field.not_needed("octobert's qnn asks for backend_type htp, which is the same library on every system")
            elif f"{kind}.{name}" in on_files or not isinstance(value, bool | int | str):
                field.refused(
                    f"it makes the runtime load or write files; add --set session.{target}.{kind}.{name}=… and --allow-code"
                )
            elif name in place and place[name] != value:
                field.refused(f"another metric sets {name} to {place[name]}, and a target has one session")
            else:
                place[name] = value
        node.mapped(f"session.{target}.{kind}")
    for bound in draft.bound:
        for target in (t for t in draft.recipe["targets"] if t in systems.BINDING):
            draft.recipe.setdefault("session", {}).setdefault(target, {}).setdefault("options", {})["io_binding"] = True
            bound.mapped(f"session.{target}.options.io_binding")
        bound.not_needed("on a CPU there is nothing to bind")


def _are_plain(options: Mapping[str, Any]) -> bool:
    return all(isinstance(value, bool | int | str) for value in options.values())


def _bind(draft: Draft, node: Node) -> None:
    if node.value is True:
        draft.bound.append(node)
    else:
        node.not_needed("off, as in octobert")


def _pause(draft: Draft, node: Node) -> None:
    if isinstance(node.value, int | float) and node.value > 0:
        draft.set("benchmark.pause_ms", 1000 * node.value, node, "from seconds")
    else:
        node.not_needed("10 ms pass before each timed run")


_TIMING: dict[str, Rule] = {
    "repeat_test_num": lambda draft, node: draft.set("benchmark.repeats", max(3, int(node.value)), node),
    "warmup_num": key("benchmark.warmup", note="beside the untimed run before each timed one"),
    "sleep_num": lambda draft, node: _pause(draft, node),
}
_SUB: dict[str, Rule] = {
    "priority": needless("the accuracy criterion comes first; among plans that meet it the fastest is taken"),
    "higher_is_better": needless("octobert knows the direction of its metrics"),
    "metric_config": needless("the task sets the arguments of its metrics"),
    "name": needless("names the result"),
}
_METRIC: dict[str, Rule] = {
    "name": needless("names the metric in Olive's log"),
    "type": needless("the report has answers, times and sizes of every model"),
    "backend": needless("octobert's metrics equal those of scikit-learn and of evaluate"),
    "io_bind": _bind,
    "evaluate_func_kwargs": needless("octobert makes its batches itself"),
    "metric_func_kwargs": refuse("a metric function gets predictions and labels only"),
    "batch_size": needless("benchmark.batch says it"),
    "data_dir": refuse("a recipe has one data set"),
    "dataloader_func": refuse("give rows: data.source: file.py:function"),
    "user_script": needless("nothing of the script is used for this metric"),
    "script_dir": needless("scripts are found beside the config"),
    "shared_kv_buffer": needless("encoders have no key-value cache"),
    "run_kwargs": refuse("arguments of a run cannot be set"),
    "input_names": needless("the captured graph names its inputs"),
    "input_shapes": needless("benchmark.batch and benchmark.sequence say what is timed"),
}
_SESSION: dict[str, Rule] = {
    "use_ort_extensions": refuse("octobert's models need no operators of onnxruntime-extensions"),
    "enable_profiling": needless("octobert inspect OUT/TARGET --runtime profiles a model"),
}
