"""What processes see of each other's writes, and the shared memory and locks by which they do."""
