"""Options and the report of a failure, for several verbs."""
