"""From an app's template to a network of machines, or of processes on this one."""
