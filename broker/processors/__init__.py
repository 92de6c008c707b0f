"""One plain function for each request code: decode, ask the tables and the store, answer.  None of them awaits."""
