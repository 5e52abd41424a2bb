"""The papers' tables, from the records of `make results`: python -m bench.papers."""
