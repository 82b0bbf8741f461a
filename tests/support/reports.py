"""Reports and their evidence as whole runs make them, by code and without a model: four models of one task on one machine."""

from __future__ import annotations

import datetime
import random
from typing import Any, Literal

from octobert.config.loading import parse
from octobert.core.environment import Environment
from octobert.core.estimate import Estimate
from octobert.core.evidence import (
    Activation,
    Answer,
    ChangedRow,
    ChangedRows,
    Curve,
    Evidence,
    Executed,
    Execution,
    Histogram,
    Mark,
    OperatorType,
    Smoothed,
    Transition,
)
from octobert.core.limits import Limit
from octobert.core.measurements import Comparison, Footprint, Latency, Load, Score, Speedup
from octobert.core.plan import Decision, Quantizer, QuantPlan, Site
from octobert.core.ranges import Provenance, RangeFacts
from octobert.core.results import (
    AccuracySearch,
    AppliedTransform,
    CaptureFacts,
    DataFacts,
    Parity,
    Report,
    Sensitivity,
    SiteSensitivity,
    Sizes,
    StageFacts,
    TaskFacts,
    TransformFacts,
    Trial,
)
from octobert.core.session import Setting, Tuned
from octobert.report.page import ShownRun
from tests.support.columns import COLUMNS, models_of
from tests.support.selections import MACHINE

Kind = Literal["pairs", "question-answering", "token-classification", "embedding"]
# name, milliseconds of one row of 40 tokens, metric, MB
MODELS = (
    ("ort-f32", 34.0, 0.865, 433.3),
    ("openvino-f32", 29.4, 0.865, 433.1),
    ("ort-cpu", 13.1, 0.853, 110.2),
    ("openvino-cpu", 10.5, 0.864, 110.4),
)
TARGETS = {"openvino-cpu": "openvino-f32", "ort-cpu": "ort-f32"}
LAYERS = 6
PARTS = ("query", "key", "value", "attention_output", "ffn_up", "ffn_down")
REPEATS = 60
_WORDS = (
    "the",
    "company",
    "said",
    "shares",
    "of",
    "its",
    "unit",
    "fell",
    "two",
    "per",
    "cent",
    "after",
    "a",
    "report",
    "that",
    "sales",
)
_TASKS: dict[Kind, tuple[Any, str, str]] = {
    "pairs": ("mrpc", "sequence-classification", "accuracy"),
    "question-answering": ("squad", "question-answering", "f1"),
    "token-classification": ("token-classification", "token-classification", "f1"),
    "embedding": ("embedding", "embedding", "spearman"),
}


def rich_run(name: str = "model", *, folder: str = "OUT", **changes: Any) -> ShownRun:
    """A run with everything in it (see `rich_report` and `rich_evidence` for the changes)."""
    size = {key: changes.pop(key) for key in ("rows", "kind", "changed") if key in changes}
    evidence = rich_evidence(**size)
    size.pop("changed", None)
    return ShownRun(name, rich_report(**size, **changes), evidence, folder)


def rich_report(
    *,
    rows: int = 408,
    kind: Kind = "pairs",
    slower: float = 1.0,
    environment: Environment = MACHINE,
    **changes: Any,
) -> Report:
    """A report of four models, two of them in 8 bits.

    Args:
        rows: evaluation rows.
        kind: of the task.
        slower: factor of all times.
        environment: the machine.
        changes: other fields of the report.
    """
    task, head, metric = _TASKS[kind]
    recipe = parse(
        {
            "model": "textattack/bert-base-uncased-MRPC",
            "task": task,
            "data": "glue",
            "targets": list(TARGETS),
            "benchmark": {"batch": [1, 8], "sequence": ["data", 128], "repeats": REPEATS},
        }
    )
    names = [name for name, *_ in MODELS]
    parity = Parity(
        against="PyTorch", batches=((1, 3), (2, 128)), largest_difference=2.1e-7, tolerance=5e-5
    )
    provenance = Provenance(
        samples=256, tokens=12_345, data_digest="d" * 64, model_digest="m" * 64, source="glue"
    )
    plain: dict[str, Any] = {
        "recipe": recipe.model_dump(mode="json", by_alias=True),
        "task": TaskFacts(
            name=str(recipe.task.name),
            options={},
            head=head,
            primary=metric,
            labels=("not", "equivalent"),
        ),
        "data": DataFacts(
            calibration_rows=256, evaluation_rows=rows, source="glue", leaked_rows=0, dropped_rows=3
        ),
        "model": CaptureFacts(
            family="bert",
            head=head,
            sizes=Sizes(layers=LAYERS, heads=12, hidden=768),
            parity=parity,
        ),
        "model_digest": "m" * 64,
        "ranges": RangeFacts(calibrator="minmax", options={}, provenance=provenance),
        "plans": {target: plan(target) for target in TARGETS},
        "transforms": TransformFacts(
            transforms=(AppliedTransform(name="smoothquant", options={}, groups=_groups()),),
            parity=parity,
        ),
        "sensitivities": {target: _sensitivity(seed) for seed, target in enumerate(TARGETS)},
        "searches": {"ort-cpu": _search(metric)},
        "scores": {
            name: (
                Score(
                    metric=metric,
                    value=value,
                    low=value - 0.033,
                    high=value + 0.032,
                    rows=rows,
                    chance=0.684,
                ),
                Score(
                    metric="f1 of all",
                    value=value + 0.04,
                    low=value + 0.01,
                    high=value + 0.06,
                    rows=rows,
                ),
            )
            for name, _, value, _ in MODELS
        },
        "comparisons": tuple(
            _comparison(name, reference, metric) for name, reference in TARGETS.items()
        ),
        "latencies": tuple(
            each for name, ms, *_ in MODELS for each in _latencies(name, ms * slower, rows)
        ),
        "footprints": tuple(
            Footprint(
                candidate=name,
                load_ms=250.0 + mb,
                size_bytes=round(mb * 1e6),
                peak_memory_bytes=round(2.2 * mb * 1e6),
                precision="f32",
                threads=8,
            )
            for name, _, _, mb in MODELS
        ),
        "speedups": tuple(each for name in TARGETS for each in _speedups(name)),
        "load": Load(cores=8, others=0.2, stolen=0.0),
        "environment": environment,
        "date": datetime.date(2026, 11, 23),
        "absent": {"openvino-bf16": "this CPU does not compute in bfloat16"},
        "stages": {
            name: StageFacts(
                summary={}, seconds=12.5, peak_memory_bytes=2**30, key=f"{name}-{'0' * 64}"
            )
            for name in (
                "capture",
                "data",
                "observe",
                *(f"evaluate/{name}" for name in names),
                "benchmark",
            )
        },
    }
    fields = {**plain, **changes}
    own = {name: fields.pop(name, default) for name, default in COLUMNS.items()}
    return Report(**fields, models=models_of(own))


def rich_evidence(*, rows: int = 408, kind: Kind = "pairs", changed: int = 28) -> Evidence:
    """Evidence of all kinds.

    Args:
        rows: evaluation rows.
        kind: of the task.
        changed: rows with another answer, of each of the two quantized models.
    """
    return Evidence(
        changed=tuple(
            changed_rows(name, reference, kind, changed) for name, reference in TARGETS.items()
        ),
        lengths=tuple(lengths(rows)),
        activations=tuple(_activation(layer, part) for layer in range(LAYERS) for part in PARTS),
        smoothed=tuple(_smoothed(layer) for layer in range(LAYERS)),
        curves=(_curve("finetune"), _curve("qat")),
        executions=tuple(_execution(name) for name in ("openvino-f32", *TARGETS)),
    )


def lengths(rows: int) -> list[int]:
    """Tokens of each evaluation row."""
    chance = random.Random(0)
    return [min(128, max(6, round(chance.lognormvariate(3.6, 0.45)))) for _ in range(rows)]


def changed_rows(candidate: str, reference: str, kind: Kind, count: int) -> ChangedRows:
    """Rows with another answer: texts of the usual length, all different."""
    chance = random.Random(candidate)
    rows = tuple(_changed_row(kind, number, chance) for number in range(count))
    return ChangedRows(
        candidate=candidate,
        reference=reference,
        total=count,
        rows=rows,
        lost=sum(row.outcome == "lost" for row in rows),
        gained=sum(row.outcome == "gained" for row in rows),
        transitions=(Transition(before="equivalent", after="not", count=count, lost=0, gained=0),)
        if kind == "pairs"
        else (),
        sentence=f"All {count} changes went from equivalent to not (p < 0.01)."
        if kind == "pairs" and count
        else "",
    )


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(words)) + f" {chance.randrange(10**6)}."


def _changed_row(kind: Kind, number: int, chance: random.Random) -> ChangedRow:
    texts = (_text(chance, 20), _text(chance, 22))
    change = round(chance.random(), 4)
    plain: dict[str, Any] = {"row": 3 * number, "texts": texts, "change": change}
    plain["transitions"] = (("equivalent", "not"),) if kind == "pairs" else ()
    if kind == "question-answering":
        marks = [Mark(text=1, start=start, end=start + 12) for start in (0, 15, 40)]
        before, after = (
            Answer(text=texts[1][m.start : m.end], score=change, marks=(m,)) for m in marks[1:]
        )
        gold = texts[1][marks[0].start : marks[0].end]
        return ChangedRow(
            **plain, expected=gold, before=before, after=after, outcome="other", marks=(marks[0],)
        )
    if kind == "token-classification":
        marks = [
            Mark(text=0, start=start, end=start + 8, label=label)
            for start, label in ((0, "PER"), (20, "ORG"))
        ]
        before, after = (Answer(text=m.label, marks=(m,)) for m in marks)
        return ChangedRow(
            **plain, expected="PER", before=before, after=after, outcome="lost", marks=(marks[0],)
        )
    if kind == "embedding":
        near = [(_text(chance, 12), round(0.9 - place / 20, 4)) for place in range(5)]
        before, after = (
            Answer(text="rank 1", neighbours=tuple(near)),
            Answer(text="rank 4", neighbours=tuple(near[::-1])),
        )
        return ChangedRow(**plain, expected=near[0][0], before=before, after=after, outcome="lost")
    right = chance.random() < 0.5
    sides = [
        Answer(text=name, score=score, scores={name: score, other: round(1 - score, 4)})
        for name, other, score in (("equivalent", "not", 0.5441), ("not", "equivalent", 0.5218))
    ]
    expected = ("equivalent", "not")[not right]
    return ChangedRow(
        **plain,
        expected=expected,
        before=sides[0],
        after=sides[1],
        outcome="lost" if right else "gained",
    )


def tuned(setting: Setting, **changes: Any) -> Tuned:
    """What a search for the lowest latency found."""
    plain = {"ratio": Estimate(value=0.9, low=0.88, high=0.92), "default_ms": 1.0, "rows": 8}
    return Tuned(**{"goal": "latency", "setting": setting, "tried": (), **plain, **changes})


def _module(layer: int, part: str) -> str:
    return f"encoder.layer.{layer}.{part}"


def plan(target: str) -> QuantPlan:
    """A plan: all linear layers in 8 bits but one, and attention in float."""
    decisions = []
    for layer in range(LAYERS):
        for part in PARTS:
            module = _module(layer, part)
            quantized = (layer, part) != (2, "ffn_down") or target != "ort-cpu"
            for index, role in enumerate(("linear.input", "linear.weight")):
                site = Site(
                    role=role,
                    part=part,
                    module=module,
                    layer=layer,
                    node=module,
                    input=index,
                    value=f"{module}.{index}",
                )
                own = Quantizer(
                    dtype="uint8" if index == 0 else "int8",
                    symmetric=index == 1,
                    axis=index or None,
                )
                reason = (
                    "linear layers are 8-bit" if quantized else "fell back to float: too sensitive"
                )
                decisions.append(
                    Decision(site=site, quantizer=own if quantized else None, reason=reason)
                )
        site = Site(
            role="scores.query",
            part="attention",
            module=_module(layer, "attention"),
            layer=layer,
            node=f"scores.{layer}",
            input=0,
            value=f"query.{layer}",
        )
        decisions.append(
            Decision(site=site, quantizer=None, reason="8-bit attention is slower here")
        )
    return QuantPlan(method="static", placement="linear", target=target, decisions=tuple(decisions))


def _groups() -> tuple[dict[str, Any], ...]:
    return tuple(
        {"kind": "norm", "module": _module(layer, "ffn_norm"), "alpha": 0.5, "error": 0.01}
        for layer in range(LAYERS)
    )


def _sensitivity(seed: int) -> Sensitivity:
    chance = random.Random(seed)
    values = [
        SiteSensitivity(
            value=f"{_module(layer, part)}.{index}",
            role=role,
            part=part,
            module=_module(layer, part),
            layer=layer,
            signal_to_noise_db=round(20 + 20 * chance.random(), 2),
            output_error=10 ** (-5 + 3 * chance.random()),
        )
        for layer in range(LAYERS)
        for part in PARTS
        for index, role in enumerate(("linear.input", "linear.weight"))
    ]
    values.sort(key=lambda each: -each.output_error)
    return Sensitivity(rows=64, together=0.031, values=tuple(values))


def _search(metric: str) -> AccuracySearch:
    fallbacks = [
        (),
        ("layer.2.ffn",),
        ("layer.2.ffn", "layer.5.ffn"),
        ("layer.2.ffn", "layer.0.attention"),
    ]
    trials = [
        Trial(
            fallback=each,
            rows=1000,
            value=0.84 + 0.006 * number,
            drop=0.02 - 0.006 * number,
            met=number > 1,
            saved_ms=8 - number,
            seconds=9.5,
        )
        for number, each in enumerate(fallbacks)
    ]
    return AccuracySearch(
        metric=metric,
        criterion=Limit(of=metric, max_drop=0.01),
        float_value=0.86,
        rows=1000,
        met=True,
        taken=trials[2],
        trials=tuple(trials),
        unit_saving_ms={"attention": 0.4, "ffn": 0.9},
        tokens=128,
        seconds=38.0,
        ended="no faster plan is left",
    )


def _comparison(name: str, reference: str, metric: str) -> Comparison:
    value = {each: score for each, _, score, _ in MODELS}
    difference = value[name] - value[reference]
    changed = tuple((3 * number, "equivalent", "equivalent", "not") for number in range(8))
    return Comparison(
        candidate=name,
        reference=reference,
        metric=metric,
        difference=difference,
        low=difference - 0.005,
        high=difference + 0.004,
        p_value=0.45,
        fidelity_name="agreement",
        fidelity=0.98,
        output_error=0.021 if name == "openvino-cpu" else 0.046,
        changed=changed,
        fidelity_chance=0.68,
    )


def _latencies(name: str, ms: float, rows: int) -> list[Latency]:
    chance = random.Random(name)
    own = lengths(rows)
    found = []
    for batch, sequence in ((1, "data"), (8, "data"), (1, 128), (8, 128)):
        tokens = [
            128 * batch
            if sequence == 128
            else sum(own[(number * batch + row) % rows] for row in range(batch))
            for number in range(REPEATS)
        ]
        samples = [
            round(ms * (0.1 + 0.9 * each / 40) * (1 + 0.08 * abs(chance.gauss(0, 1))), 4)
            for each in tokens
        ]
        found.append(
            Latency(
                candidate=name,
                batch=batch,
                sequence=sequence,
                samples_ms=tuple(samples),
                rows=batch * REPEATS,
                tokens=sum(tokens),
                sample_tokens=tuple(tokens) if sequence == "data" else (),
            )
        )
    return found


def _speedups(name: str) -> list[Speedup]:
    ms = {each: time for each, time, *_ in MODELS}
    shapes: tuple[tuple[int, int | str], ...] = ((1, "data"), (8, "data"), (1, 128), (8, 128))
    ratio = ms[TARGETS[name]] / ms[name]
    return [
        Speedup(
            candidate=name,
            reference=TARGETS[name],
            batch=batch,
            sequence=sequence,
            ratio=Estimate(value=ratio, low=ratio - 0.1, high=ratio + 0.1),
        )
        for batch, sequence in shapes
    ]


def _activation(layer: int, part: str) -> Activation:
    module = _module(layer, part)
    counts = tuple(round(4000 * 2 ** (-abs(place - 30) / 4)) for place in range(64))
    return Activation(
        value=f"{module}.0",
        module=module,
        role="linear.input",
        part=part,
        layer=layer,
        minimum=-6.1,
        maximum=5.2 + layer,
        histogram=Histogram(low=-6.1, high=5.2 + layer, counts=counts),
        intervals=dict.fromkeys(TARGETS, (-5.9, 5.0 + layer)),
        clipped=dict.fromkeys(TARGETS, 0.0004),
    )


def _smoothed(layer: int) -> Smoothed:
    before = tuple(30.0 / (1 + place) + 1 for place in range(64))
    return Smoothed(
        transform="smoothquant",
        module=_module(layer, "ffn_norm"),
        kind="norm",
        before=before,
        after=tuple(value**0.5 for value in before),
    )


def _curve(name: str) -> Curve:
    steps = tuple(range(10, 510, 10))
    loss = tuple(0.2 + 2 / (1 + step / 60) for step in steps)
    return Curve(
        name=name,
        steps=steps,
        values={"loss": loss, "learning rate": tuple(2e-5 * (1 - s / 510) for s in steps)},
    )


def _execution(name: str) -> Execution:
    integer = name in TARGETS
    late, total = name == "ort-cpu", 12.5 if integer else 33.0
    parts = [
        Executed(
            layer=layer,
            part=part,
            ms=0.3 if integer else 0.9,
            integer=0.0 if (late and (layer, part) == (2, "ffn_down")) or not integer else 0.96,
            types=("1 × FullyConnected int8" if integer else "1 × FullyConnected f32",),
            why="its input is not 8-bit" if late and (layer, part) == (2, "ffn_down") else "",
        )
        for layer in range(LAYERS)
        for part in PARTS
    ]
    return Execution(
        candidate=name,
        runtime="openvino 2025.4.0" if name.startswith("openvino") else "onnxruntime 1.23.0",
        batch=1,
        sequence=128,
        total_ms=total,
        products=72 if integer else 0,
        integer_products=71 if late else 72 if integer else 0,
        sentences=("71 of 72 products that are 8-bit in the file are computed in integers.",)
        if late
        else (),
        parts=tuple(parts),
        types=(
            OperatorType(
                type="FullyConnected",
                precision="int8" if integer else "f32",
                count=36,
                ms=0.8 * total,
                integer=integer,
            ),
            OperatorType(
                type="Softmax", precision="f32", count=LAYERS, ms=0.2 * total, integer=False
            ),
        ),
    )
