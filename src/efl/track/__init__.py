"""What people see: progress while it runs, tables, figures and a report when it is done."""
