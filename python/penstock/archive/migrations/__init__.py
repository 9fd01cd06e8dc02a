"""Migrations of catalogues of earlier versions to the present tables: Alembic's steps, one file each."""
