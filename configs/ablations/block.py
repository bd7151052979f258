"""Components of recent blocks, each added to a plain block, and all together, at the size of the digits, five seeds.

Command:   python -m vit_jax.sweep --config=ablations/block --workdir=runs/block --parallel=2
Hardware:  two CPU cores, an hour with other programs running
Result:    top-1 on test: plain 82.6 ± 3.8 %; rotary positions 93.2 to 95.4, layer scale 89.4, each other component 79.5
           to 82.7; ViT-5's components together 95.3 ± 1.5; see docs/results/ablations.md
Source:    the components are those of ViT-5 (arXiv:2602.08071), including positions that are added at the input
"""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import recipe

ROTARY = {
  "none": dict(name="none"),
  "axial": dict(name="axial"),
  "mixed": dict(name="mixed"),
  "dinov3": dict(name="dinov3"),
  "vit5": dict(name="axial", temperature=10000.0, reference=0, registers=100.0),
}
PLAIN: dict[str, Any] = {
  "model.registers": 0,
  "model.position.rotary": ROTARY["none"],
  "model.attention.qk_norm": "none",
  "model.norm.name": "layer",
  "model.mlp": dict(name="gelu"),
  "model.layer_scale": None,
  "model.attention.bias": "all",
}
PARTS: dict[str, Any] = {  # changes of the plain block
  "registers": {"model.registers": 4},
  "rotary positions, axial": {"model.position.rotary": ROTARY["axial"]},
  "rotary positions, learned": {"model.position.rotary": ROTARY["mixed"]},
  "rotary positions of DINOv3": {"model.position.rotary": ROTARY["dinov3"]},
  "norms of queries and keys": {"model.attention.qk_norm": "rms"},
  "RMSNorm": {"model.norm.name": "rms"},
  "SwiGLU": {"model.mlp": dict(name="swiglu", multiple=8)},
  "layer scale": {"model.layer_scale": 1e-4},
  "no biases of queries, keys and values": {"model.attention.bias": "none"},
}
TOGETHER: dict[str, Any] = {
  "model.registers": 4,
  "model.position.rotary": ROTARY["vit5"],
  "model.attention.qk_norm": "rms",
  "model.norm.name": "rms",
  "model.layer_scale": 1e-4,
  "model.attention.bias": "none",
}


def get_config() -> ConfigDict:
  """Returns a plain ViT of four layers and 36 patches, on all training images."""
  return recipe(
    model=dict(name="ViT-Ti/4", width=64, depth=4, heads=2, hidden=128, head=dict(std=0.02)),
    data=dict(
      name="digits",
      image_size=24,
      crop=dict(name="resize"),
      test_crop=dict(name="resize"),
      flip=False,
      warp=dict(name="affine", degrees=15.0, translate=0.1, scale=(0.75, 1.25), shear=15.0),
    ),
    optim=dict(name="adamw", lr=3e-3, weight_decay=0.05, warmup="10%", schedule=dict(name="cosine"), clip=1.0),
    total="225",
    batch=64,
    evals=dict(test=dict(name="accuracy", every="100%")),
    checkpoint=dict(every="100%"),
  )


def sweep() -> list[Mapping[str, Any]]:
  """Returns trials of the plain block, of each component alone, and of all components of ViT-5 together."""
  settings = [PLAIN | changes for changes in ({}, *PARTS.values(), TOGETHER)]
  return [changes | {"seed": seed} for changes in settings for seed in range(5)]
