"""What is put beside other projects' tests so that they run on this package; imported there, never from here."""
