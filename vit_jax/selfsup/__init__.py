"""The mathematics of self-distillation: DINO, iBOT, DINOv2 and Gram anchoring.

All functions are pure and can be compiled. Losses and targets are computed in float32. Arrays are image-major: the
first axis of [B, G, ...] counts images and is split over the devices. No function gathers a batch on one device. In
addition to the letters of `vit_jax.shapes`, signatures use:

- S: crops of an image that the student sees. The first G of them are the global crops.
- G: global crops of an image, which the teacher sees.
- K: prototypes.
- M: slots for masked patches.
"""
