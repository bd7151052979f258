"""Tests that all decoders raise one error."""

from vit_jax.data import decoding
from vit_jax.data.formats import headers, tiff
from vit_jax.data.formats.errors import DecodeError


def test_all_decoders_raise_the_same_value_error():
  assert decoding.DecodeError is headers.DecodeError is tiff.DecodeError is DecodeError
  assert issubclass(DecodeError, ValueError)
