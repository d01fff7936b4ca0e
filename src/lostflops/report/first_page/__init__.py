"""The first page of a run as data: verdict, ledger, findings, and what is not known."""
