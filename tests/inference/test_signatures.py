"""Tests of vit_jax/inference/signatures.py: signatures in the format of OpenSSF, which its own tool verifies."""

import subprocess
import sys

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tests import small_weights
from vit_jax import convert
from vit_jax.inference import signatures
from vit_jax.schema import ConfigError

pytest.importorskip("model_signing", reason="the extra sign is not installed")


def write_keys(folder, name="key", private=None, password=None):
  """Writes the PEM files of a pair of keys, and returns the paths of the private and the public key."""
  private = private or ec.generate_private_key(ec.SECP256R1())
  encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
  pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
  public = private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
  (folder / f"{name}.pem").write_bytes(private.private_bytes(pem, pkcs8, encryption))
  (folder / f"{name}.pub").write_bytes(public)
  return folder / f"{name}.pem", folder / f"{name}.pub"


@pytest.fixture
def signed(tmp_path, capsys):
  """A signed file in timm's layout with its config.json, and its public key."""
  private, public = write_keys(tmp_path)
  source = small_weights.file(tmp_path)
  out = tmp_path / "out/model.safetensors"
  convert.main([str(source), str(out), "--layout=timm", f"--sign={private}"])
  assert f"signed: {out}.sig" in capsys.readouterr().out
  return out, public


def test_signature_covers_the_weights_and_the_json_file(signed, capsys):
  out, public = signed
  convert.main([f"--verify={public}", str(out)])
  assert capsys.readouterr().out == f"{out}: the signature of {public} is valid for model.safetensors, config.json\n"
  (out.parent / "notes.txt").write_text("not read with the weights")
  signatures.verify(out, public)


def flip(path):
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)


@pytest.mark.parametrize(
  ("change", "reason"),
  [
    (lambda out: flip(out), "Hash mismatch for 'model.safetensors'"),
    (lambda out: flip(out.with_name("config.json")), "Hash mismatch for 'config.json'"),
    (lambda out: out.with_name("config.json").unlink(), "Missing files in model"),
    (lambda out: out.with_name("preprocessor_config.json").write_text("{}"), "Extra files found in model"),
    (lambda out: out.with_name("model.safetensors.sig").write_text("{}"), "does not match its signature"),
    (lambda out: out.with_name("model.safetensors.sig").write_text("x"), "does not match its signature"),
  ],
)
def test_changed_files_are_reported_in_one_line(signed, change, reason):
  out, public = signed
  change(out)
  with pytest.raises(ConfigError, match=reason) as error:
    signatures.verify(out, public)
  assert "\n" not in str(error.value) and "Do not use the files" in str(error.value)


def test_signature_of_another_key_is_refused(signed, tmp_path):
  out, _ = signed
  _, other = write_keys(tmp_path, "other")
  with pytest.raises(ConfigError, match=r"does not match its signature \(.*[Kk]ey mismatch"):
    signatures.verify(out, other)


def test_missing_files_and_signatures_are_reported(tmp_path):
  _, public = write_keys(tmp_path)
  with pytest.raises(ConfigError, match=r"absent.npz does not exist. Name a signed file"):
    signatures.verify(tmp_path / "absent.npz", public)
  (tmp_path / "a.npz").write_bytes(b"x")
  with pytest.raises(ConfigError, match=r"a.npz.sig does not exist. Sign with: convert IN OUT --sign=KEY"):
    signatures.verify(tmp_path / "a.npz", public)


@pytest.mark.parametrize("form", ["absent", "text", "encrypted", "ed25519", "public"])
def test_unusable_keys_are_reported_before_anything_is_written(tmp_path, form):
  private, public = write_keys(tmp_path)
  key = {"public": public, "absent": tmp_path / "absent.pem", "text": tmp_path / "text.pem"}.get(form, private)
  if form == "text":
    key.write_text("no key")
  elif form == "encrypted":
    key, _ = write_keys(tmp_path, "encrypted", password=b"secret")
  elif form == "ed25519":
    key, _ = write_keys(tmp_path, "other", ed25519.Ed25519PrivateKey.generate())
  source = small_weights.file(tmp_path)
  with pytest.raises(
    ConfigError, match=r"--sign: \S+ is not a private key \(.+\). Name an elliptic curve key"
  ) as error:
    convert.main([str(source), str(tmp_path / "out.npz"), f"--sign={key}"])
  assert "\n" not in str(error.value) and not (tmp_path / "out.npz").exists()


def test_directories_are_signed_with_all_files(tmp_path):
  private, public = write_keys(tmp_path)
  folder = tmp_path / "run"
  (folder / "checkpoints/0").mkdir(parents=True)
  (folder / "checkpoints/0/a").write_bytes(b"1")
  assert signatures.sign(folder, private) == tmp_path / "run.sig"
  assert signatures.verify(folder, public).endswith("is valid for checkpoints/0/a")
  (folder / "checkpoints/1").symlink_to("0")
  for use, key in ((signatures.verify, public), (signatures.sign, private)):
    with pytest.raises(ConfigError, match="contains the symbolic link checkpoints/1"):
      use(folder, key)
  (folder / "checkpoints/1").unlink()
  (folder / "checkpoints/0/b").write_bytes(b"2")
  with pytest.raises(ConfigError, match="Extra files found"):
    signatures.verify(folder, public)


@pytest.mark.parametrize(
  ("words", "problem"),
  [
    (["hf:me/a"], "--verify: hf:me/a is on the Hub. Download the files"),
    (["a.safetensors", "--inspect"], "--verify: cannot be combined with --inspect"),
    (["a.safetensors", "--licence=mit"], "--verify: cannot be combined with --licence"),
  ],
)
def test_flags_that_verification_would_ignore_are_errors(tmp_path, words, problem):
  _, public = write_keys(tmp_path)
  with pytest.raises(ConfigError, match=problem):
    convert.main([f"--verify={public}", *words])


def test_upload_contains_the_signature(hub, tmp_path, monkeypatch):
  private, public = write_keys(tmp_path)
  monkeypatch.setenv("HF_TOKEN", "hf_writer")
  convert.main([str(small_weights.file(tmp_path)), "hf:me/signed", "--licence=mit", f"--sign={private}"])
  repository, copy = hub.repositories["me/signed"], tmp_path / "copy"
  copy.mkdir()
  for name, content in repository.commits[repository.refs["main"]].items():
    (copy / name).write_bytes(content)
  signatures.verify(copy / "model.safetensors", public)


@pytest.mark.heavy
def test_the_packages_own_tool_verifies_the_signature(signed):
  out, public = signed
  words = ["verify", "key", out.parent, "--signature", f"{out}.sig", "--public_key", public, "--ignore_unsigned_files"]
  done = subprocess.run([sys.executable, "-m", "model_signing", *words], capture_output=True, text=True)
  assert done.returncode == 0 and "succeeded" in done.stdout, done.stdout + done.stderr
