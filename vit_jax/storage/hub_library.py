"""The library huggingface_hub: its import, and its errors as messages of one line."""

import contextlib
import errno
import functools
import re
import types
from collections.abc import Iterator

from vit_jax.schema import ConfigError, extras, texts
from vit_jax.storage.hub_addresses import Address

# Exceptions that the library raises for malformed responses, because it does not check their types.
_MALFORMED = (TypeError, AttributeError, LookupError, AssertionError)


def import_library(address: Address) -> types.ModuleType:
  """Imports huggingface_hub, which takes a fraction of a second.

  Args:
    address: the address for which the library is needed.

  Raises:
    ConfigError: the library is not installed.
  """
  try:
    return _import_hub()
  except ImportError as error:
    raise ConfigError(f"{address}: weights on the Hub need {extras.format_advice('hub')} ({error})") from error


@functools.cache
def _import_hub() -> types.ModuleType:
  import huggingface_hub

  huggingface_hub.logging.set_verbosity_error()  # it prints each warning twice, and pages about unreachable servers
  return huggingface_hub


@contextlib.contextmanager
def convert_errors(address: Address, uploads: bool = False) -> Iterator[None]:
  """Converts errors of the library and of its connections to ConfigError with one line.

  Args:
    address: the address, with which the message starts.
    uploads: whether the library uploads. Then messages do not mention the cache of downloads.

  Raises:
    ConfigError: the library raised an exception.
  """
  import httpx2
  from huggingface_hub import constants, errors, is_offline_mode

  account = "set HF_TOKEN, or run `hf auth login`"
  endpoint = texts.hide_passwords(constants.ENDPOINT)
  try:
    yield
  except ConfigError:
    raise
  except errors.LocalTokenNotFoundError as error:
    raise ConfigError(f"{address}: no token was found. Create a token that may write, and {account}") from error
  except errors.GatedRepoError as error:
    page = f"{endpoint}/{address.repository}"
    raise ConfigError(f"{address}: access is restricted. Accept the terms at {page}, then {account}") from error
  except errors.RepositoryNotFoundError as error:
    raise ConfigError(
      f"{address}: this repository does not exist or is private. Check the name. If it is private, {account}"
    ) from error
  except errors.RevisionNotFoundError as error:
    page = f"{endpoint}/{address.repository}/commits"
    raise ConfigError(f"{address}: this revision does not exist. Choose a revision from {page}") from error
  except (
    errors.RevisionResolutionError,
    errors.LocalEntryNotFoundError,
    errors.OfflineModeIsEnabled,
    httpx2.TransportError,
  ) as error:
    where = "" if uploads else f", and the cache {constants.HF_HUB_CACHE} does not contain the weights"
    if is_offline_mode():
      raise ConfigError(f"{address}: HF_HUB_OFFLINE is set{where}. Unset it and run the command again") from error
    reason = f"{endpoint} cannot be reached ({_find_reason(error)}){where}"
    raise ConfigError(f"{address}: {reason}. Check the network, HF_ENDPOINT and the proxy") from error
  except errors.HfHubHTTPError as error:
    status = error.response.status_code
    answer = (
      f"{status} ({error.server_message})" if error.server_message else f"{status} {error.response.reason_phrase}"
    )
    advice = f"To use an account with access, {account}" if status in (401, 403) else "Try again later"
    raise ConfigError(f"{address}: the Hub answered with {answer}. {advice}") from error
  except (httpx2.HTTPError, errors.XetDownloadError, OSError, ValueError, RuntimeError) as error:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
      advice = f"Make room on the disk of {constants.HF_HUB_CACHE}, or set HF_HOME"
    else:
      advice = "Run the same command again" + ("" if uploads else ". The download resumes")
    raise ConfigError(f"{address}: {_find_reason(error)}. {advice}") from error


@contextlib.contextmanager
def check_answers(address: Address) -> Iterator[None]:
  """Converts errors of the library about malformed responses to ConfigError.

  Args:
    address: the address, with which the message starts.

  Raises:
    ConfigError: the library could not read a response.
  """
  from huggingface_hub import constants, errors

  try:
    yield
  except errors.HfHubHTTPError:  # one of its classes is a ValueError
    raise
  except (*_MALFORMED, ValueError, RecursionError) as error:
    if isinstance(error, ConfigError):
      raise
    endpoint = texts.hide_passwords(constants.ENDPOINT)
    raise ConfigError(
      f"{address}: the response of {endpoint} is not that of a Hub server ({_find_reason(error)}). Check HF_ENDPOINT"
    ) from error


def _find_reason(error: BaseException) -> str:
  """Returns one short line about the first cause of an error, without addresses, which may contain signatures."""
  while error.__cause__ is not None:
    error = error.__cause__
  text = re.sub(r"https?://\S+", "...", " ".join(str(error).split()))
  return f"{type(error).__name__}: {text[:160]}" if text else type(error).__name__
