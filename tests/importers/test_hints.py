"""The keys of hints: those that files provide are declared and documented."""

import json
import re

from vit_jax.importers.hints import Hints
from vit_jax.importers.hub import metadata

CONFIG = {
  "architecture": "vit_small_patch16_224",
  "model_type": "vit",
  "hidden_act": "gelu",
  "layer_norm_eps": 1e-6,
  "model_args": {"fc_norm": True},
  "pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.5, 0.5, 0.5]},
}


def test_the_documentation_lists_every_key():
  assert re.findall(r"^    (\w+): ", Hints.__doc__, re.MULTILINE) == list(Hints.__annotations__)


def test_files_next_to_weights_provide_declared_keys_only(tmp_path):
  (tmp_path / "config.json").write_text(json.dumps(CONFIG))
  found = metadata.read_hints(tmp_path / "model.safetensors")
  assert {"architecture", "model_type", "fc_norm", "input_size"} <= found.keys() <= Hints.__annotations__.keys()


def test_headers_provide_declared_keys_only():
  found = metadata.parse_own_hints({"model": "ViT-S/16", "use": {}})
  assert found.keys() == {"description", "use"} <= Hints.__annotations__.keys()
