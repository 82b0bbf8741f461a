"""An environment for each client: what is installed in it, and how it is made. They are kept in `runs/clients`."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "clients"
# Printed before the JSON document that a script ends with.
MARK = "RESULT "
_ANSWER = """
import json, numpy
def plain(value):
    if hasattr(value, "tolist"):
        return value.tolist()
    return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value
print("{mark}" + json.dumps(plain({name})))
"""


@dataclass(frozen=True)
class Environment:
    """One environment.

    Args:
        name: of its folder.
        packages: what pip installs, torch of `constraints.txt` first where `torch` is set; or what npm installs.
        shown: distributions whose versions the table names.
        clients: names in `octobert.api.clients.CLIENTS`.
        torch: whether torch is installed; pinned, because that version has a build for the CPU only.
        openvino: whether the clients open an IR.
        node: whether it is one of Node.
    """

    name: str
    packages: tuple[str, ...]
    shown: tuple[str, ...]
    clients: tuple[str, ...]
    torch: bool = True
    openvino: bool = False
    node: bool = False

    @property
    def folder(self) -> Path:
        """Where it is."""
        return FOLDER / self.name

    def make(self) -> None:
        """Install it, unless it was installed before."""
        marker = self.folder / "installed"
        if marker.is_file() and marker.read_text(encoding="utf-8") == " ".join(self.packages):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.node:
            # Without scripts: one of them would download libraries for GPUs.
            command = ["npm", "install", "--silent", "--ignore-scripts", "--prefix", str(self.folder), *self.packages]
            subprocess.run(command, check=True)
        else:
            venv.create(self.folder, with_pip=True)
            install = [str(self._python), "-m", "pip", "install", "--quiet"]
            if self.torch:
                subprocess.run([*install, "-c", str(ROOT / "constraints.txt"), "torch"], check=True)
            subprocess.run([*install, *self.packages], check=True)
            # Some packages install a torchvision that belongs to another build of torch.
            subprocess.run([str(self._python), "-m", "pip", "uninstall", "--quiet", "--yes", "torchvision"], check=True)
        marker.write_text(" ".join(self.packages), encoding="utf-8")

    def run(self, script: str, result: str, folder: Path) -> object:
        """Run a script in the environment, in an empty folder.

        Args:
            script: a snippet.
            result: the variable that holds its answer.
            folder: to run in.

        Returns:
            The value of that variable, as JSON has it.
        """
        folder.mkdir(parents=True)
        if self.node:
            # Modules are found from the folder of the script.
            path = self.folder / "script.mjs"
            script += f'console.log("{MARK}" + JSON.stringify({result}));\n'
        else:
            path = folder / "script.py"
            script += _ANSWER.format(mark=MARK, name=result)
        path.write_text(script, encoding="utf-8")
        program = "node" if self.node else str(self._python)
        settings = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": "2"}
        done = subprocess.run([program, str(path)], cwd=folder, capture_output=True, text=True, env=settings, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        (answer,) = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
        return json.loads(answer)

    def versions(self) -> str:
        """The versions of the shown packages."""
        if self.node:
            found = [json.loads((self.folder / "node_modules" / n / "package.json").read_text())["version"] for n in self.shown]
        else:
            command = [str(self._python), "-c", f"from importlib.metadata import version as v; print(*map(v, {self.shown!r}))"]
            found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return ", ".join(f"{name} {version}" for name, version in zip(self.shown, found, strict=True))

    @property
    def _python(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"


# optimum-onnx 0.1 and sentence-transformers 6 need releases of transformers that exclude each other.
ENVIRONMENTS = (
    Environment(
        "optimum-onnx",
        ("optimum-onnx[onnxruntime]==0.1.*", "sentence-transformers==5.7.*", "langchain-huggingface"),
        ("optimum-onnx", "sentence-transformers", "langchain-huggingface", "onnxruntime"),
        ("optimum", "sentence-transformers", "langchain"),
    ),
    Environment(
        "optimum-intel",
        ("optimum-intel[openvino]", "sentence-transformers>=6"),
        ("optimum-intel", "sentence-transformers", "openvino"),
        ("optimum", "sentence-transformers"),
        openvino=True,
    ),
    Environment("fastembed", ("fastembed",), ("fastembed", "onnxruntime"), ("fastembed",), torch=False),
    Environment("txtai", ("txtai", "onnxruntime"), ("txtai", "onnxruntime"), ("txtai",)),
    Environment(
        "transformers.js",
        ("@huggingface/transformers",),
        ("@huggingface/transformers", "onnxruntime-node"),
        ("transformers.js",),
        node=True,
    ),
)
