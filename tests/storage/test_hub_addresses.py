"""Tests of vit_jax/storage/hub_addresses.py: addresses of weights on the Hugging Face Hub."""

import pathlib

import pytest

from vit_jax.schema import ConfigError
from vit_jax.storage import hub_addresses

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
  ("text", "repository", "revision", "commit"),
  [
    ("hf:timm/vit_small_patch16_224.augreg_in21k", "timm/vit_small_patch16_224.augreg_in21k", None, None),
    ("hf:a/b@v1.0", "a/b", "v1.0", None),
    ("hf:a/b@refs/pr/1", "a/b", "refs/pr/1", None),
    (f"hf:a/b@{COMMIT}", "a/b", COMMIT, COMMIT),
    (f"hf:a/b@main:{COMMIT}", "a/b", "main", COMMIT),
  ],
)
def test_addresses_are_parsed_and_written_in_the_same_form(text, repository, revision, commit):
  assert hub_addresses.parse_address(text) == (repository, revision, commit)
  assert str(hub_addresses.parse_address(text)) == text
  assert str(pathlib.Path(text)) == text


@pytest.mark.parametrize(
  "text",
  ["hf:", "hf:a", "hf:a/b/c/../d", "hf:a/..", "hf:../b", "hf:a/b/c", "hf:a//b", "hf:a/b c", "hf:a/$(id)", "hf:/a/b",
   "hf:a/b--c", "hf:a/b.git", "hf:a/-b", "hf:a/b@", "hf:a/b@../c", "hf:a/b@a//b", "hf:a/b@/etc", "hf:a/b@x:y",
   "hf:a/b@main:12", "hf:a/b@a b", "hf:a/b\n", "hf:" + "a" * 96 + "/b", "a/b"],
)  # fmt: skip
def test_invalid_addresses_are_refused(text):
  with pytest.raises(ConfigError, match=r"(Write hf:OWNER/NAME|is not a revision. Write a branch)") as error:
    hub_addresses.parse_address(text)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("text", "address"),
  [
    ("timm/vit_small.tag", "hf:timm/vit_small.tag"),
    ("HF:timm/vit", "hf:timm/vit"),
    ("hf://timm/vit", "hf:timm/vit"),
    ("HF:timm/vit@v1", "hf:timm/vit@v1"),
    ("https://huggingface.co/timm/vit", "hf:timm/vit"),
    ("https://huggingface.co/timm/vit/", "hf:timm/vit"),
    ("huggingface.co/timm/vit?library=timm", "hf:timm/vit"),
    ("https://hf.co/timm/vit/tree/v1", "hf:timm/vit@v1"),
    ("https://huggingface.co/timm/vit/blob/main/model.safetensors", "hf:timm/vit@main"),
    ("https://example.com/timm/vit", None),
    ("https://huggingface.co/timm", None),
    ("/timm/vit", None),
    ("runs/a", None),
    ("a/b/c", None),
    ("vit", None),
  ],
)
def test_address_is_suggested_for_other_forms(tmp_path, monkeypatch, text, address):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "runs").mkdir()
  assert hub_addresses.suggest_address(text) == (f" Did you mean {address}?" if address else "")
