"""What is downloaded from a hub: here one on this machine, which answers as huggingface.co does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.pooling import write_modules

COMMIT = "a" * 40
# Downloads a model and prints the files that came, or the error.
RESOLVE = """
import json, sys
from octobert.core.errors import ModelError
from octobert.models.source import resolve
for allowed in (False, True):
    try:
        folder = resolve("me/model", allow_pickle=allowed).path
        print(json.dumps(sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())))
    except ModelError as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(address, folder of the only model)."""
    folder = tmp_path / "hub"
    folder.mkdir()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

        def _answer(self, *, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            files = [p.relative_to(folder).as_posix() for p in sorted(folder.rglob("*")) if p.is_file()]
            headers = {"X-Repo-Commit": COMMIT}
            if path.startswith("/api/models/me/model/tree/"):
                body = json.dumps([{"type": "file", "path": f, "size": 1, "oid": "0"} for f in files]).encode()
            elif path.startswith("/api/models/me/model"):
                body = json.dumps({"id": "me/model", "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]}).encode()
            else:
                name = path.removeprefix(f"/me/model/resolve/{COMMIT}/")
                body = (folder / name).read_bytes()
                headers["ETag"] = f'"{abs(hash(name))}"'
            self.send_response(200)
            for key, value in (headers | {"Content-Length": str(len(body)), "Content-Type": "application/json"}).items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()
        thread.join()


def test_every_module_is_downloaded_and_its_pickles_only_if_that_is_allowed(hub: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = hub
    pooling = ("Pooling", {"pooling_mode": "mean"})
    dense = ("Dense", {"in_features": 8, "out_features": 2, "activation_function": "torch.nn.modules.activation.Tanh"})
    write_modules(folder, [pooling, dense, dense])
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "model.safetensors").write_bytes(b"x")
    (folder / "README.md").write_text("not needed")
    environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
    done = subprocess.run([sys.executable, "-c", RESOLVE], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    refused, files = map(json.loads, done.stdout.splitlines())
    assert "me/model/2_Dense/pytorch_model.bin: the checkpoint has only pickle weights" in refused
    expected = {"1_Pooling/config.json", "2_Dense/config.json", "2_Dense/pytorch_model.bin", "3_Dense/model.safetensors"}
    assert expected | {"config.json", "model.safetensors", "modules.json", "tokenizer.json"} <= set(files)
    assert "README.md" not in files
