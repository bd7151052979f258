"""The data pipeline: the catalog of datasets, readers, image decoding, batches, and augmentation on the device."""
