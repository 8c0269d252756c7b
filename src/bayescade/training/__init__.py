"""Training: greedy, block by block, over immutable stages. It works on tensors and knows nothing of scans or files."""
