"""The schema of version 0.1.0: no database has an older one, so nothing leads here."""

revision = "0004"
down_revision = None
