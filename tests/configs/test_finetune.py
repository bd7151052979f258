"""The fine-tuning recipe: the papers' protocol, its argument and flags, and how its runs start."""

import json

import jax
import numpy as np
import pytest

from tests import recipes
from vit_jax import config, convert, importers, models, schema, train, trees
from vit_jax.data import catalog, sources
from vit_jax.importers import layout
from vit_jax.importers.formats import containers
from vit_jax.sweeps import study, trials
from vit_jax.training import build, loop

# Steps, warm-up, peak rate, images to train on, to decide by and to report, smaller side before a test's
# central crop (None: squashed), as the papers and big_vision's transfer.py have them.
PROTOCOL = {
  "imagenet": (20_000, 500, 0.03, 1_268_355, 12_812, 50_000, 448),
  "cifar10": (10_000, 500, 0.01, 49_000, 1_000, 10_000, None),
  "cifar100": (10_000, 500, 0.01, 49_000, 1_000, 10_000, None),
  "pets": (500, 100, 0.003, 3_312, 368, 3_669, 448),
  "flowers": (500, 100, 0.003, 918, 102, 6_149, 448),
  "resisc45": (2_500, 200, 0.003, 18_900, 6_300, 6_300, 448),
  "kitti": (500, 100, 0.003, 6_347, 423, 711, None),
  "digits": (202, 20, 0.01, 1_293, 144, 360, None),
  "folder": (55, 6, 0.01, 22, 2, 6, 448),
}
THIN = {"model__depth": "1", "model__width": "16", "model__heads": "2", "model__hidden": "16"}


def thin(name, photos, **changes):
  """Parts of the recipe for a set, with a narrow model."""
  own = {"data__path": photos, "batch": "8"} if name == "folder" else {}
  return recipes.known(f"finetune:{name}", init__from="weights.npz", **THIN, **own, **changes)


@pytest.mark.parametrize("name", PROTOCOL)
def test_fine_tuning_is_the_protocol_of_the_papers(name, photos, monkeypatch):
  steps, _, _, *images, resize = PROTOCOL[name]
  here = name in ("digits", "folder")
  if not here:
    monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
  parts = thin(name, photos)
  run, data = parts.run, parts.run.data.args
  assert (parts.total, run.batch) == (steps, {"digits": 64, "folder": 8}.get(name, 512))
  assert [len(catalog.open_known_split(run.data, split)) for split in ("train", "val", "test")] == images
  assert {key: (e.args["split"], e.args["every"]) for key, e in run.evals.items()} == {
    "val": ("val", "10%"), "test": ("test", "100%")
  }  # fmt: skip
  assert [parts.evals[key].every for key in ("val", "test")] == [round(steps / 10), steps]
  assert (run.optim.name, run.optim.args["momentum"], run.optim.args["accumulator_dtype"]) == ("sgd", 0.9, "bfloat16")
  assert (run.optim.args["clip"], run.optim.args["weight_decay"], run.init.head) == (1.0, 0.0, "new")
  crop = "resize" if name in ("digits", "kitti") else "inception"
  assert (data["crop"].name, data["flip"]) == (crop, name != "digits")
  assert (data["test_crop"].name, data["test_crop"].args.get("resize")) == (("centre" if resize else "resize"), resize)
  small = name == "digits"
  assert (run.model.name, data["image_size"]) == (("cct_2_3x2_32", 48) if small else ("ViT-B/16", 384))
  assert run.model.args["dtype"] == ("float32" if here else "bfloat16")


@pytest.mark.heavy
@pytest.mark.parametrize("name", PROTOCOL)
def test_a_rate_rises_to_the_papers_and_falls_to_zero(name, photos):
  steps, warmup, lr, *_ = PROTOCOL[name]
  rate = thin(name, photos).schedule
  assert [float(rate(step)) for step in (0, warmup, steps)] == pytest.approx([0, lr, 0], abs=1e-9)


def test_fine_tuning_takes_a_model_and_pixels():
  run = recipes.known("finetune:flowers,ViT-Ti/8,512", init__from="weights.npz", **THIN).run
  assert (run.model.name, run.data.args["image_size"]) == ("ViT-Ti/8", 512)
  assert run.data.args["test_crop"].args["resize"] == round(512 * 448 / 384)
  assert recipes.load("finetune:pets,R50+B/16").data.image_size == 384


@pytest.mark.parametrize("name", PROTOCOL)
def test_fine_tuning_from_scratch_is_a_mistake(name, photos):
  file = recipes.load(f"finetune:{name}", data__path=photos)
  with pytest.raises(schema.ConfigError, match=r"^config\.init\.from: missing\. .* --config\.init\.from="):
    config.resolve(file)
  overrides = {"init.from": "weights.npz", "data.path": str(photos)}
  run = recipes.run(f"finetune:{name}", init__from="weights.npz", data__path=photos)
  assert run.init == config.Init("weights.npz", "new")
  assert train.list_config_changes(file, run, overrides) == ["init.from: weights.npz", f"data.path: {photos}"]


def test_the_flags_that_fine_tuning_names_do_what_it_says():
  flag = "--config.optim.frozen=\"['(?!head).*']\""
  module = recipes.module("finetune")
  assert flag in module.__doc__
  key, text = flag.removeprefix("--config.").replace('"', "").split("=")
  wanted = {key.replace(".", "__"): text, "optim__layer_decay": "0.75", "optim__ema": "0.9999"}
  assert all(
    f"--config.{name.replace('__', '.')}={value}" in module.__doc__.replace('"', "") for name, value in wanted.items()
  )
  parts = recipes.known("finetune:cifar10", init__from="weights.npz", **THIN, **wanted)
  moved = {
    path.split("head/")[-1]
    for path in trees.flatten(parts.state_shapes.optimizer)
    if "kernel" in path or "bias" in path
  }
  assert moved == {"kernel", "bias"}
  assert set(parts.state_shapes.ema) == set(parts.state_shapes.params)


@pytest.mark.long
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
  stored = {path: draw.standard_normal(shape, np.float32) for path, shape in layout.compute_shapes(before).items()}
  tensors = importers.export_tensors(stored, before, importers.find_layouts(before)[0].name)
  containers.write(tmp_path / "weights.npz", tensors, before.to_json())
  start = tmp_path / "weights.npz"
  if model.startswith("cct"):
    start = tmp_path / "first"
    convert.convert(tmp_path / "weights.npz", start, None, {})

  short = {"init__from": start, "batch": 8, "total": 2, "optim__warmup": 1, "log__every": 1}
  short |= {"data__val": "train[:16]", "data__test": "test[:6]", "evals__val__every": 2}  # there are many digits
  short |= {"data__path": photos} if "folder" in argument else {}
  run = recipes.run(f"finetune:{argument}", **short, **{f"model__{key}": value for key, value in changes.items()})
  hybrid = run.data.name == "cifar10"
  parts = build.build(run, jax.devices()[:1], recipes.pictures if hybrid else catalog.open_split)
  arrays, notes = parts.read_initial_weights()
  params = jax.device_get(parts.create_initial_state(arrays).params)
  assert any("resampled" in note for note in notes)
  for path, value in params.items():
    if path.startswith("head/"):
      assert not value.any(), path
    elif path != "position/table":
      np.testing.assert_array_equal(value, stored[path], err_msg=path)
  if not hybrid:
    result = loop.train(parts, tmp_path / "run")
    assert result["steps"] == 2
    assert np.isfinite(result["loss"])
    assert {"top1", "val/top1"} <= result.keys()


@pytest.mark.parametrize("name", PROTOCOL)
def test_the_last_runs_of_a_sweep_train_on_what_was_held_out_and_not_on_test(name, photos, monkeypatch, tmp_path):
  if name not in ("digits", "folder"):
    monkeypatch.setenv("TFDS_DATA_DIR", "/nowhere")
  own = {"data.path": str(photos)} if name == "folder" else {}
  path = recipes.path(f"finetune:{name}")
  made = study.Study(path, {"init.from": "weights.npz", **own}, study.load_sweep(path), tmp_path)
  (last, *_) = made.make_last_runs(trials.group_settings(made.make_trials())[0])
  data = config.resolve(json.loads(last.config)).data
  train, test = (catalog.open_known_split(data, split) for split in ("train", "test"))
  assert len(train) == sum(PROTOCOL[name][3:5]) and not sources.share_records(train, test)
