"""Files of tensors: .npz and .safetensors are read and written, PyTorch files are read without running code."""
