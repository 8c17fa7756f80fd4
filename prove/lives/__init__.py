"""How processes, threads, tasks and handles live and end."""
