"""An environment for each group of clients, made by the install lines that octobert prints. They are kept in `runs/clients`."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octobert.api.clients import CLIENTS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "clients"
# Printed before the JSON document that a script ends with.
MARK = "RESULT "
_COLLECTING = """
import json
def plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "relevance_score"):
        return [value.index, value.relevance_score]
    if isinstance(value, dict):
        return {{key: plain(each) for key, each in value.items()}}
    return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value
collected.append({{name: plain(globals()[name]) for name in {names!r}}})
"""
_PRINTING = f"""
print("{MARK}" + json.dumps(collected))
"""


@dataclass(frozen=True)
class Environment:
    """One environment.

    Args:
        name: of its folder.
        clients: names in `octobert.api.clients.CLIENTS`; their install lines run one after another.
        shown: distributions whose versions the table names.
        torch: whether torch is installed first, as for CPUs; the lines must leave it as it is.
        openvino: whether the clients open an IR.
        node: whether it is one of Node.
        server: the command that serves an exported folder, `{folder}`, at port 8000; its program is no Python package.
        ready: what the server answers with 200 when its model can be asked.
        more: commands that install what is used beside the clients.
    """

    name: str
    clients: tuple[str, ...]
    shown: tuple[str, ...]
    torch: bool = True
    openvino: bool = False
    node: bool = False
    server: str = ""
    ready: str = "v2/models/encoder/ready"
    more: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Where it is."""
        return FOLDER / self.name

    @property
    def lines(self) -> tuple[str, ...]:
        """What is run to install it."""
        place = -1 if self.openvino else 0
        return (*(CLIENTS[client].install[place] for client in self.clients), *self.more)

    def make(self) -> None:
        """Install it, unless it was installed before."""
        marker = self.folder / "installed"
        if marker.is_file() and marker.read_text(encoding="utf-8") == "\n".join(self.lines):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.node:
            # Without scripts: one of them would download libraries for GPUs.
            (line,) = self.lines
            command = f"{line} --silent --ignore-scripts --prefix {shlex.quote(str(self.folder))}"
            subprocess.run(command, shell=True, check=True)
        else:
            venv.create(self.folder, with_pip=True)
            if self.torch:
                install = [
                    str(self._python),
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "-c",
                    str(ROOT / "constraints.txt"),
                    "torch",
                ]
                subprocess.run(install, check=True)
            before = self._torch()
            settings = {
                **os.environ,
                "PATH": f"{self._python.parent}{os.pathsep}{os.environ['PATH']}",
            }
            for line in self.lines:
                subprocess.run(
                    line.replace("pip install", "pip install --quiet"),
                    shell=True,
                    check=True,
                    env=settings,
                )
            assert self._torch() == before
        marker.write_text("\n".join(self.lines), encoding="utf-8")

    @property
    def missing(self) -> str:
        """The program of the server, where it is not installed."""
        program = self.server.partition(" ")[0]
        return "" if not program or shutil.which(program) else program

    @contextmanager
    def serving(self, folder: Path) -> Iterator[None]:
        """Serve an exported folder until the block ends."""
        if not self.server:
            yield
            return
        command = [part.format(folder=folder) for part in shlex.split(self.server)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as child:
            try:
                for _ in range(120):
                    if child.poll() is not None or _is_ready(self.ready):
                        break
                    time.sleep(0.5)
                assert child.poll() is None, child.stderr.read().decode()[-4000:]
                yield
            finally:
                child.kill()

    def run(
        self, scripts: Sequence[str], names: Sequence[str], folder: Path
    ) -> list[dict[str, Any]]:
        """Run scripts in the environment, in an empty folder.

        Args:
            scripts: snippets.
            names: variables that hold the answers of each.
            folder: to run in.

        Returns:
            The values of these variables, as JSON has them, for each script.
        """
        folder.mkdir(parents=True)
        if self.node:
            shown = f'console.log("{MARK}" + JSON.stringify([{{ {", ".join(names)} }}]));\n'
            return [self._ran(script + shown, folder)[0] for script in scripts]
        collecting = _COLLECTING.format(names=tuple(names))
        # fastembed knows a name once only.
        numbered = [
            script.replace('"quantized"', f'"quantized-{number}"')
            for number, script in enumerate(scripts)
        ]
        return self._ran(
            "collected = []\n" + "".join(script + collecting for script in numbered) + _PRINTING,
            folder,
        )

    def _ran(self, script: str, folder: Path) -> list[dict[str, Any]]:
        """What a script prints at its end. Modules of Node are found from the folder of the script."""
        path = self.folder / "script.mjs" if self.node else folder / "script.py"
        path.write_text(script, encoding="utf-8")
        program = "node" if self.node else str(self._python)
        settings = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": "2"}
        done = subprocess.run(
            [program, str(path)],
            cwd=folder,
            capture_output=True,
            text=True,
            env=settings,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        (answer,) = [
            line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)
        ]
        return json.loads(answer)

    def versions(self) -> str:
        """The versions of the shown packages."""
        if self.node:
            found = [
                json.loads((self.folder / "node_modules" / n / "package.json").read_text())[
                    "version"
                ]
                for n in self.shown
            ]
        else:
            command = [
                str(self._python),
                "-c",
                f"from importlib.metadata import version as v; print(*map(v, {self.shown!r}))",
            ]
            found = subprocess.run(
                command, capture_output=True, text=True, check=True
            ).stdout.split()
        return ", ".join(
            f"{name} {version}" for name, version in zip(self.shown, found, strict=True)
        )

    @property
    def _python(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    def _torch(self) -> list[str]:
        """The versions of torch and torchvision, where they are installed."""
        code = "import importlib.metadata as m; print([d.version for d in m.distributions() if d.name in ('torch', 'torchvision')])"
        return subprocess.run(
            [str(self._python), "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()


def _is_ready(path: str) -> bool:
    """Whether the server answers that its model can be asked."""
    try:
        with urllib.request.urlopen(f"http://localhost:8000/{path}") as answer:
            return answer.status == 200
    except (urllib.error.URLError, ConnectionError):
        return False


_TRITON = (
    "tritonserver --model-repository {folder} --http-address 127.0.0.1 --allow-grpc false "
    "--allow-metrics false"
)
_TEI = "text-embeddings-router --model-id {folder} --hostname 127.0.0.1 --port 8000"
_OVMS = "ovms --model_name encoder --model_path {folder}/encoder --rest_port 8000 --rest_bind_address 127.0.0.1"

# Scores a model of sentence-transformers.
MTEB = Environment(
    "mteb", ("sentence-transformers",), ("mteb",), more=("pip install 'mteb>=2.26'",)
)

# optimum-onnx 0.1 and sentence-transformers 6 need releases of transformers that exclude each other.
ENVIRONMENTS = (
    Environment(
        "onnx",
        ("optimum", "sentence-transformers", "langchain", "llama-index", "haystack"),
        (
            "optimum-onnx",
            "sentence-transformers",
            "langchain-huggingface",
            "llama-index-embeddings-huggingface",
            "sentence-transformers-haystack",
            "transformers",
            "onnxruntime",
        ),
    ),
    Environment(
        "openvino",
        ("optimum", "sentence-transformers", "langchain", "llama-index", "haystack"),
        (
            "optimum-intel",
            "sentence-transformers",
            "langchain-huggingface",
            "llama-index-embeddings-huggingface",
            "sentence-transformers-haystack",
            "transformers",
            "openvino",
        ),
        openvino=True,
    ),
    Environment("fastembed", ("fastembed",), ("fastembed", "onnxruntime"), torch=False),
    Environment("txtai", ("txtai",), ("txtai", "transformers", "onnxruntime")),
    Environment(
        "infinity", ("infinity",), ("infinity-emb", "optimum", "transformers", "onnxruntime")
    ),
    Environment(
        "openvino-genai",
        ("openvino-genai",),
        ("openvino-genai", "openvino"),
        torch=False,
        openvino=True,
    ),
    Environment("triton", ("triton",), ("tritonclient",), torch=False, server=_TRITON),
    Environment(
        "triton-openvino",
        ("triton",),
        ("tritonclient",),
        torch=False,
        openvino=True,
        server=_TRITON,
    ),
    Environment("tei", ("tei",), ("requests",), torch=False, server=_TEI, ready="health"),
    Environment("ovms", ("ovms",), ("tritonclient",), torch=False, openvino=True, server=_OVMS),
    Environment(
        "transformers.js",
        ("transformers.js",),
        ("@huggingface/transformers", "onnxruntime-node"),
        torch=False,
        node=True,
    ),
)
