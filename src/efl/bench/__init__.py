"""Speed and size, as ratios within one run: the machine's mood cancels out."""
