"""The client side: requests in, replies out; workers, executors and state between rounds."""
