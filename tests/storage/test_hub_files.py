"""Tests of vit_jax/storage/hub_files.py against a server with the endpoints of the Hub."""

import hashlib
import json
import os
import pathlib
import socket

import huggingface_hub
import numpy as np
import pytest
import safetensors.numpy

from tests import hub_server, small_weights
from vit_jax import importers
from vit_jax.schema import ConfigError
from vit_jax.storage import hub_files, paths

NAME = "timm/vit_small.tag"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_only_weights_can_be_on_the_hub():
  with pytest.raises(ConfigError, match=r"'hf:a/b': only weights can be on the Hugging Face Hub. Use a path"):
    paths.parse_path("hf:a/b")


def test_safetensors_and_json_files_are_downloaded_and_no_pickle(hub, tmp_path):
  hub_server.add_model(hub, NAME, tmp_path, architecture="x", num_classes=7)
  hub.repositories[NAME].commit({"pytorch_model.bin": b"cposix\nsystem\n", "README.md": b"", "onnx/model.onnx": b""})
  path = hub_files.resolve_weights(f"hf:{NAME}")
  assert {file.name for file in path.parent.iterdir()} == {"model.safetensors", "config.json"}
  assert path.read_bytes() == (tmp_path / "model.safetensors").read_bytes()
  assert hub_files.find_repository_name(path.parent) == "vit_small.tag"
  assert not [name for name in hub.requests if name.startswith("unknown")]


def test_a_cached_commit_needs_no_request(hub, tmp_path):
  commit = hub_server.add_model(hub, NAME, tmp_path)
  first = hub_files.resolve_weights(f"hf:{NAME}")
  assert hub_files.pin_commit(f"hf:{NAME}") == f"hf:{NAME}@main:{commit}"
  hub.requests.clear()
  for text in (f"hf:{NAME}", f"hf:{NAME}@{commit}", f"hf:{NAME}@main:{commit}"):
    assert hub_files.resolve_weights(text) == first
  assert not hub.requests
  hub_server.forget_commits()  # like a new process
  assert hub_files.resolve_weights(f"hf:{NAME}") == first
  assert hub.requests == {"GET model": 1}


def test_revisions_select_commits(hub, tmp_path):
  repository = hub.repositories[NAME]
  commits = {}
  for branch in ("main", "v1", "refs/pr/1"):
    commits[branch] = repository.commit({"model.safetensors": branch.encode()}, branch)
  for branch, commit in commits.items():
    assert hub_files.resolve_weights(f"hf:{NAME}@{branch}").read_bytes() == branch.encode()
    assert hub_files.pin_commit(f"hf:{NAME}@{branch}") == f"hf:{NAME}@{branch}:{commit}"
  repository.commit({"model.safetensors": b"moved"})
  assert hub_files.resolve_weights(f"hf:{NAME}").read_bytes() == b"moved"
  assert hub_files.resolve_weights(f"hf:{NAME}@main:{commits['main']}").read_bytes() == b"main"


def write_shards(folder):
  """Writes a ViT in two files with an index, and returns the content of the files."""
  description = small_weights.described()
  tensors = importers.export_tensors(small_weights.arrays(description), description, "timm")
  names, files, index = sorted(tensors), {}, {}
  for i, part in enumerate((names[::2], names[1::2]), 1):
    file = f"model-{i:05}-of-00002.safetensors"
    files[file] = safetensors.numpy.save({name: np.ascontiguousarray(tensors[name]) for name in part})
    index |= dict.fromkeys(part, file)
  return files | {"model.safetensors.index.json": json.dumps({"weight_map": index}).encode()}


def test_sharded_weights_are_read(hub, tmp_path):
  hub.repositories[NAME].commit(write_shards(tmp_path))
  (_, arrays), (_, single) = importers.load(f"hf:{NAME}"), importers.load(small_weights.file(tmp_path))
  assert arrays.keys() == single.keys()
  assert all(np.array_equal(arrays[name], single[name]) for name in arrays)


def test_one_file_is_preferred_to_shards(hub, tmp_path):
  hub.repositories[NAME].commit(write_shards(tmp_path) | {"model.safetensors": b"whole"})
  path = hub_files.resolve_weights(f"hf:{NAME}")
  assert [file.name for file in path.parent.iterdir()] == ["model.safetensors"]


def test_an_interrupted_download_continues_where_it_stopped(hub, tmp_path, monkeypatch):
  content = np.random.default_rng(0).bytes(300_000)
  hub.repositories[NAME].commit({"model.safetensors": content})
  hub.cut = 100_000
  monkeypatch.setattr("time.sleep", lambda seconds: None)  # the library's pause
  monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 50_000)
  assert hub_files.resolve_weights(f"hf:{NAME}").read_bytes() == content
  assert hub.ranges == ["bytes=100000-"]


def test_tokens_are_sent_to_the_hub_and_not_to_the_host_of_contents(hub, tmp_path, monkeypatch):
  hub_server.add_model(hub, NAME, tmp_path)
  hub.repositories[NAME].token = "hf_reader"
  monkeypatch.setenv("HF_TOKEN", "hf_reader")
  assert hub_files.resolve_weights(f"hf:{NAME}").exists()
  assert hub.tokens["content"] == {""} and hub.tokens["model"] == {"hf_reader"}


def fail(text):
  """Returns the error of an address, which has one line and starts with the address."""
  with pytest.raises(ConfigError) as error:
    hub_files.resolve_weights(text)
  assert "\n" not in str(error.value) and str(error.value).startswith(f"{text}: ")
  return str(error.value)


def test_absent_repositories_and_revisions_are_reported(hub, tmp_path, monkeypatch):
  hub_server.add_model(hub, NAME, tmp_path)
  absent = "this repository does not exist or is private. Check the name. If it is private, set HF_TOKEN"
  assert absent in fail("hf:timm/absent")
  monkeypatch.setenv("HF_TOKEN", "hf_reader")
  assert absent in fail("hf:timm/absent@main")
  assert "this revision does not exist. Choose a revision from http" in fail(f"hf:{NAME}@v9")
  assert "this revision does not exist" in fail(f"hf:{NAME}@{COMMIT}")


@pytest.mark.parametrize("token", [None, "hf_other"])
def test_gated_repositories_are_reported_with_the_page_of_their_terms(hub, tmp_path, monkeypatch, token):
  hub_server.add_model(hub, NAME, tmp_path)
  hub.repositories[NAME].token, hub.repositories[NAME].gated = "hf_reader", True
  if token:
    monkeypatch.setenv("HF_TOKEN", token)
  assert f"access is restricted. Accept the terms at {hub.address}/{NAME}, then set HF_TOKEN" in fail(f"hf:{NAME}")


@pytest.mark.parametrize(
  ("names", "message"),
  [
    (
      ("pytorch_model.bin",),
      "contains no model.safetensors. It contains only pickles (pytorch_model.bin), which may run code",
    ),
    (("a.pth", "b.pth"), "It contains only pickles (a.pth, b.pth), which may run code and are not"),
    (("open_clip.safetensors", "a.bin"), "It contains open_clip.safetensors: download the file, and name its path"),
    (("README.md",), "contains no model.safetensors. Use a repository of a model"),
  ],
)
def test_repositories_without_safetensors_are_refused(hub, names, message):
  hub.repositories[NAME].commit(dict.fromkeys(names, b"x"))
  assert message in fail(f"hf:{NAME}")
  assert not hub.requests["GET content"]


def test_an_unreachable_hub_is_reported_unless_the_cache_has_the_weights(hub, tmp_path, monkeypatch):
  hub_server.add_model(hub, NAME, tmp_path)
  cached = hub_files.resolve_weights(f"hf:{NAME}")
  with socket.socket() as unused:
    unused.bind(("127.0.0.1", 0))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
    hub_server.forget_commits()
    assert hub_files.resolve_weights(f"hf:{NAME}") == cached
    message = fail("hf:timm/other")
  assert "cannot be reached (" in message and "does not contain the weights. Check the network, HF_ENDPOINT" in message


def test_offline_mode_uses_the_cache_only(hub, tmp_path, monkeypatch):
  commit = hub_server.add_model(hub, NAME, tmp_path)
  cached = hub_files.resolve_weights(f"hf:{NAME}")
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
  hub_server.forget_commits()
  hub.requests.clear()
  assert hub_files.resolve_weights(f"hf:{NAME}") == cached
  assert hub_files.pin_commit(f"hf:{NAME}") == f"hf:{NAME}@main:{commit}"
  for text in ("hf:timm/other", f"hf:{NAME}@v2", f"hf:{NAME}@{COMMIT}"):
    assert "HF_HUB_OFFLINE is set, and the cache" in fail(text)
  assert not hub.requests


def test_files_that_another_program_cached_are_used_offline(hub, tmp_path, monkeypatch):
  (tmp_path / "config.json").write_text("{}")
  hub_server.add_model(hub, NAME, tmp_path)
  cached = huggingface_hub.hf_hub_download(NAME, "model.safetensors")
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
  assert "the cache contains model.safetensors without config.json, which describes the images" in fail(f"hf:{NAME}")
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
  huggingface_hub.hf_hub_download(NAME, "config.json")
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
  assert hub_files.resolve_weights(f"hf:{NAME}") == pathlib.Path(cached)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_damaged_downloads_are_refused_and_removed(hub, tmp_path, name):
  good, bad = b"content", b"conten" + bytes([b"t"[0] ^ 1])
  commit = hub.repositories[NAME].commit({"model.safetensors": good, "config.json": b"{}", name: good})
  if name == "config.json":
    huggingface_hub.hf_hub_download(NAME, "model.safetensors", revision=commit)
  hub.damaged = name
  listed, found = map(hub_server.blob_digest if name == "config.json" else sha256, (good, bad))
  message = f"{name} is damaged. The server lists the digest {listed}, but the file has {found}. The file was removed"
  assert message in fail(f"hf:{NAME}")
  assert bad not in [file.read_bytes() for file in (tmp_path / "hub_cache").rglob("*") if file.is_file()]
  hub.damaged = None
  assert hub_files.resolve_weights(f"hf:{NAME}").with_name(name).read_bytes() == good


def sha256(content):
  return hashlib.sha256(content).hexdigest()


def test_files_that_changed_in_the_cache_or_that_others_downloaded_are_verified(hub, tmp_path):
  hub.repositories[NAME].commit({"model.safetensors": b"weights"})
  path = hub_files.resolve_weights(f"hf:{NAME}")
  path.resolve().write_bytes(b"WEIGHTS")
  os.utime(path.resolve(), (0, 0))
  assert "model.safetensors is damaged" in fail(f"hf:{NAME}")
  assert hub_files.resolve_weights(f"hf:{NAME}").read_bytes() == b"weights"
  hub.repositories["a/b"].commit({"model.safetensors": b"others"})
  hub.damaged = "model.safetensors"
  huggingface_hub.hf_hub_download("a/b", "model.safetensors")
  assert "model.safetensors is damaged" in fail("hf:a/b")


@pytest.mark.parametrize("entry", [b"", b', "blobId": "12"', b', "lfs": {"sha256": "x", "size": 1, "pointerSize": 1}'])
def test_files_without_a_digest_are_refused(hub, entry):
  commit = hub.repositories[NAME].commit({"model.safetensors": b"weights"})
  files = b'[{"rfilename": "model.safetensors"%s}]' % entry
  hub.answers["GET model"] = b'{"id": "a/b", "sha": "%s", "siblings": %s}' % (commit.encode(), files)
  assert "the server lists no digest of model.safetensors, so the file cannot be verified" in fail(f"hf:{NAME}")


def test_a_commit_that_is_no_digest_is_refused(hub, tmp_path):
  hub_server.add_model(hub, NAME, tmp_path)
  repository = hub.repositories[NAME]
  repository.commits["../../evil"] = repository.commits[repository.refs["main"]]
  repository.refs["main"] = "../../evil"
  assert "the server returned the commit '../../evil'. Check HF_ENDPOINT" in fail(f"hf:{NAME}")
