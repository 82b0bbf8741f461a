"""Data configs: where rows come from, which columns are read, and how many rows are evaluated and calibrated."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from octobert.config.recipe import SPLITS
from octobert_olive import scripts
from octobert_olive.nodes import Node
from octobert_olive.rules import Draft, apply, computed, names

# Names of one field in Olive's own loader and in functions of user scripts.
_SOURCE = ("data_path", "data_name", "dataset_name", "dataset")
_SCRIPTED = "huggingface_dataset"
_SLICE = re.compile(r"(?P<split>\w+)(?P<span>\[[-\d%]*:[-\d%]*\])?")
_ENDS = re.compile(r"\[(\d*):(\d+)\]")
_NO_SLICE = "octobert takes a split, or a slice of it: train[:300]"
_RANDOM = "drawn at random with the recipe's seed, not the first ones"
_NO_COLUMN = "no column is named"
# Rows that are evaluated where the config evaluates none.
_ENOUGH = 500
# Rows of a split of unknown size that is read whole.
_ALL = 10_000
FROM_TRAIN = "octobert calibrates on training rows, and not on the rows that it scores"


@dataclass
class _Rows:
    """The rows of a data config.

    Args:
        split: that octobert reads.
        named: the split that the config names.
        span: the slice behind the split, such as `[:10]`.
        known: these are the rows that the config names.
    """

    source: str | None = None
    config: str | None = None
    split: str = ""
    named: str = ""
    span: str = ""
    samples: int = 0
    known: bool = True

    @property
    def size(self) -> int:
        """The rows of a slice between two numbers; otherwise 0."""
        ends = _ENDS.fullmatch(self.span)
        return max(0, int(ends[2]) - int(ends[1] or 0)) if ends else 0


def read(
    draft: Draft,
    evaluated: Node,
    calibrated: list[Node],
    others: list[Node],
    *,
    ranges: bool,
) -> None:
    """Set the data.

    Args:
        evaluated: the data config of the leading metric.
        calibrated: data configs of passes that quantize or train.
        others: metrics and passes, which may name a function of a script that loads rows.
        ranges: whether a pass takes ranges from calibration rows.
    """
    of_model = draft.config.model.get("dataset")
    main = evaluated or next(iter(calibrated), of_model)
    if not main:
        _from_functions(draft, others)
    if main:
        rows = _main(draft, main, "data.evaluate" if evaluated else "data.calibrate")
        more = [
            _only_calibrated(draft, other, rows) for other in calibrated if other.path != main.path
        ]
        calibration_rows = more[-1] if more else rows if calibrated else _Rows()
        samples = calibration_rows.samples
        counted = samples or calibration_rows.span or not calibration_rows.known
        if ranges and calibrated and not counted:
            samples = _all_rows(calibrated[-1], calibration_rows)
        _evaluation(draft, rows, calibration_rows, samples, is_scored=bool(evaluated))
    for other in draft.config.objects("data_configs").values():
        other.refused("a recipe has one data set; the one of the first metric is taken")


def _from_functions(draft: Draft, nodes: list[Node]) -> None:
    """The data set of the first function that loads rows, in the scripts of old configs: read there, and not run."""
    for node in nodes:
        function, script = node.get("dataloader_func"), node.get("user_script")
        if not function or not script:
            continue
        hub = scripts.script_of(draft, node, script).hub_data(function.text)
        if hub is None:
            continue
        place = {"source": hub.source} | ({"config": hub.config} if hub.config else {})
        if draft.recipe.setdefault("data", place) == place:
            draft.task = _task_of(draft, hub.source, hub.config) or draft.task
            _read_in_script(function, script)


def _read_in_script(function: Node, script: Node) -> None:
    """Record that a data set is the one that a function of a script loads."""
    for field in (function, script):
        field.mapped(
            "data.source",
            f"{script.text} loads this data set; octobert tokenizes its texts itself, and runs no code",
        )


def _task_of(draft: Draft, source: str | None, config: str | None) -> str | None:
    """The task that knows the columns of a data set, if there is one."""
    known = names("data_tasks")
    return next((task for *data, task in known if data == [draft.task, source, config]), None)


def _main(draft: Draft, node: Node, use: str) -> _Rows:
    """Set source, columns and the timed shape from one data config; `use` is the key that says which rows are read."""
    rows = _load(draft, node, use)
    before = node.get("pre_process_data_config")
    columns = before.get("input_cols") or node.get("input_cols")
    task = _task_of(draft, rows.source, rows.config)
    if task is not None and columns.value in (None, names("columns")[task]):
        draft.task = task
        columns.mapped("task", f"{task} reads these columns")
    elif columns.value == []:
        columns.not_needed(_NO_COLUMN)
    elif columns:
        draft.task_option(
            "text",
            columns.elements()[0].text if draft.task == "fill-mask" else columns.value,
            columns,
        )
    for place, table in ((before, "processing"), (node, "component")):
        _columns_and_lengths(draft, place, rows, use)
        apply(draft, place, table)
    after = node.get("post_process_data_config", "post_process_data")
    post_process(draft, node, after.get("type"))
    apply(draft, after, "post_processing")
    loader = node.get("dataloader_config", "dataloader")
    _batch(draft, loader)
    apply(draft, loader, "loader")
    return rows


def _rows_of(draft: Draft, node: Node) -> tuple[_Rows, list[Node]]:
    """The rows that a data config names: in its fields, or by a function, whose data set its script may say.

    Returns:
        The rows, and the fields that say which they are: type, script, source, config and split.
    """
    load, script = _loading(node), node.get("user_script")
    kind, source, split = load.get("type"), load.get(*_SOURCE), load.get("split", "data_split")
    config = load.get("subset", *(["data_name"] if source.path.endswith("data_path") else []))
    fields = [kind, script, source, config, split]
    place, part, named = (field.text if field else None for field in (source, config, split))
    if load is not node and script and kind and kind.text != _SCRIPTED:
        code = scripts.script_of(draft, node, script)
        hub = code.hub_data(kind.text)
        if hub is None:
            return _Rows(f"{code.path}:{kind.text}"), fields
        place, part, named = place or hub.source, part or hub.config, named or hub.split
    rows = _Rows(place, part)
    if named is not None:
        match = _SLICE.fullmatch(named)
        rows.known = match is not None
        rows.named, rows.span = match.groups("") if match else ("", "")
        rows.split = rows.named
    return rows, fields


def _loading(node: Node) -> Node:
    """The part of a data config that says where rows are."""
    return node.get("load_dataset_config", "load_dataset") or node


def _load(draft: Draft, node: Node, use: str) -> _Rows:
    """Where the rows are: a data set of the Hub, files, or a function."""
    load, (rows, (kind, script, source, config, split)) = _loading(node), _rows_of(draft, node)
    if rows.source is not None and ".py:" in rows.source:
        note = "needs --allow-code; the function has to return rows with texts"
        draft.set("data.source", rows.source, kind, note)
        script.mapped("data.source")
        # Olive calls the function with the other fields.
        for name, field in load.items():
            if name not in ("type", "max_samples"):
                field.refused(
                    "octobert calls the function with the name of a split alone: give its other arguments defaults"
                )
        return rows
    if rows.source is not None and not source:
        _read_in_script(kind, script)
    elif load is not node and "dummy" in kind.lower:
        kind.refused("octobert measures and calibrates on real rows")
    elif load is not node:
        kind.not_needed("a Hub data set is the usual source")
    script.not_needed("nothing of the script is used for this data config")
    for key, value, field in (("source", rows.source, source), ("config", rows.config, config)):
        if value is not None:
            draft.set(f"data.{key}", value, field)
    if rows.known:
        split.mapped(use)
    else:
        split.refused(_NO_SLICE)
    apply(draft, load, "loading")
    return rows


def _columns_and_lengths(draft: Draft, node: Node, rows: _Rows, use: str) -> None:
    label = node.get("label_col", "label_cols")
    if label:
        if draft.task in names("columns"):
            label.mapped("task", f"{draft.task} reads this column")
        elif label.value == []:
            label.not_needed(_NO_COLUMN)
        elif draft.task in ("text-classification", "token-classification", "next-sentence"):
            draft.task_option("label", label.elements()[0].text, label)
        else:
            label.not_needed(f"{draft.task} needs no labels")
    samples = node.get("max_samples")
    if samples.count:
        rows.samples = samples.count
        samples.mapped(f"{use}.samples", _RANDOM)
    length = node.get("max_length", "seq_length", "max_seq_length")
    if type(length.value) is int:
        draft.task_option("max_length", length.value, length)
    padding = node.get("padding")
    if padding.value == "max_length" and length:
        draft.set(
            "benchmark.sequence",
            [length.value],
            padding,
            "timed at this length; accuracy does not depend on padding",
        )
    _batch(draft, node)


def _batch(draft: Draft, node: Node) -> None:
    batch = node.get("batch_size")
    if batch.count:
        draft.set(
            "benchmark.batch",
            [batch.value],
            batch,
            "the timed batch size; evaluation batches by length",
        )


def post_process(draft: Draft, node: Node, function: Node) -> None:
    """A function of outputs: what the task does itself, or a key of the recipe."""
    script = node.get("user_script")
    if not function or not script:
        return
    code = scripts.script_of(draft, node, script)
    if code.takes_best_class(function.text):
        function.not_needed("the function takes the most likely class, as the task does")
    else:
        draft.set(
            "postprocess",
            f"{code.path}:{function.text}",
            function,
            "needs --allow-code; it gets the outputs as arrays",
        )


def _all_rows(node: Node, rows: _Rows) -> int:
    """The rows of a split without a limit, which Olive reads to its end."""
    known = names("split_rows")
    here = [rows.source, rows.config, rows.named]
    size = next((size for *split, size in known if split == here), _ALL)
    limit = node.get("pre_process_data_config").get("max_samples")
    replace(limit, value=size, is_default=True).mapped(
        "data.calibrate.samples",
        "all rows of the split" if size < _ALL else "all rows of the split, and no more than these",
    )
    return size


def _evaluation(
    draft: Draft, rows: _Rows, calibration_rows: _Rows, samples: int, *, is_scored: bool
) -> None:
    """Set which rows are evaluated, and on which others the model is calibrated.

    Args:
        rows: of the main data config.
        calibration_rows: of the one that calibrates, which may be the same; without rows if nothing is calibrated.
        samples: how many of them calibrate; 0 for octobert's default.
    """
    calibrate: dict[str, object] = {"samples": samples} if samples else {}
    part = bool(rows.samples or rows.span)
    if not is_scored and rows.split == "train":
        # Nothing is scored there: the rows are calibration rows, and octobert evaluates others.
        calibrate |= {
            "from": f"train{rows.span}",
            **({"drop_evaluated": True} if rows.span else {}),
        }
        draft.set(
            "data.evaluate",
            {"from": "train", "samples": _ENOUGH} if rows.span else {"from": "validation"},
        )
    elif is_scored:
        if rows.split:
            counted = {"samples": rows.samples} if rows.samples else {}
            draft.set("data.evaluate", {"from": f"{rows.split}{rows.span}", **counted})
        if calibration_rows is not rows and calibration_rows.split:
            calibrate["from"] = calibration_rows.split + calibration_rows.span
            if calibration_rows.split == rows.split:
                calibrate["drop_evaluated"] = True
        elif rows.split == "train":
            calibrate |= (
                {"from": "train", "drop_evaluated": True} if part else {"from": "validation"}
            )
    if calibrate:
        draft.set("data.calibrate", {"from": "train", **calibrate})


def _only_calibrated(draft: Draft, node: Node, main: _Rows) -> _Rows:
    """A data config that only calibrates: other rows of the same data set, never those that are scored."""
    rows, (*named, split) = _rows_of(draft, node)
    if rows.source is not None and (rows.source, rows.config) == (main.source, main.config):
        part, scored = main.samples or main.span, main.split or "validation"
        if rows.split == scored and (rows.split != "train" or not part):
            # The same rows would be both calibrated on and scored.
            rows.split = "validation" if rows.split == "train" else "train"
        for field in named:
            field.mapped("data.calibrate", FROM_TRAIN)
        taken = f"{scored} has the rows that are scored; {rows.split}{rows.span} is taken"
        if rows.known:
            split.mapped("data.calibrate", taken if rows.split != rows.named else "")
        else:
            split.refused(_NO_SLICE)
    else:
        rows = _Rows(samples=rows.size, known=False)
        here = f"{'as many ' if rows.samples else ''}rows of {main.source or 'its data'}"
        for field in (*named, split):
            field.refused(f"octobert calibrates on {here}; for other rows set data.train to a file")
    before = node.get("pre_process_data_config")
    samples = before.get("max_samples")
    if type(samples.value) is int:
        rows.samples = samples.value
        samples.mapped("data.calibrate.samples", _RANDOM)
    before.not_needed("calibration rows are read and tokenized as evaluated rows are")
    node.not_needed("calibration rows are read, tokenized and batched as evaluated rows are")
    return rows


@computed
def data_files(draft: Draft, node: Node) -> None:
    """One file, or one for each split."""
    if isinstance(node.value, str):
        draft.set("data.source", node.text, node)
    elif isinstance(node.value, dict) and all(
        isinstance(v, str) and k in SPLITS for k, v in node.value.items()
    ):
        for split, name in node.value.items():
            draft.set(f"data.{split}", name)
        node.mapped("data")
    else:
        node.refused("a recipe has one file for each of train, validation and test")
