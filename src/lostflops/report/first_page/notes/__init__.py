"""What a reader must know before believing the numbers: sentences above the ledger."""
