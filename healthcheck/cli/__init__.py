"""The command lines `healthcheck` and `bench`, and what they share."""
