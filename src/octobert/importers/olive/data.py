"""Data configs: where rows come from, which columns are read, and how many rows are evaluated and calibrated."""

from __future__ import annotations

import re
from dataclasses import dataclass

from octobert.config.recipe import SPLITS
from octobert.importers.olive import scripts
from octobert.importers.olive.draft import Draft, Rule, apply, needless, refuse
from octobert.importers.olive.model import path_of_script
from octobert.importers.outcomes import Node

# (source, config, columns) of data sets that have a task of their own.
_OWN_TASKS = {
    ("text-classification", "glue", "mrpc"): ("mrpc", ["sentence1", "sentence2"]),
    ("text-classification", "nyu-mll/glue", "mrpc"): ("mrpc", ["sentence1", "sentence2"]),
    ("text-classification", "glue", "sst2"): ("sst2", ["sentence"]),
    ("text-classification", "nyu-mll/glue", "sst2"): ("sst2", ["sentence"]),
    ("text-classification", "imdb", None): ("imdb", ["text"]),
    ("text-classification", "stanfordnlp/imdb", None): ("imdb", ["text"]),
    ("question-answering", "squad", None): ("squad", ["question", "context"]),
    ("question-answering", "rajpurkar/squad", None): ("squad", ["question", "context"]),
    ("question-answering", "squad_v2", None): ("squad-v2", ["question", "context"]),
}
# Names of one field in Olive's own loader and in functions of user scripts.
_SOURCE, _SPLIT = ("data_path", "data_name", "dataset_name", "dataset"), ("split", "data_split")
_SCRIPTED = "huggingface_dataset"
_SLICE = re.compile(r"(?P<split>\w+)(?P<span>\[[-\d%]*:[-\d%]*\])?")
_RANDOM = "drawn at random with the recipe's seed, not the first ones"
# Rows that are evaluated where the config evaluates none.
_ENOUGH = 500
FROM_TRAIN = "octobert calibrates on training rows, and not on the rows that it scores"


@dataclass
class _Rows:
    """What a data config says of its rows."""

    source: str | None = None
    config: str | None = None
    split: str | None = None
    samples: int | None = None
    # The slice behind the split, such as `[:10]`.
    span: str = ""


def read(draft: Draft, evaluated: Node | None, calibrated: list[tuple[Node, Node]]) -> None:
    """Set the data.

    Args:
        evaluated: the data config of the leading metric.
        calibrated: (field of a pass, its data config).
    """
    main = evaluated or (calibrated[0][1] if calibrated else None)
    if main is not None:
        rows = _main(draft, main, is_evaluated=evaluated is not None)
        _calibration(draft, rows, [found for _, found in calibrated if found.path != main.path], evaluated, calibrated)
    for other in draft.config.objects("data_configs").values():
        other.refused("a recipe has one data set; the one of the first metric is taken")


def _main(draft: Draft, node: Node, *, is_evaluated: bool) -> _Rows:
    """Set source, columns and evaluation rows from one data config."""
    rows = _load(draft, node, is_evaluated=is_evaluated)
    own = _OWN_TASKS.get((draft.task, str(rows.source), rows.config))
    before = node.get("pre_process_data_config")
    columns = before.get("input_cols") if before is not None else None
    given = columns or node.get("input_cols")
    names = given.value if given is not None else None
    if own is not None and names in (None, own[1]):
        draft.task = own[0]
        if given is not None:
            given.mapped("task", f"{own[0]} reads these columns")
    elif given is not None:
        draft.task_option("text", given.elements()[0].text if draft.task == "fill-mask" else names, given)
    if before is not None:
        _columns_and_lengths(draft, before, rows, is_evaluated=is_evaluated)
        apply(draft, before, _PROCESSING)
    _columns_and_lengths(draft, node, rows, is_evaluated=is_evaluated)
    apply(draft, node, _COMPONENT)
    _components(draft, node)
    return rows


def _load(draft: Draft, node: Node, *, is_evaluated: bool) -> _Rows:
    """Where the rows are: a data set of the Hub, files, or a function."""
    load = node.get("load_dataset_config") or node.get("load_dataset") or node
    rows = _Rows()
    kind = load.get("type") if load is not node else None
    script = node.get("user_script")
    if kind is not None and script is not None and kind.text != _SCRIPTED:
        _registered(draft, node, kind, script, rows)
    elif kind is not None and "dummy" in kind.text.lower():
        kind.refused("octobert measures and calibrates on real rows")
    elif kind is not None:
        kind.not_needed("a Hub data set is the usual source")
    if script is not None:
        script.not_needed("nothing of the script is used for this data config")
    source = next((field for name in _SOURCE if (field := load.get(name)) is not None), None)
    if source is not None:
        rows.source = source.text
        draft.set("data.source", source.text, source)
    config = load.get("subset") or (load.get("data_name") if source is not None and source.path.endswith("data_path") else None)
    if config is not None:
        rows.config = config.text
        draft.set("data.config", config.text, config)
    split = next((field for name in _SPLIT if (field := load.get(name)) is not None), None)
    if split is not None:
        _split(draft, split, rows, is_evaluated=is_evaluated)
    apply(draft, load, _LOADING)
    return rows


def _registered(draft: Draft, node: Node, kind: Node, script: Node, rows: _Rows) -> None:
    """A registered function loads the rows: its data set is read from the script, or the recipe names the function."""
    path = path_of_script(draft, node, script)
    found = scripts.read(draft.config.folder / path)
    hub = found.hub_data(kind.text) if found is not None else None
    if hub is None:
        code = f"{path}:{kind.text}"
        draft.set("data.source", code, kind, "needs --allow-code; the function has to return rows with texts")
        rows.source = code
        script.mapped("data.source")
        return
    rows.source, rows.config = hub.source, hub.config
    draft.set("data.source", hub.source)
    if hub.config is not None:
        draft.set("data.config", hub.config)
    says = f"{script.text} loads this data set; octobert tokenizes its texts itself, and runs no code"
    kind.mapped("data.source", says)
    script.mapped("data.source", says)
    if hub.split is not None:
        match = _SLICE.fullmatch(hub.split)
        rows.split, rows.span = (match["split"], match["span"] or "") if match else (hub.split, "")


def _split(draft: Draft, node: Node, rows: _Rows, *, is_evaluated: bool) -> None:
    match = _SLICE.fullmatch(node.text)
    if match is None:
        node.refused("octobert takes a split, or a slice of it: train[:300]")
        return
    rows.split, rows.span = match["split"], match["span"] or ""
    node.mapped("data.evaluate" if is_evaluated else "data.calibrate")


def _columns_and_lengths(draft: Draft, node: Node, rows: _Rows, *, is_evaluated: bool) -> None:
    label = node.get("label_col") or node.get("label_cols")
    if label is not None:
        name = label.elements()[0].text
        if draft.task in ("mrpc", "sst2", "imdb", "squad", "squad-v2"):
            label.mapped("task", f"{draft.task} reads this column")
        elif draft.task in ("text-classification", "token-classification", "next-sentence"):
            draft.task_option("label", name, label)
        else:
            label.not_needed(f"{draft.task} needs no labels")
    samples = node.get("max_samples")
    if samples is not None and type(samples.value) is int and samples.value > 0:
        rows.samples = samples.value
        samples.mapped("data.evaluate.samples" if is_evaluated else "data.calibrate.samples", _RANDOM)
    length = node.get("max_length") or node.get("seq_length") or node.get("max_seq_length")
    if length is not None and type(length.value) is int:
        draft.task_option("max_length", length.value, length)
    padding = node.get("padding")
    if padding is not None and padding.value == "max_length" and length is not None:
        draft.set("benchmark.sequence", [length.value], padding, "timed at this length; accuracy does not depend on padding")
    batch = node.get("batch_size")
    if batch is not None:
        _batch(draft, batch)


def _components(draft: Draft, node: Node) -> None:
    after = node.get("post_process_data_config") or node.get("post_process_data")
    script = node.get("user_script")
    if after is not None:
        function = after.get("type")
        if function is not None and script is not None:
            post_process(draft, function, path_of_script(draft, node, script))
        apply(draft, after, {"task": needless("the recipe has a task"), "model_name": needless("the model is known")})
    loader = node.get("dataloader_config") or node.get("dataloader")
    if loader is not None:
        batch = loader.get("batch_size")
        if batch is not None:
            _batch(draft, batch)
        apply(draft, loader, _LOADER)


def post_process(draft: Draft, function: Node, path: str) -> None:
    """A function of outputs: what the task does itself, or a key of the recipe."""
    found = scripts.read(draft.config.folder / path)
    if found is not None and found.takes_best_class(function.text):
        function.not_needed("the function takes the most likely class, as the task does")
    else:
        draft.set("postprocess", f"{path}:{function.text}", function, "needs --allow-code; it gets the outputs as arrays")


def _batch(draft: Draft, node: Node) -> None:
    if type(node.value) is int and node.value > 0:
        draft.set("benchmark.batch", [node.value], node, "the timed batch size; evaluation batches by length")


def _calibration(
    draft: Draft, rows: _Rows, others: list[Node], evaluated: Node | None, calibrated: list[tuple[Node, Node]]
) -> None:
    """Set which rows are evaluated, and on which others the model is calibrated."""
    own = rows if not others and calibrated else _Rows()
    for other in others:
        own = _Rows()
        _calibration_config(draft, other, own, rows)
    calibrate: dict[str, object] = {"samples": own.samples} if own.samples else {}
    if evaluated is None:
        # Nothing is scored there: the rows are calibration rows, and octobert evaluates others.
        if rows.split == "train":
            calibrate |= {"from": f"train{rows.span}", **({"drop_evaluated": True} if rows.span else {})}
            draft.set("data.evaluate", {"from": "train", "samples": _ENOUGH} if rows.span else {"from": "validation"})
    elif rows.split:
        evaluate: dict[str, object] = {"from": f"{rows.split}{rows.span}"}
        draft.set("data.evaluate", evaluate | ({"samples": rows.samples} if rows.samples else {}))
        part = bool(rows.samples or rows.span)
        if own is not rows and own.span:
            calibrate["from"] = ("train" if rows.split != "train" or part else "validation") + own.span
        elif rows.split == "train":
            calibrate |= {"from": "train", "drop_evaluated": True} if part else {"from": "validation"}
    if calibrate and (calibrated or "from" in calibrate):
        draft.set("data.calibrate", {"from": "train", **calibrate})


def _calibration_config(draft: Draft, node: Node, found: _Rows, main: _Rows) -> None:
    """A data config that only calibrates: its rows are the recipe's training rows if it is the same data set."""
    load = node.get("load_dataset_config") or node
    kind, script = load.get("type"), node.get("user_script")
    source = next((field for name in _SOURCE if (field := load.get(name)) is not None), None)
    name, config = (source.text if source is not None else None), load.get("subset")
    if kind is not None and script is not None and load is not node:
        read_script = scripts.read(draft.config.folder / path_of_script(draft, node, script))
        hub = read_script.hub_data(kind.text) if read_script is not None else None
        name = hub.source if hub is not None else name
    same = name is not None and name == main.source
    why = (
        FROM_TRAIN
        if same
        else f"octobert calibrates on training rows of {main.source or 'its data'}; "
        "for other rows set data.train to a file, or data.calibrate.from"
    )
    split = load.get("split")
    match = _SLICE.fullmatch(split.text) if split is not None else None
    if match and match["span"] and split is not None:
        found.span = match["span"]
        split.mapped("data.calibrate", "these rows of the data that is evaluated")
    for field in (kind, script, source, config, split):
        if field is not None and same:
            field.mapped("data.calibrate", why)
        elif field is not None:
            field.refused(why)
    before = node.get("pre_process_data_config")
    if before is not None:
        samples = before.get("max_samples")
        if samples is not None and type(samples.value) is int:
            found.samples = samples.value
            samples.mapped("data.calibrate.samples", _RANDOM)
        before.not_needed("calibration rows are read and tokenized as evaluated rows are")
    node.not_needed("calibration rows are read, tokenized and batched as evaluated rows are")


_TOKENIZED = "octobert tokenizes texts itself; a function that changes texts can be given as preprocess: file.py:function"
_LOADING: dict[str, Rule] = {
    "revision": lambda draft, node: draft.set("data.revision", node.text, node),
    "trust_remote_code": refuse("octobert never runs code of a data set's repository"),
    "data_dir": refuse("give the folder as data.source"),
    "data_files": lambda draft, node: _files(draft, node),
    "col_filters": refuse("filter the rows in a function: data.source: file.py:function"),
    "input_cols": needless("the task's columns say which are read"),
    "label_col": needless("the task's columns say which are read"),
    "max_samples": needless("data.evaluate says how many rows are read"),
    "model_name": needless("the model's own tokenizer is used"),
    "batch_size": needless("benchmark.batch says it"),
}
_PROCESSING: dict[str, Rule] = {
    "type": refuse(_TOKENIZED),
    "truncation": needless("longer texts are cut at max_length, or read in windows where the task has them"),
    "padding": needless("rows are padded to the longest of their batch, and results do not depend on it"),
    "model_name": needless("the model's own tokenizer is used"),
    "task": needless("the recipe has a task"),
    "trust_remote_code": refuse("octobert never runs code of a repository"),
    "align_labels": needless("token classification aligns labels with words"),
    "return_tensors": needless("octobert makes arrays"),
    "kwargs": refuse("arguments of the tokenizer cannot be set"),
}
_COMPONENT: dict[str, Rule] = {
    "name": needless("names the object in data_configs"),
    "type": needless("octobert reads Hub data sets and files"),
    "script_dir": needless("scripts are found beside the config"),
}
_LOADER: dict[str, Rule] = {
    "type": needless("octobert makes its batches from rows itself"),
    "drop_last": needless("every row is evaluated"),
    "shuffle": needless("the order of rows changes nothing"),
    "num_workers": needless("octobert tokenizes beside the runtime"),
    "batch_size": needless("octobert makes its batches from rows itself"),
}


def _files(draft: Draft, node: Node) -> None:
    if isinstance(node.value, str):
        draft.set("data.source", node.text, node)
    elif isinstance(node.value, dict) and all(isinstance(v, str) and k in SPLITS for k, v in node.value.items()):
        for split, name in node.value.items():
            draft.set(f"data.{split}", name)
        node.mapped("data")
    else:
        node.refused("a recipe has one file for each of train, validation and test")
