"""Names and properties of published models, one file per family of `vit_jax/models/`.

These files do not import the families.
"""
