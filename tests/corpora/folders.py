"""Image folders to make corpora of, and corpora of them."""

import pathlib

from tests.image_files import encode, picture
from vit_jax import schema
from vit_jax.corpora import plan, writer
from vit_jax.data import catalog


def folder(root: pathlib.Path, images=12, classes=("cat", "dog"), split="train", form="JPEG") -> pathlib.Path:
  """Writes `<split>/<class>/<i>.jpg`, so many of each class."""
  for label, name in enumerate(classes):
    (root / split / name).mkdir(parents=True, exist_ok=True)
    for i in range(images):
      seed = label + len(classes) * i + (1000 if split == "test" else 0)
      (root / split / name / f"{i}.jpg").write_bytes(encode(picture(40, 50, seed=seed), form))
  return root


def choice(path, **args) -> dict:
  """The data choice of a folder, bound and plain, as the command line has it."""
  bound = schema.bind(schema.Choice("folder", {"path": str(path), **args}), (catalog.READERS["folder"],))
  return schema.to_plain(bound)


def made(path, root, name="corpus", count=1, max_rejected=0.01, **options) -> list[str]:
  """What `write` says of a corpus of the folder."""
  return writer.write(name, choice(path), plan.CorpusOptions(**options), pathlib.Path(root), count, max_rejected)


def source(root, split="train", name="corpus"):
  """A split of a corpus, as every verb reads it."""
  return catalog.open_split(schema.Choice("tfds", {"path": f"{root}/{name}/1.0.0"}), split)


def shards(root, name="corpus") -> dict[str, bytes]:
  """The files of records."""
  return {file.name: file.read_bytes() for file in pathlib.Path(root, name, "1.0.0").glob("*array_record*")}
