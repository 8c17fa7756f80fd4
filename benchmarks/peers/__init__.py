"""Other stores: how each is opened, which can be measured here, and their servers."""
