"""Local training: steps, mini-batches, schedules, Fisher information, and the backends that run them."""
