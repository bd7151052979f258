"""Writers of the same images in every storage format that a reader supports."""

import base64
import io
import json
import tarfile

from vit_jax import schema
from vit_jax.data import catalog

SHARDS = 3


def tar(path, members, **options):
  """Writes a tar archive from (name, content) pairs."""
  path.parent.mkdir(parents=True, exist_ok=True)
  with tarfile.open(path, "w", **{"format": tarfile.PAX_FORMAT} | options) as file:
    for name, content in members:
      about = tarfile.TarInfo(name)
      about.size = len(content)
      file.addfile(about, io.BytesIO(content))


def tars(root, images, labels, split="train"):
  for shard, part in enumerate(pieces(len(images))):
    members = [
      member
      for i in part
      for member in ((f"{i:06d}.png", images[i]), (f"{i:06d}.json", json.dumps({"label": labels[i]}).encode()))
    ]
    tar(root / f"photos-{split}-{shard:04d}.tar", members)


def manifest(root, images, labels, split="train", inline=False):
  root.mkdir(parents=True, exist_ok=True)
  lines = []
  for i, image in enumerate(images):
    where = {"bytes": base64.b64encode(image).decode()}
    if not inline:
      (root / f"{split}_{i}.png").write_bytes(image)
      where = {"path": f"{split}_{i}.png"}
    lines.append(where | {"label": labels[i], "split": split})
  with (root / "all.jsonl").open("a") as file:
    file.write("".join(json.dumps(line) + "\n" for line in lines))


def inline(root, images, labels, split="train"):
  manifest(root, images, labels, split, True)


def parquet(root, images, labels, split="train", names=None, group=7):
  import pyarrow
  from pyarrow import parquet as form

  (root / "data").mkdir(parents=True, exist_ok=True)
  for shard, part in enumerate(pieces(len(images))):
    structs = [{"bytes": images[i], "path": f"{i}.png"} for i in part]
    table = pyarrow.table({"image": structs, "label": [labels[i] for i in part]})
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    if names:
      table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    form.write_table(
      table, root / f"data/{split}-{shard:05d}-of-{SHARDS:05d}.parquet", row_group_size=group, compression="none"
    )


def pieces(count):
  """Returns the records of each shard."""
  shards = min(SHARDS, count)
  ends = [i * count // shards for i in range(shards + 1)]
  return [range(*ends[i : i + 2]) for i in range(shards)]


# The function that writes each format, and the name of its reader.
FORMS = {"tars": (tars, "tars"), "paths": (manifest, "manifest"), "inline": (inline, "manifest")} | {
  "parquet": (parquet, "parquet")
}


def opened(name, path, split="train", **args):
  with schema.enter_key("config.data"):
    return catalog.open_split(schema.Choice(name, {"path": str(path)} | args), split)
