"""The search for hyper-parameters: every algorithm on validation data, with the same budget."""
