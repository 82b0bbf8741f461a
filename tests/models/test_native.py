"""Checkpoints from before transformers had their family: they open from its class, and their own code never runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from octobert.core.errors import ModelError
from octobert.graph.capture import capture
from octobert.models.checkpoint import load_torch
from octobert.models.source import resolve
from tests.support.checkpoints import make_checkpoint, parity_feeds

# What the published configs state; the sizes are those of the tiny models.
NOMIC = {
    "activation_function": "swiglu",
    "attn_pdrop": 0.0,
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "max_trained_positions": 2048,
    "mlp_fc1_bias": False,
    "model_type": "nomic_bert",
    "n_embd": 32,
    "n_head": 4,
    "n_inner": 48,
    "n_layer": 2,
    "n_positions": 8192,
    "pad_token_id": 0,
    "prenorm": False,
    "qkv_proj_bias": False,
    "resid_pdrop": 0.0,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "type_vocab_size": 2,
    "use_rms_norm": False,
    "vocab_size": 120,
}
NTK = {"rope_scaling": {"type": "ntk", "factor": 8.0}, "rope_theta": 20_000}
# Frequencies are computed in float32.
FREQUENCY = 1e-6


@pytest.fixture
def old(tmp_path: Path, monkeypatch) -> Callable[..., Path]:
    """A checkpoint whose config names a module beside it, which ends the process when it is imported."""
    monkeypatch.setenv("OCTOBERT_CACHE", str(tmp_path / "cache"))

    def make(family: str, head: str, config: dict, *, whole: bool = False) -> Path:
        folder = make_checkpoint(tmp_path / family, family, head)
        (folder / "modeling_old.py").write_text("raise SystemExit('the code ran')")
        classes = ("AutoConfig", "AutoModel", "AutoModelForSequenceClassification")
        code = {"auto_map": {name: f"modeling_old.{name}" for name in classes}}
        path = folder / "config.json"
        before = {} if whole else json.loads(path.read_text())
        path.write_text(json.dumps({**before, **code, **config}))
        return folder

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("nomic-bert", NOMIC),
        ("gte", {"model_type": "new", "rope_parameters": None, "rope_theta": 160_000}),
        ("gte", {"rope_parameters": None, "rope_scaling": None, "rope_theta": 160_000}),
        ("eurobert", {}),
    ],
    ids=["nomic-embed", "gte-multilingual", "arctic-embed-m-v2", "eurobert"],
)
@pytest.mark.parametrize("head", ["embedding", "sequence-classification"])
def test_an_old_checkpoint_is_opened_by_the_class_of_transformers(
    old, checkpoint, family: str, config: dict, head: str
) -> None:
    folder = old(family, head, config, whole=config is NOMIC)
    if config.get("model_type") == "new":
        weights = load_file(folder / "model.safetensors")
        renamed = {
            name if name.startswith("classifier.") else f"new.{name.removeprefix('gte.')}": array
            for name, array in weights.items()
        }
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    source = resolve(folder)
    assert source.longest_input == (2048 if config is NOMIC else 64)
    ours, theirs = load_torch(source.path, head), load_torch(checkpoint(family, head), head)
    assert type(ours) is type(theirs)
    state = theirs.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in ours.state_dict().items())
    for name, buffer in ours.named_buffers():
        if name.endswith("inv_freq"):
            torch.testing.assert_close(buffer, theirs.get_buffer(name), rtol=FREQUENCY, atol=0)
    result = capture.capture(source, head, parity_feeds())
    assert result.family.layer == "layers.{}"


def test_ntk_scaled_positions_have_the_frequencies_of_the_formula(old) -> None:
    """θ_i = (f·b)^(-2i/d) / f^(2/d), for the base b, the factor f and heads of d channels."""
    folder = old("gte", "embedding", {"model_type": "new", "rope_parameters": None, **NTK})
    model = load_torch(resolve(folder).path, "embedding")
    expected = (8.0 * 20_000) ** -(np.arange(0, 8, 2) / 8) / 8.0 ** (2 / 8)
    np.testing.assert_allclose(model.rotary_emb.inv_freq.numpy(), expected, rtol=FREQUENCY)


@pytest.mark.parametrize(
    ("family", "config"),
    [
        ("nomic-bert", {**NOMIC, "activation_function": "gelu", "num_experts": 8}),
        ("nomic-bert", {**NOMIC, "rotary_emb_interleaved": True}),
        ("nomic-bert", {**NOMIC, "parallel_block": True}),
        ("nomic-bert", {**NOMIC, "rotary_emb_scale_base": 512}),
        ("gte", {"model_type": "new", "logn_attention_scale": True}),
        ("gte", {"model_type": "new", "rope_scaling": {"type": "ntk", "factor": "eight"}}),
        ("gte", {"model_type": "new", "rope_scaling": [8.0]}),
        ("bert", {}),
        ("bert", {"model_type": "jina_bert"}),
    ],
)
def test_what_its_class_does_not_compute_is_refused(golden, old, family: str, config: dict) -> None:
    folder = old(family, "embedding", config, whole="n_embd" in config)
    with golden.raises(ModelError):
        assert resolve(folder).family


def test_weights_that_the_config_does_not_tell_of_are_missed(golden, old) -> None:
    folder = old("nomic-bert", "embedding", {**NOMIC, "n_layer": 3}, whole=True)
    with golden.raises(ModelError):
        capture.capture(resolve(folder), "embedding", parity_feeds())
