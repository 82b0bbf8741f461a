"""The files with the weights of a checkpoint: which they are, what their headers state, and what else may lie there.

Headers of safetensors come before anything is made: names and shapes say whether the weights are those of the model that
`config.json` describes, whose size it may state as it likes. Opening a pickle file runs code, so pickles are refused unless
the user allows them.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from octobert.core import environment, model_config
from octobert.core.errors import ModelError, reason, unreadable
from octobert.core.family import EncoderFamily
from octobert.core.files import opened
from octobert.core.onnx_files import external_files
from octobert.models.locating import pickle_only
from octobert.models.sources import PICKLES

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_AGAIN = "download or copy it again"
# Parts of names that PyTorch's wrappers put anywhere.
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
# Parts of names of adapters that were not merged.
_ADAPTER = re.compile(
    r"(\b|_)(lora|base_layer|modules_to_save|ia3|adapters?|[hbv]?oft|vera|lokr)(_|\b)"
)
_ADAPTER_CONFIG = "adapter_config.json"
_PEFT_TASKS = {
    "SEQ_CLS": "SequenceClassification",
    "TOKEN_CLS": "TokenClassification",
    "QUESTION_ANS": "QuestionAnswering",
}
_SAVE = "model.save_pretrained(OUT)"
_OLD = "with transformers 4: AutoModel….from_pretrained('FOLDER', {}=True).save_pretrained('FOLDER-torch')"
# Pattern → (what such files are, what makes a checkpoint of them), the most telling first. None is opened.
_OTHERS: dict[str, tuple[str, str]] = {
    "adapter_*": (
        "an adapter of peft, without the model that it changes",
        "python -c \"import peft; peft.AutoPeftModelForTASK.from_pretrained('FOLDER').merge_and_unload()"
        ".save_pretrained('FOLDER-merged')\"",
    ),
    "zero_to_fp32.py": (
        "a training state of DeepSpeed",
        "cd FOLDER && python zero_to_fp32.py . OUT --safe_serialization, and copy config.json and the tokenizer there",
    ),
    "**/*.distcp": (
        "shards of a training state of FSDP",
        "accelerate merge-weights FOUND FOLDER-merged, and copy config.json and the tokenizer there",
    ),
    "checkpoint-*/config.json": (
        "the folder of a training",
        "give one of the checkpoints in it, such as FOUND",
    ),
    "*.ckpt.index": (
        "a checkpoint of TensorFlow 1",
        "transformers 4 converts it: models/bert/convert_bert_original_tf_checkpoint_to_pytorch.py",
    ),
    "*.h5": ("weights of TensorFlow", _OLD.format("from_tf")),
    "*.msgpack": ("weights of Flax", _OLD.format("from_flax")),
    "*.ckpt": (
        "a training state of PyTorch Lightning",
        f"load it where it was trained, and write its model: {_SAVE}",
    ),
    "*.gguf": ("weights of llama.cpp", "give the checkpoint that it was made from"),
    "*.onnx": ("an ONNX file", "give the file instead of the folder"),
    "**/*.onnx": ("an ONNX file", "give the file instead of the folder"),
    "*.safetensors": ("weights under another name", f"rename the file to {_WHOLE}"),
    "*.p[tk]*": (
        "an object of torch.save",
        f"load it where it was saved, and write its model: {_SAVE}",
    ),
    "*/config.json": ("a folder of models", "give the folder of one, such as FOUND"),
}


def files_of(path: Path, *, allow_pickle: bool) -> list[Path]:
    """The files that hold the weights of a checkpoint folder or an ONNX file.

    Raises:
        ModelError: as `weight_files`.
    """
    if path.is_dir():
        return weight_files(path, allow_pickle=allow_pickle)
    return [path, *external_files(path)]


def weight_files(folder: Path, *, allow_pickle: bool) -> list[Path]:
    """The files that hold the weights of a checkpoint folder. Headers and sizes of safetensors files are checked.

    Raises:
        ModelError: there are none, they are damaged or something else, or there are only pickles and those are not allowed.
    """
    safe = sorted(folder.glob("*.safetensors"))
    names = {file.name for file in safe}
    pickles = [folder / name for name in PICKLES if (folder / name).exists()]
    if _WHOLE in names or (folder / _INDEX).is_file():
        shapes_of(safe)
        if _WHOLE not in names:
            _check_index(folder / _INDEX, names)
        return safe
    if pickles and allow_pickle:
        return pickles
    if pickles:
        raise pickle_only(str(pickles[0]))
    raise other_kind(folder) or ModelError(
        "the checkpoint has no weights",
        where=str(folder),
        expected=_WHOLE,
        fix="check the download",
    )


def shapes_of(files: Sequence[Path]) -> dict[str, tuple[int, ...]]:
    """Name → shape of the tensors in weight files: by the headers of safetensors, and the content of pickles.

    Raises:
        ModelError: a file is damaged, something else than weights, or has an adapter that was not merged.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes |= _shapes_in(file) if file.suffix == ".safetensors" else _shapes_in_pickle(file)
    if adapted := [name for name in shapes if _ADAPTER.search(name)]:
        raise ModelError(
            "the weights have an adapter beside the layers that it changes: it was not merged",
            where=str(files[0]),
            got=f"{len(adapted)} tensors such as {adapted[0]}",
            fix="with peft, where it was trained: model.merge_and_unload().save_pretrained(OUT)",
        )
    return shapes


def _shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    need("safetensors")
    from safetensors import SafetensorError, safe_open

    try:
        opened(file).close()
        with safe_open(file, framework="numpy") as weights:
            return {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118  # no mapping
    except OSError as error:
        raise unreadable(ModelError, error, file) from error
    except SafetensorError as error:
        raise ModelError(
            "the weights are cut off or damaged",
            where=str(file),
            got=f"{file.stat().st_size:,} bytes; {reason(error, longest=200)}",
            fix=_AGAIN,
        ) from error


def _shapes_in_pickle(file: Path) -> dict[str, tuple[int, ...]]:
    if file.suffix != ".bin":
        return {}  # an index
    need("torch")
    import torch

    try:
        content = torch.load(file, map_location="meta", weights_only=True)
    except Exception as error:  # torch and pickle raise many unrelated types for broken files
        raise ModelError(
            "the weights are damaged, or a whole Python object (torch.save of a model), which has code",
            where=str(file),
            got=f"{type(error).__name__}: {reason(error, 0, longest=100)}",
            fix=f"copy it again, or load it where it was saved, and write the model: {_SAVE}",
        ) from error
    items = content.items() if isinstance(content, Mapping) else ()
    if not items or not all(isinstance(value, torch.Tensor) for _, value in items):
        states = [str(name) for name, value in items if isinstance(value, Mapping)]
        raise ModelError(
            "the file has the state of a training, and not the weights alone",
            where=str(file),
            got=", ".join(str(name) for name, _ in items)[:200] or type(content).__name__,
            fix=f"torch.save(torch.load({file.name!r}, weights_only=True)[{(states or ['model'])[0]!r}], {file.name!r})",
        )
    return {name: tuple(value.shape) for name, value in items}


def _check_index(index: Path, there: Collection[str]) -> None:
    """Refuse an index whose files are not all there."""
    shards = model_config.read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ModelError(
            f"{_INDEX} cannot be read",
            where=str(index),
            expected='{"weight_map": {tensor: file}}',
            fix=_AGAIN,
        )
    if missing := sorted({*shards.values()} - {*there}):
        raise ModelError(
            "files of the checkpoint's weights are missing",
            where=str(index),
            got=f"no {', '.join(missing[:4])}"[:200],
            fix="download the whole checkpoint",
        )


def need(*packages: str) -> None:
    """Make sure that packages are installed.

    Raises:
        ModelError: one is not.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ModelError(
                f"opening a checkpoint needs {package}", fix=environment.install("torch")
            )


def wrappers(names: Collection[str], family: EncoderFamily | None) -> tuple[str, ...]:
    """Return parts of the names of weights that are those of a wrapper, such as `module.` of a distributed training.

    Returns:
        Parts that stand anywhere, then what stands before all names.

    Example:
        >>> wrappers(["_orig_mod.model.bert.encoder.layer.0.output.dense.weight"], EncoderFamily((), "bert"))
        ('_orig_mod.', 'model.')
    """
    inside = tuple(part for part in _WRAPPERS if any(part in name for name in names))
    rest = [plain(name, inside) for name in names]
    family = family or EncoderFamily((), "bert")
    layer = rf"(?:{re.escape(family.prefix)}\.)?{re.escape((family.shared_layer or family.layer).format(0))}\."
    found = re.search(rf"^(.*?){layer}", "\n".join(rest), re.M)
    before = found[1] if found else ""
    return (*inside, before) if before and all(n.startswith(before) for n in rest) else inside


def plain(name: str, parts: Sequence[str]) -> str:
    """Return the name of a weight without the parts of a wrapper.

    Example:
        >>> plain("_orig_mod.model.bert.pooler.dense.bias", ("_orig_mod.", "model."))
        'bert.pooler.dense.bias'
    """
    for part in parts:
        name = name.replace(part, "") if part in _WRAPPERS else name.removeprefix(part)
    return name


def read(files: Sequence[Path], parts: Sequence[str]) -> dict[str, Any]:
    """Read tensors under their plain names."""
    import torch
    from safetensors.torch import load_file

    return {
        plain(name, parts): tensor
        for file in files
        for name, tensor in (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, weights_only=True)
        ).items()
    }


def check_finite(weights: Iterable[tuple[str, Any]], where: object) -> None:
    """Refuse weights of which some are NaN or infinite.

    Args:
        weights: (name, array or tensor of floats).
        where: the model, for the error.

    Raises:
        ModelError: with the first tensor, and how many numbers of it.
    """
    arrays = ((name, np.asarray(tensor)) for name, tensor in weights)
    counts = ((name, array.size, np.count_nonzero(~np.isfinite(array))) for name, array in arrays)
    if bad := [count for count in counts if count[-1]]:
        name, size, count = bad[0]
        more = f", and {len(bad) - 1} more tensors" if bad[1:] else ""
        raise ModelError(
            "weights of the model are not finite numbers",
            where=str(where),
            got=f"{count:,} of {size:,} in {name} are NaN or infinite{more}",
            fix="take a checkpoint from before the training diverged, or download it again",
        )


def other_kind(folder: Path) -> ModelError | None:
    """The error for a folder that holds something else than a checkpoint, with what it is; None where nothing tells."""
    for pattern, (what, fix) in _OTHERS.items():
        if found := sorted(folder.glob(pattern)):
            adapter = model_config.read_object(folder / _ADAPTER_CONFIG, missing_ok=True)
            kind = _PEFT_TASKS.get(str(adapter.get("task_type")), "FeatureExtraction")
            return ModelError(
                f"not a checkpoint, but {what}",
                where=str(folder),
                got=found[-1].relative_to(folder).as_posix(),
                expected=_WHOLE,
                fix=fix.replace("FOLDER", str(folder))
                .replace("TASK", kind)
                .replace("FOUND", str(found[-1].parent)),
            )
    return None
