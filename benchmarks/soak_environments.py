"""Commands in unusual environments: each works as it does elsewhere, or ends with one sentence.

    python benchmarks/soak_environments.py [--commands run,predict,…] [--environments …] [--out runs/soak-environments]

"Works" means exit code 0 and, for `predict`, the same answers. "A sentence" means an exit code from 1 to 9 and a last line on
stderr that begins with `octobert: `. A traceback, a signal, a command that hangs, or an exit code 0 without its results is a
problem. Where it runs as root, the right to ignore permissions is taken from the commands (`setpriv`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from soaking import HIDDEN, flows_in, make_inputs, octobert, prepare, private, table, wait_for_end

LIMIT_S = 240
MB = 1 << 20


@dataclass(frozen=True)
class Environment:
    """An unusual environment.

    Args:
        variables: environment variables to set; None removes one.
        limits: of `resource.setrlimit`.
        place: name of the folder that holds model, data and packages.
        locked: folders without write permission, of `package`, `out`, `home` and `tmp`.
        closed: file descriptors that are closed at the start.
        stdout: file that stdout writes to.
        works: whether nothing but success is right.
    """

    variables: tuple[tuple[str, str | None], ...] = ()
    limits: tuple[tuple[int, int], ...] = ()
    place: str = "plain"
    locked: tuple[str, ...] = ()
    closed: tuple[int, ...] = ()
    stdout: str = ""
    no_cwd: bool = False
    works: bool = False


ENVIRONMENTS = {
    "nothing unusual": Environment(works=True),
    "no HOME": Environment((("HOME", None), ("USER", None), ("LOGNAME", None)), works=True),
    "HOME does not exist": Environment((("HOME", "/nonexistent/home"),), works=True),
    "HOME read-only": Environment(locked=("home",), works=True),
    "TMPDIR missing": Environment((("TMPDIR", "/nonexistent/tmp"),)),
    "TMPDIR read-only": Environment(locked=("tmp",)),
    "package read-only": Environment(locked=("package",)),
    "output read-only": Environment(locked=("out",)),
    "LC_ALL=C, no UTF-8 mode": Environment(
        (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")), works=True
    ),
    "LC_ALL=C, unicode path": Environment(
        (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")), place="größe 模型"
    ),
    "path with spaces and unicode": Environment(place="größe  模型 'a\" $HOME [1] *", works=True),
    "path with a line break": Environment(place="two\nlines"),
    "name of 250 characters": Environment(place="x" * 250),
    "64 file descriptors": Environment(limits=((resource.RLIMIT_NOFILE, 64),), works=True),
    "24 file descriptors": Environment(limits=((resource.RLIMIT_NOFILE, 24),)),
    "14 file descriptors": Environment(limits=((resource.RLIMIT_NOFILE, 14),)),
    "400 MB of address space": Environment(limits=((resource.RLIMIT_AS, 400 * MB),)),
    "1,500 MB of address space": Environment(limits=((resource.RLIMIT_AS, 1500 * MB),)),
    "20 processes and threads": Environment(limits=((resource.RLIMIT_NPROC, 20),)),
    "stdin closed": Environment(closed=(0,), works=True),
    "stdout closed": Environment(closed=(1,)),
    "stdin, stdout and stderr closed": Environment(closed=(0, 1, 2)),
    "stdout full": Environment(stdout="/dev/full"),
    "working directory deleted": Environment(no_cwd=True),
    "no PATH": Environment((("PATH", None),), works=True),
    "TERM=dumb, 20 columns": Environment((("TERM", "dumb"), ("COLUMNS", "20")), works=True),
    "empty environment": Environment(tuple((name, None) for name in os.environ), works=True),
}


def commands(folder: Path) -> dict[str, list[str]]:
    """The commands, on what lies in a folder."""
    package, inputs = folder / "package", folder / "inputs"
    recipe = inputs / "recipe.json"
    return {
        "predict": octobert("predict", package, *("the one of a", "it was") * 4, "--json"),
        "predict, throughput": octobert(
            "predict", package, *("the one of a", "it was") * 4, "--json", "--goal", "throughput"
        ),
        "run": octobert("run", recipe, "--out", folder / "out"),
        "evaluate": octobert("evaluate", package, "--data", inputs / "data" / "validation.tsv"),
        "inspect": octobert("inspect", package),
        "benchmark": octobert("benchmark", package, "--repeats", "3"),
        "tune": octobert(
            "tune",
            package,
            "--data",
            inputs / "data" / "train.tsv",
            "--trials",
            "2",
            "--goal",
            "latency",
        ),
        "check": octobert("check", package),
        "clean": octobert("clean", folder / "out"),
        "doctor": octobert("doctor"),
    }


def lay_out(place: Path, source: Path) -> None:
    """Copy inputs, an output directory that is half done, and a package, into the place of an environment."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copytree(source / "inputs", place / "inputs")
    shutil.copytree(source / "run" / "reference" / "ort-cpu", place / "package")
    recipe = json.loads((source / "run.yaml").read_text())
    recipe |= {"model": str(place / "inputs" / "classifier")}
    recipe["data"] |= {"source": str(place / "inputs" / "data")}
    (place / "inputs" / "recipe.json").write_text(json.dumps(recipe))
    for stage in ("capture", "data", "benchmark"):
        for result in (source / "run" / "reference" / HIDDEN / "store").glob(f"{stage}-*"):
            shutil.copytree(result, place / "out" / HIDDEN / "store" / result.name)


def started(environment: Environment, place: Path) -> Callable[[], None]:
    """What the new process does before the command begins."""

    def prepare_process() -> None:
        for which, limit in environment.limits:
            resource.setrlimit(which, (limit, limit))
        if environment.no_cwd:
            gone = place / "gone"
            gone.mkdir()
            os.chdir(gone)
            gone.rmdir()
        for descriptor in environment.closed:
            os.close(descriptor)

    return prepare_process


def outcome(
    name: str, command: list[str], environment: Environment, place: Path, expected: str
) -> tuple[str, str]:
    """Run a command in an environment: (works, sentence or problem; the sentence or what is wrong)."""
    mark = f"{place}-{time.monotonic_ns()}"
    variables: dict[str, str] = private(place.parent / f"private {place.name[:20]}", mark)
    for key, value in environment.variables:
        if value is None:
            variables.pop(key, None)
        else:
            variables[key] = value
    variables |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "OCTOBERT_SOAK": mark}
    locked = [{"home": Path(variables.get("HOME", "")), "tmp": Path(variables.get("TMPDIR", ""))}.get(n, place / n)
              for n in environment.locked]  # fmt: skip
    privileged = os.geteuid() == 0 and shutil.which("setpriv")
    prefix = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if privileged else []
    if privileged:
        prefix[0] = str(shutil.which("setpriv"))
    modes = [
        (p, p.stat().st_mode)
        for folder in locked
        for p in (folder, *folder.rglob("*"))
        if folder.is_dir() and p.is_dir()
    ]
    for path, _ in modes:
        path.chmod(0o555)
    sink = os.open(environment.stdout, os.O_WRONLY) if environment.stdout else subprocess.PIPE
    try:
        done = subprocess.run(
            [*prefix, *command], stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.PIPE, env=variables, cwd=place,
            preexec_fn=started(environment, place), timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "problem", f"no end after {LIMIT_S} s"
    finally:
        for path, mode in modes:
            path.chmod(mode)
        if environment.stdout:
            os.close(sink)
        _, left = wait_for_end(mark)
    return _judged(name, done, environment, expected, len(left))


def _judged(
    name: str,
    done: subprocess.CompletedProcess[bytes],
    environment: Environment,
    expected: str,
    left: int,
) -> tuple[str, str]:
    error = done.stderr.decode(errors="replace")
    lines = error.strip().splitlines()
    heard = not environment.stdout and 1 not in environment.closed
    if left:
        return "problem", f"{left} processes are left"
    if "Traceback" in error or done.returncode < 0:
        return "problem", f"exit code {done.returncode}: {error[-400:]!r}"
    if done.returncode == 0:
        if (
            heard
            and name.startswith("predict")
            and _answers(done.stdout.decode()) != _answers(expected)
        ):
            return "problem", f"other answers: {done.stdout[:200]!r}"
        return "works", ""
    says = any(line.startswith("octobert: ") for line in lines[-3:]) or 2 in environment.closed
    if done.returncode > 9 or not says:
        return "problem", f"exit code {done.returncode}: {error[-400:]!r}"
    if environment.works:
        return "problem", f"it should work: {lines[-1][:300]}"
    return "sentence", lines[-1][:200] if lines else ""


def _answers(text: str) -> list[tuple[str, float]]:
    """Labels and scores, to four digits: batches differ with the cores."""
    try:
        return [(answer["label"], round(answer["score"], 2)) for answer in json.loads(text)]
    except (ValueError, KeyError, TypeError):
        return [(text[:100], 0.0)]


def main() -> None:
    """Run every command in every environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commands", default="")
    parser.add_argument("--environments", default="")
    parser.add_argument("--out", type=Path, default=Path("runs/soak-environments"))
    options = parser.parse_args()
    out = options.out.resolve()
    make_inputs(out / "inputs")
    flow = flows_in(out)["run"]
    text = {"text-classification": {"text": "sentence1", "label": "label"}}
    recipe = json.loads((out / "run.yaml").read_text())
    (out / "run.yaml").write_text(json.dumps(recipe | {"task": text}))
    prepare(flow)
    wanted = [
        n for n in ENVIRONMENTS if not options.environments or n in options.environments.split(";")
    ]
    rows: dict[str, list[str]] = {name: [] for name in wanted}
    notes: list[str] = []
    expected = ""
    names = [
        name
        for name in commands(out)
        if not options.commands or name in options.commands.split(";")
    ]
    for label in wanted:
        environment, place = ENVIRONMENTS[label], out / "places" / ENVIRONMENTS[label].place
        lay_out(place, out)
        for name in names:
            if name.startswith("predict") and not expected:
                plain = subprocess.run(
                    commands(place)[name],
                    capture_output=True,
                    text=True,
                    env=private(out / "plain"),
                )
                expected = plain.stdout
            result, said = outcome(name, commands(place)[name], environment, place, expected)
            rows[label].append(result)
            if said:
                notes.append(f"{result}: {label}: {name}: {said}")
                print(notes[-1], flush=True)
        print(f"{label}: {' '.join(rows[label])}", flush=True)
        shutil.rmtree(place, ignore_errors=True)
    print(table(["environment", *names], [[label, *results] for label, results in rows.items()]))
    problems = sum(result == "problem" for results in rows.values() for result in results)
    print(f"{sum(map(len, rows.values()))} commands, {problems} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
