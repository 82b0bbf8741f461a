"""SIGKILL at random moments of commands; the same command, run again to its end, must leave what an undisturbed run leaves.

    python benchmarks/soak_kills.py [--kills 1000] [--flows run,search,…] [--seed 0] [--out runs/soak-kills]

Flows: `run`, `publish` (a run replaces the packages of another recipe), `search`, `auto` (a model is chosen), `qat`,
`finetune`, `embed` (a run), `predict` (embeddings) and `tune`, all on tiny models. A burst kills one command again and again in
one output directory: once in every step, at a random moment of it, or at a random change of a file by the command itself (an
audit hook of Python counts them). Then the command runs to its end. Three kinds of kills take turns: of the command's process,
of its whole process group, and of one of its descendants.

After every kill: no process of the command is left, its lock is free, and every package and report is whole, as it was before
or as it is after. After a burst: exit code 0, the same published files as the undisturbed run, byte for byte, no other name
than there in the output directory, in the home folder and in the folder for temporary files.

Times are no part of the comparison: `report.json` and `report.html` have to be readable, and `tuned.json`. Which plan a search
takes depends on measured times. So of its packages the float model, tokenizer and config are compared, the digests in
`octobert.json` with the files, and the stored trials: those of the killed runs must be among those of the last one. `auto`
optimizes the size, which does not depend on times: it must choose the same model. None of its descendants is killed by itself,
because a search leaves out a variant whose stage dies twice, or a process that times it, says so, and chooses among the others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout
from soaking import (
    HIDDEN,
    LIMIT_S,
    REPORTS,
    Flow,
    events,
    flows_in,
    half_published,
    litter,
    prepare,
    private,
    published,
    run,
    survivors,
    table,
    wait_for_end,
)

from octobert.core.files import file_digest, unsealed
from octobert.report.page import is_page

KINDS = ("process", "group", "descendant")
# Every so many bursts begin with nothing. The others begin with the results of the undisturbed run that other flows make as
# well, or, in `run` and `embed`, with those that take long.
FROM_NOTHING, LONG_STEP_S = 4, 4.0
# Kills in each step that only this flow has, in one burst.
OWN_TIMES = 4
# A command that kills itself, or its process group, at the given change of a file.
AT_CHANGE = """
import os, signal, sys
at, group, out = int(sys.argv[1]), sys.argv[2] == "group", sys.argv[3]
sys.argv = ["octobert", *sys.argv[4:]]
changes, writing = 0, os.O_WRONLY | os.O_RDWR | os.O_CREAT
names = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "shutil.copyfile")
def hook(event, args):
    global changes
    if event == "open":
        if not (isinstance(args[0], str) and args[0].startswith(out) and isinstance(args[2], int) and args[2] & writing):
            return
    elif event not in names:
        return
    changes += 1
    if changes == at:
        os.killpg(0, signal.SIGKILL) if group else os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from octobert.cli.main import main
try:
    main()
finally:
    print(changes, file=sys.stderr)
"""


@dataclass
class Results:
    """What happened.

    Args:
        kills: (flow, kind) → number.
        steps: (flow, what the command was at) → number.
        ends: bursts that were run to their end, by flow.
        problems: sentences.
        longest: seconds until the last process of a killed command was gone.
    """

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    longest: float = 0.0

    def problem(self, flow: Flow, what: str) -> None:
        """Note and print a problem."""
        self.problems.append(f"{flow.name}: {what}")
        print(f"PROBLEM {self.problems[-1]}", flush=True)


def kill_at_step(
    flow: Flow, step: str, kind: str, generator: random.Random, results: Results
) -> None:
    """Start the command and kill it at a random moment of a step, or `before` the first or `after` the last one."""
    mark = f"{flow.folder}-{time.monotonic_ns()}"
    begun = len(events(flow.out))
    before = published(flow.out)
    with (flow.folder / "stderr").open("wb") as stderr:
        command = subprocess.Popen(
            flow.command(flow.out),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=private(flow.folder, mark),
            cwd=flow.folder,
            start_new_session=True,
        )
        _wait_for(flow, step, begun, command, generator)
        if command.poll() is not None:
            command.wait()
            return
        hit = _kill(command, kind, mark, generator)
        try:
            code = command.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            results.problem(flow, f"it hangs after a kill of a descendant ({step})")
            os.killpg(command.pid, signal.SIGKILL)
            code = command.wait()
    results.kills[flow.name, hit] += 1
    results.steps[flow.name, _at(flow, begun)] += 1
    if hit == "descendant":
        text = (flow.folder / "stderr").read_text(errors="replace")
        if "Traceback" in text or (code and "octobert: " not in text):
            results.problem(
                flow,
                f"a killed descendant at {_at(flow, begun)} gives no sentence: {text[-300:]!r}",
            )
    _check_after_kill(flow, mark, before, results)


def _wait_for(
    flow: Flow, step: str, begun: int, command: subprocess.Popen[bytes], generator: random.Random
) -> None:
    """Wait for a random moment of a step, until the command ends at the latest."""
    if not flow.steps or step == "before":
        within = flow.seconds if not flow.steps else 1.5
    else:
        # The time of a step, the start of its process included.
        within = 0.6 if step == "after" else flow.steps[step] + 1.5
        last = list(flow.steps)[-1]
        wanted = (
            {"started": step, "reused": step}
            if step != "after"
            else {"finished": last, "reused": last}
        )
        deadline = time.monotonic() + LIMIT_S
        while command.poll() is None and time.monotonic() < deadline:
            if any(
                wanted.get(event["event"]) == event.get("step")
                for event in events(flow.out)[begun:]
                if "step" in event
            ):
                break
            time.sleep(0.01)
    moment = time.monotonic() + generator.uniform(0, within)
    while command.poll() is None and time.monotonic() < moment:
        time.sleep(0.002)


def _kill(command: subprocess.Popen[bytes], kind: str, mark: str, generator: random.Random) -> str:
    """Kill; the kind that it was, as a command without descendants can only be killed itself."""
    if kind == "descendant":
        descendants = [process for process in survivors(mark) if process.pid != command.pid]
        if descendants:
            try:
                generator.choice(descendants).kill()
                return kind
            except psutil.NoSuchProcess:
                pass
    if kind == "group":
        os.killpg(command.pid, signal.SIGKILL)
        return kind
    command.kill()
    return "process"


def _at(flow: Flow, begun: int) -> str:
    """What a killed command was at, by the last event that it wrote."""
    found = events(flow.out)[begun:]
    if not flow.steps:
        return "working"
    if not found or found[-1]["event"] == "run":
        return "start"
    last = found[-1]
    if last["event"] == "failure":
        last = next((event for event in reversed(found) if "step" in event), last)
    if last["event"] in ("finished", "reused"):
        return "publish" if last["step"] == list(flow.steps)[-1] else "between steps"
    return str(last.get("step", "end"))


def _check_after_kill(flow: Flow, mark: str, before: dict[str, str], results: Results) -> None:
    """Processes, the lock, and what is published."""
    seconds, left = wait_for_end(mark)
    results.longest = max(results.longest, seconds)
    if left:
        results.problem(flow, f"{len(left)} processes are left, after {seconds:.0f} s")
    lock = flow.out / HIDDEN / "lock"
    if lock.is_file():
        try:
            FileLock(lock).acquire(blocking=False).lock.release()
        except Timeout:
            results.problem(flow, "the lock is held")
    for name, what in half_published(flow, before):
        results.problem(
            flow, f"after a kill, {name} is neither what it was nor what it will be: {what}"
        )
    for name in REPORTS:
        path = flow.out / name
        if path.is_file() and not _is_whole(path):
            results.problem(flow, f"{name} is cut short")


def _is_whole(path: Path) -> bool:
    content = path.read_bytes()
    return is_page(content) if path.suffix == ".html" else content.rstrip().endswith(b"}")


def kill_at_change(flow: Flow, kind: str, generator: random.Random, results: Results) -> None:
    """Start the command in a process that kills itself at a random change of a file."""
    mark, at, begun = (
        f"{flow.folder}-{time.monotonic_ns()}",
        generator.randint(1, flow.changes),
        len(events(flow.out)),
    )
    before = published(flow.out)
    command = [
        sys.executable,
        "-c",
        AT_CHANGE,
        str(at),
        kind,
        str(flow.out),
        *flow.command(flow.out)[3:],
    ]
    environment = private(flow.folder, mark)
    done = subprocess.run(
        command, capture_output=True, env=environment, cwd=flow.folder, start_new_session=True
    )
    if done.returncode != -signal.SIGKILL:
        # It made fewer changes than that.
        last = done.stderr.decode(errors="replace").split()[-1:]
        flow.changes = (
            int(last[0]) if last and last[0].isdigit() and int(last[0]) else max(1, at // 2)
        )
        return
    results.kills[flow.name, f"{kind}, at a change"] += 1
    results.steps[flow.name, _at(flow, begun)] += 1
    _check_after_kill(flow, mark, before, results)


def check_end(flow: Flow, trials: set[str], results: Results) -> None:
    """Run the command to its end and compare with the undisturbed run."""
    try:
        done = run(flow, flow.out)
    except subprocess.TimeoutExpired:
        results.problem(flow, f"the rerun takes longer than {LIMIT_S} s")
        return
    results.ends[flow.name] += 1
    count = len(results.problems)
    if done.returncode:
        results.problem(
            flow, f"the rerun ends with exit code {done.returncode}: {done.stderr[-500:]!r}"
        )
    got = flow.comparable(flow.out)
    for name in sorted(
        set(got) ^ set(flow.expected)
        | {n for n in set(got) & set(flow.expected) if got[n] != flow.expected[n]}
    ):
        results.problem(
            flow, f"after the rerun {name} is {'different' if name in got else 'missing'}"
        )
    for place, reference in flow.names.items():
        found = litter({"out": flow.out, **flow.places()}[place], reference)
        if found:
            results.problem(flow, f"litter: {', '.join(found[:5])}")
    if flow.answer and done.stdout != flow.answer:
        results.problem(flow, "the rerun answers differently")
    checks = {"search": _check_search, "auto": _check_choice}
    if flow.name in checks:
        for what in checks[flow.name](flow, trials):
            results.problem(flow, what)
    if len(results.problems) > count:
        shutil.copytree(
            flow.out,
            flow.folder / f"failure-{results.ends[flow.name]}",
            symlinks=True,
            dirs_exist_ok=True,
        )


def _check_search(flow: Flow, trials: set[str]) -> Iterator[str]:
    """The package of a search fits its own manifest, and the trials of killed runs were kept."""
    manifest = yield from _check_package(flow.out / "ort-cpu")
    kept = {json.dumps(trial["fallback"]) for trial in manifest["search"]["trials"]}
    if not trials <= kept:
        yield f"{len(trials - kept)} trials of killed runs were lost"


def _check_choice(flow: Flow, _: set[str]) -> Iterator[str]:
    """The package fits its manifest, and the choice is that of the undisturbed run."""
    yield from _check_package(flow.out / "best")
    chosen, expected = (
        json.loads((out / "report.json").read_text())["choice"]
        for out in (flow.out, flow.reference)
    )
    for key in ("winner", "met"):
        if chosen[key] != expected[key]:
            yield f"{key} is {chosen[key]} instead of {expected[key]}"


def _check_package(package: Path) -> Generator[str, None, dict[str, Any]]:
    """The files of a package are those of its manifest, which is returned."""
    manifest: dict[str, Any] = json.loads((package / "octobert.json").read_text(encoding="utf-8"))
    for name, digest in manifest["files"].items():
        if file_digest(package / name) != digest:
            yield f"{name} is not what octobert.json says"
    return manifest


def stored_trials(flow: Flow) -> set[str]:
    """The trials that a killed search has stored."""
    found = set()
    for path in flow.out.glob(f"{HIDDEN}/store/scratch-search-*/trials.jsonl"):
        for line in path.read_bytes().splitlines():
            # The last line may be one that was killed on its way.
            if (content := unsealed(line)) is not None:
                found.add(json.dumps(json.loads(content)["fallback"]))
    return found


def warm(flow: Flow, steps: set[str]) -> None:
    """Copy the results of steps from the undisturbed run."""
    for step in steps:
        for result in flow.reference.glob(f"{HIDDEN}/store/{step.partition('/')[0]}-*"):
            shutil.copytree(result, flow.out / HIDDEN / "store" / result.name, dirs_exist_ok=True)


def burst(flow: Flow, number: int, left: int, generator: random.Random, results: Results) -> None:
    """Kill a command at most `left` times in one output directory, then run it to its end."""
    flow.begin(flow.out)
    # About as many as a run makes that begins with nothing; `kill_at_change` finds fewer.
    flow.changes = 12 * len(flow.steps) + 40 if flow.steps else 6
    trials: set[str] = set()
    until = sum(results.kills.values()) + left
    # A search goes on without a variant of which a process that times it was killed.
    able = [kind for kind in KINDS if not (flow.name == "auto" and kind == "descendant")]
    kinds = [able[(number + index) % len(able)] for index in range(20)]
    if number % FROM_NOTHING:
        long = {step for step, seconds in flow.steps.items() if seconds > LONG_STEP_S}
        warm(
            flow,
            set(flow.steps)
            if flow.name == "publish"
            else (set(flow.steps) if flow.own else long) - set(flow.own),
        )
    if (number % 3 == 1 and flow.name != "predict") or flow.name == "publish":
        for kind in kinds[: 12 if flow.steps else 4]:
            if sum(results.kills.values()) < until:
                kill_at_change(flow, "group" if kind == "group" else "process", generator, results)
    else:
        moments = [
            "before",
            *(flow.own * OWN_TIMES if number % FROM_NOTHING and flow.own else flow.steps),
            "after",
        ]
        for step, kind in zip(moments if flow.steps else ["working"] * 12, kinds, strict=False):
            if sum(results.kills.values()) < until:
                kill_at_step(flow, step, kind, generator, results)
                trials |= stored_trials(flow)
    check_end(flow, trials, results)


def main() -> None:
    """Kill, count, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument(
        "--flows", default="run,publish,search,auto,qat,finetune,embed,predict,tune"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=1e9, help="no new burst after so many minutes"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/soak-kills"))
    options = parser.parse_args()
    found, results, generator = (
        flows_in(options.out.resolve()),
        Results(),
        random.Random(options.seed),
    )
    wanted, started = options.flows.split(","), time.monotonic()
    needed = {"publish": "before", "tune": "run", "predict": "embed"}
    for name in dict.fromkeys([*(needed[w] for w in wanted if w in needed), *wanted]):
        prepare(found[name])
        print(f"{name}: {found[name].seconds:.0f} s undisturbed", flush=True)
    for number in range(10**6):
        for name in wanted:
            left = options.kills - sum(results.kills.values())
            if left <= 0 or time.monotonic() - started > 60 * options.minutes:
                break
            burst(found[name], number, left, generator, results)
            spent = time.monotonic() - started
            total = sum(results.kills.values())
            print(
                f"{spent:6.0f} s: {total} kills, {len(results.problems)} problems; {name}, burst {number}",
                flush=True,
            )
        else:
            continue
        break
    show(results, time.monotonic() - started)
    sys.exit(1 if results.problems else 0)


def show(results: Results, seconds: float) -> None:
    """Print the tables."""
    kinds = sorted({kind for _, kind in results.kills})
    names = list(dict.fromkeys(name for name, _ in results.kills))
    rows = [
        [n, *(results.kills[n, k] for k in kinds), results.ends[n], _problems(results, n)]
        for n in names
    ]
    print(table(["flow", *kinds, "reruns to the end", "problems"], rows))
    print(table(["flow", "killed at"], [[n, _places(results, n)] for n in names]))
    total, longest = sum(results.kills.values()), results.longest
    print(
        f"{total} kills in {seconds:.0f} s, {len(results.problems)} problems; last process gone after at most {longest:.1f} s"
    )
    for problem, count in Counter(results.problems).most_common():
        print(f"{count} × {problem}")


def _problems(results: Results, name: str) -> int:
    return sum(problem.startswith(f"{name}: ") for problem in results.problems)


def _places(results: Results, name: str) -> str:
    return ", ".join(
        f"{place} {count}" for (flow, place), count in results.steps.items() if flow == name
    )


if __name__ == "__main__":
    main()
