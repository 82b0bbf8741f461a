"""The shape of the code: imports point one way, plugins import no runtime, and the public names are these."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import octobert
from octobert.core import plugins

ROOT = Path(octobert.__file__).parent
SRC = ROOT.parent
DESIGN = (SRC.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
# The table of rooms. Each may import from itself and from the rooms of rows with a smaller number.
LEVEL = {
    name: int(row) for row, name in re.findall(r"^\| (\d+) \| `(\w+)(?:\.py)?` \|", DESIGN, re.M)
}


def room_of(module: str) -> str:
    """`octobert.graph.qdq` → `graph`; a name of `octobert` itself → `__init__`."""
    room = module.split(".")[1] if module.count(".") else "__init__"
    return room if (ROOT / room).is_dir() or (ROOT / f"{room}.py").is_file() else "__init__"


def module_of(path: Path) -> str:
    """`…/octobert/graph/qdq.py` → `octobert.graph.qdq`, `…/octobert/graph/__init__.py` → `octobert.graph`."""
    module = ".".join(("octobert", *path.relative_to(ROOT).with_suffix("").parts))
    return module.removesuffix(".__init__")


def all_imports_of(path: Path) -> set[str]:
    """Modules and names that a file imports, anywhere in it, `TYPE_CHECKING` included."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


def imports_of(path: Path) -> set[str]:
    """What a file imports of octobert and of its tests."""
    return {name for name in all_imports_of(path) if name.startswith(("octobert.", "tests."))}


FILES = sorted(ROOT.rglob("*.py"))
# The products beside octobert, which use what every other package can use.
PRODUCTS = sorted(path.name for path in SRC.glob("octobert_*") if path.is_dir())
ALL_FILES = sorted([*FILES, *(p for name in PRODUCTS for p in (SRC / name).rglob("*.py"))])
TESTS = sorted(Path(__file__).parent.rglob("test_*.py"))


def test_imports_between_rooms_point_one_way() -> None:
    wrong = []
    for path in FILES:
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        others = {room_of(module) for module in imports_of(path)} - {own}
        wrong += [
            f"{path.relative_to(ROOT)} imports {other}"
            for other in sorted(others)
            if LEVEL[other] >= LEVEL[own]
        ]
    assert wrong == []


def test_octobert_imports_no_product_beside_it() -> None:
    assert PRODUCTS == ["octobert_compare", "octobert_olive"]
    wrong = {
        path.name: module
        for path in FILES
        for module in all_imports_of(path)
        if module.startswith("octobert_")
    }
    assert wrong == {}


def test_products_import_only_what_is_documented_for_packages() -> None:
    page = (SRC.parent / "docs" / "extending.md").read_text(encoding="utf-8")
    table = page.partition("## What packages may import")[2]
    documented = set(re.findall(r"`(octobert\.[\w.]+)`", table)) | {"octobert"}
    for name in PRODUCTS:
        used = set()
        for path in (SRC / name).rglob("*.py"):
            modules = {module for module in all_imports_of(path) if module.startswith("octobert")}
            used |= {module for module in modules if module.split(".")[0] == "octobert"}
            others = {module.split(".")[0] for module in modules} - {"octobert", name}
            assert others == set(), f"{path} imports {others}"
        # A name is that of a module, or of something in one.
        wrong = {m for m in used if not {m, m.rpartition(".")[0]} & documented}
        assert wrong == set(), name
    for module in documented:
        assert importlib.util.find_spec(module) is not None, module


def test_what_searches_and_decides_imports_nothing_of_the_report() -> None:
    deciding = [path for path in FILES if "choosing" in path.parts]
    assert deciding
    for path in deciding:
        assert not any(name.startswith("octobert.report") for name in imports_of(path)), path


def test_the_tree_stays_small() -> None:
    rooms = {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in FILES}
    arrows = {
        (own, room_of(m))
        for p in FILES
        for own in [p.relative_to(ROOT).parts[0].removesuffix(".py")]
        for m in imports_of(p)
    }
    assert rooms <= set(LEVEL)
    assert len(rooms) + len(("benchmarks", "recipes")) <= 21
    assert len([1 for a, b in arrows if a != b]) <= 85


def test_no_two_files_import_each_other() -> None:
    modules = {module_of(path): path for path in FILES}

    def module_with(name: str) -> str:
        """The module that a file imports by this name, or from which it imports it."""
        module = name if name in modules else name.rpartition(".")[0]
        assert module in modules, name
        return module

    imports = {
        module: {module_with(name) for name in imports_of(path)} - {module}
        for module, path in modules.items()
    }
    # A file imports five others or more: with less, the test would not see the imports.
    assert sum(map(len, imports.values())) > 5 * len(FILES)

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            new = imports[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    assert sorted(name for name in imports if name in reached(name)) == []


# Rooms that compute with values: the resolver has looked up what a recipe names.
WITHOUT_NAMES = ("pipeline/stages", "graph", "quantization")
# Functions that take the name of a plugin, or data with it.
LOOKUPS = {"load", "make", "rebuild"}
FAMILIES = {*plugins.PACKAGES.values(), "octobert.core.plugins"}
# What looks a plugin up all the same → why.
LOOKING_UP = {
    "pipeline/stages/capture.py": "a graph of any kind has one task, which makes its feeds",
    "pipeline/stages/package.py": "a package's task is the one that its report makes again",
    "quantization/methods/_common.py": "a target may name its placement, as a recipe may",
}


def test_what_makes_models_looks_no_plugin_up_by_name() -> None:
    """But for the packages of the families themselves, which hold the functions that do."""
    found = set()
    for path in FILES:
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(WITHOUT_NAMES) and module_of(path) not in FAMILIES:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
            origins = origins_in(tree)
            if any(is_lookup(ast.unparse(call), origins) for call in calls):
                found.add(name)
    assert found == set(LOOKING_UP)


def origins_in(tree: ast.Module) -> dict[str, str]:
    """Names that a file imports → what they stand for: `load` → `octobert.targets.load`."""
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def is_lookup(call: str, origins: dict[str, str]) -> bool:
    """Whether what is called, such as `tasks.PLUGINS.make`, looks a plugin up."""
    first, dot, rest = call.partition(".")
    family, _, function = f"{origins.get(first, first)}{dot}{rest}".rpartition(".")
    return function in LOOKUPS and family.removesuffix(".PLUGINS") in FAMILIES


def test_every_room_says_what_it_is_for() -> None:
    for package in sorted({p.parent for p in ALL_FILES if p.name == "__init__.py"}):
        assert ast.get_docstring(ast.parse((package / "__init__.py").read_text())), package


# The names that `import octobert` promises.
PUBLIC = {
    "errors": (
        "AccuracyError BusyError DataError ModelError OctobertError ParityError PlanError RecipeError StorageError TargetError"
    ),
    "functions": (
        "attach auto benchmark calibrate calibration_tables check check_criteria clean doctor dry_run embed evaluate export finetune fuse "
        "import_config inspect list_placements list_targets list_tasks load load_recipe log_run manifest packages page parse_recipe "
        "predict_rows push quantize read_calibration_table recipe_schema run setup stored tune verify"
    ),
    "others": (
        "BrokenPluginWarning DownloadWarning Embedder IgnoredFileWarning OtherMachineWarning ProgressBar ProgressEvent PublishedFileWarning Recipe "
        "StoredVectors"
    ),
}


def test_the_public_names() -> None:
    assert sorted(octobert.__all__) == sorted(" ".join(PUBLIC.values()).split())
    for name in octobert.__all__:
        assert getattr(octobert, name).__doc__, name
    assert all(callable(getattr(octobert, name)) for name in PUBLIC["functions"].split())
    assert all(
        issubclass(getattr(octobert, name), octobert.OctobertError)
        for name in PUBLIC["errors"].split()
    )
    assert dir(octobert) == sorted([*octobert.__all__, "__version__"])
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        octobert.nothing  # noqa: B018


def test_commands_use_the_public_functions() -> None:
    """The command line is a thin layer: it imports the API, and below it only what parses options and prints."""
    rooms = {room_of(module) for path in (ROOT / "cli").glob("*.py") for module in imports_of(path)}
    assert rooms <= {"cli", "api", "__init__", "config", "core", "report"}


def test_importing_octobert_costs_nothing() -> None:
    code = "import sys, octobert; print(sorted(m for m in sys.modules if m.split('.')[0] in ('numpy', 'pydantic', 'typer')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_one_module_starts_processes() -> None:
    """Children import nothing from the working directory only if `core/processes.py` starts them."""
    wanted = (
        "subprocess",
        "multiprocessing",
        "concurrent.futures.Process",
        "torch.multiprocessing",
    )
    starting = {
        p.relative_to(SRC).as_posix()
        for p in ALL_FILES
        if any(m.startswith(wanted) for m in all_imports_of(p))
    }
    assert starting == {"octobert/core/processes.py"}
    calls = ("os.system(", "os.popen(", "os.fork(", "os.spawn", "os.posix_spawn(", "os.exec")
    assert [p for p in ALL_FILES if any(call in p.read_text() for call in calls)] == []


def test_one_module_prints() -> None:
    """Text of other people is shown without its control characters because these alone print: lines, tables and progress."""

    def calls(path: Path) -> set[str]:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        return {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}

    printing = {
        "print",
        "typer.echo",
        "click.echo",
        "Console",
        "rich.print",
        "sys.stdout.write",
        "sys.stderr.write",
    }
    found = {
        p.relative_to(SRC).as_posix(): sorted(printing & calls(p))
        for p in ALL_FILES
        if printing & calls(p)
    }
    # Children write JSON for their parents.
    children = {
        name: ["sys.stdout.write"]
        for name in ("octobert/core/user_code.py", "octobert/engine/executors/child.py")
    }
    assert found == {"octobert/cli/_show.py": ["typer.echo"], **children}


def test_tests_share_code_through_modules_of_their_own() -> None:
    """No test file imports from another one, or from a `conftest.py`."""
    wrong = {
        p.name: m
        for p in TESTS
        for m in imports_of(p)
        if any(k in m for k in (".test_", ".conftest"))
    }
    assert wrong == {}


def test_files_stay_readable() -> None:
    long = {
        str(p.relative_to(SRC)): n
        for p in ALL_FILES
        if (n := len(p.read_text().splitlines())) > 500
    }
    assert long == {}


def test_a_class_name_stands_for_one_thing() -> None:
    """But for `Options`, which every plugin has."""
    places: dict[str, list[str]] = {}
    for path in ALL_FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(SRC).as_posix())
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert set(twice) <= {"Options"}


def test_copies_of_records_are_checked() -> None:
    """`FrozenModel.replaced` checks names and types; pydantic's own copy does not."""
    unchecked = [p for p in ALL_FILES if ".model_copy(" in p.read_text(encoding="utf-8")]
    assert [p.relative_to(SRC).as_posix() for p in unchecked] == ["octobert/core/frozen.py"]


# What opens, lists or copies files; the part behind the last dot of what is called, or all of it.
OPENING = frozenset(
    [
        "open",
        "glob",
        "rglob",
        "iterdir",
        "scandir",
        "os.walk",
        "shutil.copy",
        "copy2",
        "copyfile",
        "copytree",
        "copyfileobj",
        "shutil.move",
        "load_file",
        "safe_open",
        "np.load",
        "numpy.load",
        "onnx.load",
        "ir.load",
        "torch.load",
        "read_text",
        "read_bytes",
        "json.load",
        "yaml.load",
        "safe_load",
        "symlink_to",
        "hardlink_to",
        "os.link",
        "from_file",
        "os.open",
    ]
)
# The door for files of unknown origin: what they are is checked before they are read.
DOOR = frozenset(["files", "origin", "arrays", "archives"])
# Why a path elsewhere is none of a user's folder, or of a package → file: what it calls.
OWN_PATHS: dict[str, dict[str, str]] = {
    "installed with octobert, or beside it": {
        "octobert/__init__.py": "open",
        "octobert/api/clients.py": "read_text safe_load",
        "octobert/data/other_texts.py": "read_text",
        "octobert/core/imports.py": "glob read_bytes",
        "octobert/core/plugins.py": "open read_text",
        "octobert/report/page/__init__.py": "read_text",
        "octobert/report/vendor/__init__.py": "read_text",
        "octobert_compare/app.py": "iterdir read_text",
        "octobert_olive/rules.py": "read_text yaml.load",
    },
    "of the system": {
        "octobert/api/setup.py": "read_text safe_load",
        "octobert/cli/main.py": "open",
        "octobert/core/cgroups.py": "read_text",
        "octobert/core/environment.py": "read_text",
        "octobert/core/telemetry.py": "open",
        "octobert/data/readers.py": "glob",
    },
    "results of steps, and what octobert has just written": {
        "octobert/api/client_answers.py": "from_file",
        "octobert/api/runs.py": "open",
        "octobert/core/lock.py": "open os.open read_text",
        "octobert/graph/operators.py": "ir.load",
        "octobert/inference/corpus.py": "glob",
        "octobert/inspection/profilers/ort.py": "ir.load read_text",
        "octobert/models/locating.py": "symlink_to",
        "octobert/models/sources/url.py": "open read_text",
        "octobert/pipeline/artifacts.py": "ir.load",
        "octobert/engine/contract.py": "read_text",
        "octobert/engine/events.py": "open",
        "octobert/engine/executors/_remote.py": "read_text",
        "octobert/engine/executors/child.py": "read_text",
        "octobert/engine/executors/local.py": "open read_text",
        "octobert/engine/executors/ray.py": "read_bytes",
        "octobert/pipeline/output.py": "read_text",
        "octobert/pipeline/stages/_plans.py": "ir.load",
        "octobert/pipeline/stages/export.py": "glob ir.load",
        "octobert/pipeline/stages/finetune.py": "read_text",
        "octobert/pipeline/stages/observe.py": "ir.load",
        "octobert/pipeline/stages/package.py": "glob",
        "octobert/pipeline/stages/quantize.py": "ir.load",
        "octobert/pipeline/stages/search.py": "ir.load open read_bytes",
        "octobert/pipeline/stages/transform.py": "ir.load",
        "octobert/engine/store.py": "glob",
        "octobert/quantization/observer.py": "ir.load",
        "octobert/targets/openvino_npu.py": "open read_bytes",
        "octobert/targets/ort_cuda.py": "ir.load",
        "octobert/targets/shared/files.py": "glob ir.load",
        "octobert/targets/shared/simulation.py": "ir.load",
        "octobert/training/job.py": "glob",
    },
    "names alone: what has them is checked before it is opened": {
        "octobert/api/packages.py": "glob",
        "octobert/cli/run.py": "glob rglob",
        "octobert/core/session.py": "iterdir",
        "octobert/data/formats.py": "glob iterdir",
        "octobert/data/sources.py": "glob iterdir",
        "octobert/training/attached.py": "iterdir",
    },
    "of a package whose files were checked": {
        "octobert/api/client_files.py": "ir.load",
        "octobert/api/exports.py": "ir.load",
        "octobert/inference/package_files.py": "glob",
    },
    "checked one line before": {
        "octobert/models/weights.py": "torch.load",
    },
    "no files": {
        "octobert/cli/predict.py": "read_text",
        "octobert/cli/report.py": "open",
        "octobert/evaluation/candidates.py": "open",
        "octobert_compare/command.py": "open",
    },
}


def test_files_of_unknown_origin_have_one_door() -> None:
    """Whatever else opens, lists or copies files says here why their path is octobert's own."""
    found: dict[str, set[str]] = {}
    for path in ALL_FILES:
        calls = (n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
        names = {name for call in calls for name in _names_of(ast.unparse(call)) & OPENING}
        if names and not (path.parent.name == "core" and path.stem in DOOR):
            found[path.relative_to(SRC).as_posix()] = names
    expected: dict[str, set[str]] = {}
    for reasons in OWN_PATHS.values():
        for name, calls_of in reasons.items():
            expected.setdefault(name, set()).update(calls_of.split())
    assert found == expected


def _names_of(called: str) -> set[str]:
    """`shutil.copyfile` → itself and `copyfile`."""
    return {called, called.rpartition(".")[2]}
