"""Power cuts: images of what a disk may hold after one."""
