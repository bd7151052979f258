"""Images in, batches out: the catalog of datasets, sources, the stream of batches, augmentation on the device."""
