"""Names and properties of published models, one file per family of `vit_jax/models/`. No family is imported here."""
