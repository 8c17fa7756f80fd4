"""The promises shown by force: faults, races and hostile input, each case seeded and repeatable (`make prove`)."""
