"""Methods: each file has its settings, `build(geometry, settings, device)` and the class, in this order."""
