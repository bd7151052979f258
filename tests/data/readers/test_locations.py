"""Tests of datasets on a disk and in a bucket: the same folder in both, and missing buckets."""

import pytest

from tests.data.readers.test_folder import folder, write
from tests.image_files import image, names, numbers
from vit_jax.data import catalog, local_files
from vit_jax.data.readers import locations
from vit_jax.schema import Choice, ConfigError, enter_key
from vit_jax.schema.errors import AbsentError

FILES = (*(f"{label}/{i}.png" for label in ("cat", "a dog%2F?") for i in range(7)), "cat/x.txt", "cat/.hidden.png")


@pytest.mark.heavy
@pytest.mark.parametrize("split", ["train", "test"])
def test_folder_in_a_bucket_matches_the_folder_on_a_disk(bucket, bucket_server, tmp_path, split):
  write(tmp_path, *FILES)
  bucket_server.fill(tmp_path, bucket.name)
  here, there = folder(tmp_path, split), folder(bucket, split)
  assert there.classes == here.classes == ("a dog%2F?", "cat")
  assert names(there) == names(here) and numbers(there) == numbers(here)
  assert there.fingerprint()[:3] == here.fingerprint()[:3]
  assert there.remote and not here.remote
  assert there.place(0) == here.place(0).replace(str(tmp_path), str(bucket))
  asked = bucket_server.counts["GET"]
  assert there.read(0) == here.read(0)
  assert bucket_server.counts["GET"] == asked + 1


@pytest.mark.heavy
def test_missing_image_of_a_bucket_is_an_error_of_that_image_only(bucket):
  for name in FILES:
    (bucket / name).write_bytes(image(1))
  source = folder(bucket, holdout=0.0)
  (bucket / names(source)[3]).unlink()
  with pytest.raises(FileNotFoundError):
    source.read(3)
  assert source.read(4)[0] == image(1)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["folder", "digits"])
def test_missing_bucket_and_missing_data_have_different_errors(bucket, name):
  with enter_key("config.data"):
    with pytest.raises(
      AbsentError, match=r"data.path: gs://nobody/x cannot be reached: the bucket 'nobody' does not exist"
    ):
      catalog.open_split(Choice(name, {"path": "gs://nobody/x"}), "train")
    with pytest.raises(AbsentError, match=f"'{bucket}' is empty|'digits:1.0.0' is not in {bucket}"):
      catalog.open_split(Choice(name, {"path": str(bucket)}), "train")


@pytest.mark.parametrize("path", ["gcs://b/a", "s3://b/a", "gs:/b/a", "hf://a/b"])
@pytest.mark.parametrize("name", ["folder", "digits"])
def test_path_with_an_unknown_scheme_is_an_error(name, path):
  with enter_key("config.data"), pytest.raises(ConfigError, match=r"data\.path: .* unknown scheme"):
    catalog.open_split(Choice(name, {"path": path}), "train")


@pytest.mark.heavy
def test_object_above_the_size_limit_is_not_read(bucket, monkeypatch):
  monkeypatch.setattr(local_files, "LARGEST", 5)
  (bucket / "a/1.png").write_bytes(image(1))
  listed = locations.BucketFolder.read_listing(bucket)
  with pytest.raises(OSError, match=r"bytes. Allowed: 5"):
    listed.read("a/1.png")


@pytest.mark.heavy
def test_stamps_follow_the_given_order_on_a_disk_and_in_a_bucket(bucket, tmp_path):
  for root in (bucket, tmp_path):
    for name, length in (("a", 2), ("b", 1)):
      (root / name).write_bytes(bytes(length))
  here, there = (locations.read_stamps([root / "b", root / "a"]) for root in (tmp_path, bucket))
  assert here == [(size, (tmp_path / name).stat().st_mtime_ns) for name, size in (("b", 1), ("a", 2))]
  assert there == [(size, (bucket / name).stat().mtime) for name, size in (("b", 1), ("a", 2))]
