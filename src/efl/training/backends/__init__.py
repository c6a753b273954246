"""Ways to compute local steps: eager, batched, native."""
