"""How catalogues of earlier versions are brought to the present tables: Alembic's steps, one file each."""
