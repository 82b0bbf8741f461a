"""A checkpoint or an ONNX file → the canonical float graph with its tokenizer and config, and the proof of parity.

Writes `model.onnx`, `tokenizer.json`, `config.json` and `capture.json` {family, head, sizes, parity}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octobert.core.results import CaptureFacts
from octobert.core.session import Feeds
from octobert.data.tokenization import TextEncoder, feeds_of, save_tokenizer
from octobert.graph import operators
from octobert.graph.capture import capture
from octobert.models import checkpoint
from octobert.pipeline.stages import Context, model_of

VERSION = 3
# Real sentences and pairs, from one word to the model's limit: lengths, scripts, segments and padding are all exercised.
_LONG = (
    "A float graph is worth quantizing only if it computes what the checkpoint computes, so the two are compared on "
    "sentences like these, alone and in batches whose rows differ in length. "
)
PARITY_TEXTS = (
    ("Yes.",),
    ("The bank raised its rates by 0.25 points on Tuesday, the third rise this year.",),
    ("Где находится ближайшая станция метро?",),
    ("She said she'd call back; nobody believed her — not even her brother (who usually does).",),
    (_LONG,),
    (_LONG * 12,),
    ("Is it open on Sundays?", "The museum is open every day except Monday."),
    ("He left.", _LONG),
)
_BATCHES = ((0,), (1, 2), (0, 3, 4), (5,), (6,), (6, 7), tuple(range(8)))


def run(context: Context) -> dict[str, Any]:
    """Capture."""
    source = model_of(context)
    folder = checkpoint.side_folder(source)
    save_tokenizer(folder, context.work)
    config = folder / "config.json"
    (context.work / "config.json").write_text(config.read_text(encoding="utf-8") if config.is_file() else "{}")
    encoder = TextEncoder(context.work)
    context.progress("capturing", 0, 2)
    batches = parity_batches(encoder)
    head = str(context.options["head"])
    captured = capture.capture(source, head, batches, allow_pickle=bool(context.options["allow_pickle"]))
    context.progress("capturing", 1, 2)
    captured.model.metadata_props.update(_described(context.work / "config.json"))
    operators.save(captured.model, context.work / "model.onnx")
    facts = CaptureFacts(family=captured.family.model_types[0], head=head, sizes=captured.sizes, parity=captured.parity)
    context.write("capture.json", facts)
    context.progress("capturing", 2, 2)
    return facts.model_dump(mode="json")


def _described(config: Path) -> dict[str, str]:
    """What the file says of itself, for tools that see nothing else of the model."""
    known = json.loads(config.read_text(encoding="utf-8"))
    found = {"architectures": json.dumps(known.get("architectures") or []), "model_type": str(known.get("model_type", ""))}
    return {"producer": "octobert", **found}


def parity_batches(encoder: TextEncoder) -> list[Feeds]:
    """The batches on which two forms of a model are compared."""
    rows = encoder.encode(PARITY_TEXTS)
    return [feeds_of([rows[i] for i in group], encoder.pad_id) for group in _BATCHES]
