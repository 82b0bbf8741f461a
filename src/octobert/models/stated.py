"""What the files of a model state about its texts and answers, in the words of transformers and sentence-transformers."""

from __future__ import annotations

from typing import Any

from octobert.core.errors import ModelError, did_you_mean
from octobert.core.model_config import read_object
from octobert.core.results import Problem, Stated
from octobert.models.modules import ABOUT, MODULES
from octobert.models.source import ModelSource

_PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "single-label",
    "multi_label_classification": "multi-label",
    "regression": "regression",
}


def stated_by(source: ModelSource) -> Stated:
    """What a model states.

    Raises:
        ModelError: a statement that cannot be followed.
    """
    config, about = source.config, _about(source)
    where = str(source.tokenizer_folder / "config.json")
    problem = config.get("problem_type")
    if problem is not None and problem not in _PROBLEMS:
        raise ModelError(
            "there is no such problem_type",
            where=where,
            got=repr(problem),
            expected=", ".join(_PROBLEMS),
        )
    texts = _object(about.get("prompts"))
    prompts = {str(name): str(text) for name, text in texts.items() if text}
    default = about.get("default_prompt_name")
    if default is not None and str(default) not in texts:
        raise ModelError(
            "the default prompt is not one of the model's prompts",
            where=str(source.tokenizer_folder / ABOUT),
            got=str(default),
            fix=did_you_mean(str(default), prompts),
        )
    activation = (
        about.get("activation_fn")
        or _object(config.get("sentence_transformers")).get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    return Stated(
        labels=source.labels,
        problem=_PROBLEMS.get(str(problem)),
        activation=None if activation is None else str(activation),
        prompts=prompts,
        default_prompt=default if default in prompts else None,
    )


def _about(source: ModelSource) -> dict[str, Any]:
    """What a sentence-transformers model says of itself. Without `modules.json` that library does not read it either."""
    folder = source.tokenizer_folder
    return read_object(folder / ABOUT, missing_ok=True) if (folder / MODULES).is_file() else {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
