"""What is put beside other projects' tests so that they run on `AsyncCache`; imported there, never from here."""
