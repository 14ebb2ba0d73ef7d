"""What measures a server or sizes one. The product imports nothing of it but `mirage.cli`."""
