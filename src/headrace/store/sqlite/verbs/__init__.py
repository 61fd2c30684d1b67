"""The verbs of the contract, one per file: each is a function that runs inside one transaction."""
