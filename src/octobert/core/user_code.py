"""Code of the user: a function in a Python file, named as `file.py:function`.

Every key of a recipe that names code goes through here; the recipe refuses such keys without `allow_code`. `at` takes the
digest of the file for the keys of steps. `check` imports the files in a process of its own before anything runs. `load` returns
the function; what it raises becomes one sentence, and its traceback goes to `events.jsonl` with the error.

Importers of other tools' configs may bring modules that scripts for these tools import (`octobert.config.importers`).
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from octobert.core import imports, plugins, processes
from octobert.core.errors import OctobertError, RecipeError, did_you_mean
from octobert.core.files import canonical_digest, file_digest, file_stamp, is_disk_error
from octobert.core.frozen import FrozenModel

Kind = Literal["train", "rows", "preprocess", "postprocess", "metric", "model"]
# What each kind of function takes and returns; its parameters are given by position.
SIGNATURES: dict[Kind, str] = {
    "train": "def train(job): …",
    "rows": "def rows(split): … returning mappings",
    "preprocess": "def preprocess(row): … returning a dict, or None to leave the row out",
    "postprocess": "def postprocess(outputs): … returning one prediction for each row",
    "metric": "def metric(predictions, references): … returning a number, or a dict of numbers",
    "model": "def model(): … returning a PyTorch model or the path of an .onnx file",
}
_LONGEST = 300
# Errors of scripts that people copy, and what has taken the place of what they use.
_RENAMED = {
    "No module named 'neural_compressor": "remove the import: octobert calibrates on rows of the data",
    "No module named 'torchmetrics": "install torchmetrics, or remove the import: octobert has accuracy, f1, auroc and others",
    "keyword argument 'evaluation_strategy'": "write eval_strategy, its name in transformers 5",
    "keyword argument 'tokenizer'": "write processing_class, its name in the Trainer of transformers 5",
    "keyword argument 'no_cuda'": "write use_cpu, its name in transformers 5",
}


class UserCode(FrozenModel):
    """One function of the user.

    Args:
        kind: what it is for.
        path: the Python file.
        function: its name in the file.
        where: the recipe key that names it.
        digest: of the file, of what it imports from its folder, and of the function's name.
        stamp: what the file system said of the file before the digest was taken.
    """

    kind: Kind
    path: Path
    function: str
    where: str
    digest: str
    stamp: str

    @property
    def places(self) -> tuple[Path, ...]:
        """See `UserFiles`."""
        files = imports.with_imports({self.path.name: self.path})
        return tuple(files[name] for name in sorted(files))

    @property
    def text(self) -> str:
        """As a recipe names it."""
        return f"{self.path}:{self.function}"

    def summary(self, of: Callable[[Path], str]) -> str:
        """See `UserFiles`."""
        return canonical_digest([*map(of, self.places), self.function])


def names_code(text: str | None) -> bool:
    """Return whether a value of a recipe names code.

    Example:
        >>> names_code("rows.py:rows"), names_code("metric.py"), names_code("data.csv")
        (True, True, False)
    """
    return text is not None and re.search(r"\.py(:|$)", text) is not None


def at(text: str, kind: Kind, *, where: str) -> UserCode:
    """The function that `file.py:function` names, with the file as it is now. Nothing is imported.

    Args:
        text: from the recipe.
        kind: what the function is for.
        where: the recipe key.

    Raises:
        RecipeError: the text has another form, or the file does not exist.
    """
    file, _, function = text.rpartition(":")
    if not file or not function.isidentifier():
        raise RecipeError(
            "the function is not named",
            where=where,
            got=text,
            expected=f"{Path(text.rstrip(':')).name}:FUNCTION"
            if text.rstrip(":").endswith(".py")
            else "file.py:function",
        )
    path = Path(file)
    if not path.is_file():
        raise RecipeError(
            "the Python file does not exist", where=where, got=text, expected="file.py:function"
        )
    code = UserCode(
        kind=kind, path=path.absolute(), function=function, where=where, digest="", stamp=""
    )
    return code.replaced(stamp=code.summary(file_stamp), digest=code.summary(file_digest))


def load(code: UserCode) -> Callable[..., Any]:
    """Import the file and return the function. What the function raises is raised as a sentence.

    Raises:
        RecipeError: the file cannot be imported, has no such function, or the function takes other arguments.
    """
    module = _module(code)
    function = getattr(module, code.function, None)
    if function is None:
        names = [
            name
            for name, value in vars(module).items()
            if callable(value) and not name.startswith("_")
        ]
        raise RecipeError(
            f'the file has no function "{code.function}"',
            where=code.where,
            got=str(code.path),
            fix=did_you_mean(code.function, names) if names else f"add {SIGNATURES[code.kind]}",
        )
    _check_signature(code, function)
    if code.kind == "train":
        function = training_loop(function)

    def call(*arguments: Any) -> Any:
        with sentences(code):
            return function(*arguments)

    return call


@contextmanager
def sentences(code: UserCode) -> Iterator[None]:
    """Turn an error of a function into a sentence; for generators, whose code runs after the call."""
    try:
        yield
    # `sys.exit` in a function would end the stage without a reason.
    except (Exception, SystemExit) as error:
        if isinstance(error, OctobertError) or is_disk_error(error):
            raise
        raise _failure(f"the function {code.function} failed", code, error) from error


def _module(code: UserCode) -> ModuleType:
    """The imported file. It is imported once for each content, also where several keys name it."""
    # Classes in the file can be pickled only under a name that is importable.
    name = f"octobert_user_{canonical_digest([str(code.path), file_digest(code.path)])[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, code.path)
    if spec is None or spec.loader is None:
        raise RecipeError(
            "the file is not a Python file",
            where=code.where,
            got=str(code.path),
            expected="file.py:function",
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with ExitStack() as stack:
            for _, importer in plugins.values_of("importers").each():
                stack.enter_context(importer.modules())
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failure("the file cannot be imported", code, error) from error
    return module


def _failure(what: str, code: UserCode, error: BaseException) -> RecipeError:
    """The error of a file or a function of the user, with the last line of the file that was reached."""
    if isinstance(error, SyntaxError) and error.filename == str(code.path):
        line = error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(code.path)]
        line = lines[-1] if lines else None
    where = f"{code.where}: {code.path}" + (f", line {line}" if line else "")
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())
    fix = next((new for old, new in _RENAMED.items() if old in message), None)
    if fix is None and isinstance(error, ModuleNotFoundError):
        if (code.path.parent / f"{error.name}.py").is_file():
            fix = "put it into the same file: octobert imports one file, and its key depends on that file alone"
        else:
            fix = f"install {error.name} in the environment of octobert"
    got = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return RecipeError(what, where=where, got=got[:_LONGEST], fix=fix)


def _check_signature(code: UserCode, function: Any) -> None:
    """Refuse what cannot be called with the arguments of its kind.

    Raises:
        RecipeError: with the signature that it needs.
    """
    expected = SIGNATURES[code.kind]
    if not callable(function):
        raise RecipeError(
            "the name is not that of a function",
            where=code.where,
            got=f"{code.function} is a {type(function).__name__}",
            expected=expected,
        )
    if inspect.iscoroutinefunction(function):
        raise RecipeError(
            "the function is asynchronous",
            where=_place(code, function),
            got=f"async def {code.function}",
            expected=expected,
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Functions of compiled modules may have none.
        return
    parameters = expected.partition("(")[2].partition(")")[0]
    try:
        signature.bind(*filter(None, parameters.split(",")))
    except TypeError:
        raise RecipeError(
            "the function takes other arguments",
            where=_place(code, function),
            got=f"{code.function}{signature}",
            expected=expected,
        ) from None


def _place(code: UserCode, function: Any) -> str:
    """The recipe key, the file and the line of a function."""
    lines = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.where}: {code.path}" + (f", line {lines.co_firstlineno}" if lines else "")


def check(codes: Sequence[UserCode]) -> None:
    """Import files of the user in a process of its own, and check their functions. No function is called.

    Raises:
        RecipeError: the first that `load` would raise.
    """
    if codes:
        ask(__name__, [code.model_dump(mode="json") for code in codes], where=codes[0].where)


def main() -> int:
    """The process of `check`."""

    def check_each(codes: Any) -> None:
        for code in codes:
            load(UserCode.model_validate(code))

    return answer(check_each)


_ANSWER = "octobert-user-code "


def ask(module: str, request: Any, *, where: str) -> Any:
    """Run `main()` of a module, which calls `answer`, in a process of its own: code of the user runs there.

    Args:
        request: plain data.
        where: the recipe key that names the code.

    Returns:
        What the function of `answer` returned.

    Raises:
        OctobertError: what it raised; or the process ended without an answer.
    """
    with (
        tempfile.TemporaryFile() as log,
        processes.start(module, json.dumps(request), stderr=log) as child,
    ):
        # The code may print anything; the answer is on a line of its own.
        output, _ = child.communicate()
        log.seek(0)
        log_lines = log.read().decode(errors="replace").strip().splitlines()
    answers = [line for line in output.splitlines() if line.startswith(_ANSWER.encode())]
    if not answers:
        raise RecipeError(
            "the code ended the process",
            where=where,
            got=f"exit code {child.returncode}; {log_lines[-1] if log_lines else 'no message'}",
            fix="run it in Python",
        )
    reply = json.loads(answers[-1].removeprefix(_ANSWER.encode()))
    if "error" in reply:
        raise OctobertError.from_json(reply["error"], reply["traceback"])
    return reply["answer"]


def answer(make: Callable[[Any], Any]) -> int:
    """In a process of `ask`: call a function with the request, and tell what it returns or raises."""
    try:
        reply = {"answer": make(json.loads(sys.argv[1]))}
    except OctobertError as error:
        reply = {"error": error.to_json(), "traceback": traceback.format_exc()}
    sys.stdout.write(f"\n{_ANSWER}{json.dumps(reply)}\n")
    sys.stdout.flush()
    return 0


def training_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a job unchanged; one that takes a model and returns it trained, as a function of a job.

    A function of a job calls its parameter `job`. Any other name stands for the model.
    """
    first = next(iter(inspect.signature(function).parameters), "job")
    if first == "job":
        return function

    @functools.wraps(function)
    def train(job: Any) -> None:
        trained = function(job.model)
        if trained is not None and trained is not job.model:
            job.model.load_state_dict(trained.state_dict())

    return train
