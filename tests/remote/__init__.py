"""What several machines see of each other through a server, and the means to test it."""
