"""Models that are not a folder: zip files, URLs, and checkpoints whose config names no model type."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import shutil
import socket
import stat
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from octobert.config.loading import parse
from octobert.core import archives
from octobert.core.errors import DownloadWarning, ModelError, RecipeError
from octobert.data.tokenization import Tokenizer
from octobert.models.checkpoint import load_torch
from octobert.models.source import resolve
from octobert.models.sources import url as downloads
from tests.support.checkpoints import batch
from tests.support.web import Web, serving

HEAD = "sequence-classification"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(downloads, "_PAUSE", 0.001)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def server() -> Iterator[Web]:
    with serving() as web:
        yield web


@pytest.fixture
def web(server: Web) -> Web:
    server.files, server.breaks, server.status, server.headers, server.asked, server.tags = (
        {},
        {},
        {},
        {},
        [],
        True,
    )
    return server


def zipped(
    files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], object] | None = None
) -> bytes:
    """A zip file with these files; an entry can be changed before it is written."""
    held = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # two files of one name
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.compress_type = zipfile.ZIP_DEFLATED
            if change:
                change(entry)
            archive.writestr(entry, content)
    return held.getvalue()


def of_folder(folder: Path, top: str = "") -> bytes:
    return zipped(
        {
            f"{top}{p.relative_to(folder).as_posix()}": p.read_bytes()
            for p in folder.rglob("*")
            if p.is_file()
        }
    )


# ---- zip files


def test_a_zip_file_is_the_model_in_it(checkpoint, tmp_path, cache) -> None:
    folder = checkpoint("bert", HEAD)
    path = tmp_path / "model.zip"
    path.write_bytes(of_folder(folder, "MRPC/"))
    found, own = resolve(path), resolve(folder)
    assert found.digest == own.digest
    assert found.path == next(cache.glob("unpacked/*/MRPC"))
    stamp = found.stamp
    assert resolve(path).stamp == stamp, "it is unpacked once"
    assert not list(cache.glob("unpacked/partial-*"))


def test_a_zip_file_with_one_onnx_file_is_that_file(
    golden, float_path, checkpoint, tmp_path
) -> None:
    tokenizer = (checkpoint("bert", HEAD) / "tokenizer.json").read_bytes()
    files = {"tokenizer.json": tokenizer, "onnx/model.onnx": float_path.read_bytes()}
    path = tmp_path / "model.zip"
    path.write_bytes(zipped(files))
    assert resolve(path).path.name == "model.onnx"
    path.write_bytes(zipped({**files, "onnx/other.onnx": b""}))
    with golden.raises(ModelError):
        resolve(path)


def as_link(entry: zipfile.ZipInfo) -> None:
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16


@pytest.mark.parametrize("content", [zipped({"../evil.txt": b""}), zipped({"a/../../evil.txt": b""}), zipped({"/etc/evil": b""}), zipped({"C:\\evil": b""}), zipped({"a\\..\\..\\evil": b""}), zipped({"link": b"/etc/passwd"}, as_link), zipped({"a.txt": b"1", "A.txt": b"2"}), zipped({f"{i}": b"" for i in range(10_001)}), zipped({"config.json": b"0" * (80 << 20)}), zipped({"config.json": b"{}" * 99})[:-20], zipped({"config.json": b"{}" * 99}).replace(b"\xab\xae", b"\xff\xff"), b"<html>"])  # fmt: skip
def test_a_zip_file_that_is_refused_leaves_nothing(golden, tmp_path, cache, content: bytes) -> None:
    path = tmp_path / "model.zip"
    path.write_bytes(content)
    with golden.raises(ModelError):
        resolve(path)
    assert [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".lock"] == [path]


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (("",), "outside of its folder (got '')"),
        ((".",), "outside of its folder"),
        (("x", "x/y"), "a file and a folder of one name (got 'x/y')"),
        (("X/y", "x"), "a file and a folder of one name (got 'x')"),
        (("a//b", "a/b"), "two files of one name"),
        (("config.json", "config.json/."), "two files of one name"),
        (("a" * 256,), "a name that is longer"),
        (("a/" * 1000 + "b",), "a name that is longer"),
        (("é" * 200,), "a name that is longer"),
    ],
)
def test_names_that_no_folder_can_hold_are_not_blamed_on_the_disk(
    tmp_path, cache, names: tuple[str, ...], what: str
) -> None:
    path = tmp_path / "model.zip"
    path.write_bytes(zipped(dict.fromkeys(names, b"{}")))
    with pytest.raises(ModelError, match=re.escape(what)):
        resolve(path)
    assert not [p for p in cache.glob("unpacked/*") if p.is_dir()]


def test_a_large_file_is_refused_before_anything_is_written(golden, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(archives, "MOST_BYTES", 100)
    path = tmp_path / "model.zip"
    path.write_bytes(zipped({"config.json": b"0" * 101}))
    with golden.raises(ModelError):
        resolve(path)


# ---- URLs


NOISE = random.Random(0).randbytes(3 << 20)


def test_a_url_is_downloaded_once_and_its_digest_shown(web, checkpoint, cache) -> None:
    content = of_folder(checkpoint("bert", HEAD), "MRPC/")
    web.files["/a model.zip"] = content
    digest = hashlib.sha256(content).hexdigest()
    with pytest.warns(
        DownloadWarning,
        match=rf"downloaded {web.address}/a%20model.zip \(.* bytes\); add #sha256={digest}",
    ):
        first = resolve(f"{web.address}/a model.zip")
    assert first.digest == resolve(checkpoint("bert", HEAD)).digest
    # The server says that it is the same, or does not answer.
    assert resolve(f"{web.address}/a model.zip") == first
    web.status["/a model.zip"] = 500
    assert resolve(f"{web.address}/a model.zip") == first
    # With the digest nobody is asked any more.
    web.asked.clear()
    assert resolve(f"{web.address}/a model.zip#sha256={digest}") == first
    assert web.asked == []
    web.status.clear()
    web.files["/a model.zip"] = of_folder(checkpoint("bert", HEAD), "other/")
    with pytest.warns(DownloadWarning):
        assert resolve(f"{web.address}/a model.zip").path.name == "other"
    record = json.loads(next(cache.glob("downloads/*/download.json")).read_text())
    assert record["sha256"] == hashlib.sha256(web.files["/a model.zip"]).hexdigest()


def test_a_download_that_breaks_off_continues(web) -> None:
    web.files["/m.zip"], web.breaks["/m.zip"] = NOISE, [1 << 20, 10, 1 << 20]
    digest = hashlib.sha256(NOISE).hexdigest()
    assert downloads.Url().fetch(f"{web.address}/m.zip#sha256={digest}").read_bytes() == NOISE
    mib = 1 << 20
    spans = [None, f"bytes={mib}-", f"bytes={mib + 10}-", f"bytes={2 * mib + 10}-"]
    assert web.asked == [("GET", "/m.zip", span) for span in spans]


@pytest.mark.parametrize("fast", [0, 20, 1 << 20])
def test_a_server_that_drips_is_left(web, monkeypatch, fast: int) -> None:
    """From the first byte of the head, within it, and after a part of the file, which the next command continues."""
    monkeypatch.setattr(downloads, "_TIMEOUT", 0.4)
    monkeypatch.setattr(downloads, "_PAUSE", 0)
    web.files["/m.zip"], web.drips["/m.zip"] = NOISE, fast
    url, began = f"{web.address}/m.zip#sha256={hashlib.sha256(NOISE).hexdigest()}", time.monotonic()
    with pytest.raises(ModelError, match=r"too slowly|could not be downloaded"):
        downloads.Url().fetch(url)
    assert time.monotonic() - began < 60
    web.drips.clear()
    monkeypatch.setattr(downloads, "_TIMEOUT", 30)
    assert downloads.Url().fetch(url).read_bytes() == NOISE
    continued = web.asked[-1][2] is not None
    assert continued == (fast > 1000)


def test_a_download_continues_in_the_next_command_unless_the_file_has_changed(golden, web) -> None:
    web.files["/m.zip"], web.breaks["/m.zip"] = NOISE, [1 << 20, 0, 0, 0]
    url = f"{web.address}/m.zip"
    with golden.raises(ModelError):
        downloads.Url().fetch(url)
    web.asked.clear()
    with pytest.warns(DownloadWarning):
        assert downloads.Url().fetch(url).read_bytes() == NOISE
    assert web.asked == [("GET", "/m.zip", "bytes=1048576-")]
    # Half of one file and half of another would be neither.
    web.files["/n.zip"], web.breaks["/n.zip"] = NOISE, [1 << 20, 0, 0, 0]
    with pytest.raises(ModelError, match="could not be downloaded"):
        downloads.Url().fetch(f"{web.address}/n.zip")
    web.files["/n.zip"] = NOISE[::-1]
    with pytest.warns(DownloadWarning):
        assert downloads.Url().fetch(f"{web.address}/n.zip").read_bytes() == NOISE[::-1]


def test_without_a_validator_a_download_starts_again(web) -> None:
    web.tags = False
    web.files["/m.zip"], web.breaks["/m.zip"] = NOISE, [1 << 20]
    with pytest.warns(DownloadWarning):
        assert downloads.Url().fetch(f"{web.address}/m.zip").read_bytes() == NOISE
    assert web.asked == [("GET", "/m.zip", None)] * 2


def test_an_onnx_file_comes_with_what_lies_beside_it(golden, web, float_path, checkpoint) -> None:
    web.files["/m/onnx/model.onnx"] = float_path.read_bytes()
    for name in ("tokenizer.json", "config.json"):
        web.files[f"/m/{name}"] = (checkpoint("bert", HEAD) / name).read_bytes()
    with pytest.warns(
        DownloadWarning, match="with config.json, tokenizer.json .* to accept these files only"
    ) as told:
        found = resolve(f"{web.address}/m/onnx/model.onnx")
    assert found.kind == "onnx"
    assert found.config["model_type"] == "bert"
    assert Tokenizer(found.tokenizer_folder).encode([("the",)])
    # The digest is that of all of them.
    digest = str(told[0].message).partition("#")[2].split()[0]
    lines = [
        f"{hashlib.sha256(content).hexdigest()}  {Path(name).name}\n"
        for name, content in web.files.items()
    ]
    lines.sort(key=lambda line: line.split()[1])
    assert digest == "sha256=" + hashlib.sha256("".join(lines).encode()).hexdigest()
    url = f"{web.address}/m/onnx/model.onnx"
    web.asked.clear()
    assert resolve(f"{url}#{digest}") == found
    assert web.asked == []
    alone = hashlib.sha256(web.files["/m/onnx/model.onnx"]).hexdigest()
    with golden.raises(ModelError) as raised:
        resolve(f"{url}#sha256={alone}")
    assert f"it is {digest}" in str(raised.value)
    for change in ({"/m/config.json": b"{}"}, {"/m/onnx/model.onnx_data": b"other weights"}):
        shutil.rmtree(found.path.parent)
        before, web.files = web.files, {**web.files, **change}
        with pytest.raises(ModelError, match="has another sha256"):
            resolve(f"{url}#{digest}")
        assert not found.path.exists()
        web.files = before


def test_what_is_in_the_cache_is_used_only_as_it_came(web, checkpoint, cache) -> None:
    content = of_folder(checkpoint("bert", HEAD), "MRPC/")
    web.files["/m.zip"] = content
    url = f"{web.address}/m.zip#sha256={hashlib.sha256(content).hexdigest()}"
    first = resolve(url)
    archive, weights = next(cache.glob("downloads/*/m.zip")), first.path / "model.safetensors"
    for path in (archive, weights):
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        assert resolve(url).digest == first.digest
        assert path.read_bytes() != damaged
    for damage in (b"[]", b"\xff", b"[" * 100_000):
        for record in cache.glob("downloads/*/download.json"):
            record.write_bytes(damage)
        assert resolve(url).digest == first.digest
    assert archive.read_bytes() == content
    (cache / "downloads" / archive.parent.name / "download.json").write_text(
        '{"files": {"m.zip": 1}}'
    )
    assert resolve(url).digest == first.digest


@pytest.mark.parametrize(
    "name",
    [
        "m.zip#sha256=00",
        "m.zip#main",
        "m.zip#sha256=" + "0" * 64,
        "m.tar.gz",
        "",
        "gone.zip",
        "secret.zip",
        "broken.zip",
    ],
)  # fmt: skip
def test_a_url_that_gives_no_model(golden, web, cache, name: str) -> None:
    web.files = {"/m.zip": NOISE, "/secret.zip": b"", "/broken.zip": b""}
    web.status = {"/secret.zip": 403, "/broken.zip": 503}
    with golden.raises(ModelError):
        resolve(f"{web.address}/{name}")
    assert not list(cache.glob("downloads/*/*.zip"))


NO_ADDRESSES = (
    "http://[::1",
    "http://a..b",
    f"http://{'a' * 64}.com",
    "http://",
    "http://a:99999999",
    "http://a:x",
)


def test_addresses_that_are_none() -> None:
    with pytest.raises(ModelError, match="Connection refused"):
        resolve("http://127.0.0.1:1/m.zip")
    for address in NO_ADDRESSES:
        with pytest.raises(ModelError, match="the URL cannot be read"):
            resolve(f"{address}/m.zip")


@pytest.mark.parametrize("user", ["me:secret", "secret", "me:se#secret", "me:p@secret"])
def test_a_password_in_a_url_reaches_nobody(monkeypatch, web, user: str) -> None:
    asked: list[object] = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *arguments, **_: asked.append(arguments))
    with pytest.raises(ModelError, match="has a user name or a password") as caught:
        resolve(f"http://{user}@example.org/m.zip")
    assert "secret" not in str(caught.value)
    assert asked == []
    monkeypatch.undo()
    web.status["/m.zip"], web.headers["/m.zip"] = (
        302,
        {"Location": f"http://{user}@127.0.0.1:1/m.zip"},
    )
    with pytest.raises(ModelError, match="has a user name or a password"):
        downloads.Url().fetch(f"{web.address}/m.zip")


def test_a_redirect_leads_to_no_other_protocol(web) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.setblocking(False)
        place = f"127.0.0.1:{other.getsockname()[1]}/m.zip"
        for protocol in ("ftp://", "FTP://", "file://", "gopher://", "data:,", "//x:y@"):
            web.status["/m.zip"], web.headers["/m.zip"] = 302, {"Location": f"{protocol}{place}"}
            with pytest.raises(ModelError, match=r"leads to another protocol|has a user name"):
                downloads.Url().fetch(f"{web.address}/m.zip")
        with pytest.raises(BlockingIOError):
            other.accept()
    web.files["/n.zip"] = b"n"
    web.headers["/m.zip"] = {"Location": "/n.zip"}
    with pytest.warns(DownloadWarning):
        assert downloads.Url().fetch(f"{web.address}/m.zip").read_bytes() == b"n"


def test_an_answer_that_is_none_is_a_sentence(web) -> None:
    web.files["/m.zip"] = b"m"
    for status, headers in (
        (200, {"Content-Length": "9" * 5000}),
        (206, {"Content-Range": f"bytes 0-0/{'9' * 5000}"}),
        (206, {"Content-Range": f"bytes {'9' * 5000}-0/1"}),
        *((302, {"Location": f"{address}/m.zip"}) for address in NO_ADDRESSES),
        *(
            (302, {"Location": place})
            for place in ("http://", "//", "http:///x", "\t", "https://a\x00b/x")
        ),
    ):
        web.status["/m.zip"], web.headers["/m.zip"] = status, headers
        with pytest.raises(ModelError):
            downloads.Url().fetch(f"{web.address}/m.zip#sha256={'0' * 64}")
    # A tag that could not be sent back is none.
    web.status, web.headers = {}, {"/m.zip": {"ETag": '"\xe9"'}}
    web.tags = False
    with pytest.warns(DownloadWarning):
        downloads.Url().fetch(f"{web.address}/m.zip")
    with pytest.warns(DownloadWarning):
        downloads.Url().fetch(f"{web.address}/m.zip")


# ---- checkpoints whose config names no model type


@pytest.fixture
def archive(checkpoint, tmp_path) -> Path:
    """A checkpoint as they were saved in 2019: pickled weights with old names, vocab.txt, and a config without a type."""
    folder = shutil.copytree(checkpoint("bert", HEAD), tmp_path / "MRPC")
    model = load_torch(folder, HEAD)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = dict(model.state_dict())
    for new, name in old.items():
        weights = {key.replace(new, name): value for key, value in weights.items()}
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    config = json.loads((folder / "config.json").read_text())
    for key in (
        "model_type",
        "architectures",
        "id2label",
        "label2id",
        "transformers_version",
        "dtype",
    ):
        config.pop(key, None)
    (folder / "config.json").write_text(
        json.dumps({**config, "finetuning_task": "mrpc", "num_labels": 2})
    )
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text(
        "\n".join(sorted(vocabulary, key=vocabulary.__getitem__)) + "\n"
    )
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "max_len": 64}')
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).unlink()
    return folder


def test_an_old_archive_works_with_its_family_and_pickles_allowed(
    golden, archive, checkpoint, tmp_path
) -> None:
    path = tmp_path / "MRPC.zip"
    path.write_bytes(of_folder(archive, "MRPC/"))
    with golden.raises(ModelError):
        resolve(path)
    found = resolve(path, family="bert")
    assert found.family.model_types[0] == "bert"
    with pytest.raises(ModelError, match="only pickle weights"):
        load_torch(found.path, HEAD)
    feeds = {name: torch.from_numpy(array) for name, array in batch([9, 4]).items()}
    with torch.no_grad():
        answers = [
            load_torch(f, HEAD, allow_pickle=True)(**feeds).logits.numpy()
            for f in (found.path, checkpoint("bert", HEAD))
        ]
    np.testing.assert_array_equal(*answers)
    ours, theirs = Tokenizer(found.tokenizer_folder), Tokenizer(checkpoint("bert", HEAD))
    assert [row.ids.tolist() for row in ours.encode([("the one, 42",)])] == [
        row.ids.tolist() for row in theirs.encode([("the one, 42",)])
    ]


def test_a_folder_without_a_model_type_is_read_where_it_lies(archive, cache) -> None:
    first = resolve(archive, family="bert")
    assert (archive / "config.json").read_text() != (first.path / "config.json").read_text()
    assert resolve(archive, family="bert") == first
    # Another family is another model; weights that change are seen.
    assert resolve(archive, family="electra").digest != first.digest
    torch.save({"a": torch.zeros(1)}, archive / "pytorch_model.bin")
    assert resolve(archive, family="bert").digest != first.digest
    (archive / "vocab.txt").unlink()
    assert not (resolve(archive, family="bert").path / "vocab.txt").exists()


def test_a_tokenizer_may_lie_elsewhere(checkpoint, cache, tmp_path) -> None:
    bare = shutil.copytree(checkpoint("bert", HEAD), tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (bare / name).unlink(missing_ok=True)
    with pytest.raises(ModelError, match="no tokenizer beside the model"):
        Tokenizer(resolve(bare).tokenizer_folder)
    found = resolve(bare, tokenizer=str(checkpoint("bert", HEAD)))
    ours, theirs = Tokenizer(found.tokenizer_folder), Tokenizer(checkpoint("bert", HEAD))
    assert [row.ids.tolist() for row in ours.encode([("the one, 42",)])] == [
        row.ids.tolist() for row in theirs.encode([("the one, 42",)])
    ]
    # Another tokenizer is another model, and takes the place of one that lies beside the weights.
    (changed := shutil.copytree(checkpoint("bert", HEAD), tmp_path / "other"))
    tokenizer = json.loads((changed / "tokenizer.json").read_text())
    tokenizer["truncation"] = None
    tokenizer["version"] = "1.1"
    (changed / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert resolve(bare, tokenizer=str(changed)).digest != found.digest
    assert resolve(checkpoint("bert", HEAD), tokenizer=str(changed)).digest not in (
        found.digest,
        resolve(checkpoint("bert", HEAD)).digest,
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"there is no tokenizer .*expected tokenizer\.json"):
        resolve(bare, tokenizer=str(tmp_path / "empty"))


def test_an_architecture_names_the_type_too(golden, archive) -> None:
    path = archive / "config.json"
    config = json.loads(path.read_text())
    for architecture, kind in (
        ("BertForSequenceClassification", "bert"),
        ("DebertaV2Model", "deberta-v2"),
        ("XLMRobertaForMaskedLM", "xlm-roberta"),
    ):
        path.write_text(json.dumps({**config, "architectures": [architecture]}))
        assert resolve(archive).config["model_type"] == kind
    path.write_text(json.dumps({**config, "model_type": "bert"}))
    assert resolve(archive, family="bert").path == archive
    with golden.raises(ModelError):
        resolve(archive, family="roberta")
    with golden.raises(RecipeError):
        parse({"model": "m", "task": "mrpc", "data": "d", "family": "brt"})


def test_a_server_that_refuses_what_is_not_there_has_no_files_beside_a_model(web, cache) -> None:
    web.files["/model.onnx"] = b"x"
    web.status = {
        f"/{name}": 403
        for name in ("model.onnx_data", "model.onnx.data", "config.json", "vocab.txt")
    }
    digest = hashlib.sha256(b"x").hexdigest()
    assert downloads.Url().fetch(f"{web.address}/model.onnx#sha256={digest}").read_bytes() == b"x"
