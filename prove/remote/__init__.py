"""Several machines that share one server: what each of them reads, and how old it may be."""
