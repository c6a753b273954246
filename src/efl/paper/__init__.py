"""The paper's tables and figures, one file each, and what we changed in it."""
