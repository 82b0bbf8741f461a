"""Reports and packages of earlier versions, as this one reads them: packages outlive the version that made them."""

from __future__ import annotations

from typing import Any

_GONE = ("pruned", "pruning", "speed_goals")
_GONE_OF_CHOICE = ("accepted_drop", "accepted_ms", "checks")
# Lists of figures of all models → the field of `Figures`.
_COLUMNS = {
    "comparisons": "against_float",
    "footprints": "footprint",
    "latencies": "times",
    "ratios": "ratios",
    "speedups": "speedups",
    "stored": "stored",
    "throughputs": "throughputs",
}
_TABLES = ("scores", "absent")
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
    if "footprints" in data:
        data["models"] = _models(data)
        data = {name: value for name, value in data.items() if name not in (*_COLUMNS, *_TABLES)}
    choice = data.get("choice")
    if choice and any(isinstance(limit, str) for limit in choice["limits"]):
        asked = choice["recipe"].get(choice["how"]) or {}
        kept = {name: value for name, value in choice.items() if name not in _GONE_OF_CHOICE}
        limits = asked.get("limits", {"max_drop": 0.01})
        data["choice"] = {**kept, "limits": limits if isinstance(limits, list) else [limits]}
    return data


def _models(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The figures model by model, which were one list for each kind of figure."""
    absent, scores = data.get("absent") or {}, data.get("scores") or {}
    timed = [footprint["candidate"] for footprint in data["footprints"]]
    models: dict[str, dict[str, Any]] = {
        name: {"model": name, "absent": absent.get(name, ""), "scores": scores.get(name, ())}
        for name in (*timed, *scores, *absent)
    }
    for column, field in _COLUMNS.items():
        for figure in data.get(column) or ():
            models[figure["candidate"]].setdefault(field, []).append(figure)
    for figures in models.values():
        for field in ("footprint", "against_float"):
            # Two are one too many, which the record says.
            found = figures.pop(field, [])
            figures |= {field: found[0] if len(found) == 1 else found} if found else {}
        if "against_float" in figures:
            figures["against_float"] = _compared(figures["against_float"])
    return list(models.values())


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
