"""Every stored byte: files of the store and published files are damaged in every way; the same run must notice and mend it.

    python benchmarks/soak_bytes.py [--positions 64] [--out runs/soak-bytes]

1. The store alone: in every file of every result, a bit is flipped at `--positions` places (in manifests at every byte), the
   file is cut at each of these places, made longer, deleted, and replaced by a folder, a link to nothing and a link to another
   file. The store must not find the result any more, or find it unchanged.
2. Whole runs: every file of the output directory, and every entry of the store as a whole, is damaged, and the same recipe runs
   again in this process. The run must end with the packages of the undisturbed run and a store in which everything is intact,
   or with an error of octobert that says what is in the way.
3. Edits of published files in place must leave every result of the store intact.
4. Every file of a package is damaged; `octobert.verify` must say so. `octobert.json`, which holds the digests, only has to be
   read or refused.

Results are counted by what was damaged and how.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from soaking import HIDDEN, REPORTS, make_inputs, names_below, published, table, write_recipe

import octobert
from octobert.core.errors import OctobertError
from octobert.core.results import PACKAGE_FILE
from octobert.engine.executors import inline
from octobert.engine.store import MANIFEST, Artifact, Store
from octobert.pipeline import runner

Damage = Callable[[Path, int], None]
# A file that links lead to. Whatever reads or writes through them would find or change its content.
OUTSIDE, CONTENT = Path("runs/soak-bytes-outside").resolve(), "content of another file"


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes() or b"\0")
    content[at % len(content)] ^= 1 << at % 8
    _rewrite(path, bytes(content))


def _cut(path: Path, at: int) -> None:
    _rewrite(path, path.read_bytes()[: at % max(1, path.stat().st_size)])


def _rewrite(path: Path, content: bytes) -> None:
    """New content in a new file: hard links elsewhere keep the old one."""
    path.unlink()
    path.write_bytes(content)


def _longer(path: Path, _: int) -> None:
    _rewrite(path, path.read_bytes() + b"\n")


def _empty(path: Path, _: int) -> None:
    _rewrite(path, b"")


def _delete(path: Path, _: int) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _folder(path: Path, _: int) -> None:
    _delete(path, 0)
    path.mkdir()


def _file(path: Path, _: int) -> None:
    _delete(path, 0)
    path.write_text("a file")


def _dangling(path: Path, _: int) -> None:
    _delete(path, 0)
    path.symlink_to("nowhere")


def _linked(path: Path, _: int) -> None:
    """Replace a file by a link to another file, which must not change."""
    _delete(path, 0)
    path.symlink_to(OUTSIDE)


def _loop(path: Path, _: int) -> None:
    _delete(path, 0)
    path.symlink_to(path.name)


ONCE: dict[str, Damage] = {
    "longer": _longer,
    "empty": _empty,
    "deleted": _delete,
    "a folder": _folder,
    "a link to nothing": _dangling,
    "a link elsewhere": _linked,
    "a link to itself": _loop,
}
WHOLE: dict[str, Damage] = {"bit flipped": _flip, "cut": _cut, **ONCE}
ENTRIES: dict[str, Damage] = {
    "deleted": _delete,
    "an empty folder": _folder,
    "a file": _file,
    "a link to nothing": _dangling,
    "a link elsewhere": _linked,
    "a link to itself": _loop,
}


def intact(store: Store) -> dict[str, Artifact]:
    """Results that the store finds: name → manifest."""
    found = {}
    for folder in store.root.iterdir():
        manifest = folder / MANIFEST
        if manifest.is_file():
            artifact = Artifact.model_validate_json(manifest.read_text())
            if store.find(artifact.stage, artifact.key) is not None:
                found[folder.name] = artifact
    return found


def damage_store(
    out: Path, positions: int, generator: random.Random, results: Counter[tuple[str, str, str]]
) -> list[str]:
    """Part 1: what the store finds in spite of damages. The files are put back."""
    problems = []
    store = Store(out / HIDDEN / "store")
    for name, artifact in intact(store).items():
        folder = store.root / name
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            kept, what = path.read_bytes(), "manifest" if path.name == MANIFEST else "file"
            for how, at, damage in _damages(
                len(kept), positions if what == "file" else len(kept), generator
            ):
                damage(path, at)
                found = store.find(artifact.stage, artifact.key)
                if found is not None and found != artifact:
                    results[what, how, "served"] += 1
                    problems.append(
                        f"{path.relative_to(store.root)}: {how} at {at}, and the store serves it"
                    )
                else:
                    results[what, how, "noticed" if found is None else "same content"] += 1
                _delete(path, 0)
                path.write_bytes(kept)
    return problems


def damage_package(
    package: Path, positions: int, generator: random.Random, results: Counter[tuple[str, str, str]]
) -> list[str]:
    """Part 4: what `octobert.verify` says of a package with one damaged file. The files are put back."""
    problems: list[str] = []
    for path in sorted(p for p in package.rglob("*") if p.is_file()):
        kept, manifest = path.read_bytes(), path.name == PACKAGE_FILE
        what = "manifest of a package" if manifest else "file of a package"
        for how, at, damage in _damages(len(kept), positions, generator):
            damage(path, at)
            try:
                octobert.verify(package)
                results[what, how, "verified"] += 1
                if not manifest:
                    problems.append(
                        f"{path.relative_to(package)}: {how} at {at}, and verify finds nothing"
                    )
            except OctobertError:
                results[what, how, "noticed"] += 1
            except Exception as error:  # noqa: BLE001  # what is no sentence is a result
                results[what, how, "an exception"] += 1
                problems.append(
                    f"{path.relative_to(package)}: {how} at {at}: {type(error).__name__}: {str(error)[:200]}"
                )
            _delete(path, 0)
            path.write_bytes(kept)
    return problems


def _damages(
    size: int, positions: int, generator: random.Random
) -> Iterator[tuple[str, int, Damage]]:
    places = range(size) if positions >= size else sorted(generator.sample(range(size), positions))
    for at in places:
        yield "bit flipped", at, _flip
    for at in places[:: max(1, len(places) // 64)]:
        yield "cut", at, _cut
    for how, damage in ONCE.items():
        yield how, 0, damage


def damage_runs(
    recipe: octobert.Recipe,
    reference: Path,
    out: Path,
    generator: random.Random,
    results: Counter[tuple[str, str, str]],
) -> list[str]:
    """Parts 2 and 3: the same run after a damage."""
    problems: list[str] = []
    expected, whole = comparable(reference), set(intact(Store(reference / HIDDEN / "store")))
    names = names_below(reference)
    targets = [
        (p, how, d) for p in sorted(reference.rglob("*")) if p.is_file() for how, d in WHOLE.items()
    ]
    folders = [p for p in sorted(reference.rglob("*")) if p.is_dir() and not p.is_symlink()]
    targets += [(p, how, damage) for p in folders for how, damage in ENTRIES.items()]
    for number, (path, how, damage) in enumerate(targets):
        if number % 50 == 0:
            print(
                f"{number} of {len(targets)} damages of an output directory, {len(problems)} problems",
                flush=True,
            )
        relative = path.relative_to(reference)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(reference, out, symlinks=True)
        hidden = HIDDEN in relative.parts
        kind = _kind(relative, path.is_dir())
        damage(out / relative, generator.randrange(1 << 20))
        try:
            runner.run(recipe, out, executor=inline.run)
        except OctobertError as error:
            results[kind, how, "a sentence"] += 1
            if kind.startswith("store"):
                problems.append(f"{relative}: {how}: not rebuilt: {error}")
            continue
        except Exception as error:  # noqa: BLE001  # what is no sentence is a result
            results[kind, how, "an exception"] += 1
            problems.append(f"{relative}: {how}: {type(error).__name__}: {str(error)[:200]}")
            continue
        if OUTSIDE.read_text() != CONTENT:
            problems.append(f"{relative}: {how}: a file elsewhere was written through a link")
            OUTSIDE.write_text(CONTENT)
        got, left = comparable(out), set(intact(Store(out / HIDDEN / "store")))
        if whole - left:
            results[kind, how, "store not intact"] += 1
            problems.append(f"{relative}: {how}: the store still lacks {sorted(whole - left)}")
        elif got != expected and hidden:
            results[kind, how, "other packages"] += 1
            problems.append(f"{relative}: {how}: other packages: {_differences(got, expected)}")
        elif got != expected:
            # What the user changed among published files is the user's.
            results[kind, how, "kept as the user left it"] += 1
        else:
            results[kind, how, "rebuilt"] += 1
            if extra := names_below(out) - names:
                problems.append(f"{relative}: {how}: left behind: {sorted(extra)[:4]}")
    return problems


def _kind(relative: Path, folder: bool) -> str:
    kind = "folder" if folder else "file"
    if HIDDEN not in relative.parts:
        return f"published {kind}"
    return f"store {kind}" if "store" in relative.parts else f"hidden {kind}"


def _differences(got: dict[str, str], expected: dict[str, str]) -> list[str]:
    return sorted(name for name in set(got) | set(expected) if got.get(name) != expected.get(name))[
        :4
    ]


def comparable(out: Path) -> dict[str, str]:
    """Published files that do not depend on times."""
    return {name: digest for name, digest in published(out).items() if not name.endswith(REPORTS)}


def edit_published(
    recipe: octobert.Recipe, reference: Path, out: Path, results: Counter[tuple[str, str, str]]
) -> list[str]:
    """Part 3: edit every published file in place; the store must not change."""
    problems = []
    whole = set(intact(Store(reference / HIDDEN / "store")))
    shutil.rmtree(out, ignore_errors=True)
    runner.run(recipe, out, executor=inline.run)
    for folder, inner, files in os.walk(out, followlinks=True):
        if Path(folder) == out:
            inner.remove(HIDDEN)
        for name in files:
            with (Path(folder) / name).open("r+b") as stream:
                stream.write(b"edited")
            left = set(intact(Store(out / HIDDEN / "store")))
            results[
                "published file",
                "edited in place",
                "store intact" if len(left) == len(whole) else "store damaged",
            ] += 1
            if len(left) != len(whole):
                problems.append(f"an edit of {name} in {folder} damages the store")
    return problems


def main() -> None:
    """Damage, run, count, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--positions", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/soak-bytes"))
    options = parser.parse_args()
    folder, generator = options.out.resolve(), random.Random(options.seed)
    OUTSIDE.parent.mkdir(parents=True, exist_ok=True)
    OUTSIDE.write_text(CONTENT)
    inputs = make_inputs(folder / "inputs")
    recipe = octobert.load_recipe(write_recipe(folder / "recipe.yaml", inputs))
    reference, results = folder / "reference", Counter[tuple[str, str, str]]()
    shutil.rmtree(reference, ignore_errors=True)
    runner.run(recipe, reference, executor=inline.run)
    problems = edit_published(recipe, reference, folder / "damaged", results)
    copy = shutil.copytree(reference, folder / "copy", dirs_exist_ok=True, symlinks=True)
    problems += damage_store(copy, options.positions, generator, results)
    print(
        f"{sum(results.values())} damages of the store alone, {len(problems)} problems", flush=True
    )
    problems += damage_package(copy / "ort-cpu", options.positions, generator, results)
    print(
        f"{sum(results.values())} damages with those of a package, {len(problems)} problems",
        flush=True,
    )
    problems += damage_runs(recipe, reference, folder / "damaged", generator, results)
    print(
        table(
            ["what", "how", "outcome", "times"],
            [[*key, count] for key, count in sorted(results.items())],
        )
    )
    print(f"{sum(results.values())} damages, {len(problems)} problems")
    print("\n".join(problems[:200]))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
