"""Every shipped config: it resolves, it builds, and shrunk it trains two steps. Bad values end in one clear error."""

import contextlib
import inspect
import itertools
import json
import math
import random

import cv2
import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import build, config, convert, flags, hardware, importers, loop, models, schema, sweep, train, trees
from vit_jax.data import catalog, sources
from vit_jax.importers import containers, layout
from vit_jax.prepare import prepare

FILES = sorted(f for f in (runs.ROOT / "configs").glob("*.py") if f.stem != "fewshot")  # no run; see test_fewshot
DATA = [file for file in FILES if file.stem in ("digits", "folder")]  # whose data are here
RECIPES = [file for file in FILES if file not in DATA]
SHRUNK = {
  "optim.accumulate": "1",
  "batch": "8",
  "total": "2",
  "model.depth": "2",
  "log.every": "1",
  "data.image_size": "32",
}


@pytest.fixture(scope="module", autouse=True)
def prepared():
  prepare("digits")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
  """Three classes of ten photographs without split folders."""
  root = tmp_path_factory.mktemp("photos")
  draw = np.random.default_rng(0)
  for name, i in itertools.product(("a cat", "dög", "bird"), range(10)):
    (root / name).mkdir(exist_ok=True)
    cv2.imwrite(str(root / name / f"{i}.jpg"), draw.integers(0, 255, (40, 50, 3), np.uint8))
  return root


def load(file, photos):
  edited = flags.load(str(file))
  if edited.data.name == "folder":
    edited.data.path = str(photos)
  return edited


def shrunk(file, photos, **changes):
  edited = load(file, photos)
  for key, text in (SHRUNK | changes).items():
    flags.edit(edited, key, text)
  return edited


def narrow(file):
  """A recipe with a few thousand parameters, for pictures of 32 px and two steps."""
  edited = flags.load(str(file))
  side = "28" if edited.model.name.endswith("/14") else "32"
  small = {"model.width": "16", "model.heads": "2", "model.hidden": "16", "model.scan": "true"}
  small["init.from"] = "weights.npz"  # which a recipe may ask for, and nothing reads here
  for key, text in (SHRUNK | small | {"data.image_size": side, "optim.warmup": "0"}).items():
    flags.edit(edited, key, text)
  for part, key, value in (
    (edited.model, "pre_logits", 16),
    (edited.data.get("test_crop", {}), "resize", 36),
    (edited.optim.schedule, "cooldown", 0),
  ):
    if key in part:
      part[key] = value
  return build.complete(config.resolve(edited))


def pictures(choice, split):
  """In the place of a set's data: 16 photographs, with as many labels as its images have."""
  row, draw = catalog.CATALOG[choice.name], np.random.default_rng(0)
  files = [cv2.imencode(".jpg", draw.integers(0, 255, (40, 50, 3), np.uint8))[1].tobytes() for _ in range(16)]
  labels = [tuple(map(int, draw.integers(row.classes, size=draw.integers(1, row.labels + 1)))) for _ in files]
  if row.labels == 1:
    labels = [label for (label,) in labels]
  names = tuple(map(str, range(row.classes)))
  return sources.Source("made", split, names, 16, lambda i: (files[i], labels[i]), str, row.labels)


@pytest.mark.parametrize("file", DATA, ids=lambda f: f.stem)
def test_a_config_trains_two_steps(file, photos, tmp_path):
  run = build.complete(config.resolve(shrunk(file, photos)))
  result = loop.train(build.build(run, jax.devices()), tmp_path)
  assert result["steps"] == 2
  assert np.isfinite(result["loss"])


@pytest.mark.parametrize("file", RECIPES, ids=lambda f: f.stem)
def test_a_recipe_takes_two_steps_and_measures_every_image(file):
  parts = build.build(narrow(file), jax.devices(), pictures)
  state = parts.init()
  with contextlib.closing(parts.batches(0)) as batches:
    for batch in itertools.islice(batches, 2):
      state, metrics = parts.step(state, batch, {})
      assert np.isfinite(metrics["loss"])
  assert int(state.step) == 2
  figures = list(parts.evals.values())[-1].measure(state.params, lambda: None).figures
  assert figures["images"] == 16
  assert np.isfinite(figures["loss"])


@pytest.mark.parametrize("file", DATA, ids=lambda f: f.stem)
def test_a_config_builds_as_it_is(file, photos):
  run = build.complete(config.resolve(load(file, photos)))
  if file.stem == "folder":
    run = runs.changed(run, batch=24)
  parts = build.build(run, jax.devices())
  assert parts.total > 0
  assert run.model.name in parts.overview()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_a_config_says_how_to_start_it(file):
  module, _ = flags.module(str(file))
  assert f"configs/{file.name}" in module.__doc__
  assert inspect.getdoc(module.get_config)


@pytest.mark.parametrize("file", [f for f in FILES if hasattr(flags.module(str(f))[0], "sweep")], ids=lambda f: f.stem)
def test_every_trial_of_a_sweep_is_possible(file, tmp_path):
  given = sweep.of_config(str(file))
  overrides = {"init.from": "weights.npz"} if file.stem == "finetune" else {}
  listed = sweep.planned(str(file), given.trials, overrides, tmp_path, given.decide)
  assert [trial.error for trial in listed if trial.config is None] == []
  assert len(listed) == len(given.trials)


def test_the_digits_sweep_names_three_seeds():
  given = sweep.of_config(str(runs.ROOT / "configs/digits.py"))
  assert [changes["seed"] for changes in given.trials] == [0, 1, 2]
  assert given.decide is None


# Recipes: what their papers and codes say, from other places than the recipes themselves.

# Batch, steps, peak rate, its decay, weight decay times the rate (of the head, where it differs), dropout, and 10^9
# FLOPs of a forward pass (Zhai et al. 2022, table 2: two for each multiply-add), where these are published.
ADAM = ("adamw", "bfloat16", 1.0)  # rule, type of its first moment, clipping
PAPER = ("adamw", "float32", None)
PUBLISHED = {
  "vit_s16_i1k": (1024, 111_477, 1e-3, "cosine", 0.1, 0.1, 0.0, 9.2, ADAM),
  "vit_s16_i1k:150ep": (1024, 185_794, 1e-3, "cosine", 0.1, 0.1, 0.0, 9.2, ADAM),
  "vit_s16_i1k:300ep": (1024, 371_588, 1e-3, "cosine", 0.1, 0.1, 0.0, 9.2, ADAM),
  "vit_i1k": (4096, 92_897, 1e-3, "cosine", 0.1, 0.1, 0.0, 9.2, ADAM),
  "vit_i1k:Ti/16": (4096, 92_897, 1e-3, "cosine", 0.1, 0.1, 0.0, 2.5, ADAM),
  "vit_i1k:B/32,strong1": (4096, 92_897, 1e-3, "cosine", 0.1, 0.1, 0.0, 8.7, ADAM),
  "vit_i21k": (4096, 310_887, 1e-3, "linear", 0.03, 0.03, 0.1, 122.9, PAPER),
  "vit_i21k:B/32": (4096, 310_887, 1e-3, "linear", 0.03, 0.03, 0.1, 8.7, PAPER),
  "vit_i21k:B/16,augreg": (4096, 1_036_289, 1e-3, "cosine", 0.1, 0.1, 0.0, 35.1, ADAM),
  "vit_i21k:S/32,augreg": (4096, 1_036_289, 1e-3, "cosine", 0.1, 0.1, 0.0, None, ADAM),
  "vit_jft": (4096, 1_035_474, 4e-4, "linear", 0.1, 0.1, 0.0, 122.9, PAPER),
  "vit_jft:L/16,7ep": (4096, 517_737, 4e-4, "linear", 0.1, 0.1, 0.0, 122.9, PAPER),
  "vit_jft:B/32": (4096, 517_737, 8e-4, "linear", 0.1, 0.1, 0.0, 8.7, PAPER),
  "vit_jft:L/32": (4096, 517_737, 6e-4, "linear", 0.1, 0.1, 0.0, None, PAPER),
  "vit_jft:H/14": (4096, 1_035_474, 3e-4, "linear", 0.1, 0.1, 0.0, None, PAPER),
  "vit_g_jft": (16384, 1_000_000, 8e-4, "rsqrt", 0.03, 3.0, 0.0, 533.1, ("adafactor", None, 1.0)),
  "vit_g_jft:G/14": (16384, 1_000_000, 8e-4, "rsqrt", 0.03, 3.0, 0.0, 965.3, ("adafactor", None, 1.0)),
  "cct_cifar": (128, 121_094, 5.5e-4, "epoch_cosine", 0.06, 0.06, 0.0, 2 * 1.182, PAPER),
  "cct_cifar:cct_7_3x1_32,cifar100": (128, 121_094, 6e-4, "epoch_cosine", 0.06, 0.06, 0.0, 2 * 1.182, PAPER),
  "cct_cifar:cct_7_3x1_32_sine,cifar100,1500": (128, 589_844, 7e-4, "epoch_cosine", 0.05, 0.05, 0.0, 2.364, PAPER),
  "cct_cifar:cvt_7_4_32,cifar10,5000": (128, 1_957_031, 5e-4, "epoch_cosine", 0.05, 0.05, 0.0, 2 * 0.250, PAPER),
}


def known(name, **changes):
  """Parts of a recipe on 8 devices, with nothing but the catalog's facts for data."""
  file, _, argument = name.partition(":")
  edited = flags.load(str(runs.ROOT / f"configs/{file}.py:{argument}"))
  for key, text in changes.items():
    flags.edit(edited, key.replace("__", "."), text)
  return build.build(build.complete(config.resolve(edited)), jax.devices(), catalog.known_split)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_is_what_was_published_and_needs_neither_data_nor_memory_to_plan(name, monkeypatch):
  batch, steps, lr, decay, weight_decay, on_head, dropout, gflops, (rule, moment, clip) = PUBLISHED[name]
  monkeypatch.setattr(hardware, "memory", lambda device: None)  # that of this machine is not the point
  monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
  before = sum(array.nbytes for array in jax.live_arrays())
  parts = known(name) if ":" not in name else known(name, model__scan="true")  # the same in less time
  assert sum(array.nbytes for array in jax.live_arrays()) - before < 1e6
  optim, model = parts.run.optim, parts.run.model.args
  assert (parts.run.batch, parts.total) == (batch, steps)
  assert (optim.name, optim.args.get("mu_dtype"), optim.args["clip"]) == (rule, moment, clip)
  assert (optim.args["schedule"].name, model["dropout"]) == (decay, dropout)
  warm = {"cosine": 10_000, "linear": 10_000, "rsqrt": 10_000, "epoch_cosine": math.ceil(10 * 390.625)}[decay]
  assert float(parts.schedule(warm)) == pytest.approx(lr, rel=3e-3)
  assert float(parts.schedule(steps)) <= 1e-5
  rate = 1.0 if optim.args["decay"] == "times_lr" else 1 / lr
  decays = [optim.args["weight_decay"] * rate * share for _, share in optim.args["decay_on"]]
  assert (decays[-1], decays[0]) == pytest.approx((weight_decay, on_head))
  assert model["dtype"] == "bfloat16"
  if gflops:
    assert parts.flops_per_image / 3e9 == pytest.approx(gflops, rel=0.02)  # theirs have no class token
  if ":" not in name:
    assert f"{steps:,} steps" in parts.overview()


@pytest.mark.parametrize(
  ("name", "layers", "magnitude", "alpha"),
  [
    ("vit_s16_i1k", 2, 10, 0.2),
    ("vit_i1k:Ti/16", 2, 0, None),
    ("vit_i1k:S/32", 2, 15, 0.2),
    ("vit_i1k:S/16", 2, 15, 0.5),
    ("vit_i1k:L/16", 2, 15, 0.5),
    ("vit_i1k:B/16,strong2", 2, 20, 0.8),
    ("vit_i1k:Ti/16,none", 0, 0, None),
    ("vit_i21k:Ti/16,augreg", 0, 0, None),
    ("vit_i21k:S/16,augreg", 2, 0, None),
    ("vit_i21k:B/32,augreg", 2, 10, 0.2),
    ("vit_i21k:L/16,augreg", 2, 15, 0.5),
  ],
)
def test_a_size_has_the_augmentation_of_augreg(name, layers, magnitude, alpha):
  file, _, argument = name.partition(":")
  data = build.complete(config.resolve(flags.load(str(runs.ROOT / f"configs/{file}.py:{argument}")))).data.args
  assert (data["policy"].args["layers"], data["policy"].args["magnitude"]) == (layers, magnitude)
  assert data["mixing"].args.get("alpha") == alpha
  if alpha:
    assert (data["mixing"].args["partner"], data["mixing"].args["share"]) == ("rolled", "larger")


def test_the_plain_baseline_has_the_published_number_of_parameters():
  parts = known("vit_s16_i1k", model__scan="true")
  assert sum(math.prod(leaf.shape) for leaf in parts.state_shapes.params.values()) == 22_122_472


def test_the_rates_of_cct_on_cifar_are_those_of_timm():
  rate = known("cct_cifar").schedule
  published = {0: 1e-5, 1: 6.4e-5, 9: 4.96e-4, 10: 5.485e-4, 150: 2.80e-4, 175: 2.10e-4, 299: 1.0015e-5, 309: 1e-5}
  for epoch, expected in published.items():
    assert float(rate(math.ceil(epoch * 50_000 / 128))) == pytest.approx(expected, rel=2e-3), epoch


# Fine-tuning: steps, warm-up, peak rate, images to train on, to decide by and to report, smaller side before a test's
# central crop (None: squashed), as the papers and big_vision's transfer.py have them.
PROTOCOL = {
  "imagenet": (20_000, 500, 0.03, 1_268_355, 12_812, 50_000, 448),
  "cifar10": (10_000, 500, 0.01, 49_000, 1_000, 10_000, None),
  "cifar100": (10_000, 500, 0.01, 49_000, 1_000, 10_000, None),
  "pets": (500, 100, 0.003, 3_312, 368, 3_669, 448),
  "flowers": (500, 100, 0.003, 918, 102, 6_149, 448),
  "digits": (202, 20, 0.01, 1_293, 144, 360, None),
  "folder": (55, 6, 0.01, 22, 2, 6, 448),
}
THIN = {"model__depth": "1", "model__width": "16", "model__heads": "2", "model__hidden": "16"}


@pytest.mark.parametrize("name", PROTOCOL)
def test_fine_tuning_is_the_protocol_of_the_papers(name, photos, monkeypatch):
  steps, warmup, lr, *images, resize = PROTOCOL[name]
  own = {"folder": {"data__path": str(photos), "batch": "8"}, "digits": {}}.get(name)
  if own is None:
    monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
  parts = known(f"finetune:{name}", init__from="weights.npz", **THIN, **(own or {}))
  run, data = parts.run, parts.run.data.args
  assert (parts.total, run.batch) == (steps, {"digits": 64, "folder": 8}.get(name, 512))
  assert [float(parts.schedule(step)) for step in (0, warmup, steps)] == pytest.approx([0, lr, 0], abs=1e-9)
  assert [len(catalog.known_split(run.data, split)) for split in ("train", "val", "test")] == images
  assert {key: (e.args["split"], e.args["every"]) for key, e in run.evals.items()} == {
    "val": ("val", "10%"), "test": ("test", "100%")
  }  # fmt: skip
  assert [parts.evals[key].every for key in ("val", "test")] == [round(steps / 10), steps]
  assert (run.optim.name, run.optim.args["momentum"], run.optim.args["accumulator_dtype"]) == ("sgd", 0.9, "bfloat16")
  assert (run.optim.args["clip"], run.optim.args["weight_decay"], run.init.head) == (1.0, 0.0, "new")
  assert (data["crop"].name, data["flip"]) == (("resize", False) if name == "digits" else ("inception", True))
  assert (data["test_crop"].name, data["test_crop"].args.get("resize")) == (("centre" if resize else "resize"), resize)
  small = name == "digits"
  assert (run.model.name, data["image_size"]) == (("cct_2_3x2_32", 48) if small else ("ViT-B/16", 384))
  assert run.model.args["dtype"] == ("bfloat16" if own is None else "float32")


def test_fine_tuning_takes_a_model_and_pixels():
  run = known("finetune:flowers,ViT-Ti/8,512", init__from="weights.npz", **THIN).run
  assert (run.model.name, run.data.args["image_size"]) == ("ViT-Ti/8", 512)
  assert run.data.args["test_crop"].args["resize"] == round(512 * 448 / 384)
  assert flags.load(str(runs.ROOT / "configs/finetune.py:pets,R50+B/16")).data.image_size == 384


@pytest.mark.parametrize("name", PROTOCOL)
def test_fine_tuning_from_scratch_is_a_mistake(name, photos):
  file = flags.load(str(runs.ROOT / f"configs/finetune.py:{name}"))
  file.data.path = str(photos)
  with pytest.raises(schema.ConfigError, match=r"^config\.init\.from: missing; .*Add it .* as --config\.init\.from="):
    config.resolve(file)
  edited = flags.load(str(runs.ROOT / f"configs/finetune.py:{name}"))
  overrides = {"init.from": "weights.npz", "data.path": str(photos)}
  for key, text in overrides.items():
    flags.edit(edited, key, text)
  run = build.complete(config.resolve(edited))
  assert run.init == config.Init("weights.npz", "new")
  assert train.changes_of(file, run, overrides) == ["init.from: weights.npz", f"data.path: {photos}"]


def test_the_flags_that_fine_tuning_names_do_what_it_says():
  flag = "--config.optim.frozen=\"['(?!head).*']\""
  module, _ = flags.module(str(runs.ROOT / "configs/finetune.py"))
  assert flag in module.__doc__
  key, text = flag.removeprefix("--config.").replace('"', "").split("=")
  wanted = {key.replace(".", "__"): text, "optim__layer_decay": "0.75", "optim__ema": "0.9999"}
  assert all(
    f"--config.{name.replace('__', '.')}={value}" in module.__doc__.replace('"', "") for name, value in wanted.items()
  )
  parts = known("finetune:cifar10", init__from="weights.npz", **THIN, **wanted)
  moved = {
    path.split("head/")[-1]
    for path in trees.flatten(parts.state_shapes.optimizer)
    if "kernel" in path or "bias" in path
  }
  assert moved == {"kernel", "bias"}
  assert set(parts.state_shapes.ema) == set(parts.state_shapes.params)


@pytest.mark.parametrize(
  ("argument", "model", "changes"),
  [
    ("digits", "cct_2_3x2_32", {"depth": 1, "width": 16, "heads": 1, "hidden": 16}),
    ("folder,ViT-S/16,48", "ViT-S/16", {"depth": 2, "width": 16, "heads": 2, "hidden": 16}),
    ("cifar10,R+Ti/16,64", "R+Ti/16", {"depth": 1, "width": 16, "heads": 2, "hidden": 16}),
  ],
)
def test_fine_tuning_starts_with_the_weights_and_a_head_of_zeros(argument, model, changes, photos, tmp_path):
  # Weights of another size, with another head.
  before = models.Description(schema.Choice(model, changes), 32, 7)
  draw = np.random.default_rng(0)
  given = {path: draw.standard_normal(shape, np.float32) for path, shape in layout.shapes(before).items()}
  about = before.to_json()
  containers.write(
    tmp_path / "weights.npz", importers.export(given, before, importers.layouts_of(before)[0].name), about
  )
  start = tmp_path / "weights.npz"
  if model.startswith("cct"):
    start = tmp_path / "first"
    convert.convert(tmp_path / "weights.npz", start, None, {})

  edited = flags.load(str(runs.ROOT / f"configs/finetune.py:{argument}"))
  words = {"init.from": start, "batch": "8", "total": "2", "optim.warmup": "1", "log.every": "1"}
  words |= {"data.val": "train[:16]", "data.test": "test[:6]", "evals.val.every": "2"}  # there are many digits
  words |= {"data.path": photos} if "folder" in argument else {}
  for key, value in (words | {f"model.{key}": value for key, value in changes.items()}).items():
    flags.edit(edited, key, str(value))
  run = build.complete(config.resolve(edited))
  hybrid = run.data.name == "cifar10"
  parts = build.build(run, jax.devices()[:1], pictures if hybrid else catalog.open_split)
  arrays, notes = parts.weights()
  params = jax.device_get(parts.start(arrays).params)
  assert any("resampled" in note for note in notes)
  for path, value in params.items():
    if path.startswith("head/"):
      assert not value.any(), path
    elif path != "position/table":
      np.testing.assert_array_equal(value, given[path], err_msg=path)
  if not hybrid:
    result = loop.train(parts, tmp_path / "run")
    assert result["steps"] == 2
    assert np.isfinite(result["loss"])
    assert {"top1", "val/top1"} <= result.keys()


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("finetune:mnist", "unknown set 'mnist'; allowed: imagenet, cifar10, cifar100, pets, flowers, digits, folder"),
    ("finetune:pets,ViT-B/16,384,1", "not a set, a model and pixels; allowed: pets,ViT-B/16,384 or less"),
    ("finetune:digits,ViT-B/16,big", "not a set, a model and pixels; allowed: digits,cct_2_3x2_32,48 or less"),
    ("vit_s16_i1k:60ep", "unknown length '60ep'; allowed: 90ep, 150ep, 300ep"),
    ("vit_i1k:B/8", "unknown size 'B/8'; allowed: Ti/16, S/32, S/16, B/32, B/16, L/16"),
    ("vit_i1k:B/16,strong3", "unknown augmentation 'strong3'; allowed: none, light1"),
    ("vit_i1k:B/16,", "unknown augmentation ''; allowed: none, light1"),
    ("vit_i21k:Ti/16", "unknown size 'Ti/16'; allowed: B/32, B/16, L/32, L/16"),
    ("vit_i21k:L/32,augreg", "unknown size 'L/32'; allowed for augreg: Ti/16, S/32"),
    ("vit_i21k:L/16,paper", "unknown form 'paper'; allowed: L/16,augreg, or L/16 alone"),
    ("vit_jft:G/14", "unknown size 'G/14'; allowed: B/32, B/16, L/32, L/16, H/14"),
    ("vit_jft:H/14,7ep", "unknown length '7ep' of H/14; allowed: 14ep"),
    ("vit_g_jft:e/14", "unknown size 'e/14'; allowed: g/14, G/14"),
    ("cct_cifar:cct_14_7x2_224", "unknown model 'cct_14_7x2_224'; allowed, each also with _sine: vit_2_4_32"),
    ("cct_cifar:cct_7_3x1_32,mnist", "unknown set or length in 'cct_7_3x1_32,mnist'; after the model and a comma: "),
    ("cct_cifar:cct_7_3x1_32,cifar10,200", "cifar10,300, cifar10,1500, cifar10,5000, cifar100,300"),
    ("cct_cifar:cct_7_3x1_32,cifar10,300,1", "unknown set or length"),
  ],
)
def test_an_argument_that_no_recipe_has_is_one_clear_error(name, message):
  file, _, argument = name.partition(":")
  with pytest.raises(schema.ConfigError) as error:
    flags.load(str(runs.ROOT / f"configs/{file}.py:{argument}"))
  assert message in str(error.value)


def test_without_data_a_plan_stands_and_training_says_what_to_do(tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  run = narrow(runs.ROOT / "configs/vit_jft.py")
  parts = build.build(run, jax.devices(), catalog.known_split)
  assert parts.examples == 302_950_000
  assert parts.batch_shapes["label"].shape == (8, 8)
  own = r"your own copy of jft300m.*--config\.data\.path=DIR"
  with pytest.raises(schema.ConfigError, match=own):
    next(parts.batches(0))
  with pytest.raises(schema.ConfigError, match=own):
    parts.evals["test"].measure(parts.init().params, lambda: None)
  with pytest.raises(schema.ConfigError, match=own):
    build.build(run, jax.devices())


def test_training_without_data_exits_with_2_and_one_error(tmp_path):
  words = ["--config=configs/vit_s16_i1k.py", f"--workdir={tmp_path / 'run'}", f"--config.data.path={tmp_path}"]
  message = runs.finish(runs.command("train", *words, devices=8), 2)
  assert f"prepare it with: python -m vit_jax.prepare imagenet2012 --data_dir={tmp_path}" in message
  assert "Traceback" not in message
  assert not (tmp_path / "run").exists()


# Mistakes. Values of every kind in every place: either the run builds, or there is one error that names the place.

VALUES = (
  "-1",
  "0",
  "0.5",
  "1e30",
  "nan",
  "none",
  "true",
  "nonsense",
  "[]",
  "(1,2)",
  "{}",
  "''",
  "10ep",
  "3",
  "[('x', 1)]",
)


def leaves(value, path=""):
  if isinstance(value, dict):
    for key, inner in value.items():
      yield from leaves(inner, f"{path}.{key}" if path else key)
  else:
    yield path


def mutations():
  run = build.complete(config.resolve(flags.load(str(runs.ROOT / "configs/digits.py"))))
  keys = sorted(leaves(json.loads(config.dumps(run))))
  everything = [(key, value) for key in keys for value in VALUES]
  misspelled = [(key[:-1] + ("x" if key[-1] != "x" else "y"), "1") for key in keys]
  return random.Random(0).sample(everything, 300) + misspelled


def test_no_mutated_config_ends_in_a_traceback():
  wrong, opened = [], {}

  def open_split(choice, split):
    # A dataset takes longer to open than all the rest; one that cannot be opened is asked each time.
    key = json.dumps(schema.plain(schema.arguments(choice, catalog.READERS[choice.name])))
    if (choice.name, key, split) not in opened:
      opened[choice.name, key, split] = catalog.open_split(choice, split)
    return opened[choice.name, key, split]

  for key, text in mutations():
    edited = flags.load(str(runs.ROOT / "configs/digits.py"))
    flags.edit(edited, "model.depth", "1")
    try:
      flags.edit(edited, key, text)
      build.build(build.complete(config.resolve(edited)), jax.devices(), open_split)
    except schema.ConfigError as error:
      said = str(error)
      if key.split(".")[-1] not in said and key.split(".")[0] not in said:
        wrong.append(f"{key}={text}: the message does not say where: {said}")
    except Exception as error:
      wrong.append(f"{key}={text}: {type(error).__name__}: {error}")
  assert not wrong, "\n".join(wrong)


MISTAKES = {
  "an unknown model": ({"model.name": "cct_2_3x3_32"}, "Did you mean 'cct_2_3x2_32'"),
  "an unknown size": ({"model.name": "ViT-Q/16"}, "unknown size 'Q'"),
  "an unknown dataset": ({"data.name": "digit"}, "Did you mean 'digits'"),
  "an unknown optimizer": ({"optim.name": "adamv"}, "Did you mean 'adamw'"),
  "an unknown schedule": ({"optim.schedule.name": "cosin"}, "Did you mean 'cosine'"),
  "a batch that does not divide": ({"batch": "12"}, "12 does not divide over 8 devices"),
  "a batch larger than the data": ({"batch": "1440"}, "1440 is more than the 1437 images"),
  "a patch that does not divide": ({"model.name": "ViT-Ti/5"}, "32"),
  "a split that is not there": ({"data.train": "trian"}, "Did you mean 'train'"),
  "a mesh that does not fit": ({"mesh.fsdp": "3"}, "does not fit 8 devices"),
  "micro-batches that do not divide": ({"optim.accumulate": "16"}, "does not divide"),
  "a pattern without effect": ({"optim.frozen": "['haed/.*']"}, "matches no parameter"),
  "a model too large for the machine": ({"model.width": "32768", "model.heads": "16", "model.depth": "2"}, "GiB"),
  "no step": ({"total": "0"}, "is 0 steps"),
  "all frozen": ({"optim.frozen": "['.*']"}, "nothing is left to train"),
  "a length beyond int32": ({"total": "5000000M"}, "config.total"),
  "heads that do not divide": ({"model.heads": "3"}, "3"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_error(name):
  changes, says = MISTAKES[name]
  edited = flags.load(str(runs.ROOT / "configs/digits.py"))
  for key, text in changes.items():
    flags.edit(edited, key, text)
  with pytest.raises(schema.ConfigError) as error:
    build.build(build.complete(config.resolve(edited)), jax.devices())
  assert says in str(error.value)


@pytest.mark.parametrize("flag", ["data.mixing.name=mixup", "optim.schedule.name=linear", "evals.train.name=accuracy"])
def test_a_choice_that_the_file_does_not_mention_can_be_made_by_a_flag(flag):
  edited = flags.load(str(runs.ROOT / "configs/digits.py"))
  flags.edit(edited, *flag.split("="))
  run = build.complete(config.resolve(edited))
  assert flag.split("=")[1] in config.dumps(run)


def test_a_mistake_exits_with_2_before_the_workdir_exists(tmp_path):
  message = runs.finish(runs.command("train", *runs.words(tmp_path / "run", **{"optim.lrr": "1"})), 2)
  assert "Did you mean 'lr'" in message
  assert "Traceback" not in message
  assert not (tmp_path / "run").exists()
  message = runs.finish(runs.command("train", *runs.words(tmp_path / "run", batch=12), devices=8), 2)
  assert "12 does not divide over 8 devices" in message
  assert not (tmp_path / "run").exists()
