"""The loop: a coordinator that speaks to its clients in bytes only, the client side, and what a run leaves behind."""
