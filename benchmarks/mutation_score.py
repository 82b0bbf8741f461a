"""How many mutants of five modules their tests notice, on a random sample of the mutants that cosmic-ray makes.

    python benchmarks/mutation_score.py              # this checkout
    python benchmarks/mutation_score.py FOLDER       # another one, with the same operators and files of tests

A mutant is killed where a test fails, or all take more than `SECONDS` of the CPU. It is tested in a copy of the checkout, by a
fork of a process that has imported the libraries. Needs `pip install cosmic-ray`. `mutations.py` is about damaged files.
"""

from __future__ import annotations

import importlib.util
import os
import random
import resource
import shutil
import sys
import tempfile
from collections import defaultdict
from difflib import unified_diff
from multiprocessing import get_context
from pathlib import Path

import parso  # noqa: F401  # before cosmic_ray, which imports it in a circle
import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

QDQ = "graph/test_qdq.py quantization/test_precisions.py"
# Module → files of tests that cover it, beside its doctests, and which of their tests count.
MODULES = {
    "core/plan.py": f"core/test_plan.py properties/test_number_properties.py {QDQ}",
    "graph/qdq.py": f"{QDQ} graph/test_weights.py quantization/test_weight_types.py",
    "engine/keys.py": "pipeline/test_keys.py pipeline/test_keys_of_code.py test_plugin_values.py",
    "engine/store.py": "pipeline/test_store.py pipeline/test_work.py pipeline/test_cache.py",
    # Others test tasks; simulations of many samples take half a minute.
    "evaluation/statistics.py": "tasks/test_tasks.py tasks/test_measured.py evaluation/test_throughput.py -k "
    "(statistics or interval or mistake or mcnemar or p_value or unseen or resamples or ratios"
    " or equal_models or undefined)"
    " and not bootstrap_interval and not loss_is_called",
}
SAMPLE, SECONDS = 50, 60
# `X | None` in annotations computes nothing.
LEFT_OUT = ("BitOr", "RemoveDecorator")
LIBRARIES = "torch transformers onnx onnxscript sklearn.metrics scipy.special typer markdown_it"


def places_in(code: str) -> list[list[tuple[str, int]]]:
    """For every place that can be mutated, the (operator, occurrence) of its mutants."""
    nodes = list(ast_nodes(get_ast(code)))
    places = defaultdict(list)
    for name in sorted(plugins.operator_names()):
        kind = plugins.get_operator(name)
        if not kind.arguments() and not any(word in name for word in LEFT_OUT):
            for number in range(sum(len([*kind().mutation_positions(node)]) for node in nodes)):
                # `ReplaceBinaryOperator_Add_Sub` and `…_Add_Mul` replace the same sums.
                places[name.rpartition("_")[0] or name, number].append((name, number))
    return list(places.values())


def run_tests(root: Path, arguments: list[str], seconds: int) -> None:
    """Run pytest and end this process with its exit code."""
    os.chdir(root)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    sys.path[:0] = [str(root / "src"), str(root)]
    sys.exit(int(pytest.main(arguments)))


def passes(root: Path, arguments: list[str], seconds: int) -> bool:
    child = get_context("fork").Process(target=run_tests, args=(root, arguments, seconds))
    child.start()
    # A mutant may also wait forever.
    child.join(10 * seconds)
    child.kill()
    child.join()
    return child.exitcode == 0


def measure(root: Path, module: str) -> None:
    """Test mutants of a module, and print those that survive."""
    path, (files, _, words) = root / "src/octobert" / module, MODULES[module].partition(" -k ")
    # As workers of pytest-xdist share what lies beside the folders of their sessions, tiny models are made once.
    arguments = f"-x -q -p no:cacheprovider --basetemp {root.parent}/shared/session".split()
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "-k", words]
    arguments += ["--doctest-modules", str(path)]
    arguments += [f"tests/{name}" for name in files.split() if (root / "tests" / name).is_file()]
    assert passes(root, arguments, 10 * SECONDS), f"tests of {module} fail without a mutation"
    code, chance = path.read_text("utf-8"), random.Random(0)
    places = places_in(code)
    chance.shuffle(places)
    # A larger sample begins with a smaller one.
    sample, killed = [chance.choice(place) for place in places][:SAMPLE], 0
    for name, number in sample:
        mutant = mutate_code(code, plugins.get_operator(name)(), number)
        path.write_text(mutant, "utf-8")
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        if passes(root, arguments, SECONDS):
            print(module, name, *[*unified_diff(code.split("\n"), mutant.split("\n"), n=0)][2:])
        else:
            killed += 1
    path.write_text(code, "utf-8")
    print(f"{module}: {killed} of {len(sample)} killed; {len(places)} places", flush=True)


def main(checkout: Path) -> None:
    for library in LIBRARIES.split():
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as folder:
        root, leave = Path(folder) / "checkout", shutil.ignore_patterns(".*", "runs")
        shutil.copytree(checkout, root, symlinks=True, ignore=leave)
        (Path(folder) / "shared").mkdir()
        os.environ.update(OMP_NUM_THREADS="1", PYTHONPATH=f"{root}/src", PYTEST_XDIST_WORKER="one")
        for module in MODULES:
            measure(root, module)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parents[1])
