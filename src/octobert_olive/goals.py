"""Evaluators: metrics, goals, what is timed, and the settings of inference sessions."""

from __future__ import annotations

from typing import Any

from octobert.core.session import SessionEntries
from octobert_olive import scripts, systems
from octobert_olive.data import post_process
from octobert_olive.nodes import ABSENT, Node
from octobert_olive.rules import Draft, apply, names
from octobert_olive.searches import add

_LAST = 1000
_TIMES = ("avg", "min", "max", "p50", "p90", "p99")
_PERCENTILES = ("p50", "p75", "p90", "p95", "p99")
_OTHER_FRAMEWORKS = ("pytorch", "snpe", "openvino", "qnn", "tensorflow")


_UNSEARCHED = "Olive judges goals in a search only; the report has the figures; accuracy: {max_drop: …} makes one a criterion"


def leading(draft: Draft, metrics: list[Node]) -> Node:
    """The data config of the first metric of answers, or of the first metric that has one."""
    ranked = sorted(metrics, key=lambda metric: _type(metric) not in ("accuracy", "custom"))
    reference = next(filter(None, (metric.get("data_config") for metric in ranked)), ABSENT)
    if isinstance(reference.value, str):
        reference.mapped("data.evaluate")
    return draft.config.named("data_configs", reference)


def read(draft: Draft, metrics: list[Node], *, judged: bool) -> None:
    """Set metrics, criteria and what is timed.

    Args:
        judged: whether goals are judged, or only named.
    """
    scores: list[Any] = []
    # (rank, goal, figure)
    ranked: list[tuple[int, Node, str]] = []
    for metric in metrics:
        kind = _type(metric)
        # Configs of Olive 0.1 and 0.2 have one sub type, in the metric.
        subs = metric.get("sub_types")
        for part in subs.elements() if subs else [metric] if metric.get("sub_type") else []:
            priority, goal = part.get("priority", "priority_rank"), part.get("goal")
            figure = (
                _timed(draft, part, kind, judged=judged)
                if kind in ("latency", "throughput")
                else _scored(draft, metric, part, kind, scores)
            )
            if figure:
                ranked.append((priority.count or _LAST, goal, figure))
            if figure and draft.search and priority.count in range(1, _LAST):
                priority.mapped("search.goals")
            apply(draft, part, "sub_type")
        _rest(draft, metric)
    most = max([3, *(int(node.value) for node in draft.later["repeats"])])
    for node in draft.later["repeats"]:
        note = "" if most == node.value else "the most of all metrics, and at least 3"
        draft.set("benchmark.repeats", most, node, note)
    always = names("task_metrics").get(draft.task, [])
    default = next(iter([*scores, *always]), "")
    if any(metric not in always for metric in scores):
        draft.set("metric", scores)
    if draft.search:
        for rank, goal, figure in ranked:
            _searched(draft, goal, "metric" if figure == default else figure, rank)
        return
    if not judged:
        for _, goal, _ in ranked:
            goal.not_needed(_UNSEARCHED)
        return
    goals = [
        (goal, figure)
        for _, goal, figure in sorted(ranked, key=lambda row: row[0])
        if goal and _is_metric(figure)
    ]
    for goal, figure in goals[:1]:
        _criterion(draft, goal, figure, default or figure)
    for goal, _ in goals[1:]:
        goal.refused("a recipe has one accuracy criterion, and a goal with a higher priority is it")


def _type(metric: Node) -> str:
    kind = metric.get("type")
    return kind.lower if kind else "accuracy"


def _is_metric(figure: str) -> bool:
    return figure.partition("@")[0] not in ("latency", "throughput", "size")


def _scored(draft: Draft, metric: Node, part: Node, kind: str, scores: list[Any]) -> str:
    """The metric that a sub type means, which is added to those of the recipe; or that it means the size."""
    field = part.get("sub_type", "name")
    if kind == "size_on_disk":
        field.not_needed("every report has the size of every model")
        return "size"
    if not field:
        return ""
    if kind == "custom":
        return _custom(draft, metric, field, scores)
    always, metrics = names("task_metrics").get(draft.task, []), names("metrics")
    if draft.task in ("feature-extraction", "embedding"):
        field.refused("octobert scores features by their similarity to those of the float model")
        return ""
    if field.text in metrics:
        name, average = _averaged(part.get("metric_config"), field.text, metrics[field.text])
        add(scores, [name])
        for place in (field, average):
            place.mapped("task" if name in always else "metric", f"{name}, with an interval")
        return name
    if metric.get("backend").text == "huggingface_metrics":
        add(scores, [{"evaluate": field.text}])
        field.mapped("metric", "by the library evaluate")
        return field.text
    field.refused(
        "octobert has no such metric; a function can be given as metric: file.py:function"
    )
    return ""


def _averaged(arguments: Node, name: str, of_two: str) -> tuple[str, Node]:
    """The metric over several classes, and the field that says how it is averaged; else that of class 1, without a field."""
    task = arguments.get("task")
    average = arguments.get("compute_params").get("average")
    kind = "multiclass" if average else task.lower
    if kind not in names("averages"):
        return of_two, ABSENT
    average = average or arguments.get("average")
    found = names("averages")[kind].get(name, {}).get(average.lower or "micro")
    if found is None:
        (average or task).refused(
            f"over classes octobert has accuracy, and F1, precision and recall as macro and micro; {of_two} is taken"
        )
    return found or of_two, average


def _custom(draft: Draft, metric: Node, field: Node, scores: list[Any]) -> str:
    """A function evaluates the model: a metric that octobert has if the script says so, otherwise nothing."""
    function, script = metric.get("evaluate_func", "metric_func"), metric.get("user_script")
    always: list[str] = names("task_metrics").get(draft.task, ["accuracy"])
    if not function or not script:
        field.refused("a custom metric needs evaluate_func and user_script")
        return ""
    name = scripts.script_of(draft, metric, script).metric(function.text)
    for place in (field, function, script):
        if name is not None:
            rows = draft.get("data.evaluate.samples") or "all"
            why = f"{function.text} computes {name}; octobert does, on {rows} rows of data.evaluate, and runs no code"
            place.mapped("task" if name in always else "metric", why)
        else:
            place.refused(
                "the function gets a model of Olive and runs it; octobert runs the model: write a function of predictions and "
                f"labels, and give it as metric: {script.text}:NAME; until then the criterion is {always[0]}"
            )
    if name is None:
        return always[0]
    add(scores, [name])
    return name


def _criterion(draft: Draft, goal: Node, metric: str, default: str) -> None:
    """Set the accuracy criterion from a goal."""
    limit = _limit(goal, metric)
    if limit is None or "min_gain" in limit:
        goal.refused(
            "quantization does not improve a metric; ask for a largest drop, or for a least value with threshold"
        )
        return
    note = "a share of the float model's metric" if "relative" in limit else ""
    draft.set("accuracy", limit | ({"metric": metric} if metric != default else {}), goal, note)


def _searched(draft: Draft, goal: Node, figure: str, rank: int) -> None:
    """A goal and a limit of the search."""
    assert draft.search is not None
    if rank < _LAST:
        draft.search.goals.append((rank, figure))
    limit = _limit(goal, figure)
    if limit is None:
        goal.refused("write it in percent of the float model's figure, or as a threshold")
        return
    draft.search.limits.append({**({} if figure == "metric" else {"of": figure}), **limit})
    is_absolute = "at_most" in limit or "at_least" in limit
    goal.mapped(
        "search.limits", "" if is_absolute else "compared with the float model in ONNX Runtime"
    )


def _limit(goal: Node, figure: str) -> dict[str, Any] | None:
    """A goal for a figure, as a limit of a recipe. None: nothing that a limit says; without a number it is refused."""
    value, kind = goal.get("value"), goal.get("type").text
    if not goal.get("type") or not value.is_number:
        goal.refused("a goal has a type and a number")
        return None
    number = float(value.value)
    if kind == "threshold":
        name = "at_most" if figure.startswith(("latency", "size")) else "at_least"
        return {name: number / 1e6 if figure == "size" else number}
    if kind == "percent-min-improvement":
        return {"min_gain": number}
    if kind == "percent-max-degradation":
        return (
            {"max_drop": _rounded(number / 100), "relative": True}
            if _is_metric(figure)
            else {"min_gain": -number}
        )
    return {"max_drop": number} if kind == "max-degradation" and _is_metric(figure) else None


def _timed(draft: Draft, part: Node, kind: str, *, judged: bool) -> str:
    """One statistic of times, and a goal for it; the figure that it means."""
    name, goal = part.get("sub_type", "name"), part.get("goal")
    if name.text in _TIMES:
        name.not_needed(f"every report has {name.text} of each model, and rows per second")
    else:
        name.refused(f"reports have {', '.join(_TIMES)}; report.json has every sample")
    figure = f"{kind}@{name.text}".removesuffix("@avg")
    if figure not in (kind, *(f"latency@{percentile}" for percentile in _PERCENTILES)):
        goal.refused(f"goals are of {kind}, or of latency@ and {', '.join(_PERCENTILES)}")
        figure = ""
    elif goal and judged and not draft.search:
        _speed(draft, goal, kind)
    apply(draft, part.get("metric_config"), "timing")
    return figure


def _speed(draft: Draft, goal: Node, kind: str) -> None:
    value = goal.get("value")
    if kind == "throughput":
        goal.refused(
            "the speed criterion is of the latency; a search has others: search: {limits: [{of: throughput, min_gain: 20}]}"
        )
        return
    is_gain = value.is_number and goal.get("type").text == "percent-min-improvement"
    if not is_gain or value.value >= 100:
        goal.refused(
            "octobert's speed criterion is a least speedup over the float model on the same runtime"
        )
        return
    speedup = _rounded(1 / (1 - float(value.value) / 100))
    why = "over the float model on the same runtime, not over PyTorch"
    draft.set("speed.min_speedup", max(speedup, draft.get("speed.min_speedup") or 0.0), goal, why)


def _rounded(number: float) -> float:
    return float(f"{number:.6g}")


def _rest(draft: Draft, metric: Node) -> None:
    """The other fields of a metric: sessions, post-processing, and names."""
    after, script = metric.get("post_processing_func"), metric.get("user_script")
    post_process(draft, metric, after)
    if after:
        script.not_needed("only its post_processing_func is named, which see")
    for name, field in metric.items():
        if name == "inference_settings":
            _session(draft, field)
    draft.config.named("data_configs", metric.get("data_config"))
    apply(draft, metric, "metric")


def _session(draft: Draft, settings: Node) -> None:
    """Inference settings of ONNX Runtime, directly or under `onnx`."""
    for framework, node in settings.items():
        if framework in _OTHER_FRAMEWORKS:
            node.refused(
                "octobert opens ONNX files with ONNX Runtime, and OpenVINO models with OpenVINO; session: takes their options"
            )
    inner = settings.get("onnx") or settings
    providers = systems.measured_on(draft, inner.get("execution_provider"))
    for name, element in zip(providers, inner.get("provider_options").elements(), strict=False):
        if element.is_mapping:
            draft.sessions.append((name, "provider", dict(element.items()), element))
    session = inner.get("session_options")
    if session:
        options = dict(session.items())
        extra = options.pop("extra_session_config", session.get("extra_session_config"))
        options |= dict(extra.items())
        draft.sessions.append((providers[0] if providers else "CPU", "options", options, session))
    apply(draft, inner, "inference_settings")


def set_sessions(draft: Draft) -> None:
    """Set the sessions' options, now that the targets are known."""
    targets = draft.recipe["targets"]
    for provider, kind, options, node in draft.sessions:
        target = systems.target_of(draft, provider)
        if target not in targets:
            node.refused(f"the recipe has no target for {provider}")
            continue
        key = f"session.{target}.{kind}"
        place = draft.get(key) or {}
        draft.set(key, place)
        values = {name: field.value for name, field in options.items()}
        are_plain = all(map(_is_plain, values.values()))
        on_files = SessionEntries.model_validate({kind: values}).on_files if are_plain else ()
        for name, field in options.items():
            if name == "backend_path" and target == "qnn" and "htp" in field.lower:
                field.not_needed(
                    "octobert's qnn asks for backend_type htp, which is the same library on every system"
                )
            elif f"{kind}.{name}" in on_files or not _is_plain(field.value):
                field.refused(
                    f"it makes the runtime load or write files; add --set {key}.{name}=… and --allow-code"
                )
            elif name in place and place[name] != field.value:
                field.refused(
                    f"another metric sets {name} to {place[name]}, and a target has one session"
                )
            else:
                place[name] = field.value
        node.mapped(key)
    for bound in draft.later["bound"]:
        for target in targets:
            if target in names("binding"):
                draft.set(f"session.{target}.options.io_binding", True, bound)
        bound.not_needed("on a CPU there is nothing to bind")


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | str)
