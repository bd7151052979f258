"""Tests of vit_jax/storage/hub_uploads.py against a server with the endpoints of the Hub."""

import socket

import pytest

from vit_jax import convert
from vit_jax.schema import ConfigError
from vit_jax.storage import hub_addresses, hub_uploads


def fail(address, problem, public=False):
  """Checks that an upload is refused before anything is changed, with one line."""
  with pytest.raises(ConfigError, match=problem) as error:
    hub_uploads.check_upload(hub_addresses.parse_address(address), public)
  assert "\n" not in str(error.value) and str(error.value).startswith(f"{address}: ")
  return str(error.value)


def test_new_and_empty_repositories_are_accepted_without_a_change(hub, monkeypatch):
  monkeypatch.setenv("HF_TOKEN", "hf_writer")
  hub.repositories["me/empty"].commit({".gitattributes": b""})
  hub.repositories["me/empty"].private = True
  for name in ("me/new", "me/empty", "Me/other", "lab/new"):
    hub_uploads.check_upload(hub_addresses.parse_address(f"hf:{name}"), public=False)
  monkeypatch.setenv("HF_TOKEN", "hf_fine")
  hub_uploads.check_upload(hub_addresses.parse_address("hf:them/new"), public=False)
  assert hub.requests.keys() == {"GET whoami", "GET model"} and hub.repositories.keys() == {"me/empty"}


def test_uploads_that_the_hub_would_refuse_are_reported(hub, monkeypatch):
  fail("hf:me/new@v1", "an upload makes a new commit of the branch main. Remove @v1")
  fail("hf:me/new", "no token was found. Create a token that may write, and set HF_TOKEN, or run `hf auth login`")
  monkeypatch.setenv("HF_TOKEN", "hf_reader")
  fail("hf:me/new", "the token may only read. Create a token that may write, and set HF_TOKEN")
  monkeypatch.setenv("HF_TOKEN", "hf_writer")
  fail("hf:them/new", "the token may write to repositories of me, Lab. Write hf:me/new, or use another token")
  hub.repositories["me/full"].commit({"config.json": b""})
  fail("hf:me/full", "the repository already contains config.json. Use a new repository", public=True)
  fail("hf:me/full", "the repository exists and is public. Set --public, or use a new repository")
  for answer in (b"[]", b"{}", b'{"auth": {"type": "access_token"}}', b"<html>"):
    hub.answers["GET whoami"] = answer
    fail("hf:me/new", "the response of .* is not that of a Hub server .*. Check HF_ENDPOINT")


def test_unreachable_hub_is_reported_without_the_cache_of_downloads(hub, monkeypatch):
  monkeypatch.setenv("HF_TOKEN", "hf_writer")
  with socket.socket() as unused:
    unused.bind(("127.0.0.1", 0))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert "cache" not in fail("hf:me/new", r"cannot be reached \(.*\). Check the network, HF_ENDPOINT and the proxy")
  monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
  assert "cache" not in fail("hf:me/new", "HF_HUB_OFFLINE is set. Unset it and run the command again")


def test_access_is_checked_before_the_weights_are_read(hub, tmp_path):
  with pytest.raises(ConfigError, match=r"^hf:me/new: no token was found"):
    convert.main([str(tmp_path / "absent.npz"), "hf:me/new", "--licence=mit"])


def test_uploads_are_one_commit_in_a_private_repository(hub, tmp_path, monkeypatch):
  monkeypatch.setenv("HF_TOKEN", "hf_writer")
  files = {"model.safetensors": b"weights", "README.md": b"---\nlicense: mit\n---\n", "config.json": b"{}"}
  for name, content in files.items():
    (tmp_path / name).write_bytes(content)
  page = hub_uploads.upload(tmp_path, hub_addresses.parse_address("hf:me/new"), public=False)
  repository = hub.repositories["me/new"]
  commit = repository.refs["main"]
  assert page == f"{hub.address}/me/new/commit/{commit}" and len(repository.commits) == 2
  assert {name: repository.commits[commit][name] for name in files} == files
  assert repository.private and hub.requests["PUT upload"] == 1
  with pytest.raises(ConfigError, match=r"already contains README.md, config.json, model.safetensors. Use a new"):
    hub_uploads.upload(tmp_path, hub_addresses.parse_address("hf:me/new"), public=False)
  hub_uploads.upload(tmp_path, hub_addresses.parse_address("hf:me/open"), public=True)
  assert not hub.repositories["me/open"].private
  hub.repositories["me/empty"].commit({".gitattributes": b""})  # which is public
  with pytest.raises(ConfigError, match=r"hf:me/empty: the repository exists and is public. Set --public"):
    hub_uploads.upload(tmp_path, hub_addresses.parse_address("hf:me/empty"), public=False)
  assert len(hub.repositories["me/empty"].commits) == 1


def test_refused_uploads_are_reported_in_one_line(hub, tmp_path, monkeypatch):
  (tmp_path / "model.safetensors").write_bytes(b"weights")
  for token in (None, "hf_reader"):
    if token:
      monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ConfigError, match=r"hf:me/new: the Hub answered with 40[13] .*set HF_TOKEN, or run") as error:
      hub_uploads.upload(tmp_path, hub_addresses.parse_address("hf:me/new"), public=False)
    assert "\n" not in str(error.value)
  assert "me/new" not in hub.repositories
