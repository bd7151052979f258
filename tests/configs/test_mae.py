"""Masked autoencoders: every value beside the public commands of facebookresearch/mae, PRETRAIN.md and FINETUNE.md."""

import pytest

from tests import recipes
from vit_jax.parallel import hardware

pytestmark = pytest.mark.heavy

PRETRAINING = "--batch 4096 --mask_ratio 0.75 --warmup_epochs 40 --blr 1.5e-4 --weight_decay 0.05 --b2 0.95 --epochs "
TUNING = "--batch 1024 --warmup_epochs 5 --weight_decay 0.05 --b2 0.999 --reprob 0.25 --mixup 0.8 --cutmix 1.0 "
COMMANDS = {
  "mae:B/16": PRETRAINING + "800",
  "mae:L/16,1600ep": PRETRAINING + "1600",
  "mae:H/14": PRETRAINING + "800",
  "mae:B/16,finetune": TUNING + "--epochs 100 --blr 5e-4 --layer_decay 0.65 --drop_path 0.1",
  "mae:L/16,finetune": TUNING + "--epochs 50 --blr 1e-3 --layer_decay 0.75 --drop_path 0.2",
  "mae:H/14,finetune": TUNING + "--epochs 50 --blr 1e-3 --layer_decay 0.75 --drop_path 0.3",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_is_its_public_command(name, monkeypatch):
  monkeypatch.setattr(hardware, "get_memory", lambda device: None)  # that of this machine is not the point
  words = COMMANDS[name].split()
  message = {key.removeprefix("--"): float(value) for key, value in zip(words[::2], words[1::2], strict=True)}
  needed = {"init__from": "weights.npz"} if "finetune" in name else {}
  parts = recipes.known(name, model__scan=True, **needed)
  optim, epoch = parts.run.optim.args, 1_281_167 / message["batch"]
  assert parts.run.batch == message["batch"]
  assert parts.total == pytest.approx(message["epochs"] * epoch, abs=1)
  assert float(parts.schedule(round(message["warmup_epochs"] * epoch))) == pytest.approx(
    message["blr"] * message["batch"] / 256, rel=1e-3
  )
  assert float(parts.schedule(parts.total)) <= 1.1e-6
  assert (optim["weight_decay"], optim["b2"], optim["clip"]) == (message["weight_decay"], message["b2"], None)
  assert parts.run.data.args["image_size"] == 224
  task = parts.run.task
  if needed:
    assert optim["layer_decay"] == message["layer_decay"]
    assert parts.run.model.args["stochastic_depth"] == message["drop_path"]
    mixing, erasing = parts.run.data.args["mixing"].args, parts.run.data.args["erasing"].args
    assert (mixing["mixup_alpha"], mixing["cutmix_alpha"]) == (message["mixup"], message["cutmix"])
    assert erasing["probability"] == message["reprob"]
  else:
    assert (task.name, task.args["share"], task.args["normalised"]) == (
      "masked_autoencoder",
      message["mask_ratio"],
      True,
    )


@pytest.mark.long
def test_the_decoder_is_the_published_one():
  # models_mae.py: eight blocks of width 512 with 16 heads; positions are no parameters.
  parts = recipes.known("mae:B/16")
  shapes = {path: leaf for path, leaf in parts.state_shapes.params.items() if path.startswith("task/")}
  block = 4 * 512 * 513 + 2 * 512 * 2048 + 2048 + 512 + 4 * 512
  assert sum(leaf.size for leaf in shapes.values()) == 768 * 512 + 512 + 512 + 8 * block + 1024 + 512 * 768 + 768
  assert not [path for path in parts.state_shapes.params if path.startswith("head")]
