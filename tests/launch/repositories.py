"""Git repositories of users."""

import os
import pathlib
import subprocess

FILES = {"launch/worker.py": "print('a')\n", "setup.py": "", "configs/a.py": "# a\n", ".gitignore": "data/\n.env\n"}


def git(root: pathlib.Path, *words: str) -> None:
  """Runs a git command without the settings of a user or system."""
  alone = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
  names = {f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
  subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, env=os.environ | alone | names)


def made(root: pathlib.Path, files=FILES, commit: bool = True) -> pathlib.Path:
  """Makes a repository in which these files are tracked."""
  write(root, files)
  git(root, "init", "-q")
  git(root, "add", "-A")
  if commit:
    git(root, "commit", "-qm", "a")
  return root


def write(root: pathlib.Path, files) -> None:
  """Writes files from {name: text or bytes}."""
  for name, content in files.items():
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
