"""Tests of vit_jax/inference/signatures.py: signatures in the format of OpenSSF, which its own tool verifies."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tests import small_weights
from tests.documentation import extraction
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
  assert capsys.readouterr().out == f"{out}: the signature of {public} is valid for config.json, model.safetensors\n"
  (out.parent / "notes.txt").write_text("not read with the weights")
  signatures.verify(out, public)


def flip(path):
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)


def fail(path, key, problem):
  """Checks that a signature is refused with one line."""
  with pytest.raises(ConfigError, match=problem) as error:
    signatures.verify(path, key)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("change", "difference"),
  [
    (lambda out: flip(out), "changed: model.safetensors"),
    (lambda out: flip(out.with_name("config.json")), "changed: config.json"),
    (lambda out: out.with_name("config.json").unlink(), "missing: config.json"),
    (lambda out: out.with_name("preprocessor_config.json").write_text("{}"), "added: preprocessor_config.json"),
  ],
)
def test_changed_files_are_named(signed, change, difference):
  out, public = signed
  change(out)
  fail(out, public, rf"^--verify: {out} does not match {out}.sig: {difference}. Do not use the files")


@pytest.mark.parametrize(
  ("content", "problem"),
  [
    ("{}", "it is damaged or was made with another key. Do not use"),
    ('{"verificationMaterial": [], "dsseEnvelope": 1}', "it is damaged or was made with another key"),
    ("x", r"is not a signature. Do not use the files, unless you know the reason \(.* cannot be read as JSON"),
    ('{"a": ' + "[" * 10_000 + "]" * 10_000 + "}", "nested deeper than 64 brackets"),
    ('"' + "x" * 2**24 + '"', "longer than 16,777,216 bytes"),
  ],
)
def test_damaged_signatures_are_refused(signed, content, problem):
  out, public = signed
  (out.parent / "model.safetensors.sig").write_text(content)
  fail(out, public, problem)


def test_signature_of_another_key_is_refused(signed, tmp_path):
  out, _ = signed
  _, other = write_keys(tmp_path, "other")
  fail(out, other, rf"{out}.sig is not a signature of {other}: it is damaged or was made with another key")


def test_pipes_are_not_read(signed, tmp_path):
  out, public = signed
  os.mkfifo(tmp_path / "pipe")
  fail(out, tmp_path / "pipe", "pipe is not a file. Use the path of a key file")
  with pytest.raises(ConfigError, match=r"pipe is not a file. Use the path of a key file"):
    signatures.check_signing(out, tmp_path / "pipe")
  os.mkfifo(out.with_name("preprocessor_config.json"))
  fail(out, public, "preprocessor_config.json is not a regular file, and signatures cover regular files only")
  out.with_name("preprocessor_config.json").unlink()
  (out.parent / "model.safetensors.sig").unlink()
  os.mkfifo(out.parent / "model.safetensors.sig")
  fail(out, public, "is not a signature.*it is not a file")


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="the system has no /dev/fd")
def test_key_is_read_once_from_a_pipe(tmp_path):
  private, public = write_keys(tmp_path)
  read, write = os.pipe()
  threading.Thread(target=lambda: (os.write(write, private.read_bytes()), os.close(write))).start()
  out = tmp_path / "out/model.safetensors"
  convert.main([str(small_weights.file(tmp_path)), str(out), f"--sign=/dev/fd/{read}"])
  os.close(read)
  assert "is valid for config.json, model.safetensors" in signatures.verify(out, public)


def test_missing_files_and_signatures_are_reported(signed, tmp_path):
  out, public = signed
  fail(tmp_path / "absent.npz", public, r"absent.npz does not exist. Use the path of a signed file")
  (tmp_path / "a.npz").write_bytes(b"x")
  fail(tmp_path / "a.npz", public, r"a.npz.sig does not exist. Sign with: convert IN OUT --sign=KEY")
  fail(out.parent, public, rf"out.sig does not exist. Only files in it are signed. Use such a file: {out}$")


@pytest.mark.parametrize("form", ["absent", "text", "long", "encrypted", "ed25519", "secp256k1", "public"])
def test_unusable_keys_are_reported_before_anything_is_written(tmp_path, form):
  private, public = write_keys(tmp_path)
  key = {"public": public, "absent": tmp_path / "absent.pem", "text": tmp_path / "text.pem"}.get(form, private)
  if form == "text":
    key.write_text("no key")
  elif form == "long":
    key.write_bytes(private.read_bytes() + b" " * 2**16)
  elif form == "encrypted":
    key, _ = write_keys(tmp_path, "encrypted", password=b"secret")
  elif form == "ed25519":
    key, _ = write_keys(tmp_path, "other", ed25519.Ed25519PrivateKey.generate())
  elif form == "secp256k1":
    key, _ = write_keys(tmp_path, "other", ec.generate_private_key(ec.SECP256K1()))
  source = small_weights.file(tmp_path)
  problem = "does not exist" if form == "absent" else "is not a private key. Use an elliptic curve key [^\n]*-genkey"
  with pytest.raises(ConfigError, match=rf"^--sign: {key} {problem}") as error:
    convert.main([str(source), str(tmp_path / "out.npz"), f"--sign={key}"])
  assert "\n" not in str(error.value) and not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("form", ["private", "ed25519", "text"])
def test_unusable_public_keys_are_reported(signed, tmp_path, form):
  private, _ = write_keys(tmp_path)
  _, other = write_keys(tmp_path, "other", ed25519.Ed25519PrivateKey.generate())
  (tmp_path / "text.pub").write_text("no key")
  key = {"private": private, "ed25519": other, "text": tmp_path / "text.pub"}[form]
  fail(signed[0], key, rf"^--verify: {key} is not a public key. Use the public key of .* openssl ec -in KEY -pubout$")


@pytest.fixture
def folder(tmp_path):
  """A signed directory like a workdir, and its public key."""
  private, public = write_keys(tmp_path)
  folder = tmp_path / "run"
  (folder / "checkpoints/0").mkdir(parents=True)
  for name in ("checkpoints/0/a", ".gitattributes", ".git", "lock", "checkpoints/lock"):
    (folder / name).write_bytes(b"1")
  assert signatures.sign(folder, signatures.check_signing(folder, private)) == tmp_path / "run.sig"
  return folder, public


def test_directories_are_signed_with_all_files_except_their_lock(folder, monkeypatch):
  folder, public = folder
  assert signatures.verify(folder, public) == f"{folder}: the signature of {public} is valid for 4 files"
  (folder / "lock").write_text("another process")
  monkeypatch.chdir(folder)
  assert signatures.verify(folder.relative_to(folder), public).endswith("is valid for 4 files")


@pytest.mark.parametrize(
  ("change", "problem"),
  [
    (lambda folder: (folder / "checkpoints/1").symlink_to("0"), "run/checkpoints/1 is a symbolic link, and signatures"),
    (lambda folder: (folder / "a").symlink_to("lock"), "run/a is a symbolic link, and signatures cover files only"),
    (lambda folder: os.mkfifo(folder / "a"), "run/a is not a regular file, and signatures cover regular files only"),
    (lambda folder: (folder / "checkpoints/0/b").write_bytes(b"2"), "added: checkpoints/0/b"),
    (lambda folder: (folder / ".gitignore").write_bytes(b"2"), "added: .gitignore"),
    (lambda folder: flip(folder / ".gitattributes"), "changed: .gitattributes"),
    (lambda folder: flip(folder / ".git"), "changed: .git."),
    (lambda folder: flip(folder / "checkpoints/lock"), "changed: checkpoints/lock"),
  ],
)
def test_entries_of_a_directory_that_were_not_signed_are_refused(folder, change, problem):
  folder, public = folder
  change(folder)
  fail(folder, public, problem)


def test_files_that_the_signer_ignored_are_refused(tmp_path):
  from model_signing import hashing, signing

  private, public = write_keys(tmp_path)
  (tmp_path / "run").mkdir()
  for name in ("a", "b"):
    (tmp_path / "run" / name).write_text(name)
  without = hashing.Config().set_ignored_paths(paths=["b"])
  signing.Config().use_elliptic_key_signer(private_key=private).set_hashing_config(without).sign(
    tmp_path / "run", tmp_path / "run.sig"
  )
  fail(tmp_path / "run", public, "added: b")


@pytest.mark.parametrize(
  ("name", "covered"),
  [
    ("model.bin", ["config.json", "preprocessor_config.json"]),
    ("model.pth.tar", ["config.json", "preprocessor_config.json"]),
    ("MODEL.SAFETENSORS", ["config.json", "preprocessor_config.json"]),
    ("model.npz", ["model.json"]),
    ("model.stablehlo", ["model.json"]),
  ],
)
def test_signatures_cover_the_json_files_that_are_read_with_a_format(tmp_path, name, covered):
  for each in (name, "config.json", "preprocessor_config.json", "model.json", "README.md"):
    (tmp_path / each).write_text("{}")
  assert [file.name for file in signatures.list_signed_files(tmp_path / name)] == [name, *covered]


def test_index_of_several_files_is_refused(tmp_path):
  _, public = write_keys(tmp_path)
  for name in ("model.safetensors.index.json", "model.safetensors.index.json.sig"):
    (tmp_path / name).write_text("{}")
  fail(tmp_path / "model.safetensors.index.json", public, "is the index of several weight files. Use the directory")


def test_signature_of_an_earlier_file_is_kept_and_refused(tmp_path):
  source = small_weights.file(tmp_path)
  (tmp_path / "out.npz.sig").write_text("old")
  with pytest.raises(ConfigError, match=r"out.npz.sig already exists and belongs to other files. Remove it"):
    convert.main([str(source), str(tmp_path / "out.npz")])
  assert (tmp_path / "out.npz.sig").read_text() == "old" and not (tmp_path / "out.npz").exists()


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
@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl is not installed")
def test_documented_commands_make_keys_and_verify_with_the_tool_of_the_package(tmp_path, monkeypatch):
  page = (extraction.ROOT / "docs/guides/export-weights.md").read_text()
  openssl = re.findall(r"^openssl .*", page, re.M)
  (tool,) = [command for command in extraction.of_markdown(page) if command.startswith("model_signing")]
  convert_words, _ = [
    shlex.split(text)[3:] for text in extraction.of_markdown(page) if "--sign=key" in text or "--verify=key" in text
  ]
  monkeypatch.chdir(tmp_path)
  small_weights.file(tmp_path)
  subprocess.run("\n".join(openssl), shell=True, check=True, stderr=subprocess.DEVNULL)
  convert.main(["model.safetensors" if word == "runs/a" else word for word in convert_words])
  monkeypatch.setenv("PATH", f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
  for code in (0, 1):
    done = subprocess.run(shlex.split(tool), capture_output=True, text=True)
    assert done.returncode == code and ("succeeded" in done.stdout) == (code == 0), done.stdout + done.stderr
    flip(tmp_path / "exported/config.json")


@pytest.mark.heavy
def test_the_tool_of_the_package_verifies_a_directory(folder):
  folder, public = folder
  words = [f"--signature={folder}.sig", f"--public_key={public}", "--no-ignore-git-paths", "--ignore_unsigned_files"]
  done = subprocess.run(
    [sys.executable, "-m", "model_signing", "verify", "key", folder, *words], capture_output=True, text=True
  )
  assert done.returncode == 0 and "succeeded" in done.stdout, done.stdout + done.stderr
