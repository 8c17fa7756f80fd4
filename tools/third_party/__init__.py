"""Other projects' tests: which are run (`projects`), with what of ours in front of them (`adapters`), and their totals."""
