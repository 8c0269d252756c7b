"""Networks: cascades of blocks, and networks that are trained end to end."""
