"""A checkpoint or an ONNX file → the canonical float graph with its tokenizer and config, and the parity check.

Writes `model.onnx`, `tokenizer.json`, `config.json` and `capture.json` {family, head, sizes, parity, pooling}. For embeddings,
also the files of the source's sentence-transformers modules.
"""

from __future__ import annotations

import json

from octobert import tasks
from octobert.core import environment
from octobert.core.errors import ModelError, TokenError
from octobert.core.heads import head_of
from octobert.core.model_config import CONFIG, MODULES, Config
from octobert.core.results import CaptureFacts
from octobert.core.session import Feeds
from octobert.data.encoded import feeds_of
from octobert.data.tokenization import Tokenizer, save_tokenizer
from octobert.engine.contract import Context, Summary, stage
from octobert.graph import operators
from octobert.graph.capture import capture
from octobert.models import heads, late_interaction, weights
from octobert.models.pooling import pooler_of
from octobert.models.sentence_transformers import copy_modules
from octobert.models.source import ModelSource
from octobert.pipeline import artifacts
from octobert.pipeline.artifacts import CapturedModel, Checkpoint, Rows

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
# Only two rows are as long as the model's limit; with eight of them PyTorch took most of the time of parity.
_BATCHES = ((0,), (1, 2), (0, 3, 4), (2, 5), (6,), (6, 7), (0, 1, 2, 3, 4, 6, 7))
# Feeds on which a graph of any kind is compared with its file.
COMPARED = 8
# For logits over a vocabulary, which take half a megabyte for a token of multilingual models: no rows of padding.
_SMALL_BATCHES = _BATCHES[:-1]


@stage(CapturedModel, anywhere=True)
def run(
    context: Context,
    trained: Checkpoint | None,
    feeds: Rows | None,
    *,
    model: ModelSource,
    head: str,
    allow_pickle: bool,
    axes: dict[str, int],
) -> Summary:
    """Capture the user's model.

    Args:
        trained: what a step trained, which is captured in place of it.
        feeds: rows for a graph of any kind.
        axes: of its inputs that are fixed.
    """
    if feeds is not None:
        return _graph(context, feeds, model, head, axes)
    source = artifacts.source_of(model, trained)
    save_tokenizer(source.tokenizer_folder, context.work)
    context.write_json(CONFIG, source.config)
    context.progress("capturing", 0, 2)
    tokenizer = Tokenizer(context.work)
    try:
        batches = parity_batches(tokenizer, head)
    except TokenError as error:
        # Sentences of any model for these languages.
        raise ModelError(
            "the tokenizer is not the one that the model was trained with",
            where=str(source.tokenizer_folder),
            got=f"{len(tokenizer.unread):,} tokens that the model has no embedding for, such as {error.got}",
            expected=error.expected,
            fix="name the right one: --tokenizer FOLDER",
        ) from error
    captured = capture.capture(source, head, batches, allow_pickle=allow_pickle)
    context.progress("capturing", 1, 2)
    captured.model.metadata_props.update(_described(source.config))
    environment.release_memory()
    operators.save(captured.model, context.work / artifacts.FLOAT)
    if captured.pooling is not None:
        copy_modules(source.tokenizer_folder, context.work)
        folder = source.tokenizer_folder
        if not captured.pooling.modes and not (context.work / MODULES).is_file():
            # The projection of Stanford's ColBERT is in no module.
            (projection,) = pooler_of(
                folder, head_of(head), allow_pickle=allow_pickle
            ).weights.values()
            reading = late_interaction.reading_of(folder)
            assert reading is not None
            late_interaction.write_modules(context.work, reading, projection)
    files = weights.files_of(source.path, allow_pickle=allow_pickle)
    wrapped = (
        weights.wrappers(weights.shapes_of(files), source.family) if source.is_checkpoint else ()
    )
    facts = CaptureFacts(
        family=captured.family.model_types[0],
        head=head,
        sizes=captured.sizes,
        parity=captured.parity,
        pooling=captured.pooling,
        source_bytes=sum(file.stat().st_size for file in files),
        wrapped=wrapped,
        left_out=heads.masked_lm(source, head_of(head)),
        unread=tokenizer.unread,
    )
    context.write(artifacts.CAPTURED, facts)
    context.progress("capturing", 2, 2)
    return facts.model_dump(mode="json")


def _graph(
    context: Context, rows: Rows, model: ModelSource, head: str, axes: dict[str, int]
) -> Summary:
    """Capture a graph of any kind."""
    batches = rows.feeds(tasks.load(head).build(), context.work)
    captured = capture.capture_graph(model.path, batches, axes, compared=COMPARED)
    operators.save(captured.model, context.work / artifacts.FLOAT)
    context.write_json(CONFIG, {"model_type": "graph"})
    facts = CaptureFacts(
        family=captured.family.model_types[0],
        head=head,
        sizes=captured.sizes,
        parity=captured.parity,
        source_bytes=sum(
            file.stat().st_size for file in weights.files_of(model.path, allow_pickle=False)
        ),
        rest=captured.rest,
    )
    context.write(artifacts.CAPTURED, facts)
    return facts.model_dump(mode="json")


def _described(stated: Config) -> dict[str, str]:
    """What the file says of itself, for tools that see nothing else of the model."""
    return {
        "producer": "octobert",
        "architectures": json.dumps(stated.get("architectures") or []),
        "model_type": str(stated.get("model_type", "")),
    }


def parity_batches(encoder: Tokenizer, head: str = "") -> list[Feeds]:
    """The batches on which two forms of a model are compared."""
    rows = encoder.encode(PARITY_TEXTS)
    groups = _SMALL_BATCHES if head and head_of(head).wide else _BATCHES
    return [feeds_of([rows[i] for i in group], encoder.pad_id) for group in groups]
