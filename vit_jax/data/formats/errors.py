"""The error that all decoders of image files raise."""


class DecodeError(ValueError):
  """An image file that is damaged, incomplete, or not allowed."""
