"""Names and facts of published models, one file for each family of `vit_jax/models/`; no family is imported here."""
