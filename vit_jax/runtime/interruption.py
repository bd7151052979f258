"""Immediate end of a program that has no state to save and runs C code for minutes, such as a compiler."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from vit_jax.runtime import exits
from vit_jax.runtime.watch import STOPS, get_current_handlers


@contextlib.contextmanager
def end_on_stop_signals(clean_up: Callable[[], None]) -> Iterator[None]:
  """Ends the program within a second after a request to stop, even inside C code.

  Inside the context, SIGTERM, SIGHUP and Ctrl-C print one line and end the program with the exit code in `EXITS`.
  Python's own handlers would wait until the C code returns. C code that is loaded inside the context, such as libtpu,
  does not replace these handlers. In other threads than the main thread the context has no effect.

  Args:
    clean_up: function that is called before the end, in another thread. It deletes temporary files.

  Example:
    from vit_jax import runtime

    with runtime.end_on_stop_signals(lambda: None):
      print("compile a large program here")
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  receiver, sender = os.pipe()
  os.set_blocking(sender, False)

  def run() -> None:
    for number in iter(lambda: os.read(receiver, 1)[0], 0):
      if number in STOPS:
        code, message = STOPS[number]
        exits.print_last_message(f"{message}; run the same command to start again\n")
        try:
          clean_up()
        finally:
          os._exit(code)

  thread = threading.Thread(target=run, name="interruption", daemon=True)
  thread.start()
  # C code writes the number of the signal to the pipe at once, while Python handlers wait for the main thread.
  pipe_before = signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
  before = get_current_handlers(STOPS)
  for number in before:
    signal.signal(number, lambda *_: None)
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler or signal.SIG_DFL)
    signal.set_wakeup_fd(pipe_before)
    os.write(sender, b"\0")
    thread.join()
    os.close(receiver)
    os.close(sender)
