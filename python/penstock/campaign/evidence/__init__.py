"""Evidence of a run: tables, certificates, validity."""
