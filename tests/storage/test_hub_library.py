"""Tests of vit_jax/storage/hub_library.py: errors of huggingface_hub become messages of one line."""

import pytest

from tests import hub_server
from vit_jax.schema import ConfigError
from vit_jax.storage import hub_files

NAME = "timm/vit_small.tag"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fail(text):
  """Returns the error of an address, which has one line and starts with the address."""
  with pytest.raises(ConfigError) as error:
    hub_files.resolve_weights(text)
  assert "\n" not in str(error.value) and str(error.value).startswith(f"{text}: ")
  return str(error.value)


@pytest.mark.parametrize(
  ("status", "message"), [(500, "500 Internal Server Error. Try again"), (429, "429 Too Many"), (503, "503 Service")]
)
def test_failures_of_the_server_are_reported_with_their_status(hub, tmp_path, monkeypatch, status, message):
  commit = hub_server.add_model(hub, NAME, tmp_path)
  hub.status = status
  monkeypatch.setattr("time.sleep", lambda seconds: None)  # pauses between attempts
  assert f"the Hub answered with {message}" in fail(f"hf:{NAME}@{commit}")


SIBLINGS = b'{"id": "a/b", "sha": "%s", "siblings": %%s}' % COMMIT.encode()


@pytest.mark.parametrize(
  "answer",
  [b"[]", b"5", b"{}", b"<html>", b"[" * 100_000,
   *(SIBLINGS % each for each in (b"5", b"[5]", b'["a"]', b"[{}]", b'[{"rfilename": 5}]',
     b'[{"rfilename": "model.safetensors", "lfs": 5}]', b'[{"rfilename": "model.safetensors", "blobId": 5}]',
     b'[{"rfilename": "model.safetensors", "lfs": {"sha256": []}}]'))],
)  # fmt: skip
def test_answers_of_another_form_are_one_line(hub, answer):
  hub.answers["GET model"] = answer
  for text in ("hf:a/b", f"hf:a/b@{COMMIT}"):
    hub_server.forget_commits()
    assert "is not that of a Hub server" in fail(text) and "Check HF_ENDPOINT" in fail(text)


def test_passwords_of_the_server_are_not_printed(hub, tmp_path, monkeypatch):
  address = hub.address.replace("://", "://me:sec@ret@")
  monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
  hub_server.add_model(hub, NAME, tmp_path)
  hub.repositories[NAME].token, hub.repositories[NAME].gated = "hf_reader", True
  message = fail(f"hf:{NAME}")
  assert f"Accept the terms at {hub.address}/{NAME}, then" in message and "ret" not in message
