"""The Serving Ledger's library: one module a chapter, plus the few that several chapters share."""
