"""Storage: atomic writes of files, arrays in HDF5 and NPZ, training images, run folders and packed models."""
