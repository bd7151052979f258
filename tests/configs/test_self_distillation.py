"""Tests of self-distillation recipes against the arguments and configs of the authors' code."""

import pytest

from tests import recipes
from vit_jax.parallel import hardware
from vit_jax.schema import Choice

IMAGES = 1_281_167

# main_dino.py of facebookresearch/dino: the arguments in its README for 100 and 300 epochs, and those of the released
# model for 800 epochs, which are from memory.
DINO = {
  "dino:S/16,100": dict(batch=512, epochs=100, min_lr=1e-6, teacher_temp=0.04, clip_grad=3.0, norm_last_layer=True,
                        global_crops_scale=(0.4, 1.0), local_crops_scale=(0.05, 0.4), local_crops_number=8),
  "dino:S/16,300": dict(batch=1024, epochs=300, min_lr=1e-6, teacher_temp=0.07, clip_grad=3.0, norm_last_layer=False,
                        global_crops_scale=(0.4, 1.0), local_crops_scale=(0.05, 0.4), local_crops_number=8),
  "dino:S/16,800": dict(batch=1024, epochs=800, min_lr=1e-5, teacher_temp=0.07, clip_grad=None, norm_last_layer=False,
                        global_crops_scale=(0.25, 1.0), local_crops_scale=(0.05, 0.25), local_crops_number=10),
}  # fmt: skip

# vitl16_short.yaml of facebookresearch/dinov2 and vitl_im1k_lin834.yaml of facebookresearch/dinov3 with their defaults.
# 65,536 prototypes in 256 dimensions, MLPs with 2,048 units. DINOv3 multiplies its base rate by 4.
SHORT = {
  "dinov2:L/16,i1k": dict(lr=0.004, centering="centering", separate_head=False, norm_last_layer=True, pos="learned"),
  "dinov3:L/16,i1k": dict(
    lr=4 * 0.001, centering="sinkhorn_knopp", separate_head=True, norm_last_layer=False, pos="rope"
  ),
}
BATCH, EPOCHS, EPOCH, GROUP = 2048, 100, 1250, 64


def known(name, monkeypatch):
  monkeypatch.setattr(hardware, "get_memory", lambda device: None)  # that of this machine is not the point
  return recipes.known(name, model__scan=True)


@pytest.mark.heavy
@pytest.mark.parametrize("name", DINO)
def test_a_recipe_has_the_arguments_of_dino(name, monkeypatch):
  published, parts = DINO[name], known(name, monkeypatch)
  optim, task, model = parts.run.optim.args, parts.run.task.args, parts.run.model.args
  assert (parts.run.batch, parts.run.model.name) == (published["batch"], "ViT-S/16")
  steps = published["epochs"] * IMAGES / published["batch"]
  assert parts.total == pytest.approx(steps, abs=1)
  peak = 0.0005 * published["batch"] / 256
  assert float(parts.schedule(round(10 * IMAGES / published["batch"]))) == pytest.approx(peak, rel=1e-3)
  assert float(parts.schedule(parts.total)) == pytest.approx(published["min_lr"], rel=1e-3)
  assert optim["clip"] == published["clip_grad"] and (optim["clip"] is None or optim["clip_by"] == "tensor")
  assert (optim["weight_decay"], optim["weight_decay_schedule"].args["end"]) == (0.04, 0.4)
  assert (optim["ema"], optim["ema_schedule"].args["end"]) == (0.996, 1.0)
  assert float(parts.task.find_temperature(0)) == pytest.approx(0.04)
  assert float(parts.task.find_temperature(parts.total)) == pytest.approx(published["teacher_temp"])
  assert (task["global_area"], task["local_area"]) == (published["global_crops_scale"], published["local_crops_scale"])
  assert (task["local_crops"], task["prototypes"], task["bottleneck"]) == (published["local_crops_number"], 65536, 256)
  assert task["last_layer"] == ("fixed_norm" if published["norm_last_layer"] else "weight_norm")
  assert task["blur"] == (1.0, 0.1, 0.5)
  assert model["stochastic_depth"] == 0.1


@pytest.mark.long
@pytest.mark.parametrize("name", SHORT)
def test_a_short_recipe_has_the_values_of_its_config(name, monkeypatch):
  published, parts = SHORT[name], known(name, monkeypatch)
  optim, task, model = parts.run.optim.args, parts.run.task.args, parts.run.model.args
  assert (parts.run.batch, parts.total, parts.run.model.name) == (BATCH, EPOCHS * EPOCH, "ViT-L/16")
  assert float(parts.schedule(10 * EPOCH)) == pytest.approx(published["lr"] * (BATCH / 1024) ** 0.5, rel=1e-4)
  assert float(parts.schedule(parts.total)) == pytest.approx(1e-6, rel=1e-2)
  assert (optim["weight_decay"], optim["weight_decay_schedule"].args["end"]) == (0.04, 0.4)
  assert (optim["ema"], optim["ema_schedule"].args["end"]) == (0.992, 1.0)
  assert (optim["clip"], optim["clip_by"], optim["layer_decay"]) == (3.0, "module", 0.9)
  assert (optim["b1"], optim["b2"]) == (0.9, 0.999)
  assert dict(optim["lr_multipliers"])["embedding/.*"] == 0.2
  assert [share for _, share in optim["delay"]] == [f"{100 / EPOCHS:.0f}%"]
  for epoch, temperature in ((0, 0.04), (15, 0.055), (30, 0.07), (100, 0.07)):
    assert float(parts.task.find_temperature(epoch * EPOCH)) == pytest.approx(temperature, rel=1e-4)
  assert (model["stochastic_depth"], model["stochastic_depth_rates"], model["layer_scale"]) == (0.3, "equal", 1e-5)
  assert (task["global_area"], task["local_area"], task["blur"]) == ((0.32, 1.0), (0.05, 0.32), (0.0, 0.9, 0.5))
  assert (task["local_crops"], task["local_size"], task["group"]) == (8, 96, GROUP)
  assert task["centering"] == {"centering": "mean", "sinkhorn_knopp": "sinkhorn"}[published["centering"]]
  assert task["sharing"] == ("none" if published["separate_head"] else "all")
  for head in (parts.task.head, parts.task.patch_head):
    assert (head.prototypes, head.bottleneck, head.hidden, head.layers) == (65536, 256, 2048, 3)
    assert head.last == ("weight_norm" if published["norm_last_layer"] else "plain")
  assert (task["image_weight"], task["patch_weight"], task["koleo_weight"]) == (1.0, 1.0, 0.1)
  assert ("position/table" in parts.state_shapes.params) == (published["pos"] == "learned")


@pytest.mark.long
def test_dinov3_masks_an_exact_number_of_patches_and_turns_positions(monkeypatch):
  parts = known("dinov3:L/16,i1k", monkeypatch)
  rotary = parts.run.model.args["position"].args["rotary"]
  assert (rotary.name, rotary.args["temperature"], rotary.args["normalise"]) == ("dinov3", 100.0, "separate")
  assert (rotary.args["shift"], rotary.args["jitter"], rotary.args["rescale"]) == (0.0, 1.0, 1.0)
  assert parts.run.task.args["masks"] == Choice("blocks", {"ratio": (0.1, 0.5), "share": 0.5, "fill": True})
  # A block has four matrices of width 1024 for attention and two for its MLP, biases, two norms and two layer scales.
  block = 4 * 1024 * 1025 + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024 + 2 * 1024
  head = 1024 * 2048 + 2048 + 2048 * 2049 + 2048 * 256 + 256 + 256 * 65536
  sizes = {path: leaf.size for path, leaf in parts.state_shapes.params.items()}
  assert sum(sizes.values()) == 768 * 1024 + 1024 + 1024 + 24 * block + 2 * 1024 + 2 * head + 1024
