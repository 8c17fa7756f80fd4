"""What goes wrong by itself: full disks, damage, crashes, power loss, signal handlers that raise."""
