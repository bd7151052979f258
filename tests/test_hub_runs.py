"""Tests of runs that start from weights on the Hub: the recorded commit, restarts, uploads and several processes."""

import json
import socket

import numpy as np
import pytest
import yaml

import vit_jax
from tests import hub_server, ports, runs, small_weights
from tests.sweeps import studies
from vit_jax import convert, importers, predict, sweep, train
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.schema import ConfigError

MODEL = {"width": "64", "depth": "2", "heads": "2", "hidden": "96"}


def words(workdir, total=2, weights="hf:a/b"):
  """Returns the flags of a run of `total` steps that starts from weights on the Hub."""
  keys = {f"model.{key}": text for key, text in MODEL.items()} | {"total": total, "batch": 16, "init.from": weights}
  keys |= {"checkpoint.every": 2, "log.every": 1, "optim.accumulate": 1, "optim.warmup": 1}
  flags = [f"--config.{key}={value}" for key, value in keys.items()]
  return ["--config=configs/finetune.py:digits,ViT-S/8,32", f"--workdir={workdir}", "--no-report", *flags]


def read_config(workdir):
  return json.loads((workdir / "config.json").read_text())


@pytest.mark.long
def test_a_restart_uses_the_commit_of_the_start_and_the_result_is_uploaded(hub, tmp_path, monkeypatch, capsys):
  prepare_dataset("digits")
  (tmp_path / "weights").mkdir()
  commit = hub_server.add_model(hub, "a/b", tmp_path / "weights", mean=[0.4, 0.4, 0.4], std=[0.2, 0.2, 0.2])
  workdir = tmp_path / "run"
  train.main(words(workdir))
  assert read_config(workdir)["init"]["from"] == f"hf:a/b@main:{commit}"
  assert read_config(workdir)["data"]["mean"] == [0.4, 0.4, 0.4]  # adopted from the repository
  hub.repositories["a/b"].commit({"model.safetensors": b"other", "config.json": b"{"})
  hub_server.forget_commits()
  hub.requests.clear()
  train.main(words(workdir, 4))
  assert read_config(workdir)["init"]["from"] == f"hf:a/b@main:{commit}" and not hub.requests
  result = json.loads((workdir / "result.json").read_text())
  assert result["steps"] == 4

  with pytest.raises(ConfigError, match=r"licence: missing. An upload requires a licence"):
    convert.main([str(workdir), "hf:me/digits"])
  monkeypatch.setenv("HF_TOKEN", "hf_writer")
  convert.main([str(workdir), "hf:me/digits", "--licence=mit", "--public"])
  printed = capsys.readouterr().out
  assert "hf:me/digits: ViT-" in printed and f"uploaded: {hub.address}/me/digits/commit/" in printed
  repository = hub.repositories["me/digits"]
  files = repository.commits[repository.refs["main"]]
  assert files.keys() == {".gitattributes", "README.md", "config.json", "model.safetensors"} and not repository.private
  card = files["README.md"].decode()
  assert yaml.safe_load(card.split("---\n")[1])["base_model"] == "a/b"
  low, high = result["intervals"]["top1"]
  assert f"| top1 | {result['top1']:.2%} | {low:.2%} to {high:.2%} |" in card and str(tmp_path) not in card
  (_, ours), (_, theirs) = importers.load(workdir), importers.load("hf:me/digits")
  assert ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)


SWEEP = """
def sweep():
  return [{"seed": seed, "init.from": "hf:a/b"} for seed in range(SEEDS)]
"""


def sweep_words(folder, seeds):
  """Writes a config with a sweep over seeds that starts from weights on the Hub, and returns the flags of the sweep."""
  keys = {"model.width": 64, "model.depth": 2, "model.heads": 2, "model.hidden": 96, "model.name": "ViT-S/8"}
  flags = [f"--config.{key}={value}" for key, value in keys.items()]
  file = studies.sweep_file(folder, SWEEP.replace("SEEDS", str(seeds)))
  return [f"--config={file}", f"--workdir={folder / 'sweep'}", "--config.optim.lr=1e-3", *flags]


@pytest.mark.full
def test_trials_of_a_sweep_use_the_recorded_commit(hub, tmp_path, monkeypatch):
  prepare_dataset("digits")
  (tmp_path / "weights").mkdir()
  pinned = f"hf:a/b@main:{hub_server.add_model(hub, 'a/b', tmp_path / 'weights')}"
  for name, value in hub_server.environment(hub, tmp_path / "home").items():
    monkeypatch.setenv(name, value)
  sweep.main([*sweep_words(tmp_path, 1), "--render"])
  hub.repositories["a/b"].commit({"model.safetensors": b"other", "config.json": b"{"})
  hub_server.forget_commits()
  sweep.main(sweep_words(tmp_path, 1))
  (trial,) = json.loads((tmp_path / "sweep/sweep.json").read_text())["trials"]
  assert (trial["status"], trial["error"]) == ("done", "")
  assert read_config(tmp_path / "sweep/trials" / trial["name"])["init"]["from"] == pinned


def test_printed_trials_use_the_commit_that_was_printed_first(hub, tmp_path, capsys):
  (tmp_path / "weights").mkdir()
  pinned = f"hf:a/b@main:{hub_server.add_model(hub, 'a/b', tmp_path / 'weights')}"
  sweep.main([*sweep_words(tmp_path, 2), "--render"])
  first = capsys.readouterr().out
  assert first.count(f"--config.init.from={pinned}") == 2
  hub.repositories["a/b"].commit({"model.safetensors": b"other", "config.json": b"{"})
  hub_server.forget_commits()
  hub.requests.clear()
  sweep.main([*sweep_words(tmp_path, 2), "--render"])
  assert capsys.readouterr().out == first and not hub.requests
  assert json.loads((tmp_path / "sweep/sweep.json").read_text())["pins"] == [pinned]


@pytest.mark.heavy
def test_weights_of_a_file_are_uploaded_and_predict(hub, tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("HF_TOKEN", "hf_writer")
  file = small_weights.file(tmp_path, architecture="vit_small_patch8_224", label_names=list(small_weights.CLASSES))
  printed = vit_jax.push(file, "hf:me/cats", licence="apache-2.0", layout="hf")
  assert printed.startswith("hf:me/cats: ViT-") and str(tmp_path) not in printed
  repository = hub.repositories["me/cats"]
  card = repository.commits[repository.refs["main"]]["README.md"].decode()
  assert 'ViTForImageClassification.from_pretrained("me/cats")' in card and "## Results" not in card
  image = tmp_path / "photo.png"
  pictures = np.random.default_rng(0).integers(0, 256, (48, 48, 3), np.uint8)
  from PIL import Image

  Image.fromarray(pictures).save(image)
  capsys.readouterr()
  predict.main(["--weights=hf:me/cats", str(image)])
  assert f"hf:me/cats@main:{repository.refs['main']}: ViT-" in capsys.readouterr().out
  convert.main(["--inspect", "hf:me/cats"])
  assert "hf names (.safetensors)" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--licence=mit", "--public"])
def test_flags_of_uploads_need_an_address(tmp_path, flag):
  with pytest.raises(ConfigError, match=rf"{flag.partition('=')[0]}: only for uploads. Use hf:OWNER/NAME as OUT"):
    convert.main([str(tmp_path / "a.npz"), str(tmp_path / "b.safetensors"), flag])


def test_invalid_address_in_a_flag_is_one_line(tmp_path):
  for place in (["hf:a/b/../c", "out.npz"], ["a.npz", "hf:a"]):
    with pytest.raises(ConfigError, match=r"PATH: 'hf:\S+': expected the name of a repository on the Hugging Face"):
      convert.main(place)


def run_two_processes(hub, folder, first, second, code=0):
  """Runs two processes of a command with the given words, and returns their outputs.

  The second process reads another state of the Hub: the branch main of a/b has moved.
  """
  placed = {"VITJAX_COORDINATOR": f"127.0.0.1:{ports.find_free_port()}", "VITJAX_PROCESSES": "2"}
  with hub_server.serve() as moved:
    moved.repositories["a/b"].commits |= hub.repositories["a/b"].commits
    moved.repositories["a/b"].refs["main"] = hub.repositories["a/b"].refs["main"]
    moved.repositories["a/b"].commit({"model.safetensors": b"other", "config.json": b"{}"})
    started = [
      runs.start(*command, devices=2, VITJAX_PROCESS=str(i), **placed,
                 **hub_server.environment(server, folder / f"home{i}"))
      for i, (command, server) in enumerate(((first, hub), (second, moved)))
    ]  # fmt: skip
    return [runs.finish(process, code) for process in started]


@pytest.mark.long
def test_processes_of_an_evaluation_use_the_commit_of_the_first(hub, tmp_path):
  prepare_dataset("digits")
  (tmp_path / "weights").mkdir()
  model = small_weights.described(classes=10)
  pinned = f"hf:a/b@main:{hub_server.add_model(hub, 'a/b', tmp_path / 'weights', description=model)}"
  probe = ["vit_jax.fewshot", "--config=configs/probes.py:knn,digits", "--weights=hf:a/b", "--config.image_size=32"]
  for text in run_two_processes(hub, tmp_path, probe, probe):
    assert "Traceback" not in text
  evaluation = ["vit_jax.evaluate", *words(tmp_path)[:1], *words(tmp_path)[3:-5], "--weights=hf:a/b"]
  first, _ = run_two_processes(hub, tmp_path, evaluation, evaluation)
  assert f"{pinned}\n" in first and "top1" in first


@pytest.mark.long
def test_processes_with_different_weights_are_refused(hub, tmp_path):
  prepare_dataset("digits")
  (tmp_path / "weights").mkdir()
  hub_server.add_model(hub, "a/b", tmp_path / "weights")
  commands = [["vit_jax.train", *words(tmp_path / "run", weights=weights)] for weights in ("hf:a/b", "hf:a/c")]
  for text in run_two_processes(hub, tmp_path, *commands, code=2):
    assert "process 1: config.init.from: 'hf:a/b' -> 'hf:a/c'" in text
  assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_host_that_cannot_download_ends_all_processes_with_one_error(hub, tmp_path):
  prepare_dataset("digits")
  (tmp_path / "weights").mkdir()
  commit = hub_server.add_model(hub, "a/b", tmp_path / "weights")
  placed = {"VITJAX_COORDINATOR": f"127.0.0.1:{ports.find_free_port()}", "VITJAX_PROCESSES": "2"}
  with socket.socket() as unused:
    unused.bind(("127.0.0.1", 0))
    addresses = [{}, {"HF_ENDPOINT": f"http://127.0.0.1:{unused.getsockname()[1]}"}]
    started = [
      runs.start(
        "vit_jax.train", *words(tmp_path / "run"), devices=2, VITJAX_PROCESS=str(i),
        **placed, **(hub_server.environment(hub, tmp_path / f"home{i}") | addresses[i]),
      )
      for i in range(2)
    ]  # fmt: skip
    texts = [runs.finish(process, 2) for process in started]
  problem = f"config.init.from: hf:a/b@main:{commit}: http://127.0.0.1"
  assert f"process 1: {problem}" in texts[0] and problem in texts[1]
  assert "Traceback" not in "".join(texts) and not (tmp_path / "run").exists()
