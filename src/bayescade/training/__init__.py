"""Training: of cascades greedily, block by block, on immutable stages; of other networks end to end.

The input is tensors or image stores; nothing here depends on scans or on file formats.
"""
