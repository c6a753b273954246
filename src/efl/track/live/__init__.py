"""The live page: runs as they go on, read from their directories and shown in a browser."""
