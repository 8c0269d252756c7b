"""Calibration for a geometry and a noise: simulated scans pass the same steps as a measured one."""
