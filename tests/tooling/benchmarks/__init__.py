"""The benchmarks: what they measure, judge and print."""
