"""Networks: blocks put together."""
