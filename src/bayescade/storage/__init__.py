"""Storage: files that are whole or absent, arrays in HDF5 and NPZ, images of a training, run folders and packed models."""
