"""The tier on a server that several machines share."""
