"""Migrations of catalogues of earlier versions: Alembic's steps, one file each."""
