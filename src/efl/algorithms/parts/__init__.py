"""Parts that algorithms are made of. Each is a few small functions, tested alone."""
