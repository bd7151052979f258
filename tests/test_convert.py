"""Tests of the convert verb (conversions, inspection, errors) and of imported weights in training and evaluation."""

import json
import re

import numpy as np
import pytest

from tests import runs
from vit_jax import checkpoints, convert, evaluate, importers, train
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.importers import layout
from vit_jax.importers.formats import containers
from vit_jax.inference import inspection
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import loop

SMALL = {"width": 64, "depth": 2, "heads": 2, "hidden": 96}
VIT = Description(Choice("ViT-S/8", SMALL), 32, 3)


def written(path, name="vit_jax", description=VIT, seed=0):
  """Writes a file of random weights, and returns the arrays by path."""
  rng = np.random.default_rng(seed)
  arrays = {p: rng.standard_normal(shape).astype(np.float32) for p, shape in layout.compute_shapes(description).items()}
  containers.write(path, importers.export_tensors(arrays, description, name), description.to_json())
  return arrays


@pytest.mark.heavy
def test_conversion_through_every_layout_changes_no_bit(tmp_path):
  source = tmp_path / "0.npz"
  written(source)
  (tmp_path / "hub").mkdir()
  way = [
    ("1.safetensors", "timm"),
    ("hub/model.safetensors", "hf"),
    ("2.npz", "big_vision"),
    ("3", None),
    ("4.npz", None),
  ]
  last = source
  for target, name in way:
    convert.convert(last, tmp_path / target, name, {"heads": 2})
    last = tmp_path / target
  # big_vision's class token has no position row. Its position is added to the token.
  first, end = np.load(source), np.load(last)
  assert sorted(first) == sorted(end)
  table, token = "Transformer/posembed_input/pos_embedding", "cls"
  np.testing.assert_array_equal(first[token] + first[table][:, :1], end[token])
  np.testing.assert_array_equal(first[table][:, 1:], end[table][:, 1:])
  assert all(np.array_equal(first[name], end[name]) for name in first if name not in (table, token))


@pytest.mark.parametrize("name", ["timm", "hf", "vit_jax"])
def test_round_trip_through_a_layout_gives_the_same_file(tmp_path, name):
  source = tmp_path / "a.npz"
  written(source)
  convert.convert(source, tmp_path / "b.safetensors", name, {})
  convert.convert(tmp_path / "b.safetensors", tmp_path / "c.npz", "vit_jax", {})
  first, end = np.load(source), np.load(tmp_path / "c.npz")
  assert sorted(first) == sorted(end)
  assert all(np.array_equal(first[key], end[key]) for key in first)
  # The header of .safetensors stores the facts that tensors do not show.
  described = importers.load(tmp_path / "b.safetensors")[0]
  assert layout.compute_shapes(described) == layout.compute_shapes(VIT)
  assert described.arguments()["gelu"] == "tanh"


def test_facts_that_a_layout_does_not_store_are_noted(tmp_path):
  written(tmp_path / "a.npz")
  output = convert.convert(tmp_path / "a.npz", tmp_path / "b.safetensors", "timm", {})
  assert "note: gelu=tanh cannot be derived from the tensors. Readers of the tensors alone will use erf" in output
  assert "note: heads=2 cannot be derived from the tensors. Readers of the tensors alone will use 1" in output
  assert "cannot be derived from the tensors" not in convert.convert(
    tmp_path / "a.npz", tmp_path / "b.npz", "vit_jax", {}
  )


def test_padding_of_an_efficientnet_is_stored_only_in_its_name(tmp_path):
  described = Description(Choice("tf_efficientnet_b0"), 224, 1000)
  written(tmp_path / "a.safetensors", "timm", described)
  output = convert.convert(tmp_path / "a.safetensors", tmp_path / "weights.npz", None, {})
  assert (
    "eps=0.001 cannot be derived from the tensors" in output
    and "padding=same cannot be derived from the tensors" in output
  )
  named = convert.convert(tmp_path / "a.safetensors", tmp_path / "tf_efficientnet_b0.npz", None, {})
  assert "cannot be derived from the tensors" not in named


def test_hf_export_writes_the_config_of_its_library(tmp_path):
  written(tmp_path / "a.npz")
  (tmp_path / "out").mkdir()
  convert.convert(tmp_path / "a.npz", tmp_path / "out/model.safetensors", "hf", {})
  found = json.loads((tmp_path / "out/config.json").read_text())
  assert (found["hidden_size"], found["num_attention_heads"], found["hidden_act"]) == (64, 2, "gelu_pytorch_tanh")
  assert (found["layer_norm_eps"], found["num_hidden_layers"], len(found["id2label"])) == (1e-6, 2, 3)
  with pytest.raises(ConfigError, match=r"config\.json already exists"):
    convert.convert(tmp_path / "a.npz", tmp_path / "out/other.safetensors", "hf", {})
  assert not (tmp_path / "out/other.safetensors").exists()


@pytest.mark.parametrize("arguments", [{"gelu": "erf"}, {"position": "sincos2d", "pool": "gap"}])
@pytest.mark.parametrize("size", [32, (24, 40)])
def test_converted_files_are_read_by_their_header(tmp_path, arguments, size):
  described = Description(Choice("ViT-S/8", SMALL | arguments), size, 3)
  arrays = written(tmp_path / "a.safetensors", "timm", described)
  description, back = importers.load(tmp_path / "a.safetensors")
  assert description.image_size == size and back.keys() == arrays.keys()
  assert all(np.array_equal(back[path], arrays[path]) for path in arrays)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    (["{}/a.npz", "{}/a.npz"], "already exists"),
    (
      ["{}/a.npz", "{}/b.pth"],
      r"cannot write '\.pth'. Allowed: \.npz, \.safetensors, \.stablehlo, \.onnx, or a directory",
    ),
    (["{}/c.npz", "{}/none/b.npz"], "no file"),
    (["{}/a.npz", "{}/a.npz/b.npz"], "a.npz is not a folder. Choose another path"),
    (["{}/a.npz", "{}/b.npz", "--layout=compact"], "'compact' is not known for ViT-"),
    (
      ["{}/a.npz", "{}/b", "--layout=timm"],
      "an output directory contains a checkpoint of vit_jax, which has no layout",
    ),
    (["{}/a.npz", "{}/b.npz", "--ema"], "the file has no averaged weights"),
    (["--inspect", "{}/a.npz", "--ema"], "the file has no averaged weights"),
    (["--inspect", "{}/a.npz", "--image-size=112"], "--image-size=112: .*image_size=32. Leave --image-size out"),
    (["--inspect", "{}/a.npz", "--image-size=64,24"], "--image-size=64,24: .*image_size=32. Leave --image-size out"),
    (["{}/a.npz", "{}/b.npz", "--image-size=112"], "--image-size=112: .*image_size=32. Leave --image-size out"),
    (["--inspect", "{}/a.npz", "--heads=4"], "--heads=4: .* heads=2. Leave --heads out"),
    (["--inspect", "{}/a.npz", "--heads=32768"], "--heads: 32768. Allowed: a whole number from 1 to 32767"),
    (["{}/a.npz"], "1 path. Write `IN OUT`"),
    (["--inspect", "{}/a.npz", "{}/a.npz"], "2 paths"),
    (["--inspect", "{}/c.npz"], "no file"),
    (["--inspect", "{}"], "no weights in the folder"),
    (["--inspect", "{}/run"], "has no checkpoint that can be read"),
  ],
)
def test_invalid_command_is_an_error_and_writes_no_file(tmp_path, given, message):
  written(tmp_path / "a.npz")
  (tmp_path / "run/checkpoints").mkdir(parents=True)
  before = sorted(tmp_path.rglob("*"))
  with pytest.raises(ConfigError, match=message):
    convert.main([*(word.format(tmp_path) for word in given)])
  assert sorted(tmp_path.rglob("*")) == before


def test_image_size_that_is_not_a_number_is_an_error():
  with pytest.raises(ConfigError, match=r"--image-size: 'a' .*224,160 for height and width"):
    convert.main(["--inspect", "x.npz", "--image-size=a"])


def test_table_that_is_not_a_square_needs_the_image_size(tmp_path):
  wide = Description(Choice("ViT-S/8", SMALL), (16, 40), 3)
  written(tmp_path / "a.npz", description=wide)
  with pytest.raises(ConfigError, match=r"10 patches, which do not form a square. Give the image size"):
    importers.inspect(tmp_path / "a.npz")
  assert importers.inspect(tmp_path / "a.npz", {"image_size": (16, 40)}).description.image_size == (16, 40)


# Initial weights of a run.

RUN = {"model.depth": "2", "model.width": "64", "model.heads": "1", "model.hidden": "64", "total": "2"}
CCT = Description(
  Choice("cct_2_3x2_32", {"width": 64, "depth": 2, "heads": 1, "hidden": 64, "attention_dropout": 0.1}), 32, 10
)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
  """A file of weights that fits the digits run, and its arrays."""
  path = tmp_path_factory.mktemp("start") / "weights.safetensors"
  return path, written(path, "compact", CCT)


@pytest.mark.long
@pytest.mark.parametrize("scan", [False, True])
def test_training_starts_from_a_file_on_any_mesh(start, scan):
  path, arrays = start
  keys = {key.replace(".", "__"): value for key, value in RUN.items()} | {"model__scan": scan, "optim__ema": 0.9}
  parts = runs.parts(mesh__fsdp="2", init__from=str(path), **keys)
  weights, notes = parts.read_initial_weights()
  assert notes == [f"weights of {path}"]
  state = parts.create_initial_state(weights)
  layers = [f"blocks/{i}/mlp/up/kernel" for i in range(2)]
  stacked = {"blocks/mlp/up/kernel": np.stack([arrays[layer] for layer in layers])}
  expected = stacked if scan else {layer: arrays[layer] for layer in layers}
  for name, array in (expected | {"head/kernel": arrays["head/kernel"]}).items():
    np.testing.assert_array_equal(state.params[name], array)
    np.testing.assert_array_equal(state.ema[name], array)
    assert state.params[name].sharding == parts.state_shapes.params[name].sharding
  parts.compile()(state, next(parts.open_batches(0)), {})


@pytest.mark.heavy
def test_new_head_starts_at_zero_and_the_rest_comes_from_the_file(start):
  path, arrays = start
  keys = {key.replace(".", "__"): value for key, value in RUN.items()}
  parts = runs.parts(init__from=str(path), init__head="new", **keys)
  state = parts.create_initial_state(parts.read_initial_weights()[0])
  assert not np.any(state.params["head/kernel"])
  assert not np.any(state.params["head/bias"])
  np.testing.assert_array_equal(state.params["norm/scale"], arrays["norm/scale"])


@pytest.mark.long
def test_weights_of_an_unfinished_run_cause_a_warning(tmp_path):
  experiment = runs.parts(1)
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(experiment, 5), tmp_path / "a")
  note = f"warning: the run in {tmp_path}/a has not finished: its weights are those of step 3 of 12"
  assert note in runs.parts(1, init__from=str(tmp_path / "a")).read_initial_weights()[1]
  loop.train(experiment, tmp_path / "a")
  assert not any(
    "not finished" in line for line in runs.parts(1, init__from=str(tmp_path / "a")).read_initial_weights()[1]
  )


@pytest.mark.long
def test_run_starts_from_a_workdir_and_from_its_average(tmp_path):
  loop.train(runs.parts(1, optim__ema=0.5), tmp_path / "a")
  arrays, about = checkpoints.read_weights(tmp_path / "a")
  averaged, _ = checkpoints.read_weights(tmp_path / "a", averaged=True)
  assert about["model"]["model"]["name"] == "cct_2_3x2_32" and about["model"]["classes"] == 10
  assert np.abs(arrays["head/kernel"] - averaged["head/kernel"]).max() > 0
  for ema, expected in ((False, arrays), (True, averaged)):
    parts = runs.parts(init__from=str(tmp_path / "a"), init__ema=ema)
    for path, array in parts.read_initial_weights()[0].items():
      np.testing.assert_array_equal(array, expected[path])
  output = inspection.inspect_weights(tmp_path / "a", {})
  assert "checkpoint of vit_jax" in output and "--config.model.depth=1" in output and "dtype" not in output

  # An evaluation of the weights gives the figures of the run.
  flags = [word for word in runs.words(tmp_path) if word.startswith("--config")]
  out = runs.finish(runs.command("evaluate", f"--weights={tmp_path / 'a'}", *flags))
  result = json.loads((tmp_path / "a/result.json").read_text())
  assert f"{result['top1']:.2%}" in out and f"{result['loss']:.4f}" in out

  # An evaluation after a conversion to another layout gives the same loss.
  runs.finish(runs.command("convert", str(tmp_path / "a"), str(tmp_path / "b.npz")))
  assert f"{result['loss']:.4f}" in runs.finish(runs.command("evaluate", f"--weights={tmp_path / 'b.npz'}", *flags))
  with pytest.raises(ConfigError, match=r"does not contain ema. Train with config.optim.ema"):
    checkpoints.write_weights(tmp_path / "c", arrays, about)
    checkpoints.read_weights(tmp_path / "c", averaged=True)


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--config.init.from=nowhere.npz"], "config.init.from: no file 'nowhere.npz'"),
    (["--config.init.form=x"], "config.init.form: unknown key for an Init, value 'x'. Did you mean 'from'"),
    (["--config.init.head=old"], "config.init.head: 'old' is not a choice"),
    (["--config.init.from={}", "--config.model.depth=3"], "missing: blocks/2/"),
    (["--config.init.from={}", "--config.init.ema=true"], "the file has no averaged weights"),
  ],
)
def test_weights_that_do_not_fit_are_an_error_before_writing(tmp_path, start, flags, message, monkeypatch):
  prepare_dataset("digits")
  monkeypatch.chdir(runs.ROOT)
  words = [*runs.words(tmp_path / "w", **{k.replace(".", "__"): v for k, v in RUN.items()})]
  words += [flag.format(start[0]) for flag in flags]
  with pytest.raises(ConfigError, match=re.escape(message)):
    train.main(words)
  assert not (tmp_path / "w").exists()


def test_heads_of_the_model_are_used_only_for_files_of_its_width(tmp_path):
  arrays = written(tmp_path / "a.safetensors", "timm")  # 2 heads; the default for this width is 1
  containers.write(tmp_path / "bare.npz", importers.export_tensors(arrays, VIT, "timm"), {})
  fitted, _ = importers.load_fitted(str(tmp_path / "bare.npz"), VIT)
  assert all(np.array_equal(fitted[path], arrays[path]) for path in arrays)
  wider = VIT.replace(model=Choice("ViT-S/8", SMALL | {"width": 128, "heads": 16}))
  with pytest.raises(ConfigError, match=r"contains ViT-[^(]*width=64(?!.*heads=16.*this model)"):
    importers.load_fitted(str(tmp_path / "bare.npz"), wider)


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("flags", "message"),
  [
    ([], "give either --workdir"),
    (["--weights=x"], "give either --workdir"),
    (["--weights=x", "--workdir=y", "--config=configs/digits.py"], "give either --workdir"),
    (["--weights=x.npz", "--config=configs/digits.py"], "--weights: no file 'x.npz'"),
    (["--workdir=x", "--config.batch=3"], "--config.batch: --workdir uses the config of its run"),
  ],
)
def test_evaluate_without_required_flags_is_an_error(flags, message, monkeypatch):
  prepare_dataset("digits")
  monkeypatch.chdir(runs.ROOT)
  with pytest.raises(ConfigError, match=re.escape(message)):
    evaluate.main(flags)
