"""The tests, in a folder for each part of the package; `support` has what they share."""
