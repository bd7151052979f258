"""Tests that secrets are recognised by their values, and that usual values are not refused."""

import base64
import hashlib
import random
import secrets
import string
import uuid

import pytest

from launch import bundle, flags
from launch.errors import LaunchError

ALPHABET = string.ascii_letters + string.digits


def mixed(length, seed=0):
  """Returns random letters and digits with all three classes."""
  draw = random.Random(seed)
  return "aB3" + "".join(draw.choices(ALPHABET, k=length - 3))


# The values are joined from parts, because the code of this repository is also checked for secrets.
SECRETS = {
  "a Hugging Face token": ["hf" + "_" + mixed(34)],
  "a GitHub token": [
    "ghp" + "_" + mixed(36),
    "github" + "_pat_" + mixed(22) + "_" + mixed(59),
    "gho" + "_" + mixed(36),
  ],
  "a GitLab token": ["glpat" + "-" + mixed(20)],
  "an AWS access key": ["AKIA" + "IOSFODNN7EXAMPLE"],
  "a Google API key": ["AIza" + mixed(35)],
  "a Google access token": ["ya29" + "." + mixed(60), "ya29" + ".a0AfH6SM-x_" + mixed(40)],
  "a Slack token": ["xoxb" + "-1234567890-" + mixed(24), "xoxp" + "-" + mixed(30)],
  "an API key": ["sk" + "-" + mixed(48), "sk" + "-proj-" + mixed(60), "sk" + "-ant-api03-" + mixed(40)],
  "a private key": ["-----BEGIN " + f"{kind}PRIVATE KEY-----\nMIIE" for kind in ("", "RSA ", "OPENSSH ", "EC ")],
  "a JSON Web Token": [f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{mixed(43)}"],
  "a service account key": ['{"type": "service_' + 'account", "project_id": "p"}', '{"private' + '_key": "x"}'],
  "a URL with a password": ["https://alice:hunter2@example.com/a", "postgres://u:p@h/db"],
  "a random key": [mixed(24), mixed(40, 1), mixed(64, 2)],
}
USUAL = [
  "", "1", "true", "0.1", "vit-s16", "hf_transfer", "sk-learn", "ViT-B/16", "runs/2026-11-25T10:00:00Z/vit_b16_lr1e-3",
  "ViT-B16_i1k_lr3e-4_wd1e-1_bs4096_E300", "gs://my-bucket/data/ImageNet2012/train", "/home/me/data/ImageNet2012/train",
  "--xla_force_host_platform_device_count=8", "--xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
  hashlib.sha256(b"data").hexdigest(), hashlib.sha1(b"c").hexdigest(), hashlib.md5(b"c").hexdigest().upper(),
  f"sha256:{hashlib.sha256(b'image').hexdigest()}", str(uuid.UUID(int=2**127 + 12345)), "https://proxy.example.com:3128",
  "vit_large_patch14_reg4_dinov2.lvd142m", "imagenet2012_subset/10pct/5.0.0", "ThisIsACamelCaseNameOfAnExperiment2026",
  "resnetv2_50x1_bit.goog_in21k_ft_in1k", "0123456789" * 4, "a" * 100, "aB1" * 20,
  "data/ImageNet2012/train/Shard00012of01024",
  "cuda_data_parallel,expandable_segments:True,max_split_size_mb:128", '{"lr": 0.1, "name": "vit"}',
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in SECRETS.items() for value in values])
def test_secret_is_recognised_by_its_value(kind, value):
  assert bundle.detect_secret_value(value) == kind
  with pytest.raises(LaunchError) as error:
    run("--env", f"X={value}")
  text = str(error.value)
  assert f"--env: X looks like {kind}" in text and "--secret X=projects/P/secrets/NAME/versions/1" in text
  assert value not in text and "\n" not in text


@pytest.mark.parametrize("value", USUAL)
def test_usual_value_is_not_a_secret(value):
  assert bundle.detect_secret_variable("X", value) == ""
  assert run("--env", f"X={value}").env == {"X": value}


def test_secret_in_program_arguments_is_refused_and_random_text_is_not():
  token = SECRETS["a GitHub token"][0]
  with pytest.raises(LaunchError, match=r"-- --config\.tracker\.key: looks like a GitHub token") as error:
    run(args=[f"--config.tracker.key={token}"])
  assert token not in str(error.value)
  assert run(args=[mixed(40)]).args[-1] == mixed(40)


def run(*words, args=()):
  """Returns a run on this machine."""
  return flags.build_run(*flags.parse_flags(["run", "a", "--backend=local", "--workdir=/w", *words, "--", "m", *args]))


def test_random_keys_are_found_and_hexadecimal_numbers_are_not():
  """Checks that nearly all generated keys are found."""
  draw = random.Random(1)
  counts = {"base62": 0, "base64": 0}
  for _ in range(2000):
    counts["base62"] += bundle.looks_random("".join(draw.choices(ALPHABET, k=40)))
    counts["base64"] += bundle.looks_random(base64.b64encode(draw.randbytes(32)).decode())
    assert not bundle.looks_random(draw.randbytes(32).hex())
  assert min(counts.values()) > 1850, counts
  assert secrets.token_hex(32) and not bundle.looks_random(secrets.token_hex(32))
