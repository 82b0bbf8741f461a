"""The variants of a recipe that a search may try, from what plugins declare (`core/axes`): pure functions, nothing runs here.

A search begins with the forms of all methods on all targets (`first`). From a variant it goes on to others that may be faster
(`faster`) or more accurate (`nearer`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from octobert import targets
from octobert.config.choosing import Accuracy
from octobert.config.loading import as_plain, changed, parse
from octobert.config.recipe import Choice, Recipe
from octobert.core.axes import Axis, BuildStep, Form, Offer
from octobert.core.errors import RecipeError, did_you_mean
from octobert.core.limits import UNITS, objective_named
from octobert.core.plan import FLOAT
from octobert.core.selection import Variant
from octobert.evaluation import candidates
from octobert.pipeline.choosing import spelling
from octobert.pipeline.run import Run
from octobert.quantization import calibrators, corrections, methods, transforms
from octobert.targets import runtimes

# Keys that make a recipe a search.
_SEARCHING = ("choose", "search", "executor")
_FAMILIES = {
    "transforms": transforms.axes,
    "calibrate": calibrators.axes,
    "corrections": corrections.axes,
}
# Values of one key that `nearer` tries alone, combinations of two keys, and all of them with the fallback.
_ALONE, _NEARER = 8, 12
_WORK: tuple[BuildStep, ...] = get_args(BuildStep)


def recipe_of(recipe: Recipe, variant: Variant) -> Recipe:
    """Return the recipe of one variant, which is run like any other.

    Raises:
        RecipeError: a change is not one that a recipe takes.
    """
    raw = {key: value for key, value in as_plain(recipe).items() if key not in _SEARCHING}
    raw["targets"] = [variant.target]
    raw["session"] = {
        target: entries
        for target, entries in raw.get("session", {}).items()
        if target == variant.target
    }
    changes = [f"{key}={spelling.as_text(value)}" for key, value in variant.changes.items()]
    result = changed(raw, changes)
    if FLOAT in (recipe.quantize.name, _method(result)):
        # A float model has neither, unless it is asked for: the recipe decides that by its method.
        for key in {"transforms", "corrections"} - variant.changes.keys():
            result.pop(key, None)
    return parse(result, where=variant.name)


def variant_of(recipe: Recipe, changes: Mapping[str, Any]) -> Variant:
    """Return the variant with some keys of a recipe changed, without the changes that change nothing.

    Args:
        changes: key → value, as `--set` takes them. `targets` is one target; options of plugins that are not chosen are left
            out where the choice is among the changes.

    Raises:
        RecipeError: a change is not one that a recipe takes.
    """
    rest = {spelling.spelled(key): value for key, value in changes.items()}
    target = rest.pop("targets", recipe.targets[0])
    target = target[0] if isinstance(target, list | tuple) and len(target) == 1 else target
    targets.load(str(target), where="targets")
    rest = spelling.of_chosen_plugins(rest)
    if rest.get("quantize") == recipe.quantize.name:
        # The recipe's own method, with its options.
        del rest["quantize"]
    full = recipe_of(recipe, _unnamed(target, rest))
    if (offered := _offered(full.quantize, target)) is not None:
        # A method that calibrates nothing is the same with all calibrators.
        idle = _FAMILIES.keys() - set(offered.varies)
        rest = {key: value for key, value in rest.items() if key.partition(".")[0] not in idle}
        full = recipe_of(recipe, _unnamed(target, rest))
    for key in sorted(rest, reverse=True):
        fewer = {other: value for other, value in rest.items() if other != key}
        if not any(other.startswith(f"{key}.") for other in fewer) and _means(
            recipe, _unnamed(target, fewer), full
        ):
            rest = fewer
    precision = precision_of(full)
    name = f"{target} {precision} {', '.join(_words(recipe, full, rest))}".strip()
    return Variant(name=name, target=target, changes=rest, precision=precision)


def precision_of(recipe: Recipe) -> str:
    """Return the precision of most products of a recipe's models: `f32`, `bf16`, `f16`, `int8`, `int8 dynamic`, …"""
    form = _form_of(recipe)
    return recipe.quantize.name if form is None else form.precision


def _form_of(recipe: Recipe) -> Form | None:
    """The form of a recipe's models: of those whose options the recipe has, the one with the most."""
    method = methods.PLUGINS.make(recipe.quantize)
    parts = method.float_type(targets.load(recipe.targets[0]).capabilities)
    options = {**method.model_dump(mode="json"), "float_parts": parts}
    forms = _forms(recipe, recipe.quantize.name, recipe.targets[0])
    fitting = [form for form in forms if form.options.items() <= options.items()]
    return max(fitting, key=lambda form: len(form.options), default=None)


def first(recipe: Recipe) -> list[Variant]:
    """Return where a search begins: the float reference, then every form of every method on every target that runs here.

    Raises:
        RecipeError: `choose.vary` names a key that nothing can be varied by.
    """
    _check_vary(recipe)
    return [variant for variant, why in _beginnings(recipe) if why is None]


def left_out(recipe: Recipe) -> list[tuple[Variant, str]]:
    """Return forms that are not tried on this machine, with the reason of each: one sentence without a full stop."""
    return [(variant, why) for variant, why in _beginnings(recipe) if why is not None]


def faster(recipe: Recipe, variant: Variant) -> list[Variant]:
    """Return variants with another value of one axis that has made models faster, the largest gain first."""
    axes = sorted(
        (axis for axis in axes_of(recipe, variant) if axis.gain > 1), key=lambda axis: -axis.gain
    )
    moved = (_moved(recipe, variant, [(axis, value)]) for axis in axes for value in axis.values)
    return _distinct(moved, [variant])


def nearer(recipe: Recipe, variant: Variant, *, minutes: float = 10) -> list[Variant]:
    """Return variants that may be more accurate, and are not faster: at most a dozen, the most promising and cheapest first.

    Single values come first, then combinations of two keys, at last the search for layers that have to stay float.

    Args:
        minutes: time limit of that search.
    """
    axes = [
        axis for axis in axes_of(recipe, variant) if "numbers" in axis.changes and axis.gain == 1
    ]
    moves = [(axis, value) for axis in axes for value in axis.values]
    # The first value of each axis before all second ones; among equal priors the one that makes least again.
    moves.sort(
        key=lambda move: (
            move[0].values.index(move[1]) > 0,
            -move[0].prior,
            -_WORK.index(move[0].invalidates),
        )
    )
    alone = _distinct((_moved(recipe, variant, [move]) for move in moves), [variant])[:_ALONE]
    firsts = [(axis, value) for axis, value in moves if value == axis.values[0]]
    pairs = [
        pair for pair in itertools.combinations(firsts, 2) if not _keys(pair[0]) & _keys(pair[1])
    ]
    pairs.sort(key=lambda pair: -sum(axis.prior for axis, _ in pair))
    last = fallback(recipe, variant, minutes)
    most = _NEARER - len(alone) - (last is not None)
    both = _distinct(
        itertools.islice((_moved(recipe, variant, pair) for pair in pairs), 4 * most),
        [variant, *alone],
    )[:most]
    return [*alone, *both, *([last] if last is not None else [])]


def fallback(recipe: Recipe, variant: Variant, minutes: float) -> Variant | None:
    """Return the variant whose plan is searched for: layers fall back to float until the limits are met (`accuracy`).

    Args:
        minutes: time limit of the search.

    Returns:
        None where the method cannot do that, or where no limit is on a metric, or where `vary` excludes it.
    """
    searched = recipe.searches
    if searched is None or not _varies(recipe, "accuracy") or "accuracy" in variant.changes:
        return None
    limits = [limit for limit in searched.limits if limit.objective.name not in UNITS]
    limits = [limit for limit in limits if limit.max_drop is not None or limit.at_least is not None]
    offered = _offered_for(recipe, variant)
    if not limits or offered is None or not offered.falls_back:
        return None
    # The search knows one metric. Of several limits it gets the first, and the others are judged afterwards.
    limit = limits[0]
    metric = None if limit.of == "metric" else limit.of
    criterion = Accuracy(
        max_drop=limit.max_drop,
        relative=limit.relative,
        at_least=limit.at_least,
        metric=metric,
        minutes=minutes,
    )
    return variant_of(
        recipe,
        _with_target(
            variant, {"accuracy": criterion.model_dump(mode="json", exclude_defaults=True)}
        ),
    )


def observed_kinds(run: Run) -> tuple[str, ...]:
    """Return the kinds of sites that any variant needs ranges of, so that one pass over the calibration rows serves all."""
    recipe, starts = run.recipe, first(run.recipe)
    variants = [*starts, *(variant for start in starts for variant in faster(recipe, start))]
    runs = (replace(run, recipe=recipe_of(recipe, variant)) for variant in variants)
    return tuple(sorted({kind for each in runs for kind in each.observed_kinds}))


def reach(recipe: Recipe, variant: Variant) -> float:
    """Return the factor by which axes that are not yet changed may make a variant faster at most."""
    gains: dict[str, float] = {}
    for axis in axes_of(recipe, variant):
        if axis.key not in variant.changes:
            gains[axis.key] = max(axis.gain, gains.get(axis.key, 1.0))
    return math.prod(gains.values())


def axes_of(recipe: Recipe, variant: Variant) -> tuple[Axis, ...]:
    """Return what may be varied about a variant: axes of its method and of the other plugins that change its models."""
    offered = _offered_for(recipe, variant)
    if offered is None:
        return ()
    axes = (*offered.axes, *(axis for key in offered.varies for axis in _FAMILIES[key]()))
    takes = {*offered.varies, *(axis.key for axis in offered.axes)}
    return tuple(
        axis.replaced(
            requires={k: v for k, v in axis.requires.items() if k in takes and _varies(recipe, k)}
        )
        for axis in axes
        if _varies(recipe, axis.key)
    )


def _beginnings(recipe: Recipe) -> Iterator[tuple[Variant, str | None]]:
    """All forms, with the reasons of those that are not tried."""
    reference = variant_of(recipe, {"targets": candidates.REFERENCE.target, "quantize": FLOAT})
    yield reference, None
    seen = {reference.name}
    named = "targets" in recipe.model_fields_set
    for target in recipe.targets if named else sorted(dict(targets.each())):
        probe = targets.load(target).probe()
        if not probe.available and not named:
            continue
        for method in _methods(recipe):
            options_of_recipe = (
                recipe.quantize.options
                if method == recipe.quantize.name and method != FLOAT
                else {}
            )
            for form in _forms(recipe, method, target):
                if not _saves(recipe, form):
                    continue
                options = {**options_of_recipe, **form.options}
                variant = variant_of(
                    recipe,
                    {"targets": target, "quantize": {method: options} if options else method},
                )
                if variant.name not in seen:
                    seen.add(variant.name)
                    yield variant, probe.missing if not probe.available else form.why_not


def _methods(recipe: Recipe) -> tuple[str, ...]:
    """Methods to try: float, the recipe's and the default first."""
    if not _varies(recipe, "quantize"):
        return (FLOAT, recipe.quantize.name)
    return tuple(
        dict.fromkeys(
            (
                FLOAT,
                recipe.quantize.name,
                Recipe.model_fields["quantize"].default.name,
                *sorted(dict(methods.each())),
            )
        )
    )


def _forms(recipe: Recipe, method: str, target: str) -> tuple[Form, ...]:
    """The forms of a method on a target. A method that says nothing of searches has one, where the recipe names it."""
    choice = recipe.quantize if recipe.quantize.name == method else Choice(name=method)
    offered = _offered(choice, target)
    if offered is not None:
        return offered.forms
    return (Form(precision=method),) if recipe.quantize.name == method else ()


def _offered_for(recipe: Recipe, variant: Variant) -> Offer | None:
    """What the method of a variant offers."""
    return _offered(recipe_of(recipe, variant).quantize, variant.target)


def _offered(method: Choice, target: str) -> Offer | None:
    """What a method offers for a target."""
    capabilities = targets.load(target).capabilities
    made = methods.PLUGINS.make(method)
    return made.offer(capabilities, runtimes.float_problems(capabilities))


def _saves(recipe: Recipe, form: Form) -> bool:
    """Whether a form can save what a search is about: time, unless goal or limits say size or memory."""
    if recipe.choose is None:
        return True
    figures = {
        objective_named(recipe.choose.goal).name,
        *(limit.objective.name for limit in recipe.choose.limits),
    }
    return bool({"time", *figures} & set(form.saves))


def _moved(recipe: Recipe, variant: Variant, moves: Iterable[tuple[Axis, Any]]) -> Variant:
    """A variant with the values of some axes."""
    changes: dict[str, Any] = {}
    for axis, value in moves:
        changes |= {**axis.requires, axis.key: value}
    return variant_of(recipe, _with_target(variant, changes))


def _with_target(variant: Variant, changes: Mapping[str, Any]) -> dict[str, Any]:
    return {"targets": variant.target, **variant.changes, **changes}


def _unnamed(target: str, changes: Mapping[str, Any]) -> Variant:
    return Variant(name="variant", target=target, changes=dict(changes), precision="")


def _keys(move: tuple[Axis, Any]) -> set[str]:
    return {move[0].key, *move[0].requires}


def _distinct(variants: Iterable[Variant], others: Iterable[Variant]) -> list[Variant]:
    """Variants without those that are known or come twice."""
    names = {variant.name for variant in others}
    return [
        variant
        for name, variant in {variant.name: variant for variant in variants}.items()
        if name not in names
    ]


def _varies(recipe: Recipe, key: str) -> bool:
    """Whether a search may vary a key: itself, or a key that it is part of, is in `vary`, or the recipe does not set it."""
    if recipe.choose is None:
        return True
    if recipe.choose.vary is None:
        return key.partition(".")[0] not in recipe.model_fields_set
    return any(key == varied or key.startswith(f"{varied}.") for varied in recipe.choose.vary)


def _check_vary(recipe: Recipe) -> None:
    """Refuse keys of `vary` that no plugin lists.

    Raises:
        RecipeError: as said.
    """
    if recipe.choose is None or recipe.choose.vary is None:
        return
    free = recipe.replaced(choose=None)
    starts = [variant for variant, _ in _beginnings(free)]
    keys = sorted(
        {
            "quantize",
            "accuracy",
            *(axis.key for start in starts for axis in axes_of(free, start)),
        }
    )
    for varied in recipe.choose.vary:
        if not any(key == varied or key.startswith(f"{varied}.") for key in keys):
            raise RecipeError(
                "no plugin lists this key as worth varying",
                where="choose.vary",
                got=varied,
                fix=did_you_mean(varied, keys),
            )


def _method(raw: Mapping[str, Any]) -> str:
    return spelling.plugin_named(raw.get("quantize", ""))


def _means(recipe: Recipe, variant: Variant, full: Recipe) -> bool:
    """Whether a variant's changes are valid and mean a recipe: default values of options may be written or not."""
    try:
        return _written_out(recipe_of(recipe, variant)) == _written_out(full)
    except RecipeError:
        return False


def _written_out(recipe: Recipe) -> Recipe:
    """A recipe with all options of its method and calibrator."""
    method, calibrator = (
        methods.PLUGINS.make(recipe.quantize),
        calibrators.PLUGINS.make(recipe.calibrate),
    )
    return recipe.replaced(
        quantize=recipe.quantize.replaced(options=method.model_dump(mode="json")),
        calibrate=recipe.calibrate.replaced(options=calibrator.model_dump(mode="json")),
    )


def _words(recipe: Recipe, full: Recipe, changes: Mapping[str, Any]) -> Iterator[str]:
    """Short texts of changes, beside the precision.

    Args:
        full: the recipe with the changes.
    """
    flat: dict[str, Any] = {}
    for key, value in changes.items():
        if key == "quantize" and isinstance(value, Mapping):
            method = spelling.plugin_named(value)
            flat |= {
                f"quantize.{method}.{option}": setting
                for option, setting in spelling.options_in(value).items()
            }
        elif key != "quantize":
            flat[key] = value
    # A method lists what differs from its present options, so the names are those of its defaults.
    offered = _offered(Choice(name=full.quantize.name), full.targets[0])
    axes = [
        *(offered.axes if offered else ()),
        *(axis for family in _FAMILIES.values() for axis in family()),
    ]
    form = _form_of(full)
    said = {f"quantize.{full.quantize.name}.{option}" for option in form.options} if form else set()
    # What layers do comes last.
    for key, value in sorted(flat.items(), key=lambda item: (item[0] == "accuracy", item[0])):
        if key in said:
            continue
        listed = next(
            (
                axis.names[axis.values.index(value)]
                for axis in axes
                if axis.key == key and axis.names and value in axis.values
            ),
            None,
        )
        yield listed or spelling.word(recipe, key, value)
