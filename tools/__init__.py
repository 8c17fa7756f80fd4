"""What is run beside the tests and is none: other projects' test suites, fuzzers, the matrix of versions."""
