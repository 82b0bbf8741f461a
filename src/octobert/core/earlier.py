"""Reports and packages of earlier versions, as this one reads them: packages outlive the version that made them."""

from __future__ import annotations

from typing import Any

_GONE = ("pruned", "pruning", "speed_goals")
_GONE_OF_CHOICE = ("accepted_drop", "accepted_ms", "checks")
_OF_A_LIMIT = ("max_drop", "relative", "at_least")


def of_earlier(raw: Any) -> Any:
    """A report or manifest as octobert wrote it until 2026-11-28: without fields that are gone, and with limits of the recipe
    where there were sentences about them. What is no such file stays as it is, so that its own checks say so."""
    try:
        return _converted(raw)
    except (AttributeError, KeyError, TypeError):
        return raw


def _converted(raw: dict[str, Any]) -> dict[str, Any]:
    data = {name: value for name, value in raw.items() if name not in _GONE}
    recipe = data["recipe"]
    searches = data.get("searches") or {}
    data |= {"searches": {n: _limited(s, recipe) for n, s in searches.items()}} if searches else {}
    data |= {"comparison": _compared(data["comparison"])} if data.get("comparison") else {}
    data |= {"search": _limited(data["search"], recipe)} if data.get("search") else {}
    if data.get("comparisons"):
        data["comparisons"] = [_compared(comparison) for comparison in data["comparisons"]]
    choice = data.get("choice")
    if choice and any(isinstance(limit, str) for limit in choice["limits"]):
        asked = choice["recipe"].get(choice["how"]) or {}
        kept = {name: value for name, value in choice.items() if name not in _GONE_OF_CHOICE}
        limits = asked.get("limits", {"max_drop": 0.01})
        data["choice"] = {**kept, "limits": limits if isinstance(limits, list) else [limits]}
    return data


def _compared(comparison: dict[str, Any]) -> dict[str, Any]:
    """A comparison that says what its likeness is: agreement, or a cosine or correlation, which are drawn alike."""
    is_share = comparison["fidelity_name"] == "agreement"
    return {"fidelity_kind": "share" if is_share else "cosine", **comparison}


def _limited(search: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """An accuracy-aware search with its limit."""
    if not isinstance(search["criterion"], str):
        return search
    asked = recipe["accuracy"]
    return {**search, "criterion": {k: v for k, v in asked.items() if k in _OF_A_LIMIT}}
