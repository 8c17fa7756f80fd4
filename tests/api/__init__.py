"""What somebody sees who uses caches, fanout caches, deques, indexes, queues, streams and memoized functions."""
