"""The server for programs that are not Python."""
