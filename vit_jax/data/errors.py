"""The error that every decoder of image files raises."""


class DecodeError(ValueError):
  """The bytes are not one whole image, or the image is not allowed."""
