"""The project itself: what it ships, its demo, its benchmarks and its fault rig."""
