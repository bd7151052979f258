"""Functions that make image folders, and corpora of these folders."""

import pathlib

from tests.image_files import encode, picture
from vit_jax import schema
from vit_jax.corpora import plan, writer
from vit_jax.data import catalog


def folder(root: pathlib.Path, images=12, classes=("cat", "dog"), split="train", form="JPEG") -> pathlib.Path:
  """Writes `<split>/<class>/<i>.jpg`, with `images` files for each class."""
  for label, name in enumerate(classes):
    (root / split / name).mkdir(parents=True, exist_ok=True)
    for i in range(images):
      seed = label + len(classes) * i + (1000 if split == "test" else 0)
      (root / split / name / f"{i}.jpg").write_bytes(encode(picture(40, 50, seed=seed), form))
  return root


def choice(path, **args) -> dict:
  """Returns the data choice of a folder, bound and converted to plain values, as the command line does."""
  bound = schema.bind(schema.Choice("folder", {"path": str(path), **args}), (catalog.READERS["folder"],))
  return schema.to_plain(bound)


def made(path, root, name="corpus", count=1, max_rejected=0.01, **options) -> list[str]:
  """Writes a corpus of a folder and returns the lines of `writer.write`."""
  return writer.write(name, choice(path), plan.CorpusOptions(**options), pathlib.Path(root), count, max_rejected)


def source(root, split="train", name="corpus"):
  """Opens a split of a corpus in the same way as the verbs."""
  return catalog.open_split(schema.Choice("tfds", {"path": f"{root}/{name}/1.0.0"}), split)


def shards(root, name="corpus") -> dict[str, bytes]:
  """Returns the contents of the record files of a corpus by name."""
  return {file.name: file.read_bytes() for file in pathlib.Path(root, name, "1.0.0").glob("*array_record*")}
