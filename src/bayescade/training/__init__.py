"""Training: greedy, block by block, over stages that nothing changes; given tensors, it does not know where they came from."""
