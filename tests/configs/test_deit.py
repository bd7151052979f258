"""DeiT, DeiT III, rope-vit and ViT-5: every value beside the public command that it is from.

The commands are those of facebookresearch/deit, README_deit.md and README_revenge.md, and for 400 epochs the scripts of
affjljoo3581/deit3-jax in their words. What a command does not say is the default of deit's main.py. naver-ai/rope-vit
(deit/README.md) and wangf3014/ViT-5 (README.md) train by the same main.py.
"""

import argparse
import functools

import pytest

from tests import recipes
from vit_jax import models, schema
from vit_jax.trees import count_values

# Defaults of main.py. The optimizer's clipping is that of apex's FusedLAMB, and None of AdamW.
DEFAULTS = {"lr": 5e-4, "epochs": 300, "batch": 64, "nodes": 1, "ngpus": 8, "weight-decay": 0.05, "input-size": 224,
            "eval-crop-ratio": 0.875, "reprob": 0.25, "smoothing": 0.1, "warmup-epochs": 5, "drop": 0.0, "opt": "adamw",
            "warmup-lr": 1e-6, "min-lr": 1e-5, "opt-eps": 1e-8, "mixup": 0.8, "cutmix": 1.0, "mixup-switch-prob": 0.5,
            "drop-path": 0.1, "color-jitter": 0.3, "aa": "rand-m9-mstd0.5-inc1", "train-interpolation": "bicubic",
            }  # fmt: skip
FLAGS = ("unscale-lr", "repeated-aug", "no-repeated-aug", "bce-loss", "ThreeAugment", "src")

ONE = (
  "--weight-decay 0.05 --eval-crop-ratio 1.0 --reprob 0.0 --smoothing 0.0 --opt fusedlamb --unscale-lr --repeated-aug"
)
ONE += " --bce-loss --ThreeAugment "
TUNED = "--lr 1e-5 --epochs 20 --weight-decay 0.1 --eval-crop-ratio 1.0 --reprob 0.0 --unscale-lr --no-repeated-aug "
LARGE = (
  "--weight-decay 0.02 --eval-crop-ratio 1.0 --reprob 0.0 --opt fusedlamb --mixup 0 --unscale-lr --no-repeated-aug"
)
LARGE += " --ThreeAugment --src "
COMMANDS = {
  "deit:Ti": "--ngpus 4 --batch 256",
  "deit:S": "--ngpus 4 --batch 256",
  "deit:B": "--nodes 2",
  "deit3:S,i1k,800": ONE + "--batch 256 --lr 4e-3 --epochs 800 --drop-path 0.05",
  "deit3:B,i1k,800": ONE + "--batch 256 --lr 3e-3 --epochs 800 --drop-path 0.2 --input-size 192",
  "deit3:L,i1k,800": ONE + "--batch 64 --nodes 4 --lr 3e-3 --epochs 800 --drop-path 0.45 --input-size 192",
  "deit3:H,i1k,800": ONE + "--batch 64 --nodes 4 --lr 3e-3 --epochs 800 --drop-path 0.6 --input-size 160",
  "deit3:S,i1k,400": ONE + "--batch 256 --lr 4e-3 --epochs 400 --drop-path 0.0 --weight-decay 0.02",
  "deit3:B,i1k,400": ONE + "--batch 256 --lr 3e-3 --epochs 400 --drop-path 0.1 --weight-decay 0.02 --input-size 192",
  "deit3:L,i1k,400": ONE + "--batch 256 --lr 3e-3 --epochs 400 --drop-path 0.4 --weight-decay 0.02 --input-size 192",
  "deit3:H,i1k,400": ONE + "--batch 256 --lr 3e-3 --epochs 400 --drop-path 0.5 --weight-decay 0.02 --input-size 154",
  "deit3:B,i1k,400,224": TUNED + "--batch 64 --drop-path 0.1",
  "deit3:L,i1k,400,224": TUNED + "--batch 64 --drop-path 0.4",
  "deit3:H,i1k,400,224": TUNED + "--batch 64 --drop-path 0.5",
  "deit3:B,i1k,800,224": TUNED + "--batch 64 --drop-path 0.2",
  "deit3:L,i1k,800,224": TUNED + "--batch 64 --drop-path 0.45",
  "deit3:H,i1k,800,224": TUNED + "--batch 32 --nodes 2 --drop-path 0.55",
  "deit3:S,i1k,800,384": TUNED + "--batch 64 --input-size 384 --drop-path 0.0",
  "deit3:B,i1k,800,384": TUNED + "--batch 32 --nodes 2 --input-size 384 --drop-path 0.15",
  "deit3:L,i1k,800,384": TUNED + "--batch 16 --nodes 4 --input-size 384 --drop-path 0.4",
  "deit3:S,i21k,240": LARGE + "--batch 128 --nodes 2 --lr 0.001 --epochs 240 --drop-path 0.05",
  "deit3:B,i21k,240": LARGE + "--batch 64 --nodes 4 --lr 0.001 --epochs 240 --drop-path 0.1",
  "deit3:L,i21k,240": LARGE + "--batch 64 --nodes 4 --lr 0.001 --epochs 240 --drop-path 0.3",
  "deit3:H,i21k,90": LARGE + "--batch 64 --nodes 4 --lr 0.001 --epochs 90 --drop-path 0.5 --input-size 128",
  "deit3:S,i21k,240,224": LARGE + "--batch 128 --nodes 2 --lr 0.0003 --epochs 50 --drop-path 0.05",
  "deit3:B,i21k,240,224": LARGE + "--batch 64 --nodes 4 --lr 0.0003 --epochs 50 --drop-path 0.15",
  "deit3:L,i21k,240,224": LARGE + "--batch 64 --nodes 4 --lr 0.0003 --epochs 50 --drop-path 0.4",
  "deit3:H,i21k,90,224": LARGE + "--batch 64 --nodes 4 --lr 0.0003 --epochs 50 --drop-path 0.45",
  "vit5:S": ONE + "--batch 256 --lr 4e-3 --epochs 800 --drop-path 0.05",
  "vit5:B": ONE + "--batch 256 --lr 3e-3 --epochs 800 --drop-path 0.2 --input-size 192",
  "vit5:L": ONE + "--batch 256 --lr 3e-3 --epochs 400 --drop-path 0.35 --input-size 192",
  "vit5:S,224": TUNED + "--batch 64 --drop-path 0.05",
  "vit5:B,224": TUNED + "--batch 64 --drop-path 0.25",
  "vit5:L,224": TUNED + "--batch 64 --drop-path 0.5",
}
ROPE = {
  "S,{}": ONE + "--batch 256 --lr 4e-3 --epochs 400 --drop-path 0.0 --weight-decay 0.03",
  "B,{}": ONE + "--batch 256 --lr 3e-3 --epochs 400 --drop-path 0.1 --weight-decay 0.03 --input-size 192",
  "L,{}": ONE + "--batch 32 --nodes 8 --lr 3e-3 --epochs 400 --drop-path 0.4 --weight-decay 0.03 --input-size 192",
  "B,{},224": TUNED + "--batch 64 --drop-path 0.2",
  "L,{},224": TUNED + "--batch 8 --nodes 8 --drop-path 0.45",
}
COMMANDS |= {
  f"rope_vit:{run.format(positions)}": command
  for positions in recipes.module("rope_vit").POSITIONS
  for run, command in ROPE.items()
}


def parsed(command):
  parser = argparse.ArgumentParser()
  for name, default in DEFAULTS.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
  for name in FLAGS:
    parser.add_argument(f"--{name}", action="store_true")
  return parser.parse_args(command.split())


@functools.cache
def recipe(name):
  after = name.count(",") == {"deit3": 3, "rope_vit": 2, "vit5": 1}.get(name.partition(":")[0])
  return recipes.run(name, **({"init__from": "weights.npz"} if after else {}))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_optimises_as_the_command_says(name):
  output, run = parsed(COMMANDS[name]), recipe(name)
  batch, optim = output.batch * output.ngpus * output.nodes, run.optim.args
  assert (run.batch, str(run.total)) == (batch, f"{output.epochs}ep")
  assert optim["lr"] == pytest.approx(output.lr if output.unscale_lr else output.lr * batch / 512)
  assert (run.optim.name, optim["clip"]) == {"fusedlamb": ("lamb", 1.0), "adamw": ("adamw", None)}[output.opt]
  assert (optim["eps"], optim["weight_decay"]) == (output.opt_eps, output.weight_decay)
  assert optim["decay_on"] == ((".*kernel", 1.0),)  # no vectors, no biases, neither positions nor class token
  assert (optim["decay"], optim["trust_ratio"]) == ("times_lr", "decayed" if output.opt == "fusedlamb" else "none")
  schedule = optim["schedule"]
  assert (schedule.name, str(optim["warmup"])) == ("epoch_cosine", f"{output.warmup_epochs}ep")
  assert (schedule.args["start"], schedule.args["end"]) == (output.warmup_lr, output.min_lr)
  # main.py trains for the epochs of the flag and never reaches the cool-down that its schedule has behind them.
  assert schedule.args["cooldown"] == "0" and not schedule.args["after_warmup"]
  task = run.task.args
  assert (task["loss"], task["target_threshold"]) == (("mean_sigmoid", 0.0) if output.bce_loss else ("softmax", None))
  assert task["label_smoothing"] == output.smoothing
  # main.py averages by default, what nobody looks at but ViT-5: its fine-tuning is with --load_ema.
  assert optim["ema"] == (None if "deit" in name else 0.99996)
  assert run.init.ema is (True if name in ("vit5:S,224", "vit5:B,224", "vit5:L,224") else None)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_recipe_shows_what_the_command_shows(name):
  output, run = parsed(COMMANDS[name]), recipe(name)
  data, model = run.data.args, run.model.args
  patch = 14 if ":H" in name else 16
  assert data["image_size"] == output.input_size // patch * patch  # all that their patches see
  assert data["repeats"] == (1 if output.no_repeated_aug else 3)
  crop = data["crop"]
  if output.src:
    assert crop.name == "random_crop"
    assert crop.args == {"padding": 4, "border": "mirrored", "interpolation": "bicubic"}
  else:
    assert crop.name == "inception" and (crop.args["area"], crop.args["ratio"]) == ((0.08, 1.0), (3 / 4, 4 / 3))
    assert crop.args["interpolation"] == output.train_interpolation
  policy = data["policy"]
  if output.ThreeAugment:
    assert policy.name == "three_augment" and policy.args == {"blur": (0.1, 2.0), "jitter": output.color_jitter}
  else:  # where timm leaves the jitter out
    assert (policy.name, output.aa) == ("randaugment_increasing", "rand-m9-mstd0.5-inc1")
    expected = {"layers": 2, "magnitude": 9.0, "magnitude_std": 0.5, "probability": 0.5, "interpolation": "bicubic"}
    assert policy.args == expected | {"fill": (124, 116, 104)}  # 255 times the mean
  mixing = data["mixing"]
  if output.mixup:
    assert (mixing.name, mixing.args["mixup_alpha"], mixing.args["switch"]) == (
      "mixup_cutmix",
      output.mixup,
      output.mixup_switch_prob,
    )
    assert mixing.args["cutmix_alpha"] == output.cutmix
  else:
    assert (mixing.name, mixing.args["alpha"]) == ("cutmix", output.cutmix)
  assert (mixing.args["mode"], mixing.args["probability"]) == ("pair", 1.0)
  erasing = data["erasing"]
  assert (erasing.args["probability"] if erasing.name == "random" else 0) == output.reprob
  assert data["flip"] and data["test_crop"].name == "torchvision"
  assert data["test_crop"].args == {"ratio": output.eval_crop_ratio, "interpolation": "bicubic"}
  assert (data["mean"], data["std"]) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
  assert (model["stochastic_depth"], model["dropout"]) == (output.drop_path, output.drop)
  # models_v2.py of DeiT III, and what is made from it, has one rate for all blocks, timm's ViT of DeiT a growing one.
  assert model["stochastic_depth_rates"] == ("growing" if "deit:" in name else "equal")
  assert (model["gelu"], model["norm"].args["eps"], model["head"].args["std"]) == ("erf", 1e-6, 0.02)
  assert model["layer_scale"] == (None if "deit:" in name else 1e-4)


def test_every_run_of_deit3_has_its_command_or_one_of_other_epochs():
  runs = [
    ",".join(run) + (pixels and f",{pixels}")
    for run, rates in recipes.module("deit3").DROPPED.items()
    for pixels, rate in zip(("", "224", "384"), rates, strict=True)
    if rate is not None
  ]
  commands = {name.partition(":")[2] for name in COMMANDS}
  for run in {*runs} - commands:
    size, images, epochs, *pixels = run.split(",")
    other = ",".join((size, images, {"90": "240", "240": "90"}[epochs], *pixels))
    one, two = recipe(f"deit3:{run}"), recipe(f"deit3:{other}")
    assert images == "i21k" and other in commands
    assert (one.optim, one.data, one.model, one.batch) == (two.optim, two.data, two.model, two.batch)
  assert {f"deit3:{run}" for run in runs} >= {name for name in COMMANDS if "deit3" in name}


# Parameters of models_vit5.py and vit_rope.py at 224 px for 1000 classes, and whether a table of positions is in them,
# which has a row for the class token here.
COUNTS = {
  "vit5:S,224": (22_039_144, True),
  "vit5:B,224": (86_543_080, True),
  "vit5:L,224": (304_258_024, True),
  "rope_vit:S,axial": (21_984_232, False),
  "rope_vit:S,mixed": (21_988_840, False),
  "rope_vit:S,axial_ape": (22_059_496, True),
  "rope_vit:S,mixed_ape": (22_064_104, True),
  "rope_vit:B,axial,224": (86_434_792, False),
  "rope_vit:B,mixed,224": (86_444_008, False),
  "rope_vit:L,axial,224": (304_174_056, False),
  "rope_vit:L,mixed_ape,224": (304_399_336, True),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_model_has_as_many_parameters_as_its_authors_have(name):
  parameters, positions = COUNTS[name]
  description = models.Description(recipe(name).model, 224, 1000)
  shapes = models.make_functional(description).shapes()
  width = shapes["head/kernel"].shape[0]
  assert count_values(shapes) == parameters + width * positions


@pytest.mark.parametrize("name", [name for name in COMMANDS if "vit5" in name or "rope" in name])
def test_a_model_turns_as_its_authors_have_it(name):
  run = recipe(name)
  model = schema.flatten_choices(run.model.args)
  rotary, block = model["position.rotary"], [model[key] for key in ("norm", "attention.qk_norm", "attention.bias")]
  if "vit5" in name:
    assert block == ["rms", "rms", "none"]
    assert (model["registers"], model["mlp"], model["position"]) == (4, "gelu", "learned")
    turns = {"temperature": 10000.0, "first": "rows", "reference": 0, "registers": 100.0}
    assert (rotary.name, rotary.args) == ("axial", turns)
  else:
    positions = name.split(",")[1]
    assert (*block, model["registers"]) == ("layer", "none", "all", 0)
    assert model["position"] == ("learned" if "ape" in positions else "none")
    assert rotary.name == positions.removesuffix("_ape")
    assert rotary.args["temperature"] == {"axial": 100.0, "mixed": 10.0}[rotary.name]
    assert rotary.args.get("first", "columns") == "columns" and rotary.args.get("reference") is None
