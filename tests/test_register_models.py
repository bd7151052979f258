"""Tests of registered models that differ completely from built-in models, in every verb that opens a run."""

import sys

import jax
import numpy as np
import pytest

import vit_jax
from tests import runs
from tests.extension_files import forget
from vit_jax import config, convert, evaluate, models, register
from vit_jax.config import flags
from vit_jax.data.bound_data import EvalData
from vit_jax.inference.predictor import Predictor
from vit_jax.models import vit
from vit_jax.reports import inside, page, report
from vit_jax.schema import Choice, ConfigError
from vit_jax.training import build, loop

EXAMPLE = runs.ROOT / "examples/extend"
# The model has a patch layer of another name, and attributes that have another meaning in built-in modules.
BAG = """
import sys
sys.path.append({examples!r})
import array_reader
import jax
import jax.numpy as jnp
from flax import nnx
from vit_jax import register
from vit_jax.config import recipe
from vit_jax.models import layers
from vit_jax.models.output import Output

class Bag(nnx.Module):
  def __init__(self, emb, head, patch):
    self.emb, self.head, self.patch, self.stem, self.position, self.root = emb, head, patch, "conv", 3, None

  def outputs(self, images, key=None):
    tokens = self.emb(images).reshape(images.shape[0], -1, 16)
    features = jax.nn.relu(tokens).mean(1)
    logits = features if self.head is None else self.head(features)
    return Output(tokens, features, logits.astype(jnp.float32), {{}})

@register.model("bag", image_size=32, sharding=((r"emb/kernel", (None,) * 4), (r"emb/bias", (None,))))
def bag(image_size, channels, classes, rngs, *, patch: int = 8, attention: str = "none", dtype: str = "float32"):
  common = dict(dtype=jnp.float32, rngs=rngs)
  embedding = layers.PatchEmbedding(channels, 16, patch, kernel_init=layers.xavier, **common)
  return Bag(embedding, layers.Linear((16,), (classes,), **common) if classes else None, patch)

def get_config():
  return recipe(
    model=dict(name="bag"), optim=dict(name="adamw", lr=3e-3), total=4, batch=8, log=dict(every=2),
    data=dict(name="arrays", path={data!r}, image_size=16, crop=dict(name="resize"), test_crop=dict(name="resize")),
    evals=dict(test=dict(name="accuracy")),
  )
"""


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
  """Starts each test with no registered names, and restores the import path."""
  monkeypatch.setattr(sys, "path", list(sys.path))
  forget()
  yield
  forget()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
  """Writes a config that registers the model, and its data in the same folder."""
  folder, draw = tmp_path_factory.mktemp("bag"), np.random.default_rng(0)
  arrays = {"classes": ["a", "b", "c"]}
  for split, count in (("train", 32), ("test", 8)):
    arrays[f"{split}_images"] = draw.integers(0, 255, (count, 16, 16, 3), np.uint8)
    arrays[f"{split}_labels"] = draw.integers(0, 3, count)
  np.savez(folder / "data.npz", **arrays)
  path = folder / "bag.py"
  path.write_text(BAG.format(examples=str(EXAMPLE), data=str(folder / "data.npz")))
  return path


def parts(file, **changes):
  run = build.complete(config.resolve(flags.load_config(str(file), changes)))
  return build.build(run, jax.devices()[:1])


@pytest.mark.long
def test_model_with_other_attributes_is_trained_and_reported(file, tmp_path, capsys):
  made = parts(file)
  assert made.forward_flops > 0 and made.task.fields.patch is None
  loop.train(made, tmp_path / "run")
  report.make_report([tmp_path / "run"], tmp_path / "run.html")
  text = (tmp_path / "run.html").read_text()
  assert "bag has no layer `embedding` or `stem` with a kernel [P, P, 3, D]." in text
  assert "bag is not built from vit_jax.models.transformer.Transformer" in text and "a bug in vit_jax" not in text
  model = vit_jax.load(tmp_path / "run")
  stored = np.load(file.parent / "data.npz")
  predicted = np.array([one.numbers[0] for one in model.predict(list(stored["test_images"]))])
  assert model.features(list(stored["test_images"])).shape == (8, 16)
  convert.convert(tmp_path / "run", tmp_path / "run.stablehlo", None, {})
  capsys.readouterr()
  evaluate.main([f"--workdir={tmp_path / 'run'}"])
  assert f"{100 * (predicted == stored['test_labels']).mean():.2f}" in capsys.readouterr().out


@pytest.mark.heavy
def test_masking_task_with_a_model_without_patches_is_an_error(file):
  for task in ("masked_autoencoder", "masked_patches"):
    with pytest.raises(ConfigError, match="the tokens of bag are not patches of the image"):
      parts(file, **{"task.name": task})


@pytest.mark.heavy
def test_error_in_a_user_module_is_reported_with_its_line(file, tmp_path):
  broken = tmp_path / "broken.py"
  broken.write_text(file.read_text().replace("jax.nn.relu(tokens).mean(1)", "jax.nn.rely(tokens).mean(1)"))
  line = next(n for n, text in enumerate(broken.read_text().splitlines(), 1) if "rely" in text)
  with pytest.raises(ConfigError, match=rf"^model bag: .*broken\.py, line {line}: AttributeError: .*rely"):
    parts(broken)


@pytest.mark.heavy
def test_masking_tasks_accept_a_model_that_accepts_patches(file):
  parts(file)  # registers the reader

  @register.model("cut", image_size=16, sharding=vit.SHARDING)
  def cut(image_size, channels, classes, rngs, *, heads: int = 2, dtype: str = "float32"):
    return vit.vit((8, 1, heads, 8), 4, image_size, channels, classes, rngs, dtype=dtype)

  changes = {"model.name": "cut", "evals.test.name": "masked"}
  small = {"task.width": "8", "task.depth": "1", "task.heads": "2"}
  for task, own in (("masked_patches", {}), ("masked_autoencoder", small)):
    made = parts(file, **changes, **{"task.name": task}, **own)
    assert made.task.fields.patch == 4 and made.batch_shapes["image"].shape == (8, 16, 48) and made.forward_flops > 0


@pytest.mark.heavy
def test_report_shows_attention_maps_of_a_user_transformer(tmp_path):
  @register.model("own", image_size=16, classes=3, sharding=vit.SHARDING)
  def own(image_size, channels, classes, rngs, *, dtype: str = "float32"):
    return vit.vit((8, 1, 2, 8), 8, image_size, channels, classes, rngs, dtype=dtype)

  description = models.Description(Choice("own"), 16, 3).bind()
  model = models.make_functional(description)
  data = EvalData("images", {"mean": (0.5,) * 3, "std": (0.5,) * 3})
  use = Predictor(description, ("a", "b", "c"), model.init(jax.random.key(0)), data, "softmax")
  square = np.zeros((16, 16, 3), np.uint8)
  chapter = inside.make_chapter(use, [(square, [])])
  assert [type(part) for part in chapter.parts][-2:] == [page.Gallery, page.Gallery]
