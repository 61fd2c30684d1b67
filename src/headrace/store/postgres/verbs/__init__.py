"""The verbs of the contract, one per file. Each names the SQL function that it calls and the arguments of that function."""
