"""Ports of this machine for servers in tests."""

import errno
import random
import socket


def find_free_port() -> int:
  """Returns a free TCP port below 32768.

  Linux gives ports from 32768 to outgoing connections. Such a connection could take the port before the server of the
  test starts.

  Raises:
    OSError: no port was free in 100 attempts.
  """
  for _ in range(100):
    port = random.SystemRandom().randrange(20000, 32768)
    with socket.socket() as probe:
      try:
        probe.bind(("127.0.0.1", port))
      except OSError as error:
        if error.errno != errno.EADDRINUSE:
          raise
      else:
        return port
  raise OSError(errno.EADDRINUSE, "no free port between 20000 and 32767")
