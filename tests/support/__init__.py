"""What tests and proofs share: workers, kinds of caches, damage, sample values; no test is in here."""
