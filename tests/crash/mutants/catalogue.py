"""Every seeded defect; `test_mutants.py` runs them."""
