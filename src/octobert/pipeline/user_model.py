"""A model that a function of the user makes, as files: `made` runs the function in a process of its own, before a run starts.

The function returns a path, or a PyTorch model and the folder of its tokenizer. A model of a class of transformers becomes a
checkpoint. Any other module becomes an ONNX file. Both are compared with the model itself. From there on, a run reads these
files as it reads any other model, and their content is part of its keys. They lie in octobert's cache, by their content.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from octobert.core import environment, user_code
from octobert.core.errors import ModelError, OctobertError, ParityError
from octobert.core.files import canonical_digest, digests_of, storage_errors
from octobert.core.user_code import UserCode

_EXPECTED = "a path, or (model, folder of its tokenizer)"


def made(code: UserCode, head: str, *, seed: int) -> Path:
    """The checkpoint folder or `.onnx` file of the model.

    Args:
        code: the function.
        head: that the task needs, a key of `core.heads.HEADS`.
        seed: of torch, when the function is called.

    Raises:
        RecipeError: the function cannot be loaded, or failed.
        ModelError: it returns something else, or the model cannot be written.
    """
    request = {"code": code.model_dump(mode="json"), "head": head, "seed": seed}
    return Path(user_code.ask(__name__, request, where=code.where))


def main() -> int:
    """The process of `made`."""
    return user_code.answer(
        lambda request: str(
            _made(UserCode.model_validate(request["code"]), request["head"], request["seed"])
        )
    )


def _made(code: UserCode, head: str, seed: int) -> Path:
    function = user_code.load(code)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    result = function()
    if isinstance(result, (str, os.PathLike)):
        path = Path(os.path.expanduser(result)).absolute()
        if not path.exists():
            raise ModelError(
                "the function returns a path that does not exist", where=code.text, got=str(path)
            )
        return path
    model, tokenizer = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    torch = sys.modules.get("torch")
    if (
        torch is None
        or not isinstance(model, torch.nn.Module)
        or not isinstance(tokenizer, (str, os.PathLike))
    ):
        raise ModelError(
            "the function does not return a model",
            where=code.text,
            got=f"a {type(result).__name__}"
            if not isinstance(result, tuple)
            else ", ".join(type(part).__name__ for part in result),
            expected=_EXPECTED,
        )
    if not hasattr(getattr(model, "config", None), "to_dict"):
        raise ModelError(
            "the model has no config",
            where=code.text,
            got=type(model).__name__,
            expected="a config of transformers, such as BertConfig, which names the family and its sizes",
        )
    store = environment.cache_folder() / "models"
    with storage_errors(store):
        store.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=store))
        try:
            return _written(model.eval().float().cpu(), Path(tokenizer), head, code, work)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _written(model: Any, tokenizer: Path, head: str, code: UserCode, work: Path) -> Path:
    """Write a model into a folder that is named by its content."""
    from octobert.data.tokenization import Tokenizer, save_tokenizer
    from octobert.pipeline.stages.capture import parity_batches

    if not tokenizer.is_dir():
        raise ModelError(
            "the folder of the tokenizer does not exist",
            where=code.text,
            got=str(tokenizer),
            expected=_EXPECTED,
        )
    if hasattr(model, "set_attn_implementation"):
        # Fused attention has another graph, and other values for padding.
        model.set_attn_implementation("eager")
    save_tokenizer(tokenizer, work)
    # It says how many tokens the model takes.
    (work / "config.json").write_text(
        json.dumps(model.config.to_dict(), indent=1, default=str) + "\n", encoding="utf-8"
    )
    batches = parity_batches(Tokenizer(work))
    stock = type(model).__module__.startswith("transformers.models.")
    name = (
        _checkpoint(model, head, batches, work)
        if stock
        else _onnx(model, head, batches, work, code)
    )
    folder = work.parent / canonical_digest(digests_of(work))[:32]
    if not folder.exists():
        work.rename(folder)
    return folder / name if name else folder


def _checkpoint(model: Any, head: str, batches: Any, work: Path) -> str:
    """Write a checkpoint, and compare the model with what transformers loads of it."""
    from octobert.graph.parity import TOLERANCE, largest_difference
    from octobert.models import checkpoint

    expected = [_outputs(model, batch, head) for batch in batches]
    model.save_pretrained(work)
    loaded = checkpoint.load_torch(work, head)
    difference = largest_difference([_outputs(loaded, batch, head) for batch in batches], expected)
    if not difference <= TOLERANCE:
        raise ParityError(
            "the model does not compute what transformers loads of its weights",
            where="model",
            got=f"a relative difference of {difference:.2g}",
            expected=f"at most {TOLERANCE:.0e}",
            fix="put the change into a class of your own, derived from the class of transformers",
        )
    return ""


def _onnx(model: Any, head: str, batches: Any, work: Path, code: UserCode) -> str:
    """Export a module, and compare it with the file."""
    from octobert.core.heads import head_of
    from octobert.graph import operators, parity
    from octobert.graph.capture import capture

    try:
        graph = capture.export(model, head)
    except OctobertError:
        raise
    except Exception as error:  # torch's exporter raises many unrelated types, with pages of text
        lines = str(error).strip().splitlines() or [""]
        raise ModelError(
            "the model cannot be exported to ONNX",
            where=code.text,
            got=f"{type(error).__name__}: {lines[0][:200]}",
            expected=f"forward(input_ids, attention_mask, …) that returns {', '.join(head_of(head).model_outputs)}",
        ) from error
    expected = [_outputs(model, batch, head) for batch in batches]
    parity.compare(graph, batches, expected, "PyTorch", what="the exported graph")
    operators.save(graph, work / "model.onnx")
    return "model.onnx"


def _outputs(model: Any, feeds: Any, head: str) -> list[Any]:
    """The outputs of a head before pooling, by name, or in order where the model returns a tuple or one tensor."""
    import torch

    from octobert.core.heads import head_of
    from octobert.models.checkpoint import inputs_of

    names = head_of(head).model_outputs
    used = inputs_of(model)
    with torch.inference_mode():
        result = model(
            **{name: torch.from_numpy(array) for name, array in feeds.items() if name in used}
        )
    if isinstance(result, torch.Tensor):
        result = (result,)
    outputs = (
        [result[name] for name in names] if hasattr(result, "keys") else list(result[: len(names)])
    )
    return [tensor.numpy() for tensor in outputs]
