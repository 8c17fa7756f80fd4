"""What a cache stands on: disks, system calls, clocks, locks of files, and versions of SQLite."""
