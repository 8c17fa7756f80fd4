"""The fault rig itself: that it finds what is wrong, and nothing else."""
