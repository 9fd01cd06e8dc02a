"""What verbs share: options, and the report of a failure."""
